"""Where parameters stand on a CPU while gradients are taken, and that their memory stays theirs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.kernels.chunks import ChunkedBackend
from aliceopt.kernels.compiled import CompiledBackend

BACKENDS = [lambda: ChunkedBackend(64), lambda: CompiledBackend(strict=True)]
SIZES = (20000, 30)
pytestmark = [
    pytest.mark.usefixtures("uncompiled"),
    pytest.mark.parametrize("make", BACKENDS, ids=["chunked", "compiled"]),
]


class Run:
    """Steps on a quadratic; ``seen`` has what each evaluation found."""

    def __init__(self, make: Callable[[], ChunkedBackend], **options: object):
        torch.manual_seed(0)
        self.params = [nn.Parameter(torch.randn(n)) for n in SIZES]
        self.optimizer = Alice(self.params, lr=0.01, quick_steps=1, **options)
        self.optimizer._backends._made[torch.device("cpu")] = make()
        self.seen: list[list[Tensor]] = []
        self.addresses: set[tuple[int, ...]] = set()
        self.fail_after: int | None = None

    def closure(self) -> Tensor:
        self.seen.append([p.detach().clone() for p in self.params])
        self.addresses.add(tuple(p.data_ptr() for p in self.params))
        if len(self.seen) == self.fail_after:
            raise KeyError("closure")
        loss = sum((p**2).sum() for p in self.params)
        loss.backward()
        return loss

    def everything(self) -> list[Tensor]:
        states = [v for p in self.params for v in self.optimizer.state[p].values()]
        return [t.detach().clone() for t in (*self.params, *states)]


def test_a_parameter_keeps_its_memory(make: Callable[[], ChunkedBackend]) -> None:
    """Views made before training see every probe point, and the position after each step."""
    run = Run(make)
    views = [p.detach().view(-1) for p in run.params]
    own = tuple(p.data_ptr() for p in run.params)
    found: list[list[Tensor]] = []

    def closure() -> Tensor:
        found.append([view.clone() for view in views])
        return run.closure()

    for _ in range(4):
        run.optimizer.step(closure)
        assert all(map(torch.equal, views, (p.detach() for p in run.params)))
    assert run.addresses == {own}
    for there, here in zip(run.seen, found, strict=True):
        assert all(map(torch.equal, there, here))


def test_quick_steps_evaluate_at_the_probe_center(make: Callable[[], ChunkedBackend]) -> None:
    run = Run(make)
    run.optimizer.step(run.closure)
    centers = [run.optimizer.state[p]["probe_center"].clone() for p in run.params]
    run.optimizer.step(run.closure)
    assert all(map(torch.equal, centers, run.seen[-1]))


@pytest.mark.parametrize("evaluation", [4, 5, 6, 7])
def test_a_closure_that_raises_leaves_no_trace(
    make: Callable[[], ChunkedBackend], evaluation: int
) -> None:
    """In a quick step and at each point of a full one: parameters and state to the bit."""
    run = Run(make)
    quick = evaluation == 4
    for _ in range(1 if quick else 2):
        run.optimizer.step(run.closure)
    before = run.everything()
    run.fail_after = evaluation
    with pytest.raises(KeyError, match="closure"):
        run.optimizer.step(run.closure)
    assert all(map(torch.equal, before, run.everything()))


def test_no_gradient_at_the_center_leaves_a_parameter_alone(
    make: Callable[[], ChunkedBackend],
) -> None:
    run = Run(make)
    run.optimizer.step(run.closure)
    before = run.everything()

    def closure() -> None:
        run.closure()
        run.params[0].grad = None

    run.optimizer.step(closure)
    after = run.everything()
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])
    state = len(run.optimizer.state[run.params[0]])
    assert all(map(torch.equal, before[2 : 2 + state], after[2 : 2 + state]))


def test_a_checkpoint_taken_inside_a_loop_has_the_positions(
    make: Callable[[], ChunkedBackend],
) -> None:
    """The loop is given up, and mu and nu are each in their own place."""
    run = Run(make)
    run.optimizer.step(run.closure)
    before = run.everything()
    for _ in run.optimizer.evaluations():
        run.optimizer.state_dict()
        break
    assert all(map(torch.equal, before, run.everything()))
