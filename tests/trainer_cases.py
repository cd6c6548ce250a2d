"""A small regression with BatchNorm and dropout, and the loop by hand that trainers must equal."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from aliceopt import Alice
from contract_cases import memory, same
from paper import paper_alice

BATCH = 8
Batch = tuple[Tensor, Tensor]
OPTIONS: dict[str, Any] = {"lr": 2.0**-6, "quick_steps": 1}


def noisy_network() -> nn.Sequential:
    """With statistics and masks that probes must not touch."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 1)]
        return nn.Sequential(*layers)


def plain_network() -> nn.Sequential:
    """Whose loss on a batch is the mean of those on its halves."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))


def dataset(batches: int) -> TensorDataset:
    """Enough examples for so many batches."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batches * BATCH, 4, generator=generator)
    return TensorDataset(x, x[:, :1] * x[:, 1:2])


def loader(batches: int, size: int = BATCH) -> DataLoader:
    """In order, every time."""
    return DataLoader(dataset(batches), batch_size=size)


def alice(model: nn.Module, **options: Any) -> Alice:
    """The optimizer of all comparisons: every other step measures."""
    return paper_alice(model.named_parameters(), model=model, **{**OPTIONS, **options})


def seed(step: int) -> None:
    """Before every step, so that what a framework draws between steps does not matter."""
    torch.manual_seed(100 + step)


def by_hand(
    model: nn.Module,
    optimizer: Alice,
    batches: Sequence[Batch],
    *,
    accumulate: int = 1,
    first: int = 0,
    autocast: bool = False,
    after: Callable[[], None] = lambda: None,
) -> None:
    """One epoch of the loop that the guide shows."""
    for step in range(first, len(batches) // accumulate):
        seed(step)
        window = batches[step * accumulate : (step + 1) * accumulate]
        for _ in optimizer.evaluations():
            for x, y in window:
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = nn.functional.mse_loss(model(x), y)
                (loss / len(window)).backward()
        optimizer.step()
        after()


def run_example(name: str) -> None:
    """A script of ``examples/``, without a trace in the random state."""
    example = Path(__file__).parent.parent / "examples" / f"{name}.py"
    with torch.random.fork_rng():
        runpy.run_path(str(example), run_name="__main__")


def everything(model: nn.Module, optimizer: Alice) -> dict[str, Any]:
    """Parameters, buffers, and the optimizer's state and counters."""
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    return {"weights": list(weights.values()), **memory(optimizer)}


def assert_same(a: tuple[nn.Module, Alice], b: tuple[nn.Module, Alice]) -> None:
    """To the bit."""
    assert a[1].gradient_evaluations == b[1].gradient_evaluations
    assert same(everything(*a), everything(*b))


def assert_close(a: nn.Module, b: nn.Module, tolerance: float = 1e-6) -> None:
    """Parameters, to rounding."""
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=tolerance, rtol=tolerance)
