"""Which differences between methods are more than luck.

Three questions make one family of comparisons: each curvature term against none at the same kind
of step, accelerated steps against full ones, and the best Alice against the best baseline. Each is
a paired t-test over seeds; Holm's correction keeps the chance of any false claim in the study at
5% or less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.paired import ALPHA, Paired, holm, resolution
from aliceopt.lab.results.summary import Summary, best_method, finals, summarize

__all__ = ["Comparison", "Question", "Verdict", "compare", "complete_block"]

Question = Literal["terms", "steps", "best"]
Verdict = Literal["better", "worse", "no difference seen", "too few seeds"]
Values = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Comparison:
    """Method ``first`` against ``second``, over the seeds that both finished.

    ``gain`` is the mean difference over seeds, positive where the first is better, in units of the
    metric (points for accuracy). ``low`` and ``high`` are the interval at the level that Holm's
    procedure tests this comparison at, so it leaves out zero exactly where a difference is claimed.
    Each covers the true mean with 95% confidence or more, but not all of them together: intervals
    of claimed differences are too narrow for that. ``choices`` is the number of pairs the two were
    picked from after the results were known: p-value and interval pay for all of them. With fewer
    than two seeds there is no interval and no p-value.
    """

    question: Question
    first: str
    second: str
    step: str | None
    differences: tuple[float, ...]
    choices: int = 1
    low: float | None = None
    high: float | None = None
    p: float | None = None
    corrected_p: float | None = None

    @property
    def gain(self) -> float:
        """Mean difference over seeds, positive where the first is better."""
        return fmean(self.differences)

    @property
    def seeds(self) -> int:
        """Seeds with both results."""
        return len(self.differences)

    @property
    def verdict(self) -> Verdict:
        """What may be claimed."""
        if self.corrected_p is None:
            return "too few seeds"
        if self.corrected_p > ALPHA:
            return "no difference seen"
        return "better" if self.gain > 0 else "worse"


def compare(
    plan: Mapping[str, Any], runs: Sequence[RunRecord], summary: Summary | None = None
) -> list[Comparison]:
    """All comparisons that the finished runs allow, corrected as one family."""
    summary = summarize(plan, runs) if summary is None else summary
    values = finals(runs)
    drawn = [*_terms(plan, values), *_steps(plan, values), *_best(plan, values, summary)]
    grain = resolution([v for found in values.values() for v in found.values()])
    pairs = {i: Paired(c.differences, grain) for i, c in enumerate(drawn) if c.seeds >= 2}
    raw = [min(1.0, drawn[i].choices * pair.p) for i, pair in pairs.items()]
    for i, p, corrected, level in zip(pairs, raw, *holm(raw), strict=True):
        half = pairs[i].half_width(level / drawn[i].choices)
        low, high = pairs[i].mean - half, pairs[i].mean + half
        drawn[i] = replace(drawn[i], low=low, high=high, p=p, corrected_p=corrected)
    return drawn


def complete_block(values: Values) -> tuple[list[str], list[int]]:
    """Methods and seeds with every result present; the block with the most results.

    Two seeds or more come before a larger block of one, which would leave no uncertainty.
    """
    best: tuple[tuple[bool, int], list[str], list[int]] = ((False, 0), [], [])
    for found in values.values():
        members = [m for m, other in values.items() if set(found) <= set(other)]
        score = (len(found) >= 2, len(found) * len(members))
        if score > best[0]:
            best = (score, members, sorted(found))
    return best[1], best[2]


def _grid(plan: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Alice's methods by term and step; empty if two of them share a place."""
    grid: dict[tuple[str, str], str] = {}
    for method, about in plan["methods"].items():
        if about["family"] != "alice" or about.get("terms") is None or about.get("step") is None:
            continue
        place = (about["terms"], about["step"])
        if place in grid:
            return {}
        grid[place] = method
    return grid


def _differences(plan: Mapping[str, Any], values: Values, a: str, b: str) -> dict[int, float]:
    """Gains of a over b, by seed."""
    sign = 1 if plan["better"] == "higher" else -1
    mine, other = values.get(a, {}), values.get(b, {})
    return {seed: sign * (mine[seed] - other[seed]) for seed in sorted(mine) if seed in other}


def _terms(plan: Mapping[str, Any], values: Values) -> Iterator[Comparison]:
    grid = _grid(plan)
    for (terms, step), method in grid.items():
        without = grid.get(("none", step))
        if terms == "none" or without is None:
            continue
        found = _differences(plan, values, method, without)
        if found:
            yield Comparison("terms", method, without, step, tuple(found.values()))


def _steps(plan: Mapping[str, Any], values: Values) -> Iterator[Comparison]:
    """Accelerated against full steps: the mean over terms at every seed."""
    grid = _grid(plan)
    pairs = {
        terms: _differences(plan, values, method, grid[terms, "full"])
        for (terms, step), method in grid.items()
        if step == "naq" and (terms, "full") in grid
    }
    members, seeds = complete_block({terms: found for terms, found in pairs.items() if found})
    if members:
        means = tuple(fmean(pairs[terms][seed] for terms in members) for seed in seeds)
        yield Comparison("steps", "naq", "full", None, means)


def _best(plan: Mapping[str, Any], values: Values, summary: Summary) -> Iterator[Comparison]:
    alice = best_method(plan, summary, "alice")
    baseline = best_method(plan, summary, "baseline")
    if alice is None or baseline is None:
        return
    names = (alice.method, baseline.method)
    found = _differences(plan, values, *names)
    sizes = [
        sum(s.family == family and s.median is not None for s in summary.methods)
        for family in ("alice", "baseline")
    ]
    if found:
        yield Comparison("best", *names, None, tuple(found.values()), sizes[0] * sizes[1])
