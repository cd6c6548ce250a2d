"""Runs of Alice on ready gradients with a given implementation, for the tests of the CPU forms."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.kernels.native import BuildError, library
from paper import paper_alice

SHAPES = [(140, 131), (64,), (), (1,), (7, 5, 3, 3), (33, 33), (0, 3), (97, 101)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TERMS = [
    {"limit": limit, "hessian": hessian, "glass": glass}
    for limit, hessian, glass in itertools.product(
        ("adam", "fixed", "sgd"), ("none", "abs", "rms", "signed"), (True, False)
    )
]
"""Everything that a kernel is compiled for."""

NUMBERS: list[dict[str, Any]] = [
    {"weight_decay": 0.1, "lr_min": 1e-3},
    {"lookahead": 2.0, "step_fraction": 0.5, "hessian": "rms"},
    {"maximize": True, "lr_min": 1.0, "hessian": "signed"},
    {"eps": 0.0},
    {"eps": 0.0, "lr_min": 1e-3, "glass": False},
    {"eps": 0.0, "limit": "fixed", "hessian": "none"},
    {"betas": (0.0, 0.0), "quick_steps": 0},
    {"betas": (0.5, 0.75), "quick_steps": 0, "weight_decay": 0.01, "maximize": True},
    {"probe_radius": None, "lr": 0.3, "limit": "fixed"},
    {"probe_radius": 1e-4, "hessian": "signed"},
    {"max_grad_norm": 1e9},
]
"""Decay, bounds, lookahead, ascent, no eps, no memory, radii, a clip that does not bind."""

NOT_FINITE = {
    (0, 3): (4, float("nan")),
    (0, 2): (5, float("inf")),
    (1, 4): (6, float("nan")),
    (2, 2): (30, -float("inf")),
}
"""(round in a step, step): place in the first tensors, and what is there."""


def compiles() -> bool:
    """Whether the C++ kernels can be had here."""
    try:
        library()
    except BuildError:
        return False
    return True


needs_compiler = pytest.mark.skipif(not compiles(), reason="needs a C++ compiler")


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    """Small and large, odd and even, 0-dim and empty, and memory in every order.

    The last are channels_last, transposed, in five runs and in six, and with gaps.
    """
    draws = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64).to(dtype)

    tensors = [drawn(*shape) for shape in SHAPES]
    tensors.append(drawn(8, 16, 3, 3).to(memory_format=torch.channels_last))
    tensors.append(drawn(60, 300).t())
    tensors.append(drawn(2, 3, 4, 3, 2).permute(4, 3, 2, 1, 0))
    tensors.append(drawn(2, 3, 2, 3, 2, 3).permute(5, 3, 1, 4, 2, 0))
    tensors.append(drawn(60, 90)[:, ::3])
    return [nn.Parameter(t) for t in tensors]


@dataclass
class Run:
    """What came of a run: parameters, the places they were sent to, and the optimizer."""

    params: list[nn.Parameter]
    places: list[list[Tensor]]
    optimizer: Alice

    @property
    def skipped(self) -> list[int]:
        """Coordinates left alone, by parameter."""
        return [int(site.skipped) for site in self.optimizer.sites]

    def tensors(self) -> list[Tensor]:
        """Parameters and all of their states."""
        states = [self.optimizer.state.get(p, {}) for p in self.params]
        return [*(p.detach() for p in self.params), *(v for s in states for v in s.values())]


def assert_equal(expected: Run, found: Run) -> None:
    """Parameters, state, what was left alone, and every probe point: to the bit."""
    assert expected.skipped == found.skipped
    for step, (there, here) in enumerate(zip(expected.places, found.places, strict=True)):
        same = [torch.equal(x, y) for x, y in zip(there, here, strict=True)]
        assert all(same), f"evaluation {step}: parameters {_where(same)} stood elsewhere"
    tensors = list(zip(expected.tensors(), found.tensors(), strict=True))
    same = [x.stride() == y.stride() and torch.equal(x, y) for x, y in tensors]
    assert all(same), f"of all parameters, then states: {_where(same)} differ"


def _where(same: list[bool]) -> list[int]:
    return [i for i, equal in enumerate(same) if not equal]


def assert_close(expected: Run, found: Run, rtol: float) -> None:
    """Values to so much of each tensor's largest; what was left alone exactly."""
    assert expected.skipped == found.skipped
    for x, y in zip(expected.tensors(), found.tensors(), strict=True):
        assert x.stride() == y.stride()
        scale = max(x.double().abs().max().item(), 1e-20) if x.numel() else 1.0
        torch.testing.assert_close(x, y, rtol=0, atol=rtol * scale)


def run(implementation: str, dtype: torch.dtype, steps: int = 5, **options: Any) -> Run:
    """Steps on gradients that do not depend on the parameters, so that rounding cannot grow.

    Some are not finite; in the third step the fourth parameter has none on one side and the fifth
    none on either, and in the fourth the sixth has none at all.
    """
    params = parameters(dtype)
    given = {"lr": 0.01, "probe_radius": 0.02, "quick_steps": 1, **options}
    optimizer = paper_alice(params, seed=11, implementation=implementation, **given)
    places: list[list[Tensor]] = []
    draws = torch.Generator().manual_seed(5)
    for step in range(steps):
        rounds = itertools.count()

        def closure(step: int = step, rounds: itertools.count = rounds) -> None:
            places.append([p.detach().clone() for p in params])
            key = next(rounds), step
            for p in params:
                noise = torch.randn(p.shape, generator=draws, dtype=torch.float64)
                p.grad = noise.to(dtype) if p.dim() < 2 else torch.empty_like(p).copy_(noise)
            for i in {(1, 2): (3, 4), (0, 2): (4,), (0, 3): (5,)}.get(key, ()):
                params[i].grad = None
            if key in NOT_FINITE:
                place, value = NOT_FINITE[key]
                params[0].grad[place, 7] = params[1].grad[place] = value

        optimizer.step(closure)
    return Run(params, places, optimizer)


def quadratic(params: list[nn.Parameter]) -> Callable[[], None]:
    """A closure: gradients of the sum of squares."""

    def closure() -> None:
        for p in params:
            p.grad = 2 * p.detach()

    return closure


def everything(optimizer: Alice) -> list[Tensor]:
    """Copies of all parameters and all of their states."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    states = [v for p in params for v in optimizer.state.get(p, {}).values()]
    return [t.detach().clone() for t in (*params, *states)]


def assert_same(drive: Callable[[str], list[Tensor]]) -> None:
    """Equal results of both implementations."""
    expected, found = drive("eager"), drive("compiled")
    assert len(expected) == len(found)
    for i, (x, y) in enumerate(zip(expected, found, strict=True)):
        assert x.shape == y.shape
        assert torch.equal(x, y), i
