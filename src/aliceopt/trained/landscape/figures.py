"""Figures of a landscape, as PNG and PDF: exponents by radius or epoch, shares, bounds, slices."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import LogLocator, NullFormatter

from aliceopt.lab.figures import style
from aliceopt.lab.figures.outcomes import LOOKS, look_of
from aliceopt.lab.figures.power_law import draw_block, mark_powers
from aliceopt.landscape import Slice
from aliceopt.landscape.subject import without_nan
from aliceopt.trained.landscape.survey import View
from aliceopt.trained.landscape.table import Lines, exponents_along

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 14
"""Blocks in one figure."""

RANGE = (0.4, 2.6)
"""Of exponents."""


def draw_exponents(
    views: Sequence[View], path: str | os.PathLike[str], part: str | None = None
) -> Path:
    """A panel a network, on one kind of batches (the first, unless told); bands are intervals."""
    shown = [view for view in views if view.part == (part or views[0].part)]
    first = shown[0]
    note = (
        f"{first.part.capitalize()} batches of {first.batch_size:,}, {first.ladder.batches} of "
        f"them, {first.ladder.directions} directions each; bands: 95% intervals over both. Radii "
        "at which changes are rounding are left out."
    )
    return _draw_panels([partial(draw_ladder, view=view) for view in shown], note, path)


def _draw_panels(
    draws: Sequence[Callable[[Axes], None]], note: str, path: str | os.PathLike[str]
) -> Path:
    """Panels of exponents side by side, with both powers, one legend and a note."""
    target = style.checked_path(path)
    with style.look():
        figure = style.new_figure(height=3.5)
        panels = figure.subplots(1, len(draws), sharey=True, squeeze=False)[0]
        for axes, draw in zip(panels, draws, strict=True):
            draw(axes)
            axes.set_ylim(*RANGE)
            for power in (1, 2):
                axes.axhline(power, color=style.BLACK, lw=0.9, ls=(0, (1, 1.5)), zorder=1)
        panels[0].set_ylabel("exponent p of gradient variations")
        mark_powers(panels[-1])
        handles, labels = panels[0].get_legend_handles_labels()
        look: dict[str, Any] = {"ncols": 3, "columnspacing": 1.2, "handlelength": 2.6}
        figure.legend(handles, labels, loc="outside upper center", **look)
        lines = textwrap.wrap(note, 78)
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=style.SMALLEST_TEXT)
        figure.set_figheight(figure.get_figheight() + 0.165 * len(lines))
        return _both_kinds(figure, target)


def _both_kinds(figure: Figure, target: Path) -> Path:
    """Write a figure as PNG and as PDF; ``target`` is one of the two."""
    written = style.save(figure, target)
    figure.set_layout_engine("none")  # everything is in its place
    style.save(figure, target.with_suffix(".png" if target.suffix == ".pdf" else ".pdf"))
    return written


def draw_ladder(axes: Axes, view: View) -> None:
    """Exponents of every block between neighbouring radii, drawn at their geometric mean."""
    radii = view.ladder.radii
    middles = [math.sqrt(a * b) for a, b in pairwise(radii)]
    for i, (name, rungs) in enumerate(list(view.ladder.blocks.items())[:MOST]):
        points = list(zip(middles, rungs.exponents, strict=True))[rungs.start :]
        told = [(x, p) for x, p in points if math.isfinite(p.value)]
        look = look_of(i)
        x = [at for at, _ in told]
        low, high = ([getattr(p, end) for _, p in told] for end in ("low", "high"))
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, lw=0)
        axes.plot(x, [p.value for _, p in told], label=style.safe(name), ms=4, lw=1.4, **look)
    axes.set_xscale("log")
    wide = radii[-1] > 40 * radii[0]
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title(style.safe(view.network))
    axes.set_xlabel("radius")


def draw_along(lines: Lines, path: str | os.PathLike[str]) -> Path:
    """The same while a network trains, at the smallest radii: a panel for each kind of batches."""
    parts, first = list(dict.fromkeys(line["part"] for line in lines)), lines[0]
    note = (
        f"Batches of {first['batch_size']:,}, {first['batches']} of each kind and the same all "
        f"along, {first['directions']} directions each; bands: 95% intervals over both. Each "
        f"exponent is at the smallest radius that can be read, from {first['radii'][0]:.1e} up."
    )
    own = [[line for line in lines if line["part"] == part] for part in parts]
    return _draw_panels([partial(_draw_moments, lines=mine) for mine in own], note, path)


def _draw_moments(axes: Axes, lines: Lines) -> None:
    """Exponents of every block over epochs."""
    events: list[dict[str, Any]] = []
    for line in lines:
        told = exponents_along(line).items()
        laws = {n: {"exponent": p.value, "low": p.low, "high": p.high} for n, p in told}
        events.append({"epoch": line["epoch"], "blocks": without_nan(laws)})
    for i, name in enumerate(list(events[0]["blocks"])[:MOST]):
        draw_block(axes, [events], name, look_of(i), style.safe(name))
    axes.margins(x=0.02)
    axes.set_xlabel("epoch")
    axes.set_title(f"{lines[0]['part']} batches")


def draw_shares(views: Sequence[View], path: str | os.PathLike[str]) -> Path:
    """Bars of the glass share at the small end, a group a block, a bar a network and batches."""
    target = style.checked_path(path)
    blocks = list(views[0].ladder.blocks)[:MOST]
    with style.look():
        figure = style.new_figure(height=1.4 + 0.3 * len(blocks) + 0.11 * len(blocks) * len(views))
        axes = figure.subplots()
        wide = 0.8 / len(views)
        for i, view in enumerate(views):
            shares = [view.ladder.blocks[name] for name in blocks]
            told = [rungs.glass_share[rungs.start] for rungs in shares]
            places = [k + (i - (len(views) - 1) / 2) * wide for k in range(len(blocks))]
            values = [0.0 if math.isnan(share.value) else share.value for share in told]
            ends = [_ends(share.value, share.low, share.high) for share in told]
            look = LOOKS[views_by_name(views).index(view.network) % len(LOOKS)]
            axes.barh(
                places,
                values,
                height=0.9 * wide,
                xerr=list(zip(*ends, strict=True)),
                error_kw={"lw": 0.8},
                color=look["color"],
                alpha=0.9 if view.part == views[0].part else 0.45,
                label=style.safe(f"{view.network}, {view.part}", 40),
            )
        axes.set_yticks(range(len(blocks)), [style.safe(name) for name in blocks])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.25)
        axes.axvline(1, color=style.BLACK, lw=0.9, ls=(0, (1, 1.5)), zorder=0)
        axes.set_xlabel("share of the gradient's change that is glass, at the smallest radius")
        figure.legend(loc="outside upper center", ncols=2, columnspacing=1.2)
        return _both_kinds(figure, target)


def views_by_name(views: Sequence[View]) -> list[str]:
    """Networks in the order in which they come."""
    return list(dict.fromkeys(view.network for view in views))


def _ends(value: float, low: float, high: float) -> tuple[float, float]:
    """How far an interval goes to both sides, cut to the figure; nothing where it is unknown."""
    if math.isnan(value) or math.isnan(low):
        return 0.0, 0.0
    return max(0.0, value - max(0.0, low)), max(0.0, min(1.5, high) - value)


def draw_bounds(views: Sequence[View], path: str | os.PathLike[str]) -> Path:
    """Rises of the loss against what was predicted, every move a point; above the line it fails."""
    target = style.checked_path(path)
    names = views_by_name(views)
    with style.look():
        figure = style.new_figure(height=3.4)
        panels = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            mine = [view for view in views if view.network == name]
            rises = [r for v in mine for check in v.bounds for r in check.rises if r.told]
            for i, kind in enumerate(dict.fromkeys(rise.kind for rise in rises)):
                there = [
                    (rise.predicted("joint"), rise.measured)
                    for rise in rises
                    if rise.kind == kind and min(rise.predicted("joint"), rise.measured) > 0
                ]
                look = {key: LOOKS[i][key] for key in ("color", "marker")}
                x, y = ([pair[k] for pair in there] for k in (0, 1))
                axes.plot(x, y, ls="", ms=3.5, alpha=0.7, label=kind, **look)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.axline((1, 1), (10, 10), color=style.BLACK, lw=0.9, ls=(0, (1, 1.5)), zorder=1)
            axes.set_title(style.safe(name))
            axes.set_xlabel("predicted rise")
        panels[0].set_ylabel("measured rise")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
        return _both_kinds(figure, target)


_DRAWN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("quadratic", {"color": style.ORANGE, "ls": "--"}),
    ("glass", {"color": style.SKY, "ls": ":"}),
    ("combined", {"color": style.VERMILLION, "ls": "-."}),
)


def draw_slices(views: Sequence[View], path: str | os.PathLike[str], part: str) -> Path | None:
    """The loss along every direction, a row a network, with the predictions; None without any."""
    target = style.checked_path(path)
    rows = [
        (view.network, [cut for cut in view.slices if len(cut.directions) == 1])
        for view in views
        if view.part == part
    ]
    columns = max((len(cuts) for _, cuts in rows), default=0)
    if not columns:
        return None
    with style.look():
        figure = style.new_figure(height=0.8 + 1.75 * len(rows))
        grid = figure.subplots(len(rows), columns, squeeze=False)
        for axes_row, (network, cuts) in zip(grid, rows, strict=True):
            for axes, cut in zip(axes_row, cuts, strict=False):
                draw_cut(axes, cut)
            for axes in axes_row[len(cuts) :]:
                axes.set_axis_off()
            axes_row[0].set_ylabel(style.safe(f"{network}\nloss"))
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4, handlelength=2.2)
        return _both_kinds(figure, target)


def draw_cut(axes: Axes, cut: Slice) -> None:
    """One slice; the axis is as high as the loss, predictions may leave it."""
    x = [position * cut.lengths[0] for position in cut.positions]
    y = [cut.loss + change for change in cut.change]
    axes.plot(x, y, color=style.BLACK, lw=1.6, label="loss", zorder=3)
    for name, look in _DRAWN:
        told = [cut.loss + change for change in cut.predicted[name]]
        axes.plot(x, told, lw=1.2, label=name, **look)
    low, high = min(y), max(y)
    pad = 0.08 * (high - low) or 1e-6
    axes.set_ylim(low - pad, high + pad)
    axes.set_title(cut.directions[0], fontsize=style.SMALLEST_TEXT)
    axes.locator_params(nbins=3)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(-2, 3))


def draw_planes(views: Sequence[View], path: str | os.PathLike[str]) -> Path | None:
    """The loss over two directions, beside the combined prediction; None without such slices."""
    target = style.checked_path(path)
    planes = [(v, cut) for v in views for cut in v.slices if len(cut.directions) == 2]
    if not planes:
        return None
    with style.look():
        figure = style.new_figure(height=0.4 + 2.1 * len(planes))
        grid = figure.subplots(len(planes), 2, squeeze=False)
        for row, (view, cut) in zip(grid, planes, strict=True):
            x, y = ([p * length for p in cut.positions] for length in cut.lengths)
            for axes, values in zip(row, (cut.change, cut.predicted["combined"]), strict=True):
                across = [[cut.loss + v for v in line] for line in zip(*values, strict=True)]
                figure.colorbar(axes.contourf(x, y, across, levels=12, cmap="cividis"), ax=axes)
                axes.ticklabel_format(style="sci", scilimits=(-2, 3))
                axes.locator_params(nbins=3)
                axes.set_xlabel(cut.directions[0])
            row[0].set_ylabel(cut.directions[1])
            row[0].set_title(style.safe(f"{view.network}, {view.part}", 40), pad=12)
            row[1].set_title("combined prediction", pad=12)
        return _both_kinds(figure, target)
