"""What the figures of a study share: pictures with words, limits that one bad run cannot spoil."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from aliceopt.lab.figures import style
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.summary import Summary, outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Picture", "Results", "clip", "curve", "limits", "metric_label", "safe"]

TERM_NAMES = {"none": "no term", "glass+abs": "glass\n+ abs", "glass+signed": "glass\n+ signed"}


@dataclass(frozen=True)
class Results:
    """What the figures of a study are drawn from."""

    plan: Mapping[str, Any]
    runs: Sequence[RunRecord]
    summary: Summary


@dataclass(frozen=True)
class Picture:
    """A figure on disk, the question it answers, one sentence to read it by, and an alt text."""

    path: Path
    question: str
    caption: str
    alt: str


def metric_label(plan: Mapping[str, Any]) -> str:
    """The axis label of the metric."""
    metric = str(plan["metric"])
    return "validation accuracy, %" if metric == "accuracy" else f"validation {safe(metric)}"


def safe(text: str, most: int = 28) -> str:
    """A label that leaves room for the figure and that matplotlib takes literally.

    A dollar sign would begin mathematics.
    """
    short = text if len(text) <= most else f"{text[: most - 1].rstrip()}\u2026"
    return short.replace("$", r"\$")


def limits(values: Sequence[float], better: str) -> tuple[float, float]:
    """An axis range for results, in which a few failures on the bad side do not hide the rest.

    Values further below the median than three times the best value or the lower quartile is from
    it are left outside; `clip` marks them at the edge.
    """
    sign = 1 if better == "higher" else -1
    ordered = sorted(sign * v for v in values)
    middle, top = median(ordered), ordered[-1]
    quartile = ordered[len(ordered) // 4]
    reach = 3 * max(top - middle, middle - quartile, 1e-3 * abs(middle), 1e-12)
    bottom = min(v for v in ordered if v >= middle - reach)
    pad = 0.1 * max(top - bottom, 1e-3 * abs(middle), 1e-12)
    low, high = sorted((sign * (bottom - pad), sign * (top + pad)))
    return low, high


def clip(axes: Axes, places: Sequence[float], values: Sequence[float], **look: Any) -> None:
    """Points as they are; those outside the axis range as small arrows at its edge."""
    low, high = axes.get_ylim()
    inside = [(x, v) for x, v in zip(places, values, strict=True) if low <= v <= high]
    axes.plot([x for x, _ in inside], [v for _, v in inside], ls="", **look)
    edge = {**look, "label": "_", "zorder": 5, "clip_on": False, "alpha": 1.0}
    for x, v in zip(places, values, strict=True):
        if not low <= v <= high:
            below = v < low
            axes.plot(x, low if below else high, **{**edge, "marker": "v" if below else "^"})


def curve(
    runs: Sequence[RunRecord], key: str
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Medians of ``key``, then min, median and max of the metric, evaluation by evaluation.

    Over the runs that finished; all evaluate at the same steps.
    """
    finished = [run.evaluations for run in runs if outcome(run) == "finished"]
    rows = []
    for same in zip(*finished, strict=False):
        values = [e["metric"] for e in same if e.get("metric") is not None]
        if values and all(math.isfinite(v) for v in values):
            cost = median(float(e[key]) for e in same)
            rows.append((cost, min(values), median(values), max(values)))
    x, low, middle, high = ([row[i] for row in rows] for i in range(4))
    return x, low, middle, high


BEST_ALICE: dict[str, Any] = {"color": style.BLUE, "lw": 2.2, "zorder": 5}
BEST_BASELINE: dict[str, Any] = {"color": style.VERMILLION, "lw": 2.0, "ls": "--", "zorder": 4}
OTHER: dict[str, Any] = {"color": "#B8B8B8", "lw": 0.8, "zorder": 1}
