"""Which differences between methods are more than luck.

Each curvature term is compared to none at the same kind of step, accelerated steps to full ones,
and the method with the best result to every other. Each is a paired t-test over seeds. Holm's
correction keeps the chance of any false claim at 5% or less, for terms and steps together and for
the best method alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.paired import ALPHA, Paired, holm, resolution
from aliceopt.lab.results.summary import Summary, best_method, finals, summarize
from aliceopt.lab.spec import Plan

__all__ = ["Comparison", "Question", "Verdict", "compare", "complete_block"]

Question = Literal["terms", "steps", "best"]
Verdict = Literal["better", "worse", "not established", "no difference seen", "too few seeds"]
Values = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Comparison:
    """Method ``first`` against ``second``, over the seeds that both finished.

    ``gain`` is the mean difference over seeds, positive where the first is better, in units of the
    metric (points for accuracy). ``low`` and ``high`` are the interval at the level that Holm's
    procedure tests this comparison at, so it leaves out zero exactly where a difference is claimed.
    Each covers the true mean with 95% confidence or more, but not all of them together: intervals
    of claimed differences are too narrow for that. ``p`` is the plain test's, ``corrected_p`` what
    is left of it. ``apart``: every result of one is better than every result of the other. With
    fewer than two seeds there is no interval and no p-value.
    """

    question: Question
    first: str
    second: str
    step: str | None
    differences: tuple[float, ...]
    apart: bool = False
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
        """What may be claimed; "not established" is a difference that one test alone would see."""
        if self.p is None or self.corrected_p is None:
            return "too few seeds"
        if self.corrected_p > ALPHA:
            seen = self.gain != 0 and (self.apart or self.p <= ALPHA)
            return "not established" if seen else "no difference seen"
        return "better" if self.gain > 0 else "worse"


def compare(
    plan: Plan, runs: Sequence[RunRecord], summary: Summary | None = None
) -> list[Comparison]:
    """All comparisons that the finished runs allow, in two families corrected by themselves.

    The best of m methods is picked after the fact, so its p-values count m / 2 times before Holm's
    correction. Among T equal methods there are T (T - 1) / 2 pairs; each is tested at
    alpha / ((T - 1) m / 2) or less until one of them is claimed, which is T alpha / m in sum.
    """
    summary = summarize(plan, runs) if summary is None else summary
    values = finals(runs)
    grain = resolution([v for found in values.values() for v in found.values()])
    best = list(_best(plan, values, summary))
    return [
        *_corrected([*_terms(plan, values), *_steps(plan, values)], grain),
        *_corrected(best, grain, choices=(len(best) + 1) / 2),
    ]


def _corrected(drawn: list[Comparison], grain: float, choices: float = 1.0) -> list[Comparison]:
    """With intervals and p-values, where two seeds or more allow them."""
    pairs = {i: Paired(c.differences, grain) for i, c in enumerate(drawn) if c.seeds >= 2}
    counted = [min(1.0, choices * pair.p) for pair in pairs.values()]
    for (i, pair), corrected, level in zip(pairs.items(), *holm(counted), strict=True):
        half = pair.half_width(level / choices)
        low, high = pair.mean - half, pair.mean + half
        drawn[i] = replace(drawn[i], low=low, high=high, p=pair.p, corrected_p=corrected)
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


def _grid(plan: Plan) -> dict[tuple[str, str], str]:
    """Alice's methods by term and step; empty if two of them share a place."""
    grid: dict[tuple[str, str], str] = {}
    for method, about in plan.methods.items():
        if about.family != "alice" or about.terms is None or about.step is None:
            continue
        place = (about.terms, about.step)
        if place in grid:
            return {}
        grid[place] = method
    return grid


def _against(
    plan: Plan, values: Values, question: Question, names: tuple[str, str]
) -> Iterator[Comparison]:
    """The comparison of two methods, if a seed has both."""
    found = _differences(plan, values, *names)
    if found:
        first, second = ([values[name][seed] for seed in found] for name in names)
        step = plan.methods[names[0]].step if question == "terms" else None
        differences = tuple(found.values())
        yield Comparison(question, *names, step, differences, _apart(first, second))


def _apart(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether all of one lie below all of the other."""
    return max(first) < min(second) or max(second) < min(first)


def _differences(plan: Plan, values: Values, a: str, b: str) -> dict[int, float]:
    """Gains of a over b, by seed."""
    sign = 1 if plan.better == "higher" else -1
    mine, other = values.get(a, {}), values.get(b, {})
    return {seed: sign * (mine[seed] - other[seed]) for seed in sorted(mine) if seed in other}


def _terms(plan: Plan, values: Values) -> Iterator[Comparison]:
    grid = _grid(plan)
    for (terms, step), method in grid.items():
        without = grid.get(("none", step))
        if terms == "none" or without is None:
            continue
        yield from _against(plan, values, "terms", (method, without))


def _steps(plan: Plan, values: Values) -> Iterator[Comparison]:
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
        naq, full = (
            [values[grid[terms, step]][seed] for terms in members for seed in seeds]
            for step in ("naq", "full")
        )
        yield Comparison("steps", "naq", "full", None, means, _apart(naq, full))


def _best(plan: Plan, values: Values, summary: Summary) -> Iterator[Comparison]:
    best = best_method(plan, summary)
    if best is not None:
        for other in summary.methods:
            if other.method != best.method:
                yield from _against(plan, values, "best", (best.method, other.method))
