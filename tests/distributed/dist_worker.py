"""One training run: on one process, under DDP or under FSDP2, on the same global batches.

Everything that must not depend on the processes comes back as plain tensors and numbers.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from aliceopt import Alice, landscape
from aliceopt.compress import TERMS, sensitivity
from aliceopt.integrations.window import Window
from paper import paper_alice

Result = dict[str, Any]
WORLD = 2
TRACED_STEPS = 4


@dataclass(frozen=True)
class Run:
    """One training run: who computes, and how the optimizer is driven."""

    kind: str = "single"
    dtype: torch.dtype = torch.float64
    wrap: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    drive: str = "closure"
    accumulate: bool = False
    steps: int = 12

    def reference(self) -> Run:
        """The same on one process, on the whole batch at once."""
        return Run(dtype=self.dtype, options=self.options, steps=self.steps)


_F32 = {"dtype": torch.float32}
_ALONE = {"gradient_as_bucket_view": True, "bucket_cap_mb": 1e-5}
_CLIP = {"options": {"max_grad_norm": 0.3}}
RUNS = {
    "ddp": Run("ddp", steps=30),
    "ddp float32": Run("ddp", **_F32),
    "ddp loop": Run("ddp", drive="loop"),
    "ddp bucket view": Run("ddp", wrap={"gradient_as_bucket_view": True}),
    "ddp lone buckets": Run("ddp", wrap=_ALONE, drive="loop"),
    "ddp static graph": Run("ddp", wrap={"static_graph": True}),
    "ddp accumulate closure": Run("ddp", accumulate=True),
    "ddp accumulate loop": Run("ddp", accumulate=True, drive="loop"),
    "ddp accumulate window": Run("ddp", accumulate=True, drive="window"),
    "ddp accumulate bucket view": Run("ddp", wrap=_ALONE, accumulate=True),
    "ddp accumulate window view": Run("ddp", wrap=_ALONE, accumulate=True, drive="window"),
    "ddp accumulate float32": Run("ddp", accumulate=True, **_F32),
    "ddp clip": Run("ddp", **_CLIP),
    "fsdp": Run("fsdp", steps=30),
    "fsdp float32": Run("fsdp", **_F32),
    "fsdp loop": Run("fsdp", drive="loop"),
    "fsdp keep": Run("fsdp", wrap={"reshard_after_forward": False}, drive="loop"),
    "fsdp accumulate closure": Run("fsdp", accumulate=True),
    "fsdp accumulate loop": Run("fsdp", accumulate=True, drive="loop"),
    "fsdp accumulate window": Run("fsdp", accumulate=True, drive="window"),
    "fsdp accumulate float32": Run("fsdp", accumulate=True, **_F32),
    "fsdp clip": Run("fsdp", **_CLIP),
    "fsdp signed": Run("fsdp", options={"hessian": "signed"}),
}


def network(dtype: torch.dtype) -> nn.Sequential:
    """Rows 5, 7 and 1 over two processes: uneven shards, and empty ones in the last layer."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1)]
    return nn.Sequential(*layers).to(dtype)


def sharded(model: nn.Sequential, **wrap: Any) -> nn.Sequential:
    """The first two layers sharded by themselves, the last by the root."""
    for layer in (model[0], model[2]):
        fully_shard(layer, **wrap)
    return fully_shard(model, **wrap)


def wrapped(run: Run) -> nn.Module:
    """The network as this run wants it."""
    model = network(run.dtype)
    if run.kind == "single":
        return model
    if run.kind == "ddp":
        return DistributedDataParallel(model, **run.wrap)
    return sharded(model, **run.wrap)


def alice(model: nn.Module, **options: Any) -> Alice:
    """Full and quick steps by turns."""
    return paper_alice(model.parameters(), 0.05, model=model, quick_steps=1, **options)


def batch(step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The global batch of a step: twelve samples, no two alike."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.sin(2 * x.sum(1, keepdim=True)).to(dtype)


def mine(tensor: Tensor, run: Run) -> Tensor:
    """This process's part of a batch."""
    return tensor if run.kind == "single" else tensor.chunk(WORLD)[dist.get_rank()]


@contextlib.contextmanager
def reducing(model: nn.Module, on: bool) -> Iterator[None]:
    """Whether backward passes in here are reduced over processes."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(on)
    with contextlib.nullcontext() if on or isinstance(model, FSDPModule) else model.no_sync():
        yield


def backward(model: nn.Module, run: Run, step: int, only: int | None = None) -> None:
    """Forward and backward over this process's part: whole, in two micro-batches or one of two."""
    x, y = (mine(part, run) for part in batch(step, run.dtype))
    pieces = list(zip(x.chunk(2), y.chunk(2), strict=True)) if run.accumulate else [(x, y)]
    for i, (a, b) in enumerate(pieces):
        if only not in (None, i):
            continue
        outside = only is not None or not run.accumulate
        with contextlib.nullcontext() if outside else reducing(model, i == len(pieces) - 1):
            ((model(a) - b).square().mean() / len(pieces)).backward()


@torch.no_grad()
def validation(model: nn.Module, run: Run) -> float:
    """The loss of the whole validation batch, which leaves an FSDP2 root unsharded."""
    x, y = batch(-1, run.dtype)
    return (model(x) - y).square().mean().item()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, wherever its shards are."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def parameters(optimizer: Alice) -> list[Tensor]:
    """All of every parameter."""
    return [whole(p) for p in optimizer.param_groups[0]["params"]]


def gathered_state(optimizer: Alice) -> list[Result]:
    """All of the state of every parameter."""
    return [{n: whole(v) for n, v in s.items()} for s in optimizer.state.values()]


def advance(model: nn.Module, optimizer: Alice, run: Run, step: int) -> Result:
    """One step, with validation after it and, for a loop, before it."""
    stood: list[list[Tensor]] = []

    def evaluate(only: int | None = None) -> None:
        if step < TRACED_STEPS:
            stood.append(parameters(optimizer))
        backward(model, run, step, only)

    losses = []
    if run.drive == "closure":
        optimizer.step(evaluate)
    elif run.drive == "window":
        window = Window()
        for i in range(2):
            with reducing(model, i == 1):
                for _ in window.evaluations(optimizer, last=i == 1):
                    evaluate(i)
            losses.append(validation(model, run))
        optimizer.step()
    else:
        for _ in optimizer.evaluations():
            evaluate()
        losses.append(validation(model, run))
        optimizer.step()
    losses.append(validation(model, run))
    signs = [plus > minus for plus, minus in zip(*stood[:2], strict=True)] if stood[1:] else []
    return {"signs": signs, "losses": losses}


def train(run: Run) -> Result:
    """The whole run, and everything about it that must not depend on the processes."""
    model = wrapped(run)
    optimizer = alice(model, **run.options)
    steps = [advance(model, optimizer, run, step) for step in range(run.steps)]
    return {
        "parameters": parameters(optimizer),
        "state": gathered_state(optimizer),
        "group": {k: v for k, v in optimizer.param_groups[0].items() if k != "params"},
        "telemetry": optimizer.telemetry().as_dict(),
        "signs": [step["signs"] for step in steps],
        "losses": [step["losses"][-1] for step in steps],
        "before step": [step["losses"][0] for step in steps],
        "sharded like parameters": all(
            isinstance(v, DTensor) and v.placements == p.placements
            for p, entries in optimizer.state.items()
            for v in entries.values()
            if isinstance(p, DTensor) and v.dim() > 0
        ),
        "grad storage": [
            p.grad.untyped_storage().nbytes() // p.grad.element_size()
            for p in optimizer.param_groups[0]["params"]
            if not isinstance(p, DTensor)
        ],
    }


def measured_sensitivity(run: Run) -> Result:
    """All terms at two radii over five batches, whole and resumed after three; what was left."""
    model, terms = wrapped(run), TERMS
    before = [whole(parameter) for parameter in model.parameters()]

    def measure(batches: int, **more: Any) -> list[Tensor]:
        found = sensitivity(
            model,
            lambda step: backward(model, run, step),
            range(batches),
            (0.01, 0.05),
            terms=terms,
            errors=True,
            **more,
        ).full()
        kept = [*found.means.values(), *found.spreads.values()]
        return [tensor for there in kept for tensor in there.values()]

    validation(model, run)  # leaves an FSDP2 root unsharded
    once = measure(5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kept"
        measure(3, checkpoint=path)
        resumed = measure(5, checkpoint=path)
    after = [whole(parameter) for parameter in model.parameters()]
    return {"found": once, "resumed": resumed, "before": before, "after": after}


def measured_landscape(run: Run) -> Result:
    """Numbers of every instrument on two batches, and what was left, also by one that fails."""
    model = wrapped(run)
    before = [whole(parameter) for parameter in model.parameters()]

    def loss(step: int) -> Tensor:
        x, y = (mine(part, run) for part in batch(step, run.dtype))
        return (model(x) - y).square().mean()

    def closure(step: int) -> Tensor:
        value = loss(step)
        value.backward()
        return value.detach()

    def failing(step: int) -> Tensor:
        if step == 1:
            raise KeyboardInterrupt
        return closure(step)

    def failing_alone(step: int) -> Tensor:
        loss(step)
        raise KeyboardInterrupt

    validation(model, run)  # leaves an FSDP2 root unsharded
    two = {"batches": range(2)}
    radii = landscape.choose_radii(model, lambda: closure(0), count=3)
    bounds = landscape.bound_check(model, closure, 0.02, probes=2, directions=2, **two)
    cut = partial(landscape.slices, directions=["gradient", "random"], reach=0.02, points=3)
    found = [
        landscape.ladder(model, closure, radii, directions=2, **two).as_dict(),
        landscape.diagonals(model, closure, 0.02, directions=2, **two).as_dict(),
        bounds.as_dict(),
        cut(model, closure, probes=2, **two).as_dict(),
        cut(model, closure, loss=loss, probes=2, **two).as_dict(),
    ]
    for measure in (landscape.ladder, landscape.diagonals, landscape.bound_check):
        with contextlib.suppress(KeyboardInterrupt):
            measure(model, failing, 0.02, **two)
    with contextlib.suppress(KeyboardInterrupt):
        landscape.bound_check(model, closure, 0.02, loss=failing_alone, **two)
    after = [whole(parameter) for parameter in model.parameters()]
    return {"found": found, "before": before, "after": after}


MEASURED = {
    f"{name} {kind}": partial(measure, Run() if kind == "alone" else Run(kind))
    for name, measure in (("sensitivity", measured_sensitivity), ("landscape", measured_landscape))
    for kind in ("alone", "ddp", "fsdp")
}


def copied(tree: Any) -> Any:
    """A checkpoint that later steps cannot change."""
    if isinstance(tree, dict):
        return {k: copied(v) for k, v in tree.items()}
    return tree.detach().clone() if isinstance(tree, Tensor) else tree
