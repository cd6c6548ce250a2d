"""Where parameters stand on a CPU while gradients are taken, and that their memory stays theirs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aliceopt.displacement import displaced
from aliceopt.site import Draw, signs_of
from cpu_cases import everything, needs_compiler
from paper import paper_alice

SIZES = (40000, 30)
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
pytestmark = [
    pytest.mark.parametrize(
        "implementation", ["eager", pytest.param("compiled", marks=needs_compiler)]
    ),
    pytest.mark.parametrize("dtype", DTYPES, ids=str),
]


class Run:
    """Steps on a quadratic; ``seen`` has what each evaluation found."""

    def __init__(self, implementation: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.params = [nn.Parameter(torch.randn(n).to(dtype)) for n in SIZES]
        self.optimizer = paper_alice(
            self.params, lr=0.02, quick_steps=1, seed=5, implementation=implementation
        )
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
        return everything(self.optimizer)


def test_a_parameter_keeps_its_memory(implementation: str, dtype: torch.dtype) -> None:
    """Views made before training see every probe point, and the position after each step."""
    run = Run(implementation, dtype)
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


def test_moves_count_in_the_version_of_a_parameter(implementation: str, dtype: torch.dtype) -> None:
    """So that autograd refuses a graph that spans one, instead of using what is not there."""
    run = Run(implementation, dtype)
    run.optimizer.step(run.closure)
    for _ in range(2):
        loss = sum((p**2).sum() for p in run.params)
        run.optimizer.step(run.closure)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_evaluations_are_at_the_probe_center_and_beside_it(
    implementation: str, dtype: torch.dtype
) -> None:
    """At nu + lambda t, nu - lambda t and nu in a measuring step, at nu in a quick one."""
    run = Run(implementation, dtype)
    for step in range(5):
        run.seen.clear()
        states = [run.optimizer.state.get(p, {}) for p in run.params]
        pairs = zip(run.params, states, strict=True)
        centers = [s.get("probe_center", p.detach().to(torch.float32)).clone() for p, s in pairs]
        if dtype == torch.float64 and step == 0:
            centers = [p.detach().clone() for p in run.params]
        run.optimizer.step(run.closure)
        assert all(map(torch.equal, (c.to(dtype) for c in centers), run.seen[-1]))
        if step % 2 == 0:
            for i, (site, center) in enumerate(zip(run.optimizer.sites, centers, strict=True)):
                signs = signs_of(site, Draw(5, step))
                for side, seen in zip((1, -1), run.seen[:2], strict=True):
                    there = displaced(center, dtype, 0.01, signs, side=side)
                    assert torch.equal(there.to(dtype), seen[i])


@pytest.mark.parametrize("evaluation", [4, 5, 6, 7])
def test_a_closure_that_raises_leaves_no_trace(
    implementation: str, dtype: torch.dtype, evaluation: int
) -> None:
    """In a quick step and at each point of a measuring one: parameters and state to the bit."""
    run = Run(implementation, dtype)
    quick = evaluation == 4
    for _ in range(1 if quick else 2):
        run.optimizer.step(run.closure)
    before = run.everything()
    run.fail_after = evaluation
    with pytest.raises(KeyError, match="closure"):
        run.optimizer.step(run.closure)
    assert all(map(torch.equal, before, run.everything()))


def test_no_gradient_at_the_center_leaves_a_parameter_alone(
    implementation: str, dtype: torch.dtype
) -> None:
    run = Run(implementation, dtype)
    run.optimizer.step(run.closure)
    before = run.everything()

    def closure() -> None:
        run.closure()
        run.params[0].grad = None

    for _ in range(2):
        run.optimizer.step(closure)
    after = run.everything()
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])
    state = len(run.optimizer.state[run.params[0]])
    assert all(map(torch.equal, before[2 : 2 + state], after[2 : 2 + state]))


def test_a_checkpoint_taken_inside_a_loop_has_the_positions(
    implementation: str, dtype: torch.dtype
) -> None:
    """The loop is given up, and mu and nu are each in their own place."""
    run = Run(implementation, dtype)
    for _ in range(2):
        run.optimizer.step(run.closure)
        before = run.everything()
        for _ in run.optimizer.evaluations():
            run.optimizer.state_dict()
            break
        assert all(map(torch.equal, before, run.everything()))
