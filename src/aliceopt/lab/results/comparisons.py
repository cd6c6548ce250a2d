"""Which differences between methods are more than luck.

Alice as it comes is compared to itself without look-ahead, which is AdamW, and with curvature; each
curvature term to none at the same kind of step, and accelerated steps to full ones; and the method
with the best result to every other. Each is a paired t-test over seeds. Holm's correction keeps the
chance of any false claim at 5% or less, in each of these three families.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from aliceopt import Alice
from aliceopt.lab.optimizers.methods import TERMS, arguments
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.paired import ALPHA, Paired, holm, resolution
from aliceopt.lab.results.scale import Scale, scale_of
from aliceopt.lab.results.summary import Summary, best_method, finals, summarize
from aliceopt.lab.spec import Plan, PlannedMethod
from aliceopt.lab.words import counted

WIDE = math.log(1.2)
"""An interval of ratios that reaches further than this leaves much open."""

__all__ = ["Comparison", "asked_twice", "compare", "complete_block"]

Question = Literal["ahead", "curvature", "terms", "steps", "best"]
Verdict = Literal["better", "worse", "not established", "no difference seen", "too few seeds"]
Values = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Comparison:
    """Method ``first`` against ``second``, over the seeds that both finished.

    ``differences`` are gains on the ``scale``, one a seed, positive where the first is better, and
    ``gain`` is their mean. ``low`` and ``high`` are the interval at the level that Holm's
    procedure tests this comparison at, so it leaves out zero exactly where a difference is claimed.
    Each covers the true mean with 95% confidence or more, but not all of them together: intervals
    of claimed differences are too narrow for that. ``p`` is the plain test's, ``corrected_p`` what
    is left of it. ``apart``: every result of one is better than every result of the other.
    ``grain`` is `Paired`'s. With fewer than two seeds there is no interval and no p-value.
    """

    question: Question
    first: str
    second: str
    step: str | None
    differences: tuple[float, ...]
    scale: Scale
    apart: bool = False
    grain: float = 0.0
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
    def ends(self) -> tuple[float, ...]:
        """Of the interval; empty where there is none."""
        return () if self.low is None or self.high is None else (self.low, self.high)

    @property
    def turned(self) -> Comparison:
        """The second against the first."""
        differences = tuple(-difference for difference in self.differences)
        low, high = (None if end is None else -end for end in (self.high, self.low))
        swapped = replace(self, first=self.second, second=self.first)
        return replace(swapped, differences=differences, low=low, high=high)

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
    """All comparisons that the finished runs allow, in three families corrected by themselves.

    The best of m methods is picked after the fact, so its p-values count m / 2 times before Holm's
    correction. Among T equal methods there are T (T - 1) / 2 pairs; each is tested at
    alpha / ((T - 1) m / 2) or less until one of them is claimed, which is T alpha / m in sum.
    """
    summary = summarize(plan, runs) if summary is None else summary
    results = _Results(plan, finals(runs))
    of_best: list[Comparison] = []
    if (best := best_method(plan, summary)) is not None:
        for other in summary.methods:
            if other.method != best.method:
                of_best += results.against("best", best.method, other.method)
    return [
        *_corrected(list(_parts(results))),
        *_corrected(list(_terms_and_steps(results))),
        *_corrected(of_best, choices=(len(of_best) + 1) / 2),
    ]


def _corrected(drawn: list[Comparison], choices: float = 1.0) -> list[Comparison]:
    """With intervals and p-values, where two seeds or more allow them."""
    pairs = {i: Paired(c.differences, c.grain) for i, c in enumerate(drawn) if c.seeds >= 2}
    chances = [min(1.0, choices * pair.p) for pair in pairs.values()]
    for (i, pair), corrected, level in zip(pairs.items(), *holm(chances), strict=True):
        half = pair.half_width(level / choices)
        low, high = pair.mean - half, pair.mean + half
        drawn[i] = replace(drawn[i], low=low, high=high, p=pair.p, corrected_p=corrected)
    return drawn


def asked_twice(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Those with the best method whose pair is also compared for its own sake, at another level.

    One difference then has two intervals, each right for what it is asked for.
    """
    of_its_own = {
        frozenset((c.first, c.second)): c.ends for c in comparisons if c.question != "best"
    }
    found = []
    for c in comparisons:
        other = of_its_own.get(frozenset((c.first, c.second)), ())
        if c.question == "best" and c.ends and other:
            found += [] if {*map(abs, c.ends)} == {*map(abs, other)} else [c]
    return found


class _Results:
    """The final results of a plan's methods, by seed, and the scale they are compared on."""

    def __init__(self, plan: Plan, values: Values):
        every = [v for found in values.values() for v in found.values()]
        self.plan, self.values = plan, values
        self.scale, self._step = scale_of(plan, every), resolution(every)

    def gains(self, first: str, second: str) -> dict[int, float]:
        """Of one method over another, by seed."""
        mine, other = self.values.get(first, {}), self.values.get(second, {})
        return {s: self.scale.gain(mine[s], other[s]) for s in sorted(mine) if s in other}

    def compared(
        self,
        question: Question,
        names: tuple[str, str],
        gains: Iterable[float],
        first: Sequence[float],
        second: Sequence[float],
        step: str | None = None,
    ) -> Comparison:
        """A comparison by its gains and by the results behind them."""
        apart = max(first) < min(second) or max(second) < min(first)
        grain = self.scale.grain(self._step, [*first, *second])
        return Comparison(question, *names, step, tuple(gains), self.scale, apart, grain)

    def against(self, question: Question, first: str, second: str) -> Iterator[Comparison]:
        """The comparison of two methods, if a seed has both."""
        if found := self.gains(first, second):
            mine, other = ([self.values[m][seed] for seed in found] for m in (first, second))
            step = self.plan.methods[first].step if question == "terms" else None
            yield self.compared(question, (first, second), found.values(), mine, other, step)


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


def _parts(results: _Results) -> Iterator[Comparison]:
    """What look-ahead and curvature are worth to a study's Alice as it comes, each by itself.

    Such methods have no kind of step, and two that are compared differ in one part and the rate.
    """
    plan = results.plan
    methods = plan.methods if plan.kind == "study" else {}
    own = {m: _as_alice(about) for m, about in methods.items() if about.step is None}
    known = {m: mine for m, mine in own.items() if mine is not None}
    by_family = sorted(known, key=lambda m: methods[m].family)  # Alice's own come first
    for first, mine in known.items():
        for question, without in _WITHOUT.items():
            less = {**mine, **without}
            second = next((m for m in by_family if known[m] == less), None)
            if less != mine and second is not None:
                yield from results.against(question, first, second)


_WITHOUT: dict[Question, dict[str, Any]] = {
    "ahead": {"lookahead": 1.0},
    "curvature": TERMS["none"],
}
_DEFAULTS = {name: p.default for name, p in inspect.signature(Alice).parameters.items()}


def _as_alice(about: PlannedMethod) -> dict[str, Any] | None:
    """All settings of an Alice but its rate and how often it measures; None if it is none.

    AdamW is the one that looks not ahead and measures nothing.
    """
    if about.optimizer == "alice":
        mine = arguments("alice", about.options)
    elif about.optimizer == "adamw":
        mine = {**about.options, **_WITHOUT["ahead"]}
    else:
        return None
    return {**_DEFAULTS, **mine, "lr": None, "quick_steps": None}


def _terms_and_steps(results: _Results) -> Iterator[Comparison]:
    """Each term against none at its kind of step; then accelerated against full steps.

    Steps are compared by the mean over terms at every seed. Of methods with the same term and step
    the paper's own counts; nothing where that does not tell them apart.
    """
    places: dict[tuple[str, str], list[str]] = {}
    for method, about in results.plan.methods.items():
        if about.family == "alice" and about.terms is not None and about.step is not None:
            places.setdefault((about.terms, about.step), []).append(method)
    papers = {
        place: [m for m in found if m in results.plan.paper] if len(found) > 1 else found
        for place, found in places.items()
    }
    if any(len(found) != 1 for found in papers.values()):
        return
    grid = {place: method for place, (method,) in papers.items()}
    for (terms, step), method in grid.items():
        if terms != "none" and ("none", step) in grid:
            yield from results.against("terms", method, grid["none", step])
    pairs = {
        terms: results.gains(method, grid[terms, "full"])
        for (terms, step), method in grid.items()
        if step == "naq" and (terms, "full") in grid
    }
    members, seeds = complete_block({terms: found for terms, found in pairs.items() if found})
    if members:
        means = [fmean(pairs[terms][seed] for terms in members) for seed in seeds]
        naq, full = (
            [results.values[grid[terms, step]][seed] for terms in members for seed in seeds]
            for step in ("naq", "full")
        )
        yield results.compared("steps", ("naq", "full"), means, naq, full)


# ---- in words ----------------------------------------------------------------------------------


def difference(c: Comparison, summary: Summary) -> str:
    """The first compared to the second: by how much, how sure, or why that cannot be said.

    One of: ``better by 0.4 points (95% interval 0.1 to 0.7)``; ``better by 0.4 points, which 3
    seeds cannot establish``; or what `missed` says. Losses are ``1.8 times lower`` instead, or
    ``12% lower``.
    """
    if c.gain == 0 or c.verdict == "no difference seen":
        return missed([c], summary)
    if c.verdict in ("better", "worse"):
        return c.scale.said(c.gain, *c.ends)
    return f"{c.scale.said(c.gain)}, which {counted(c.seeds, 'seed')} cannot establish"


def missed(unseen: Sequence[Comparison], summary: Summary) -> str:
    """The largest difference that comparisons without a visible one leave possible.

    One of: ``no difference larger than 0.5 points``; ``equal``; ``not told apart, up to 40% in loss
    either way``, where ratios reach far; or that the seeds are too few.
    """
    if all(c.gain == 0 and not c.high for c in unseen):
        return "equal"
    if any(says_nothing(c, summary) for c in unseen):
        return f"{counted(min(c.seeds for c in unseen), 'seed')} are too few to tell"
    reach = max(abs(end) for c in unseen for end in c.ends)
    scale = unseen[0].scale
    if scale.ratio and reach > WIDE:
        return f"not told apart, up to {scale.size(reach)} either way"
    return f"no difference larger than {scale.size(reach)}"


def says_nothing(c: Comparison, summary: Summary) -> bool:
    """Whether the interval reaches further than all results together, or of ratios anywhere."""
    if not c.ends:
        return False
    if c.scale.knows_nothing(*c.ends):
        return True
    lows = [s.low for s in summary.methods if s.low is not None]
    highs = [s.high for s in summary.methods if s.high is not None]
    low, high = c.ends
    return (high - low) / 2 > abs(c.scale.gain(max(highs), min(lows))) > 0
