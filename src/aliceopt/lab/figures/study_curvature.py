"""Which curvature is there: Alice's own account, block by block over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from aliceopt.lab.figures import style
from aliceopt.lab.figures.study_look import Picture, Results, safe
from aliceopt.lab.records import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_study_curvature", "merge_blocks"]

MOST_BLOCKS = 6
_PANELS = {
    "glass_share": "Share of the curvature\nthat is glass, %",
    "at_upper": "Share of coordinates\nat the upper bound, %",
}
_MARKERS = "osD^vP"
_COLORS = ("#440154", "#414487", "#2A788E", "#22A884", "#7AD151", "#C8B400")


def draw_study_curvature(results: Results, path: Path) -> Picture | None:
    """Draw the glass share and the share at the upper bound; None without such telemetry."""
    plan, runs = results.plan, results.runs
    method = _choose(plan, runs)
    if method is None:
        return None
    chosen = [run for run in runs if run.method == method and run.telemetry]
    label = plan["methods"][method]["label"]
    with style.look():
        figure = style.new_figure(height=3.0)
        for axes, (key, title) in zip(figure.subplots(1, 2), _PANELS.items(), strict=True):
            series = _series(chosen, key)
            _draw_blocks(axes, series)
            axes.set_title(title, fontsize=style.SMALLEST_TEXT)
            axes.set_ylim(0, 100)
            axes.set_xlabel("step")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(4, max(2, len(labels))),
            handlelength=2.2,
        )
    last = {block: values[-1][1] for block, values in _series(chosen, "glass_share").items()}
    told = ", ".join(f"{block} {value:.0f}%" for block, value in last.items())
    return Picture(
        path=style.save(figure, path),
        question="Which curvature is there?",
        caption=f"For {label}, medians over seeds: where glass dominates, gradient jumps shorten "
        "the steps; at the upper bound the learning rate does, and the curvature has no say.",
        alt=f"Glass share of the curvature by block at the end of training: {told}.",
    )


def _choose(plan: Mapping[str, Any], runs: Sequence[RunRecord]) -> str | None:
    """Both terms and accelerated steps if there are such records, else any that measure glass."""
    measured = {run.method for run in runs if any(t.get("blocks") for t in run.telemetry)}
    glassy = [m for m in plan["methods"] if m in measured and "glass" in _terms(plan, m)]
    wanted = ("glass+abs", "naq")
    for m in glassy:
        if (_terms(plan, m), plan["methods"][m].get("step")) == wanted:
            return str(m)
    return str(glassy[0]) if glassy else None


def _terms(plan: Mapping[str, Any], method: str) -> str:
    return str(plan["methods"][method].get("terms") or "")


def merge_blocks(names: Sequence[str], most: int = MOST_BLOCKS) -> dict[str, list[str]]:
    """Neighbouring blocks put together until there are at most ``most``, as even as counts allow.

    >>> merge_blocks(["a", "b", "c"], most=2)
    {'a': ['a'], 'b to c': ['b', 'c']}
    """
    count = min(most, len(names))
    merged = {}
    for i in range(count):
        members = list(names[i * len(names) // count : (i + 1) * len(names) // count])
        merged[members[0] if len(members) == 1 else f"{members[0]} to {members[-1]}"] = members
    return merged


def _series(runs: Sequence[RunRecord], key: str) -> dict[str, list[tuple[int, float]]]:
    """Percentages by block: step and median over seeds, weighted by coordinates in a block."""
    names = list(runs[0].telemetry[-1]["blocks"])
    series: dict[str, list[tuple[int, float]]] = {}
    for label, members in merge_blocks(names).items():
        by_step: dict[int, list[float]] = {}
        for run in runs:
            for record in run.telemetry:
                value = _mean(record["blocks"], members, key)
                if value is not None:
                    by_step.setdefault(record["step"], []).append(100 * value)
        if by_step:
            series[label] = [(step, median(found)) for step, found in sorted(by_step.items())]
    return series


def _mean(blocks: Mapping[str, Any], members: Sequence[str], key: str) -> float | None:
    pairs = [
        (blocks[m]["coordinates"], blocks[m][key])
        for m in members
        if m in blocks and blocks[m].get(key) is not None
    ]
    total = sum(n for n, _ in pairs)
    return sum(n * v for n, v in pairs) / total if total else None


def _color(index: int, count: int) -> str:
    """From dark to light along the network, as far apart as the number of blocks allows."""
    return _COLORS[round(index * (len(_COLORS) - 1) / max(1, count - 1))]


def _draw_blocks(axes: Axes, series: Mapping[str, list[tuple[int, float]]]) -> None:
    for i, (block, points) in enumerate(series.items()):
        steps, values = zip(*points, strict=True)
        every = max(1, len(points) // 6)
        look: dict[str, Any] = {
            "color": _color(i, len(series)),
            "marker": _MARKERS[i],
            "ms": 4,
            "markevery": every,
        }
        axes.plot(steps, values, lw=1.6, label=safe(block), **look)
