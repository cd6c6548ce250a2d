"""Exponents of gradient variations over radii, block by block: glass near 1, a Hessian near 2."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import LogLocator, NullFormatter

from aliceopt.lab.figures import style
from aliceopt.lab.figures.outcomes import LOOKS
from aliceopt.lab.figures.study_look import safe
from aliceopt.lab.landscapes import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_exponents"]

_MOST = 14
_RANGE = (0.4, 2.6)


def draw_exponents(
    views: Sequence[View], path: str | os.PathLike[str], part: str | None = None
) -> Path:
    """A panel a network, on one kind of batches (the first, unless told); bands are intervals."""
    target = style.checked_path(path)
    shown = [view for view in views if view.part == (part or views[0].part)]
    with style.look():
        figure = style.new_figure(height=3.5)
        panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, view in zip(panels, shown, strict=True):
            draw_ladder(axes, view)
        panels[0].set_ylabel("exponent p of gradient variations")
        _mark(panels[-1])
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside upper center",
            ncols=3,
            columnspacing=1.2,
            handlelength=2.6,
        )
        _note(figure, shown)
        return style.save(figure, target)


def draw_ladder(axes: Axes, view: View) -> None:
    """Exponents of every block between neighbouring radii, drawn at their geometric mean."""
    radii = view.ladder.radii
    middles = [math.sqrt(a * b) for a, b in pairwise(radii)]
    for i, (name, rungs) in enumerate(list(view.ladder.blocks.items())[:_MOST]):
        points = list(zip(middles, rungs.exponents, strict=True))[rungs.start :]
        told = [(x, p) for x, p in points if math.isfinite(p.value)]
        look: dict[str, Any] = LOOKS[i % len(LOOKS)]
        x = [at for at, _ in told]
        low, high = ([getattr(p, end) for _, p in told] for end in ("low", "high"))
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, lw=0)
        axes.plot(x, [p.value for _, p in told], label=safe(name), ms=4, lw=1.4, **look)
    axes.set_xscale("log")
    wide = radii[-1] > 40 * radii[0]
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(*_RANGE)
    for power in (1, 2):
        axes.axhline(power, color=style.BLACK, lw=0.9, ls=(0, (1, 1.5)), zorder=1)
    axes.set_title(safe(view.network))
    axes.set_xlabel("radius")


def _mark(axes: Axes) -> None:
    for power, meaning in ((2, "Hessian"), (1, "glass")):
        axes.annotate(
            f"p = {power}\n{meaning}",
            (1.0, power),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )


def _note(figure: Figure, shown: Sequence[View]) -> None:
    view = shown[0]
    text = (
        f"{view.part.capitalize()} batches of {view.batch_size:,}, {view.ladder.batches} of them, "
        f"{view.ladder.directions} directions each; bands: 95% intervals over both. Radii at "
        "which changes are rounding are left out."
    )
    lines = textwrap.wrap(text, 78)
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=style.SMALLEST_TEXT)
    figure.set_figheight(figure.get_figheight() + 0.165 * len(lines))
