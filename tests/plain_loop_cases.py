"""A network with everything that looking ahead may trip over, and its plain loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aliceopt import Alice
from contract_cases import values
from paper import paper_alice

OPTIONS: dict[str, Any] = {
    "lr": 0.02,
    "lookahead": 2.0,
    "step_fraction": 1.0,
    "hessian": "none",
    "glass": False,
    "weight_decay": 0.1,
}


class Network(nn.Module):
    """BatchNorm, dropout, and a block that may be recomputed in backward."""

    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.recompute = recompute

    def block(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(torch.tanh(self.norm(self.first(x))), 0.3, self.training)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            raise ValueError("nothing to do")
        if self.recompute:
            hidden = checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=True)
        else:
            hidden = self.block(x)
        return self.last(hidden)


def batches(i: int, parts: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(i)
    for _ in range(parts):
        yield torch.randn(8, 3, generator=g), torch.randn(8, 1, generator=g)


def plainly(model: nn.Module, optimizer: Alice, i: int, parts: int) -> None:
    optimizer.zero_grad()
    for x, y in batches(i, parts):
        ((model(x) - y).square().mean() / parts).backward()
    optimizer.step()


def ready() -> tuple[Network, Alice, list[Tensor]]:
    """A model after two steps, its optimizer, and where it is at home."""
    model = Network()
    optimizer = paper_alice(model.parameters(), model=model, **OPTIONS)
    for i in range(2):
        plainly(model, optimizer, i, 1)
    return model, optimizer, values(model)


def is_home(model: nn.Module, home: list[Tensor]) -> bool:
    return all(map(torch.equal, home, model.parameters()))
