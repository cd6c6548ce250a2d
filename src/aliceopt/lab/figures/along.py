"""Exponents of every block while a network trains, at the smallest radii: Figure 1, by ladders."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliceopt.lab.figures import style
from aliceopt.lab.figures.landscape import MOST, RANGE, both_kinds
from aliceopt.lab.figures.outcomes import LOOKS
from aliceopt.lab.figures.power_law import draw_block, mark_powers
from aliceopt.lab.results.along_table import exponents
from aliceopt.landscape.power_law import without_nan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_along"]

Lines = Sequence[Mapping[str, Any]]


def draw_along(lines: Lines, path: str | os.PathLike[str]) -> Path:
    """A panel for each kind of batches, as PNG and PDF; bands are intervals."""
    target = style.checked_path(path)
    parts = list(dict.fromkeys(line["part"] for line in lines))
    with style.look():
        figure = style.new_figure(height=3.5)
        panels = figure.subplots(1, len(parts), sharey=True, squeeze=False)[0]
        for axes, part in zip(panels, parts, strict=True):
            _draw_part(axes, [line for line in lines if line["part"] == part])
            axes.set_title(f"{part} batches")
        panels[0].set_ylabel("exponent p of gradient variations")
        mark_powers(panels[-1])
        handles, labels = panels[0].get_legend_handles_labels()
        look: dict[str, Any] = {"ncols": 3, "columnspacing": 1.2, "handlelength": 2.6}
        figure.legend(handles, labels, loc="outside upper center", **look)
        note = textwrap.wrap(_note(lines), 78)
        figure.supxlabel("\n".join(note), x=0.01, ha="left", fontsize=style.SMALLEST_TEXT)
        figure.set_figheight(figure.get_figheight() + 0.165 * len(note))
        return both_kinds(figure, target)


def _draw_part(axes: Axes, lines: Lines) -> None:
    events = [
        {
            "epoch": line["epoch"],
            "blocks": {
                name: without_nan({"exponent": p.value, "low": p.low, "high": p.high})
                for name, p in exponents(line).items()
            },
        }
        for line in lines
    ]
    for i, name in enumerate(list(events[0]["blocks"])[:MOST]):
        draw_block(axes, [events], name, LOOKS[i % len(LOOKS)], style.safe(name))
    axes.set_ylim(*RANGE)
    for power in (1, 2):
        axes.axhline(power, color=style.BLACK, lw=0.9, ls=(0, (1, 1.5)), zorder=1)
    axes.margins(x=0.02)
    axes.set_xlabel("epoch")


def _note(lines: Lines) -> str:
    first = lines[0]
    return (
        f"Batches of {first['batch_size']:,}, {first['batches']} of each kind and the same all "
        f"along, {first['directions']} directions each; bands: 95% intervals over both. Each "
        f"exponent is at the smallest radius that can be read, from {first['radii'][0]:.1e} up."
    )
