"""Theorem 1 on real networks: where its power law and its bound hold, and where the bound fails.

The networks are those of `aliceopt.claims.relu_network`: two layers, 32 inputs, 64 ReLUs, 10
classes, a batch of 64 examples, freshly initialised or trained on their batch. Nothing is
simulated: gradients are exact, in float64, and the bound is built kink by kink.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from aliceopt.claims import relu_network
from aliceopt.claims.relu_network import HIDDEN, THRESHOLD, Networks, NetworkVariation, flatten
from aliceopt.lab.figures import style
from aliceopt.lab.typed import checked, whole

RADII = tuple(1e-4 * 2**k for k in range(12))
"""Radii of the displacement, 1e-4 to 0.2, in every coordinate."""

DIRECTIONS = 20
"""Sign vectors over which a network's variation is averaged before it meets the bound."""

REACH = 40
"""No pre-activation moves further than this many radii: the largest 1-norm of an input and a 1."""

WIDTHS = tuple(1e-4 * 10 ** (k / 2) for k in range(7))
"""Half-widths of the band around zero in which pre-activations are counted, 1e-4 to 0.1."""

_FRESH: dict[str, Any] = {"color": style.BLUE, "marker": "o", "ms": 4, "lw": 1.6}
_TRAINED: dict[str, Any] = _FRESH | {"color": style.VERMILLION, "marker": "s", "ls": "--"}
_OUTPUT: dict[str, Any] = {"color": style.GREEN, "marker": "D", "ms": 4, "lw": 1.2, "ls": "-."}
_GELU: dict[str, Any] = {"color": style.GRAY, "marker": "v", "ms": 4.5, "mfc": "white", "lw": 1.2}
_GUIDE: dict[str, Any] = {"color": style.BLACK, "lw": 0.9, "ls": (0, (1, 1.5))}
_LIMIT: dict[str, Any] = {"color": style.BLACK, "lw": 1.0}


@dataclass(frozen=True)
class BoundCheck:
    """Variation against ``R |d|`` at each radius, for one set of networks.

    ``ratio`` is that of the sums over the hidden layer, ``exceeding`` the share of its
    coordinates above their own bound; variations are means over `DIRECTIONS` sign vectors.
    ``no_bound`` is the share of coordinates whose ``R`` is zero.
    """

    ratio: tuple[float, ...]
    exceeding: tuple[float, ...]
    no_bound: float


@dataclass(frozen=True)
class Findings:
    """Everything the figure shows.

    ``relu`` and ``gelu`` are mean squared gradient changes of fresh networks at each radius, summed
    over a layer, and ``predicted`` what Theorem 1 foresees for the second difference of the hidden
    layer. ``following`` is the ratio where the threshold is `REACH` radii.
    """

    relu: NetworkVariation
    gelu: NetworkVariation
    predicted: tuple[float, ...]
    fresh: BoundCheck
    trained: BoundCheck
    following: tuple[float, ...]
    fresh_density: tuple[float, ...]
    trained_density: tuple[float, ...]


def unit_bound(networks: Networks, threshold: float = THRESHOLD) -> Tensor:
    """``R |t|`` of every network, [networks, parameters]: the bound per unit of radius.

    Every sign vector has ``|t| = 1``, so one direction serves for all of them.
    """
    return relu_network.compare(networks, 1e-4, threshold).bound / 1e-4


def variation(networks: Networks, radius: float, generator: torch.Generator) -> Tensor:
    """Mean over random directions of the squared change of the hidden layer's gradient."""
    center = flatten(networks.gradients(), HIDDEN)
    total = torch.zeros_like(center)
    for _ in range(DIRECTIONS):
        moved = flatten(networks.turned(generator).gradients(radius), HIDDEN)
        total += (moved - center).square()
    return total / DIRECTIONS


def check_bound(networks: Networks, generator: torch.Generator) -> BoundCheck:
    """Every radius against the bound of the units within the threshold 0.02."""
    unit = unit_bound(networks)
    pairs = [(variation(networks, radius, generator), radius * unit) for radius in RADII]
    return BoundCheck(
        ratio=tuple((v.sum() / bound.sum()).item() for v, bound in pairs),
        exceeding=tuple((v > bound).double().mean().item() for v, bound in pairs),
        no_bound=(unit == 0).double().mean().item(),
    )


def following_ratio(networks: Networks, generator: torch.Generator) -> tuple[float, ...]:
    """The ratio where the threshold is `REACH` radii, about as small as Theorem 1 allows.

    Up to the radius at which it would hold units far from any kink, a threshold of 0.1.
    """
    radii = [radius for radius in RADII if REACH * radius <= 0.1]
    sums = [
        (variation(networks, r, generator).sum(), r * unit_bound(networks, REACH * r).sum())
        for r in radii
    ]
    return tuple((v / bound).item() for v, bound in sums)


def density_near_zero(networks: Networks) -> tuple[float, ...]:
    """Pre-activations per unit length within each of `WIDTHS` of zero, as a share of all."""
    weight, bias = networks.params[f"{HIDDEN}.weight"], networks.params[f"{HIDDEN}.bias"]
    preacts = torch.baddbmm(bias[:, None], networks.inputs, weight.mT).abs()
    return tuple((preacts < w).double().mean().item() / (2 * w) for w in WIDTHS)


def find(seed: int = 0, draws: int = 60) -> Findings:
    """Measure all that the figure shows: ``draws`` networks for the power law, a fifth of them,
    but at least two, for the bound.
    """
    generator = torch.Generator().manual_seed(seed + 1)
    fresh = relu_network.sample_networks(max(2, draws // 5), generator)
    trained = relu_network.train(fresh)

    def again() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    networks = relu_network.sample_networks(draws, again())
    expected = relu_network.compare(networks, 1e-4).expected.sum(1).mean().item() / 1e-4
    return Findings(
        relu=relu_network.measure(again(), draws=draws, radii=RADII),
        gelu=relu_network.measure(again(), draws=draws, radii=RADII, activation=nn.GELU),
        predicted=tuple(radius * expected / 2 for radius in RADII),
        fresh=check_bound(fresh, generator),
        trained=check_bound(trained, generator),
        following=following_ratio(trained, generator),
        fresh_density=density_near_zero(fresh),
        trained_density=density_near_zero(trained),
    )


def draw_theorem1(path: str | os.PathLike[str], *, seed: int = 0, draws: int = 60) -> Path:
    """Draw Theorem 1 on real networks to `path` (.png, .svg or .pdf) and return the path.

    Top: squared gradient changes against the radius, ReLU, GELU and output layer. Middle: the
    change summed over the hidden layer over the bound, fresh and trained. Bottom: the share of
    single parameters above their bound, and why training breaks it.
    """
    target = style.checked_path(path)
    checked(whole(0, 2**62), seed, "seed")
    checked(whole(2, 10_000), draws, "draws")
    found = find(seed, draws)
    with style.look():
        figure = style.new_figure(height=8.2)
        mosaic = figure.subplot_mosaic(
            [["law", "law"], ["ratio", "ratio"], ["share", "density"]],
            height_ratios=[1.25, 1.1, 1.0],
        )
        _draw_law(mosaic["law"], found)
        _draw_ratio(mosaic["ratio"], found)
        _draw_share(mosaic["share"], found)
        _draw_density(mosaic["density"], found)
    return style.save(figure, target)


def _draw_law(axes: Axes, found: Findings) -> None:
    relu, gelu = found.relu, found.gelu
    hidden = {**_FRESH, "mfc": "white", "ls": "--"}
    axes.loglog(RADII, relu.hidden_one_sided, label="hidden layer, one side", **hidden)
    axes.loglog(RADII, relu.hidden_second, label="hidden layer, second difference", **_FRESH)
    axes.loglog(RADII, found.predicted, label="the same, predicted by Theorem 1", **_LIMIT)
    axes.loglog(RADII, gelu.hidden_one_sided, label="hidden layer with GELU, one side", **_GELU)
    axes.loglog(RADII, relu.output_one_sided, label="output layer, one side", **_OUTPUT)
    _draw_guide(axes, 1, start=12 * relu.hidden_one_sided[0])
    _draw_guide(axes, 2, start=relu.output_one_sided[0] / 4)
    axes.set(xlabel="radius of the displacement", ylabel="squared gradient change")
    axes.set_title("Kinks give slope 1; without kinks the slope is 2")
    axes.legend(loc="lower right", handlelength=2.8, borderaxespad=0.1)


def _draw_guide(axes: Axes, power: int, start: float) -> None:
    """A short line of this slope at the left end, beside the curves that have it."""
    x = RADII[:3]
    y = [start * (r / x[0]) ** power for r in x]
    axes.loglog(x, y, **_GUIDE)
    axes.annotate(f"slope {power}", (x[-1], y[-1]), xytext=(3, -5), textcoords="offset points")


def _draw_ratio(axes: Axes, found: Findings) -> None:
    axes.axhline(1.0, **_LIMIT)
    axes.loglog(RADII, found.fresh.ratio, label="fresh networks", **_FRESH)
    axes.loglog(RADII, found.trained.ratio, label=f"trained, threshold {THRESHOLD}", **_TRAINED)
    axes.loglog(
        RADII[: len(found.following)],
        found.following,
        label=f"trained, threshold {REACH} radii",
        color=style.ORANGE,
        marker="^",
        ms=5,
        mfc="white",
        lw=1.2,
        ls=":",
    )
    axes.annotate("bound", (RADII[6], 1.0), xytext=(0, 4), textcoords="offset points", ha="center")
    axes.set(xlabel="radius of the displacement", ylabel="layer sum over the bound")
    axes.set_title("Summed over the hidden layer: variation over R |d|")
    axes.legend(loc="upper center")


def _draw_share(axes: Axes, found: Findings) -> None:
    fresh, trained = (
        [100 * share for share in check.exceeding] for check in (found.fresh, found.trained)
    )
    axes.semilogx(RADII, fresh, label="fresh", **_FRESH)
    axes.semilogx(RADII, trained, label="trained", **_TRAINED)
    no_bound = 100 * found.fresh.no_bound
    axes.axhline(no_bound, **_GUIDE)
    axes.annotate("R = 0", (RADII[0], no_bound), xytext=(0, -11), textcoords="offset points")
    axes.set(ylim=(0, 105), xlabel="radius", ylabel="% of parameters")
    axes.set_title("Above their own bound")
    axes.legend(loc="upper center")


def _draw_density(axes: Axes, found: Findings) -> None:
    axes.loglog(WIDTHS, found.fresh_density, label="fresh", **_FRESH)
    axes.loglog(WIDTHS, found.trained_density, label="trained", **_TRAINED)
    axes.set(xlabel="half-width of the band around zero", ylabel="share per unit length")
    axes.set_title("Pre-activations near zero")
    axes.legend(loc="upper right")
