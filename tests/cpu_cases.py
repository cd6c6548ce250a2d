"""Runs of Alice on ready gradients with a given backend, for the tests of the CPU forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.kernels import Backend, compiled

SHAPES = [(300, 40), (64,), (), (1,), (7, 5, 3, 3), (33, 33), (0, 3), (97, 101)]
NOT_FINITE = {(0, 3, 4): float("nan"), (1, 1, 2): float("inf"), (2, 4, 30): -float("inf")}
"""(round in a step, step, place in the first matrix): value."""


def forget_passes() -> None:
    """Have the next use of a compiled pass make it anew."""
    for cached in (
        compiled._hash_pass,
        compiled._displace_pass,
        compiled._swap_pass,
        compiled._update_pass,
    ):
        cached.cache_clear()


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    """Small and large, odd and even, channels_last, transposed, strided, 0-dim and empty."""
    draws = torch.Generator().manual_seed(3)
    tensors = [torch.randn(shape, generator=draws, dtype=torch.float64) for shape in SHAPES]
    tensors.append(torch.randn(8, 16, 3, 3, generator=draws, dtype=torch.float64))
    tensors.append(torch.randn(50, 300, generator=draws, dtype=torch.float64).t())
    tensors = [t.to(dtype) for t in tensors]
    tensors[-2] = tensors[-2].to(memory_format=torch.channels_last)
    tensors.append(tensors[0].clone()[:, ::3])
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
        return [int(site.skipped) for site in self.optimizer._sites]

    def tensors(self) -> list[Tensor]:
        """Parameters and all of their states."""
        states = [self.optimizer.state.get(p, {}) for p in self.params]
        return [*(p.detach() for p in self.params), *(v for s in states for v in s.values())]


TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-6, torch.float16: 2e-6}


def assert_agree(expected: Run, found: Run, dtype: torch.dtype) -> None:
    """Values to rounding; what was left alone, and the probe points of the first step, exactly.

    A low-precision parameter, and with it the distance of a probe, may round to the other side: of
    those the master copies are compared, and few coordinates may differ.
    """
    low = dtype in (torch.bfloat16, torch.float16)
    skip = len(found.params) if low else 0
    for x, y in zip(expected.tensors()[skip:], found.tensors()[skip:], strict=True):
        assert x.stride() == y.stride()
        if x.numel():
            scale = max(x.double().abs().max().item(), 1e-20)
            far = (x.double() - y.double()).abs() > TOLERANCE[dtype] * scale
            assert int(far.sum()) <= (x.numel() // 500 if low else 0)
    assert expected.skipped == found.skipped
    first = 3 if found.optimizer._shared("full_count") else 1
    for there, here in zip(expected.places[:first], found.places[:first], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(there, here, strict=True))


def run(backend: Backend, dtype: torch.dtype, steps: int = 5, **options: Any) -> Run:
    """Steps on gradients that do not depend on the parameters, so that rounding cannot grow.

    Some are not finite, and the fourth parameter has none on one side.
    """
    params = parameters(dtype)
    given = {"lr": 0.01, "probe_radius": 0.02, "quick_steps": 1, **options}
    optimizer = Alice(params, seed=11, implementation="eager", **given)
    optimizer._backends._made[torch.device("cpu")] = backend
    places: list[list[Tensor]] = []
    draws = torch.Generator().manual_seed(5)
    for step in range(steps):
        rounds = 0

        def closure(step: int = step) -> None:
            nonlocal rounds
            places.append([p.detach().clone() for p in params])
            for p in params:
                noise = torch.randn(p.shape, generator=draws, dtype=torch.float64)
                p.grad = noise.to(dtype) if p.dim() < 2 else torch.empty_like(p).copy_(noise)
            if (rounds, step) == (1, 2):
                params[3].grad = None
            for (r, s, place), value in NOT_FINITE.items():
                if (r, s) == (rounds, step):
                    params[0].grad[place, 7] = value
                    params[1].grad[place] = value
            rounds += 1

        optimizer.step(closure)
    return Run(params, places, optimizer)
