"""A small training run on a GPU, captured or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import aliceopt
from paper import paper_alice


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 40),
        nn.Dropout(0.3),
        nn.ReLU(),
        nn.Linear(40, 5),
    ).cuda()


def batches(count: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(3)
    images = torch.randn(count, 16, 3, 6, 6, generator=draws).cuda()
    return images, torch.randint(0, 5, (count, 16), generator=draws).cuda()


class Run:
    """A small training run, captured or not, with everything that tells two of them apart."""

    def __init__(
        self,
        captured: bool,
        model: nn.Module | None = None,
        data: tuple[Tensor, Tensor] | None = None,
        **options: Any,
    ):
        self.model = network() if model is None else model
        given = {"lr": 0.01, "quick_steps": 2, "weight_decay": 0.1, "model": self.model}
        self.optimizer = paper_alice(self.model.parameters(), **{**given, **options})
        self.x, self.y = (t[0].clone() for t in (batches(1) if data is None else data))
        self.hook: Callable[[], None] = lambda: None
        self.step = self.capture() if captured else None
        self.losses: list[Tensor] = []

    def closure(self) -> Tensor:
        self.hook()
        loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        return loss

    def capture(self) -> aliceopt.CapturedStep:
        return aliceopt.capture(self.optimizer, self.closure, (self.x, self.y))

    def train(self, x: Tensor, y: Tensor, *, replay: bool = True) -> None:
        """Without waiting for the device."""
        if self.step is not None and replay:
            loss = self.step(x, y)
        else:
            self.x.copy_(x)
            self.y.copy_(y)
            loss = self.optimizer.step(self.closure)
        self.losses.append(loss.detach().clone())

    def everything(self) -> list[Tensor]:
        states = [v for s in self.optimizer.state.values() for v in s.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *states, *self.losses]
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [t.detach().clone() for t in (*tensors, *grads, torch.cuda.get_rng_state())]


def assert_equal(a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
