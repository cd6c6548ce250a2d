"""Option combinations, a small task and exact comparison, for the tests of Alice's contract."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aliceopt import Alice
from paper import paper_alice

Options = dict[str, Any]
LR = 2.0**-6  # the same in float32 and float64


class Case(NamedTuple):
    """One way to construct Alice."""

    name: str
    options: Options


def _grid() -> Iterable[Case]:
    """Every limit with every curvature; "sgd" has no radius of its own."""
    kinds = ("none", "abs", "rms", "signed")
    for limit, hessian, glass in product(("adam", "fixed", "sgd"), kinds, (True, False)):
        options = {"limit": limit, "hessian": hessian, "glass": glass}
        if limit == "sgd":
            options["probe_radius"] = 0.01
        yield Case(f"{limit}-{hessian}-{'glass' if glass else 'plain'}", options)


def _single_changes() -> Iterable[Case]:
    """The defaults, with one other option changed at a time."""
    changes: list[Options] = [
        {"lr_min": 1e-3},
        {"lr_min": 1.0},
        {"probe_radius": 0.05},
        {"betas": (0.0, 0.9)},
        {"eps": 1e-3},
        {"step_fraction": 1.0},
        {"lookahead": 2.0},
        {"quick_steps": 0},
        {"quick_steps": 1},
        {"weight_decay": 0.1},
        {"max_grad_norm": 0.05},
        {"maximize": True},
        {"seed": 2**62 + 1},
        {"implementation": "eager"},
    ]
    for change in changes:
        yield Case("-".join(f"{name}={value}" for name, value in change.items()), change)


CASES = [*_grid(), *_single_changes()]
IDS = [case.name for case in CASES]
OPTIONS = [case.options for case in CASES]

FEW_OPTIONS: list[Options] = [
    {},
    {"hessian": "signed", "quick_steps": 1, "weight_decay": 0.1},
    {"hessian": "rms", "glass": False, "quick_steps": 0, "limit": "fixed"},
    {"hessian": "none", "limit": "sgd", "probe_radius": 0.01, "max_grad_norm": 0.05},
    {"hessian": "none", "glass": False},
]
"""Enough variety for behaviours that do not meet the arithmetic."""


def network(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Four inputs, five ReLUs, one output."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)).to(dtype)


def batch(index: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Batch ``index`` of an endless stream: twelve noisy observations of one function."""
    generator = torch.Generator().manual_seed(1000 + index)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(12, 1, generator=generator, dtype=torch.float64)
    y = x[:, :1] * x[:, 1:2] + 0.1 * noise
    return x.to(dtype), y.to(dtype)


def make(options: Options, *, seed: int = 0, dtype: torch.dtype = torch.float32):
    """A network and an Alice on it."""
    model = network(seed, dtype)
    return model, paper_alice(model.parameters(), **{"lr": LR, **options})


def loss_of(model: nn.Module, index: int) -> Tensor:
    """Mean squared error on batch ``index``, in the model's dtype."""
    x, y = batch(index, next(model.parameters()).dtype)
    return nn.functional.mse_loss(model(x), y)


def backward(model: nn.Module, index: int) -> Tensor:
    """Forward and backward on batch ``index``; the loss still holds its graph."""
    loss = loss_of(model, index)
    loss.backward()
    return loss


def closure_for(model: nn.Module, index: int) -> Callable[[], Tensor]:
    """Forward and backward on batch ``index``, to the detached loss."""
    return lambda: backward(model, index).detach()


def train(model: nn.Module, optimizer: Alice, first: int, last: int) -> None:
    """Steps ``first`` up to but not including ``last``, by closure."""
    for index in range(first, last):
        optimizer.step(closure_for(model, index))


def run_loop(model: nn.Module, optimizer: Alice, index: int) -> None:
    """The evaluations of one step, without the step."""
    for _ in optimizer.evaluations():
        backward(model, index)


@contextmanager
def silence() -> Iterator[None]:
    """Every warning within is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def values(source: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    """Copies of all parameters."""
    params = source.parameters() if isinstance(source, nn.Module) else source
    return [p.detach().clone() for p in params]


def memory(optimizer: Alice) -> dict[str, Any]:
    """A deep copy of the state and of every option, with parameters numbered."""
    saved = optimizer.state_dict()
    state = {
        f"{index}.{name}": value.clone() if isinstance(value, Tensor) else value
        for index, entries in saved["state"].items()
        for name, value in entries.items()
    }
    names = {"params", *optimizer_options()}
    groups = [{k: v for k, v in g.items() if k in names} for g in saved["param_groups"]]
    return {"state": state, "groups": groups}


def optimizer_options() -> list[str]:
    """What a freshly made Alice keeps in its groups, parameters aside."""
    group = paper_alice([nn.Parameter(torch.zeros(1))]).param_groups[0]
    return [name for name in group if name != "params"]


def same(a: Any, b: Any) -> bool:
    """Equal in structure, type, dtype, shape and every bit (NaN equals NaN)."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def counts(optimizer: Alice) -> tuple[int, int, int]:
    """Full steps, quick steps, cadence."""
    group = optimizer.param_groups[0]
    return group["measuring_count"], group["quick_count"], group["cadence"]


def topography(optimizer: Alice, param: Tensor, name: str) -> Tensor:
    """An average of the topography, bias-corrected by hand in float64."""
    state = optimizer.state[param]
    return state[name].double() / state["topography_weight"]
