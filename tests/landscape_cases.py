"""Losses to measure the power law of: a quadratic, and a classifier with one hidden layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Closure:
    """Forward and backward; ``loss`` is the forward pass alone."""

    def __init__(self, loss: Callable[[], Tensor]):
        self.loss = loss

    def __call__(self) -> Tensor:
        loss = self.loss()
        loss.backward()
        return loss


def quadratic(n: int = 40, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Callable]:
    """Two parameters and a dense quadratic loss of both."""
    g = generator()
    model = nn.Module()
    model.first = nn.Parameter((torch.randn(n // 2, generator=g) / 4).to(dtype))
    model.second = nn.Parameter((torch.randn(n - n // 2, generator=g) / 4).to(dtype))
    root = torch.randn(n, n, generator=g, dtype=torch.float64)
    hessian = (root @ root.T / n).to(torch.promote_types(dtype, torch.float32))

    def closure() -> Tensor:
        x = torch.cat([model.first, model.second]).to(hessian.dtype)
        loss = x @ hessian @ x / 2
        loss.backward()
        return loss

    return model, closure


def network(
    activation: Callable[[], nn.Module] = nn.ReLU,
    *,
    dropout: float = 0.0,
    norm: bool = False,
    dtype: torch.dtype = torch.float64,
) -> tuple[nn.Sequential, Closure]:
    """A classifier with one hidden layer, and a closure on a fixed batch of 128."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers: list[tuple[str, nn.Module]] = [("hidden", nn.Linear(32, 128))]
        if norm:
            layers.append(("norm", nn.BatchNorm1d(128)))
        layers += [("act", activation()), ("drop", nn.Dropout(dropout))]
        layers.append(("output", nn.Linear(128, 10)))
        model = nn.Sequential()
        for name, layer in layers:
            model.add_module(name, layer)
        model.to(dtype)
        x, y = torch.randn(128, 32, dtype=dtype), torch.randint(10, (128,))

    return model, Closure(lambda: F.cross_entropy(model(x), y))


def everything(model: nn.Module) -> list[Tensor]:
    """Copies of all that an instrument must leave as it was."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    kept = [*model.parameters(), *model.buffers(), *grads, torch.get_rng_state()]
    return [tensor.detach().clone() for tensor in kept]


class Interrupted:
    """A closure that counts its calls and is interrupted behind the so-manieth, from 0 on."""

    def __init__(self, closure: Callable[[], Tensor], call: int | None):
        self.closure, self.call, self.calls = closure, call, 0

    def __call__(self) -> Tensor:
        loss = self.closure()
        self.calls += 1
        if self.call is not None and self.calls > self.call:
            raise KeyboardInterrupt
        return loss
