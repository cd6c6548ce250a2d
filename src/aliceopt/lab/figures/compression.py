"""What removing weights costs, by the criterion that chose them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean

from aliceopt.lab.compression import Result, row_of
from aliceopt.lab.figures import style
from aliceopt.lab.figures.outcomes import LOOKS
from aliceopt.lab.results.compression_table import criteria, results_at, sparsities

__all__ = ["draw_compression"]

_LEFT_OUT = ("taylor", "point", "free", "both")
"""Not drawn where there are more criteria than lines that can be told apart."""


def draw_compression(results: Sequence[Result], path: str | os.PathLike[str]) -> Path:
    """Loss against the share removed, a line a criterion."""
    target = style.checked_path(path)
    shown = criteria(results)
    if len(shown) > len(LOOKS):
        shown = [name for name in shown if name not in _LEFT_OUT]
    shares = sparsities(results)
    with style.look():
        figure = style.new_figure(3.2 + 0.2 * len(shown))
        axes = figure.add_subplot()
        whole = fmean(r.loss for r in results_at(results, "none", 0.0).values())
        axes.axhline(whole, color="0.6", lw=0.8, label="none removed")
        for look, name in zip(cycle(LOOKS), shown, strict=False):
            means = [fmean(r.loss for r in results_at(results, name, s).values()) for s in shares]
            style_of = {"color": look["color"], "marker": look["marker"], "ls": look["ls"]}
            percent = [100 * s for s in shares]
            axes.plot(percent, means, label=row_of(name).label, lw=1.2, ms=4, **style_of)
        axes.set_xlabel("weights removed, %")
        axes.set_ylabel("validation loss")
        figure.legend(loc="outside upper left")
        return style.save(figure, target)
