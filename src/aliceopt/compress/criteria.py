"""Which weights matter least: the criteria that are in use, and ours, each a score a weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..theory.glass_bound import GLASS_LOSS_FACTOR
from .averages import CURVATURES, Sensitivity
from .weights import Weight, weights_of

__all__ = ["CRITERIA", "TEMPERED", "check_temper", "scores"]

_TINY = 1e-30  # keeps the order of weights where a curvature is zero


def _magnitude(w: Tensor, temper: float) -> Tensor:
    return w.abs()


def _first(w: Tensor, temper: float, grad: Tensor) -> Tensor:
    return (w * grad).abs()


def _second(w: Tensor, temper: float, h: Tensor) -> Tensor:
    return (h + _TINY).pow_(temper).mul_(w.square())


def _glass(w: Tensor, temper: float, rho: Tensor) -> Tensor:
    return GLASS_LOSS_FACTOR * (rho + _TINY).sqrt() * w.abs() ** 1.5


def _both(w: Tensor, temper: float, h: Tensor, rho: Tensor) -> Tensor:
    return _second(w, temper, h) / 2 + _glass(w, temper, rho)


def _inputs(w: Tensor, temper: float, norms: Tensor) -> Tensor:
    return w.abs() * norms**temper


CRITERIA: dict[str, tuple[tuple[str, ...], Callable[..., Tensor]]] = {
    "magnitude": ((), _magnitude),
    "taylor": (("gradient",), _first),
    "fisher": (("fisher",), _second),
    "curvature": (("rms",), _second),
    "abs": (("abs",), _second),
    "signed": (("signed",), _second),
    "free": (("free",), _second),
    "glass": (("glass",), _glass),
    "both": (("rms", "glass"), _both),
    "wanda": ((), _inputs),
}
"""By name: the terms of the sensitivity that are needed, and the score."""

TEMPERED = tuple(name for name, (_, score) in CRITERIA.items() if score in (_second, _both))
"""Those that a sensitivity enters with an exponent."""


def scores(
    model: nn.Module,
    measured: Sensitivity | None = None,
    criterion: str = "curvature",
    *,
    radius: float | None = None,
    temper: float = 1.0,
    norms: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """How much every weight is worth: the smallest go first.

    =========== ============================= ==================================================
    curvature   ``h^temper w^2``              h by "rms"; by "abs", "signed", "free" with those
    glass       ``c rho^(1/2) |w|^(3/2)``     what the glass should cost by Theorem 4
    both        ``h w^2 / 2`` and the glass
    fisher      ``F^temper w^2``              squared gradients of batches; see `temper_by_loss`
    magnitude   ``|w|``
    taylor      ``|g w|``
    wanda       ``|w| |x|^temper``            x: inputs, from `input_norms`; torchao takes 2
    =========== ============================= ==================================================

    Weights that a mask has removed already score minus infinity.
    """
    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}; got {criterion!r}")
    check_temper(temper)
    terms, score = CRITERIA[criterion]
    needed = _needed(criterion, terms, measured, radius, norms)
    weights = weights_of(model, needed[0] if needed else None)
    with torch.no_grad():
        return {
            name: _score(weight, score, temper, [there[name] for there in needed])
            for name, weight in weights.items()
        }


def check_temper(temper: float) -> None:
    """Refuse what is no exponent of a score."""
    if not isinstance(temper, int | float) or isinstance(temper, bool) or not 0 <= temper <= 2:
        raise ValueError(f"temper must be a number in [0, 2], got {temper!r}")


def _needed(
    criterion: str,
    terms: Sequence[str],
    measured: Sensitivity | None,
    radius: float | None,
    norms: Mapping[str, Tensor] | None,
) -> list[Mapping[str, Tensor]]:
    if criterion == "wanda":
        if norms is None:
            raise ValueError(
                "criterion 'wanda' needs scores(model, criterion='wanda', norms=input_norms(...))"
            )
        return [norms]
    if not terms:
        return []
    if measured is None:
        told = " and ".join(map(repr, terms))
        raise ValueError(f"criterion {criterion!r} needs a sensitivity with {told}")
    return [
        (measured.curvature if term in CURVATURES else measured.mean)(term, radius)
        for term in terms
    ]


def _score(
    weight: Weight, score: Callable[..., Tensor], temper: float, needed: Sequence[Tensor]
) -> Tensor:
    w = weight.values().float()
    for found in needed:
        if found.shape != w.shape:
            raise ValueError(
                f"what was measured of {weight.name!r} has shape {tuple(found.shape)}, the weight "
                f"{tuple(w.shape)}"
            )
    worth = score(w, temper, *(found.to(w) for found in needed))
    return worth if weight.mask is None else worth.masked_fill(weight.mask == 0, -torch.inf)
