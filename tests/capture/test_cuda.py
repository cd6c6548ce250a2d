"""Captured steps on a GPU are the uncaptured ones to the bit, alone and side by side."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aliceopt
from cuda_cases import Run, assert_equal, batches
from paper import paper_alice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hessian": "signed", "limit": "fixed", "max_grad_norm": 2.0},
        {"hessian": "none", "glass": False},
        {"quick_steps": 0, "hessian": "rms", "maximize": True},
    ],
    ids=str,
)
def test_captured_and_uncaptured_runs_are_equal_to_the_bit(options: dict[str, Any]) -> None:
    """Dropout, BatchNorm, a schedule from lr 0: losses, parameters, buffers, state, generator."""
    runs = [Run(captured, **options) for captured in (False, True)]
    ends = []
    for run in runs:
        torch.cuda.manual_seed(7)
        scheduler = torch.optim.lr_scheduler.LinearLR(run.optimizer, 1e-9, total_iters=6)
        for x, y in zip(*batches(14), strict=True):
            run.train(x, y)
            scheduler.step()
        ends.append(run.everything())
    assert_equal(*ends)
    assert runs[0].optimizer.telemetry() == runs[1].optimizer.telemetry()


def intervene(run: Run, change: str, i: int) -> None:
    """Something a user may do before step ``i``."""
    groups = run.optimizer.param_groups
    if change == "a schedule":
        groups[0]["lr"] *= 0.9
    elif change == "another radius" and i in (3, 7):
        groups[0]["probe_radius"] = 0.02 * i
    elif change == "another seed" and i == 6:
        groups[0]["seed"] = 5
    elif change == "fewer quick steps" and i == 4:
        groups[0]["quick_steps"] = 0
    elif change == "clipping" and i in (3, 6):
        groups[0]["max_grad_norm"] = {3: 0.5, 6: None}[i]
    elif change == "an edited center" and i in (3, 6):
        run.optimizer.state[run.model[4].weight]["probe_center"].mul_(1.01)  # type: ignore[index]
    elif change == "an edited parameter" and i in (0, 3):
        with torch.no_grad():
            run.model[4].weight.mul_(1.01)  # type: ignore[index]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("quick_steps", [0, 2])
@pytest.mark.parametrize(
    "change",
    [
        "nothing",
        "a schedule",
        "another radius",
        "another seed",
        "fewer quick steps",
        "clipping",
        "an edited center",
        "an edited parameter",
        "uncaptured steps",
    ],
)
def test_whatever_is_done_between_steps_is_followed(change: str, quick_steps: int) -> None:
    ends = []
    for captured in (False, True):
        run = Run(captured, quick_steps=quick_steps)
        torch.cuda.manual_seed(7)
        for i, (x, y) in enumerate(zip(*batches(11), strict=True)):
            intervene(run, change, i)
            run.train(x, y, replay=change != "uncaptured steps" or i not in (2, 3, 6))
        ends.append(run.everything())
    assert_equal(*ends)


class Odd(nn.Module):
    """What cannot be pointed, and a parameter whose gradient comes in another layout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.plain = nn.Parameter(torch.randn(33, device="cuda"))
        self.low = nn.Parameter(torch.randn(40, device="cuda").bfloat16())
        self.part = nn.Parameter(torch.randn(80, device="cuda")[:40])
        self.turned = nn.Parameter(torch.randn(30, 20, device="cuda").t())
        self.idle = nn.Parameter(torch.randn(33, device="cuda"))
        self.use_part = True


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("quick_steps", [0, 1])
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_what_cannot_be_pointed_is_replayed_to_the_bit(
    quick_steps: int, max_grad_norm: float | None
) -> None:
    """Low precision; a part of a larger buffer, later without a gradient; no gradient at all."""
    ends = []
    for captured in (False, True):
        model = Odd()
        optimizer = paper_alice(
            model.parameters(),
            quick_steps=quick_steps,
            max_grad_norm=max_grad_norm,
            model=model,
            lr=0.02,
        )

        def closure(model: Odd = model) -> Tensor:
            part = model.part if model.use_part else model.part.detach()
            loss = (part * model.low.float() - 1).abs().sum() + (part**2).sum()
            loss = loss + ((model.plain - model.idle.detach()) ** 4).mean()
            loss.backward()
            grad = model.turned.detach().sign() + 0.1 * model.turned.detach()
            model.turned.grad = grad.contiguous()
            return loss

        step: Any = aliceopt.capture(optimizer, closure) if captured else closure
        losses = []
        for i in range(8):
            if i == 4:
                model.use_part = False
                model.plain.data = model.plain.data.clone()  # makes a captured run look again
            losses.append(optimizer.step(step).detach().clone())
        states = [v for s in optimizer.state.values() for v in s.values()]
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        ends.append([t.detach().clone() for t in (*model.parameters(), *states, *grads, *losses)])
    assert_equal(*ends)


@pytest.mark.usefixtures("deterministic")
def test_parameters_that_others_train_get_their_gradients() -> None:
    """One a step, added to what is there; zeroed with or without keeping the tensor."""
    ends = []
    for captured in (False, True):
        run = Run(captured=False)
        head = list(run.model[7].parameters())  # type: ignore[index]
        mine = [p for p in run.model.parameters() if not any(p is h for h in head)]
        run.optimizer = paper_alice(mine, lr=0.01, quick_steps=1, model=run.model)
        other = torch.optim.SGD(head, lr=0.01)
        run.step = run.capture() if captured else None
        torch.cuda.manual_seed(7)
        for i, (x, y) in enumerate(zip(*batches(9), strict=True)):
            run.train(x, y)
            if i % 3 < 2:
                other.step()
                other.zero_grad(set_to_none=i % 2 == 0)
        ends.append(run.everything())
    assert_equal(*ends)


@pytest.mark.usefixtures("deterministic")
def test_a_checkpoint_loaded_into_a_captured_run_continues_it() -> None:
    """State tensors change address; the step is captured anew and goes on to the bit."""
    images, labels = batches(10)
    through, resumed = Run(captured=True), Run(captured=True)
    for i in range(5):
        through.train(images[i], labels[i])
    saved = copy.deepcopy((through.model.state_dict(), through.optimizer.state_dict()))
    generator = torch.cuda.get_rng_state()
    for i in range(5, 10):
        through.train(images[i], labels[i])
    through.losses = through.losses[5:]
    end = through.everything()
    resumed.model.load_state_dict(saved[0])
    resumed.optimizer.load_state_dict(saved[1])
    torch.cuda.set_rng_state(generator)
    for i in range(5, 10):
        resumed.train(images[i], labels[i])
    assert_equal(end, resumed.everything())


def multiplying(seed: int) -> nn.Module:
    """Matrices that cuBLAS multiplies with a workspace, and dropout."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(4096, 128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, 4096),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(4096, 10),
    ).cuda()


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("count", [2, 3])
def test_captured_steps_may_run_at_the_same_time(count: int) -> None:
    """Replayed in turn on streams of their own, they are what they are on one stream, to the bit.

    No workspace, random state or table is shared, and nothing waits until the end.
    """
    draws = torch.Generator().manual_seed(3)
    images = torch.randn(30, 64, 4096, generator=draws).cuda()
    labels = torch.randint(0, 10, (30, 64), generator=draws).cuda()
    ends = []
    for apart in (False, True):
        runs = [
            Run(True, multiplying(seed), (images, labels), lr=0.001, quick_steps=1)
            for seed in range(count)
        ]
        here = torch.cuda.current_stream()
        streams = [torch.cuda.Stream() if apart else here for _ in runs]
        torch.cuda.manual_seed(7)
        torch.cuda.synchronize()
        for x, y in zip(images, labels, strict=True):
            for run, stream in zip(runs, streams, strict=True):
                with torch.cuda.stream(stream):
                    run.train(x, y)
        torch.cuda.synchronize()
        ends.append([t for run in runs for t in run.everything()])
    assert_equal(*ends)
    assert all(t.isfinite().all() for t in ends[0])
