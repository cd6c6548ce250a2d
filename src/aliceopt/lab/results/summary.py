"""What a study or an experiment came to: results by method, and the cost of reaching a target.

Results are judged at the end of the schedule. Equal steps are not equal cost, so gradient
evaluations and seconds stand beside every result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from aliceopt.lab.records import RunRecord, Status
from aliceopt.lab.spec import Plan

__all__ = [
    "MethodSummary",
    "Summary",
    "Target",
    "best_method",
    "choose_target",
    "finals",
    "summarize",
]

FAMILIES = {"alice": "Alice", "baseline": "baseline"}
_STATES: tuple[Status, ...] = ("finished", "diverged", "failed", "interrupted", "missing")
_JUDGED = ("finished", "diverged", "failed")


class Target(NamedTuple):
    """A value of the metric to be reached, and one sentence on where it comes from."""

    value: float
    rule: str


@dataclass(frozen=True)
class MethodSummary:
    """One method over its seeds.

    ``low``, ``median`` and ``high`` are of the final metric over finished runs, whatever is
    better. ``gradients`` and ``seconds`` are the medians of a finished run. ``to_target_...`` are
    medians over the ``judged`` runs: those that finished, diverged, failed or reached the target.
    One that never reached it counts as infinitely long: None if half of them or more never did.
    ``counts`` are of `outcome`.
    """

    method: str
    label: str
    family: str
    counts: Mapping[str, int]
    mean: float | None
    low: float | None
    median: float | None
    high: float | None
    gradients: float | None
    seconds: float | None
    reached: int
    judged: int
    to_target_gradients: float | None
    to_target_seconds: float | None

    @property
    def finished(self) -> int:
        """Finished runs that have a result."""
        return self.counts["finished"]

    @property
    def unstable(self) -> int:
        """Runs that diverged or failed."""
        return self.counts["diverged"] + self.counts["failed"]


@dataclass(frozen=True)
class Summary:
    """All methods, in the plan's order, with the totals of all runs, finished or not."""

    methods: tuple[MethodSummary, ...]
    target: Target | None
    counts: Mapping[str, int]
    gradients: int
    seconds: float

    def __getitem__(self, method: str) -> MethodSummary:
        return next(summary for summary in self.methods if summary.method == method)

    @property
    def absent(self) -> int:
        """Runs that may still have a result."""
        return self.counts["missing"] + self.counts["interrupted"]


def outcome(run: RunRecord) -> Status:
    """What became of a run: "finished" only with a result, else "diverged" in its place.

    A journal writes a metric that is not finite as null, and early ones call such a run finished.
    """
    if run.status == "finished" and (run.final is None or not math.isfinite(run.final)):
        return "diverged"
    return run.status


def reason(run: RunRecord) -> str:
    """Why a run has no result, as far as it is known; empty if it has one."""
    if outcome(run) != run.status:
        return "the metric is not finite"
    return str((run.end or {}).get("reason") or "")


def finals(runs: Iterable[RunRecord]) -> dict[str, dict[int, float]]:
    """The final metric of every finished run, by method and seed."""
    values: dict[str, dict[int, float]] = {}
    for run in runs:
        found = values.setdefault(run.method, {})
        if outcome(run) == "finished" and run.final is not None:
            found[run.seed] = run.final
    return values


def summarize(plan: Plan, runs: Sequence[RunRecord], target: float | None = None) -> Summary:
    """Summaries of all planned methods.

    ``target``, else the plan's, overrides the rule of `choose_target`.
    """
    target = plan.target if target is None else target
    goal = Target(target, "as given") if target is not None else choose_target(plan, runs)
    by_method: dict[str, list[RunRecord]] = {method: [] for method in plan.methods}
    for run in runs:
        by_method[run.method].append(run)
    methods = tuple(
        _summarize_method(plan, method, mine, goal) for method, mine in by_method.items() if mine
    )
    return Summary(
        methods=methods,
        target=goal,
        counts={state: sum(s.counts[state] for s in methods) for state in _STATES},
        gradients=sum(run.gradients for run in runs),
        seconds=math.fsum(run.seconds for run in runs if not math.isnan(run.seconds)),
    )


def choose_target(plan: Plan, runs: Sequence[RunRecord]) -> Target | None:
    """What the middle one of the baselines reaches in more than half of its runs.

    By their medians, of two middle ones the worse. So about half of the baselines reach it, however
    badly one of them does. Without a baseline that finished, the middle one of all methods; None if
    nothing finished.
    """
    found = {m: list(v.values()) for m, v in finals(runs).items() if v}
    baselines = {m: v for m, v in found.items() if plan.methods[m].family == "baseline"}
    pool = baselines or found
    if not pool:
        return None
    medians = {m: median(v) for m, v in pool.items()}
    middle = _middle(plan, medians.values())
    method = next(m for m in pool if medians[m] == middle)
    kind = "baseline" if baselines else "method"
    rank = f"the middle one of {len(pool)} {kind}s" if len(pool) > 1 else f"the only {kind}"
    values = pool[method]
    what = "the median" if len(values) % 2 else "the worse of two middle results"
    return Target(_middle(plan, values), f"{what} of {plan.methods[method].label}, {rank}")


def _middle(plan: Plan, values: Iterable[float]) -> float:
    """The median, but the worse of two middle values instead of their mean: one that was seen."""
    best_first = sorted(values, reverse=plan.better == "higher")
    return best_first[len(best_first) // 2]


def best_method(
    plan: Plan,
    summary: Summary,
    family: str | None = None,
    among: Collection[str] | None = None,
) -> MethodSummary | None:
    """The best median, then mean, of a family, or of the methods named in ``among``.

    Methods that diverged come after all others; those with less than half of the seeds that
    others finished do not count.
    """
    sign = 1 if plan.better == "higher" else -1
    pool = [s for s in summary.methods if s.median is not None and family in (None, s.family)]
    pool = [s for s in pool if among is None or s.method in among]
    most = max((s.finished for s in pool), default=0)
    return max(
        (s for s in pool if 2 * s.finished >= most),
        key=lambda s: (-s.unstable, sign * (s.median or 0.0), sign * (s.mean or 0.0)),
        default=None,
    )


def best_of_families(plan: Plan, summary: Summary) -> dict[str, MethodSummary]:
    """The `best_method` of every family that has one."""
    found = {family: best_method(plan, summary, family) for family in FAMILIES}
    return {family: s for family, s in found.items() if s is not None}


def _summarize_method(
    plan: Plan, method: str, runs: Sequence[RunRecord], target: Target | None
) -> MethodSummary:
    about = plan.methods[method]
    done = [run for run in runs if outcome(run) == "finished"]
    values = [run.final for run in done if run.final is not None]
    costs = [(run, _first_beyond(run, target, plan.better)) for run in runs]
    never = (math.inf, math.inf)
    judged = [cost or never for run, cost in costs if cost or outcome(run) in _JUDGED]
    return MethodSummary(
        method=method,
        label=about.label,
        family=about.family,
        counts={state: sum(outcome(run) == state for run in runs) for state in _STATES},
        mean=fmean(values) if values else None,
        low=min(values, default=None),
        median=_median(values),
        high=max(values, default=None),
        gradients=_median([run.gradients for run in done]),
        seconds=_median([run.seconds for run in done]),
        reached=sum(cost is not None for _, cost in costs),
        judged=len(judged),
        to_target_gradients=_median([gradients for gradients, _ in judged]),
        to_target_seconds=_median([seconds for _, seconds in judged]),
    )


def _first_beyond(run: RunRecord, target: Target | None, better: str) -> tuple[float, float] | None:
    """Gradients and seconds at the first evaluation at or beyond the target; not interpolated."""
    if target is None:
        return None
    for evaluation in run.evaluations:
        value = evaluation.get("metric")
        if value is None:
            continue
        if value >= target.value if better == "higher" else value <= target.value:
            return float(evaluation["gradients"]), float(evaluation["seconds"])
    return None


def _median(values: Sequence[float]) -> float | None:
    """Of those that are known; None if it is not finite."""
    known = [value for value in values if not math.isnan(value)]
    middle = median(known) if known else math.inf
    return middle if math.isfinite(middle) else None


def describe_counts(counts: Mapping[str, int]) -> str:
    """``3 finished``, or all that happened: ``2 finished, 1 diverged``."""
    said = [f"{counts[state]} {state}" for state in _STATES if counts[state]]
    return ", ".join(said) or "none"


def describe_finished(s: MethodSummary) -> str:
    """``3 of 3``, or with what became of the others: ``2 of 3, 1 diverged``."""
    others = {**s.counts, "finished": 0}
    trouble = [describe_counts(others)] if any(others.values()) else []
    return ", ".join([f"{s.finished} of {sum(s.counts.values())}", *trouble])
