"""What a measurement of sensitivity found: running averages by term, radius and weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..sharding import whole

__all__ = ["CURVATURES", "TERMS", "Key", "Sensitivity"]

TERMS = ("rms", "abs", "signed", "free", "glass", "gradient", "fisher")
SIDES = ("rms", "abs", "signed", "free", "glass")
CURVATURES = ("rms", "abs", "signed", "free")
CENTER = ("free", "glass", "gradient", "fisher")

Key = tuple[str, float]
"""A term and its radius; 0 for terms that have none."""


@dataclass
class Sensitivity:
    """Running averages over ``batches``, by term, radius and name of the weight.

    ``spreads`` holds sums of squared deviations where errors were asked for, else nothing.
    """

    radii: tuple[float, ...]
    terms: tuple[str, ...]
    seed: int
    batches: int = 0
    gradients: int = 0
    means: dict[Key, dict[str, Tensor]] = field(default_factory=dict)
    spreads: dict[Key, dict[str, Tensor]] = field(default_factory=dict)
    center: dict[str, list[float]] = field(default_factory=dict)
    """Sum and sum of squares of the weights where it was measured, by name."""

    def mean(self, term: str, radius: float | None = None) -> dict[str, Tensor]:
        """The average of a term; the radius may be left out where there is one."""
        return self.means[self._key(term, radius)]

    def error(self, term: str, radius: float | None = None) -> dict[str, Tensor]:
        """The standard error of the average, over batches and signs."""
        key = self._key(term, radius)
        if key not in self.spreads:
            raise ValueError(f"no errors of {term!r} were kept: measure with errors=True")
        if self.batches < 2:
            raise ValueError("a standard error needs two batches or more, got 1")
        scale = 1 / (self.batches * (self.batches - 1))
        return {name: (spread * scale).sqrt() for name, spread in self.spreads[key].items()}

    def curvature(self, term: str = "rms", radius: float | None = None) -> dict[str, Tensor]:
        """A term as a curvature, loss / length^2 and not negative.

        The root of the average for "rms" and "free", where what came out negative counts as zero;
        for "abs" and "signed" its size.
        """
        if term not in CURVATURES:
            raise ValueError(f"curvatures are {', '.join(CURVATURES)}; got {term!r}")
        mean = self.mean(term, radius)
        if term in ("rms", "free"):
            return {name: value.clamp(min=0).sqrt() for name, value in mean.items()}
        return {name: value.abs() for name, value in mean.items()}

    def _key(self, term: str, radius: float | None) -> Key:
        if term not in self.terms:
            raise ValueError(f"{term!r} was not measured; there is {', '.join(self.terms)}")
        if term not in SIDES:
            return term, 0.0
        if radius is None and len(self.radii) > 1:
            raise ValueError(f"which radius? There are {', '.join(f'{r:g}' for r in self.radii)}")
        chosen = self.radii[0] if radius is None else radius
        if chosen not in self.radii:
            said = ", ".join(f"{r:g}" for r in self.radii)
            raise ValueError(f"radius {radius!r} was not measured; there is {said}")
        return term, chosen

    def full(self) -> Sensitivity:
        """The same with whole tensors in every process, where weights are sharded."""
        means, spreads = (
            {
                key: {name: whole(value) for name, value in there.items()}
                for key, there in kept.items()
            }
            for kept in (self.means, self.spreads)
        )
        return replace(self, means=means, spreads=spreads)

    def state_dict(self) -> dict[str, Any]:
        """Everything, in types that torch.load reads with weights_only."""
        names = ("radii", "terms", "seed", "batches", "gradients", "means", "spreads", "center")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Sensitivity:
        """What `state_dict` gave."""
        return cls(**state)
