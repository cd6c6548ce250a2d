"""A gradient glass made of explicit hyperplanes, to test theorems on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Kinks", "random_signs", "sample_kinks"]


@dataclass(frozen=True)
class Kinks:
    """Half-spaces that each add a vector to the gradient, at offsets that are drawn anew.

    Unit k has pre-activation ``y_k`` at the origin, uniform in ``[-threshold, threshold]``, and
    ``y_k + d . gamma_k`` at ``d``. When that changes sign, ``a_k gamma_k`` is added to or taken
    from the gradient. ``normals`` [units, parameters] are the ``gamma_k``, ``strengths`` [units]
    the ``|a_k|``; their signs are drawn with the offsets, which makes jumps independent with
    mean zero.
    """

    normals: Tensor
    strengths: Tensor
    threshold: float

    def draw(self, draws: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Pre-activations and signed strengths of ``draws`` independent glasses."""
        shape = (draws, len(self.strengths))
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        signs = random_signs(shape, generator)
        return self.threshold * (2 * uniform - 1), signs * self.strengths

    def change(self, glass: tuple[Tensor, Tensor], displacement: Tensor) -> Tensor:
        """``g(d) - g(0)`` in every drawn glass; ``displacement`` is one vector, or one a glass."""
        preacts, strengths = glass
        after = preacts + displacement @ self.normals.T > 0
        crossed = after.double() - (preacts > 0).double()
        return (crossed * strengths) @ self.normals


def sample_kinks(
    units: int, parameters: int, threshold: float, generator: torch.Generator
) -> Kinks:
    """Kinks with Gaussian normals and strengths uniform on [1/2, 3/2]."""
    normals = torch.randn(units, parameters, generator=generator, dtype=torch.float64)
    strengths = 0.5 + torch.rand(units, generator=generator, dtype=torch.float64)
    return Kinks(normals, strengths, threshold)


def random_signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Independent entries +1 or -1 (Rademacher) in float64."""
    return 2.0 * torch.randint(0, 2, shape, generator=generator).double() - 1.0
