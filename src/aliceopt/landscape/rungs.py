"""What a ladder of gradient variations says: exponents, glass and Hessian, a verdict.

Pure functions of a table of sums [batches, directions, radii]. Both kinds of curvature together
make ``v = a radius + b radius^2``. Glass is what stays as the radius shrinks, so the verdict is
read at the small end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from .spread import Estimate, estimates

__all__ = [
    "SATURATED",
    "Rungs",
    "Verdict",
    "crossover",
    "glass_and_hessian",
    "local_exponents",
    "read_rungs",
]

Verdict = Literal["glass", "smooth", "undecided", "nothing"]

SATURATED = 0.75
"""Neither glass nor a Hessian has an exponent that stays below."""

_SMOOTH = 0.1  # exponents that close to 2 count as 2
_SHARE = 0.1  # a smooth gradient has a second difference below this share of its change
_FADING = 1 / 3  # 2 - p falls faster than this power of the radius: it goes to zero
_STEEP = 2.05  # glass and Hessian give no larger exponent
_UNKNOWN = Estimate(*[math.nan] * 5)


@dataclass(frozen=True)
class Rungs:
    """The ladder of one set of parameters, from the smallest radius up.

    ``variation`` and ``glass_density`` have one entry a radius, summed over the set, and so has
    ``glass_share = rho radius / v``, 1 where there is glass alone; ``exponents`` has one between
    neighbours. ``glass`` and ``hessian`` are a and b of ``v = a radius + b radius^2``, and
    ``misfit`` is the root mean square of the fit's relative error. The fit is over ``fitted``
    radii from ``radii[start]`` up to where an exponent exceeds 2.05, which the two terms cannot
    give. An interval that is the single point 0 says that the fit has no use for the term. Where
    the verdict is not glass, a may be what saturation looks like. ``crossover`` is a/b where the
    verdict is glass, else NaN.

    ``verdict`` is read at the small end, which is ``radii[start]``: the smallest radius at which
    the gradient's variation exceeds ``rounding``. With 95% confidence

    - "smooth": the exponent there is 2 within 0.1, and the glass share, if known, below 0.1;
    - "glass": it is below 1.9, itself above 0.75, and does not rise towards 2 as the radius
      shrinks; and the glass share, if known, makes up for what it lacks to 2, as that of a
      gradient that saturates does not. A smooth bend that is narrower than this radius counts, too;
    - "undecided": anything else. Take smaller radii if exponents still rise (a gradient that
      saturates) or are above 2 (higher derivatives), larger ones if they are below 0.75 (too few
      kinks) or if all changes are rounding, larger ones or more directions if intervals are
      wide. A single exponent cannot show glass;
    - "nothing": the gradient did not change, or is not finite.
    """

    verdict: Verdict
    exponents: tuple[Estimate, ...]
    variation: tuple[Estimate, ...]
    glass_density: tuple[Estimate, ...]
    glass_share: tuple[Estimate, ...]
    glass: Estimate
    hessian: Estimate
    crossover: Estimate
    misfit: float
    start: int
    fitted: int
    rounding: float


def read_rungs(table: Tensor, radii: Sequence[float], noise: float) -> Rungs:
    """Everything that a table [batches, directions, radii, 2] of sums of squares says.

    Of the gradient's change and of its second difference. A change of up to ``noise`` at the
    smaller radius of a rung is rounding, and decides nothing.
    """
    variation, bent = table.unbind(-1)
    rungs = torch.tensor(radii, dtype=torch.float64, device=table.device)
    exponents = estimates(variation, lambda v: local_exponents(v, rungs))
    shares = estimates(table, lambda mean: 2 * mean[..., 1] / mean[..., 0])
    # The first rung with a change that is above rounding. Wide intervals are no reason to go up:
    # there a gradient that saturates looks like glass, and few directions would find it.
    means = variation.mean((0, 1)).tolist()
    told = [math.isfinite(p.value) and v > noise for p, v in zip(exponents, means, strict=False)]
    start = told.index(True) if any(told) else 0
    steep = [i for i, p in enumerate(exponents[start:], 1) if p.value > _STEEP]
    fitted = max(2, min(steep, default=len(exponents) - start + 1))
    near, low = rungs[start : start + fitted], variation[..., start : start + fitted]
    glass, hessian = estimates(low, lambda v: glass_and_hessian(v, near))
    fit = glass.value * near + hessian.value * near.square()
    verdict: Verdict = "undecided"
    if all(math.isnan(p.value) for p in exponents):
        verdict = "nothing"
    elif any(told):
        verdict = _verdict(exponents[start:], radii[start:], shares[start])
    return Rungs(
        verdict=verdict,
        exponents=tuple(exponents),
        variation=tuple(estimates(variation, lambda v: v)),
        glass_density=tuple(estimates(2 / rungs * bent, lambda rho: rho)),
        glass_share=tuple(shares),
        glass=replace(glass, low=max(glass.low, 0.0)),  # NaN stays
        hessian=replace(hessian, low=max(hessian.low, 0.0)),
        crossover=crossover(low, near) if verdict == "glass" else _UNKNOWN,
        misfit=(fit / low.mean((0, 1)) - 1).square().mean().sqrt().item(),
        start=start,
        fitted=fitted,
        rounding=noise,
    )


def local_exponents(variation: Tensor, radii: Tensor) -> Tensor:
    """``log(v'/v) / log(radius'/radius)`` between neighbours: [..., radii] to [..., radii - 1]."""
    told = (variation > 0) & variation.isfinite()
    logs: Tensor = torch.where(told, variation, math.nan).log()
    return logs.diff(dim=-1) / radii.log().diff()


def glass_and_hessian(variation: Tensor, radii: Tensor, rounds: int = 4) -> Tensor:
    """Fit ``v = a radius + b radius^2``, a and b >= 0, by least squares: [..., radii] to [..., 2].

    Weights are 1/fit^2, so that every radius counts by its *relative* error, as it must over
    decades; they start from 1/v^2 and are renewed ``rounds`` times. With v itself throughout,
    radii at which v came out low by chance would weigh more, and the fit would be too low.

    >>> radii = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    >>> glass_and_hessian(3 * radii + 2 * radii.square(), radii)
    tensor([3.0000, 2.0000], dtype=torch.float64)
    """
    basis = torch.stack([radii, radii.square()])
    fit = variation
    for _ in range(rounds + 1):
        x, y = basis / fit[..., None, :], (variation / fit)[..., None, :]
        (aa, bb), (ay, by) = x.square().sum(-1).unbind(-1), (x * y).sum(-1).unbind(-1)
        ab = x.prod(-2).sum(-1)
        found = (
            torch.stack([ay * bb - by * ab, by * aa - ay * ab], -1) / (aa * bb - ab**2)[..., None]
        )
        alone_a = torch.stack([ay / aa, torch.zeros_like(ay)], -1)
        alone_b = torch.stack([torch.zeros_like(by), by / bb], -1)
        found = torch.where(found[..., :1] < 0, alone_b, found)
        found = torch.where(found[..., 1:] < 0, alone_a, found)
        fit = found @ basis
    return found


def crossover(variation: Tensor, radii: Tensor) -> Estimate:
    """The radius a/b, from a table [batches, directions, radii].

    The jackknife looks at the glass' share of the fit in the middle of the ladder,
    ``s = a/(a + b middle)``, which is bounded; its interval, cut to [0, 1], is that of
    ``a/b = middle s/(1 - s)``. It may end at 0 or at infinity.
    """
    middle = math.sqrt(radii[0].item() * radii[-1].item())

    def share(v: Tensor) -> Tensor:
        a, b = glass_and_hessian(v, radii).unbind(-1)
        return (a / (a + b * middle))[:, None]

    (s,) = estimates(variation, share)
    value, low, high = (
        math.nan if math.isnan(end) else math.inf if end >= 1 else middle * max(0, end) / (1 - end)
        for end in (s.value, s.low, s.high)
    )
    slope = middle / (1 - s.value) ** 2 if s.value < 1 else math.nan
    return Estimate(value, low, high, slope * s.error_directions, slope * s.error_batches)


def _verdict(exponents: Sequence[Estimate], radii: Sequence[float], share: Estimate) -> Verdict:
    """Read at the small end; see `Rungs`."""
    least = exponents[0]
    if least.low > 2 - _SMOOTH and least.high < 2 + _SMOOTH and not share.value > _SHARE:
        return "smooth"
    if len(exponents) == 1 or not (least.value > SATURATED and least.high < 2 - _SMOOTH):
        return "undecided"
    if least.high + share.high < 2 - _SMOOTH:  # p + share is 2 for any sum of glass and Hessian
        return "undecided"
    nearer = math.sqrt(radii[0] / radii[2])  # from the middle of a rung to that of the next
    fading = 2 - least.value < nearer**_FADING * (2 - exponents[1].value)
    return "undecided" if fading else "glass"
