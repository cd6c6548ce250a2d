"""Pictures of a comparison of pruning criteria: by share removed, by radius, and by layer."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from aliceopt.lab.figures import style
from aliceopt.lab.figures.outcomes import LOOKS, look_of
from aliceopt.trained.compress import table as tables
from aliceopt.trained.compress.records import Calibrations
from aliceopt.trained.compress.rows import PREDICTED, Result, row_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEFT_OUT = (
    *("taylor", "point", "free", "curvature-few", "glass", "both", "measured", "fisher-measured"),
    *("point-refit", "both-refit"),
)
"""Not drawn where there are more criteria than lines that can be told apart."""


def draw_compression(results: Sequence[Result], path: str | os.PathLike[str]) -> Path:
    """Loss against the share removed, a line a criterion; those at a given radius are left out.

    Of one share, which would be a column of marks on one another: a row a criterion.
    """
    names, shares = tables.criteria(results), tables.sparsities(results)
    shown = [name for name in names if "@" not in name] or names
    if len(shares) == 1:
        return _draw_rows(results, shown, shares[0], path)
    if len(shown) > len(LOOKS):
        shown = [name for name in shown if name not in _LEFT_OUT]
    labels = "weights removed, %", "validation loss"
    with _axes(path, 3.2 + 0.2 * len(shown), *labels) as axes:
        _draw_whole(axes.axhline, results)
        for i, name in enumerate(shown):
            means = [_loss(results, name, share) for share in shares]
            percent = [100 * share for share in shares]
            axes.plot(percent, means, label=row_of(name).label, lw=1.2, ms=4, **look_of(i))
    return Path(path)


def _draw_rows(
    results: Sequence[Result], names: Sequence[str], share: float, path: str | os.PathLike[str]
) -> Path:
    """The best on top; every seed a dot, the mean a line, and one that is not finite no more."""
    finite = [name for name in names if math.isfinite(_loss(results, name, share))]
    rows = sorted(finite, key=lambda name: -_loss(results, name, share))
    label = f"validation loss, {100 * share:g}% removed"
    with _axes(path, 1.6 + 0.24 * len(rows), label, "", columns=3) as axes:
        _draw_whole(axes.axvline, results)
        for i, name in enumerate(rows):
            losses = [r.loss for r in tables.at(results, name, share).values()]
            mean, look = _loss(results, name, share), {"ls": "", "color": LOOKS[0]["color"]}
            seed, middle = ("a seed", "mean") if i == 0 else (None, None)  # once in the legend
            axes.plot(losses, [i] * len(losses), marker=".", ms=5, label=seed, **look)
            axes.plot(mean, i, marker="|", ms=13, label=middle, **look)
        axes.set_yticks(range(len(rows)), [row_of(name).label for name in rows])
        axes.set_ylim(-0.7, len(rows) - 0.3)
    return Path(path)


def draw_radii(results: Sequence[Result], path: str | os.PathLike[str]) -> Path | None:
    """Loss against the probes' radius, a line a sparsity, the default marked.

    None where ``curvature`` was tried at fewer than two radii.
    """
    radii, default = tables.tried_radii(results), tables.default_radius_of(results)
    if len(radii) < 2:
        return None
    labels = "radius of the probes, in units of the weights", "validation loss"
    with _axes(path, 3.6, *labels, columns=2) as axes:
        _draw_whole(axes.axhline, results)
        for i, share in enumerate(tables.sparsities(results)):
            look = look_of(i)
            means = [_loss(results, name, share) for name in radii]
            label = f"{100 * share:g}% removed"
            axes.plot([*radii.values()], means, label=label, lw=1.2, ms=4, **look)
            if default is not None:
                marked = _loss(results, "curvature", share)
                axes.plot(default, marked, marker="*", ms=11, ls="", color=look["color"])
        if default is not None:
            axes.axvline(default, color="0.6", lw=0.8, ls=":", label="the default radius")
        axes.set_xscale("log")
    return Path(path)


def draw_layers(found: Calibrations, path: str | os.PathLike[str]) -> Path:
    """Predicted against measured rises, a point a layer and seed; both axes are logarithmic."""
    layers = [layer for own in found.values() for layer in own if layer.measured > 0]
    with _axes(path, 4.4, "measured rise of the loss", "predicted", columns=2) as axes:
        for look, (name, label) in zip(LOOKS, PREDICTED.items(), strict=False):
            points = [(x.measured, x.predicted[name]) for x in layers if x.predicted[name] > 0]
            xs, ys = ([p[i] for p in points] for i in range(2))
            axes.plot(xs, ys, label=label, ls="", ms=4, marker=look["marker"], color=look["color"])
        if layers:
            ends = [min(x.measured for x in layers), max(x.measured for x in layers)]
            axes.plot(ends, ends, color="0.6", lw=0.8, label="as predicted")
            axes.set_xscale("log")
            axes.set_yscale("log")
    return Path(path)


@contextmanager
def _axes(
    path: str | os.PathLike[str], height: float, x: str, y: str, columns: int = 1
) -> Iterator[Axes]:
    """Axes to draw on; the figure is written behind it, with what is beside its axes."""
    target = style.checked_path(path)
    with style.look():
        figure = style.new_figure(height)
        axes = figure.add_subplot()
        yield axes
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        figure.legend(loc="outside upper left", ncols=columns)
        style.save(figure, target)


def _draw_whole(line: Callable[..., object], results: Sequence[Result]) -> None:
    whole = [r.loss for r in tables.at(results, "none", 0.0).values()]
    if whole:
        line(fmean(whole), color="0.6", lw=0.8, label="none removed")


def _loss(results: Sequence[Result], criterion: str, sparsity: float) -> float:
    loss = tables.loss_at(results, criterion, sparsity)
    return loss if math.isfinite(loss) else math.nan
