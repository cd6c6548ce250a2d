"""Figure 3: why a pointwise Hessian misses a kink that two gradients can see.

At almost every point of f(x) = max(0, x) the second derivative is zero, so the second-order Taylor
polynomial is a straight tangent that knows nothing of the kink nearby. The difference of two
gradients, taken one radius to either side, is a curvature that does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor

from aliceopt.lab.figures import style

Function = Callable[[Tensor], Tensor]

_RELU: dict[str, Any] = {"color": style.BLACK, "lw": 3.2}
_TANGENT: dict[str, Any] = {"color": style.VERMILLION, "lw": 1.6, "ls": (0, (5, 2))}
_MATCHED: dict[str, Any] = {"color": style.BLUE, "lw": 2.2}
_PROBE: dict[str, Any] = {
    "color": style.BLUE,
    "ls": "",
    "marker": "s",
    "ms": 6.5,
    "mfc": "white",
    "mew": 1.6,
}


@dataclass(frozen=True)
class QuadraticFit:
    """The parabola q(x) = value + slope (x - center) + curvature (x - center)^2 / 2."""

    center: float
    value: float
    slope: float
    curvature: float

    def __call__(self, x: Tensor) -> Tensor:
        """q(x), elementwise."""
        d = x - self.center
        return self.value + d * (self.slope + self.curvature * d / 2)

    def gradient(self, x: Tensor) -> Tensor:
        """q'(x) = slope + curvature (x - center)."""
        return self.slope + self.curvature * (x - self.center)

    def gradient_zero(self) -> float | None:
        """Where q' vanishes, which is where a Newton step lands; None without curvature."""
        return self.center - self.slope / self.curvature if self.curvature else None


def taylor_fit(function: Function, center: float) -> QuadraticFit:
    """The pointwise second-order Taylor polynomial, its Hessian by autograd.

    For a ReLU the curvature is 0 wherever it is taken: the fit is the tangent.
    """
    _require_finite(center)
    x = torch.tensor(center, dtype=torch.float64)
    slope = torch.func.grad(function)
    hessian = torch.func.grad(slope)
    return QuadraticFit(center, function(x).item(), slope(x).item(), hessian(x).item())


def gradient_matching_fit(function: Function, center: float, radius: float) -> QuadraticFit:
    """The parabola whose gradient equals the function's at center - radius and center + radius.

    With g-, g+ the two gradients, from ordinary backward passes,

        curvature = (g+ - g-) / (2 radius),    slope at the center = (g+ + g-) / 2.

    Gradients leave the height free: it is set so that the errors of the parabola at the two probes
    are equal and opposite, which needs no evaluation beyond the two. Exact for any quadratic.
    """
    _require_finite(center)
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"radius must be finite and > 0, got {radius!r}")
    if center - radius == center or center + radius == center:
        raise ValueError(
            f"radius must be large enough to move center {center!r} in double precision, "
            f"got {radius!r}"
        )
    probes = torch.tensor([center - radius, center + radius], dtype=torch.float64)
    gradients = _gradients(function, probes)
    curvature = ((gradients[1] - gradients[0]) / (2 * radius)).item()
    value = function(probes).mean().item() - curvature * radius**2 / 2
    return QuadraticFit(center, value, gradients.mean().item(), curvature)


def draw_relu(path: str | os.PathLike[str], *, center: float = 0.3, radius: float = 1.0) -> Path:
    """Draw Figure 3 to `path` (.png, .svg or .pdf) and return the path.

    Upper panel: a ReLU, its Hessian fit at `center` and the fit to the gradients at
    `center` - `radius` and `center` + `radius`. Lower panel: the gradients of the three. When the
    kink at 0 is outside the interval the two fits coincide.
    """
    target = style.checked_path(path)
    matched = gradient_matching_fit(torch.relu, center, radius)
    pointwise = taylor_fit(torch.relu, center)
    with style.look():
        figure = style.new_figure(height=5.0)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.7, 1.0])
        x = torch.linspace(center - 1.5 * radius, center + 1.5 * radius, 601, dtype=torch.float64)
        local = x[(x - center).abs() <= radius * (1 + 1e-9)]
        _draw_values(upper, x, local, pointwise, matched)
        _draw_gradients(lower, x, local, pointwise, matched)
        for axes in (upper, lower):
            axes.axvspan(center - radius, center + radius, color="0.94", zorder=0, lw=0)
            axes.set_xlim(x[0].item(), x[-1].item())
        _mark_gradient_zero(upper, lower, matched, center - radius, center + radius)
        figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return style.save(figure, target)


def _draw_values(
    axes: Axes, x: Tensor, local: Tensor, pointwise: QuadraticFit, matched: QuadraticFit
) -> None:
    tangent_label = f"Hessian fit, curvature {pointwise.curvature:.3g}"
    matched_label = f"gradient-matching fit, curvature {matched.curvature:.3g}"
    axes.plot(x, torch.relu(x), label="ReLU, max(0, x)", **_RELU)
    axes.plot(x, pointwise(x), label=tangent_label, **_TANGENT)
    axes.plot(local, matched(local), label=matched_label, **_MATCHED)
    ends = local[[0, -1]]
    axes.plot(ends, torch.relu(ends), label="gradients measured", **_PROBE)
    center = (pointwise.center, pointwise.value)
    axes.plot(*center, marker="o", color=style.VERMILLION, ms=6)
    axes.annotate("center", center, xytext=(5, -12), textcoords="offset points")
    axes.set_ylabel("function value")
    axes.margins(y=0.18)  # room for the word under the center when it stands on the flat side
    if matched.curvature != pointwise.curvature:
        axes.set_title("Two gradients see the kink, the Hessian does not")
    else:
        axes.set_title("No kink between the two gradients: the fits coincide")


def _draw_gradients(
    axes: Axes, x: Tensor, local: Tensor, pointwise: QuadraticFit, matched: QuadraticFit
) -> None:
    # two pieces, so that no line is drawn through the jump
    for side in (x[x <= 0], x[x > 0]):
        axes.plot(side, _gradients(torch.relu, side), **_RELU)
    axes.plot(x, pointwise.gradient(x), **_TANGENT)
    axes.plot(local, matched.gradient(local), **_MATCHED)
    ends = local[[0, -1]]
    axes.plot(ends, _gradients(torch.relu, ends), **_PROBE)
    axes.set_xlabel("parameter x  (shaded: center ± radius)")
    axes.set(ylabel="gradient", yticks=[0.0, 0.5, 1.0], ylim=(-0.2, 1.2))
    axes.set_title("The gradients of the three curves")


def _gradients(function: Function, x: Tensor) -> Tensor:
    """The derivative at every entry of `x` of an elementwise function, by one backward pass."""
    x = x.detach().clone().requires_grad_()
    (gradients,) = torch.autograd.grad(function(x).sum(), x)
    return gradients


def _mark_gradient_zero(
    upper: Axes, lower: Axes, fit: QuadraticFit, left: float, right: float
) -> None:
    zero = fit.gradient_zero()
    if zero is None or not left <= zero <= right:
        return
    for axes in (upper, lower):
        axes.axvline(zero, color=style.BLUE, lw=0.9, ls=":")
    lower.annotate(
        "gradient zero\nanticipated",
        xy=(zero, 0.0),
        xytext=(16, 42),
        textcoords="offset points",
        color=style.BLUE,
        arrowprops={"arrowstyle": "->", "color": style.BLUE, "shrinkB": 6, "lw": 1.0},
    )


def _require_finite(center: float) -> None:
    if not math.isfinite(center):
        raise ValueError(f"center must be finite, got {center!r}")
