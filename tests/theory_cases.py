"""Densities, reference integrals, random networks and messages, for the tests of the theory."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from aliceopt.theory.density import GAUSSIAN, RADEMACHER, UNIFORM, Density, from_pdf, two_sided

ROOT6 = math.sqrt(6)
WIDE = 1e3  # a threshold that every unit of the networks under test is inside of


def refused(name: str, rule: str, value: str) -> str:
    """The one sentence of the package, as a pattern for the whole message."""
    return f"^{re.escape(f'{name} must be {rule}, got {value}')}$"


def randoms(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared error, summed: its gradient is ``output - target``."""
    return (output - target).square().sum() / 2


def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    """Float64 with reproducible parameters, whatever the global random state."""
    model = model.double()
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(randoms(100 * seed + k, *p.shape) / math.sqrt(max(p.shape[-1:], default=1)))
    return model


def no_sampler(*_: object) -> Tensor:
    raise AssertionError("nothing is sampled here")


def sample_lopsided(
    shape: Sequence[int],
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    u = torch.rand(tuple(shape), generator=generator, dtype=dtype, device=device)
    return torch.where(u < 0.8, -0.5, 2.0).to(dtype)


TRIANGLE = from_pdf(lambda x: (1 - np.abs(x) / ROOT6) / ROOT6, (-ROOT6, ROOT6), name="triangle")
LOPSIDED = Density("lopsided", sample_lopsided, atoms=((-0.5, 0.8), (2.0, 0.2)))
SAMPLED = [RADEMACHER, GAUSSIAN, UNIFORM, two_sided(0.5), TRIANGLE, LOPSIDED]


def simpson(function: Callable[[float], float], a: float, b: float, panels: int = 4000) -> float:
    """Composite Simpson rule in Python floats."""
    step = (b - a) / panels
    inner = math.fsum((4 if k % 2 else 2) * function(a + k * step) for k in range(1, panels))
    return step / 3 * (function(a) + inner + function(b))


@functools.cache
def restricted_gaussian(ratio: float, threshold: float) -> tuple[float, float]:
    """(kept probability, ``c`` over the kept part) of a standard normal, by own integration."""
    kept = math.erfc(threshold / math.sqrt(2))
    scale = 2 / math.sqrt(2 * math.pi)

    def integrand(x: float) -> float:
        return scale * math.exp(-x * x / 2) * x * x / (x * x + ratio * ratio)

    return kept, simpson(integrand, threshold, 12.0) / kept
