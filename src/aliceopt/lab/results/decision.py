"""What to use: the best of those that cost what a step usually costs.

A better result has to be more than luck before it may cost more: only methods count that are not
established to be worse than the best. Seconds are noisy, too, and those of the single cheapest
method most of all, which may be cheap by luck and no good. So the measure is the middle of those
with the fewest gradients; all up to a third above it, or a few hundredths of a second, are as
cheap, and the best of them is chosen.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low

from aliceopt.lab.optimizers.paste import shown_rate
from aliceopt.lab.results.comparisons import WIDE, Comparison, difference, says_nothing
from aliceopt.lab.results.summary import FAMILIES, MethodSummary, Summary, best_method
from aliceopt.lab.spec import Plan

__all__ = ["AS_CHEAP", "Decision", "decide", "times_the_seconds"]

AS_CHEAP, NO_COST = 4 / 3, 0.05
"""A method is cheap up to so many times the usual seconds, or so many seconds more."""

AS_FEW = 1.05
"""Up to so many times the fewest gradients are as few: equal budgets differ by a step or two."""


@dataclass(frozen=True)
class Decision:
    """The method to use, the one with the best result, and why, in one or two sentences."""

    choice: str
    best: str
    text: str


def decide(plan: Plan, summary: Summary, comparisons: Sequence[Comparison]) -> Decision | None:
    """The decision, or None if nothing finished; ``comparisons`` are those with the best method.

    None that diverged where the best did not is chosen.
    """
    if plan.paces:  # equal seconds by plan; what differs is how busy the machine was
        equal = tuple(replace(s, seconds=1.0) for s in summary.methods if s.finished)
        summary = replace(summary, methods=equal)
    best = best_method(plan, summary)
    if best is None:
        return None
    against = {c.second: c for c in comparisons}
    fine = [
        s
        for s in summary.methods
        if s.seconds is not None
        and s.unstable <= best.unstable
        and (s is best or (s.method in against and against[s.method].verdict != "better"))
    ]
    choice = best_method(plan, summary, among=_cheap(fine)) or best
    rate = plan.methods[choice.method].lr
    named = choice.label if rate is None else f"{choice.label}, lr={shown_rate(rate):g}"
    why = _why(plan, summary, choice, best, against)
    return Decision(choice.method, best.method, f"Use {named}. {why}")


def _cheap(methods: Sequence[MethodSummary]) -> set[str]:
    """Those of the usual cost: the middle of those with the fewest gradients, of two the lower."""
    spent = {s.method: s.seconds for s in methods if s.seconds is not None}
    few = AS_FEW * min((s.gradients for s in methods if s.gradients is not None), default=0.0)
    usual = median_low(
        [spent[s.method] for s in methods if (s.gradients or few) <= few and s.method in spent]
        or [0.0]
    )
    limit = max(AS_CHEAP * usual, usual + NO_COST)
    return {method for method, seconds in spent.items() if seconds <= limit}


def _why(
    plan: Plan,
    summary: Summary,
    choice: MethodSummary,
    best: MethodSummary,
    against: Mapping[str, Comparison],
) -> str:
    """The best result by how much, compared to whom, at which cost; or what it would cost."""
    if choice.method != best.method:
        c = against[choice.method]
        cost = times_the_seconds(best, choice)
        said = f"The best median was that of {best.label} ({cost}): {difference(c, summary)}."
        return said + _hint(plan, c, summary)
    others = {s.method for s in summary.methods if s.family != best.family} & set(against)
    rival = best_method(plan, summary, among=others) or best_method(plan, summary, among=against)
    if rival is None:
        return "It was compared to nothing else."
    role = "the next best" if rival.family == best.family else f"the best {FAMILIES[rival.family]}"
    c = against[rival.method]
    said = difference(c, summary)
    if c.verdict == "better":
        cost = times_the_seconds(best, rival)
        return f"Compared to {role} ({rival.label}) it ended {said}, at {cost}."
    cost = times_the_seconds(rival, best)
    return (
        f"Nothing better was seen. Compared to {role} ({rival.label}, {cost}): "
        f"{said}.{_hint(plan, c, summary)}"
    )


def times_the_seconds(s: MethodSummary, other: MethodSummary) -> str:
    """``2.1 times the seconds``, of the first compared to the second.

    Where both take next to none a ratio would say nothing: ``0.04 s more``.
    """
    if not s.seconds or not other.seconds:
        return "unknown seconds"
    more, ratio = s.seconds - other.seconds, float(f"{s.seconds / other.seconds:.2g}")
    if ratio == 1 or abs(more) < 0.005:
        return "the same seconds"
    if abs(more) <= NO_COST:
        return f"{abs(more):.2f} s {'more' if more > 0 else 'less'}"
    return f"{ratio:g} times the seconds"


def _hint(plan: Plan, c: Comparison, summary: Summary) -> str:
    """What may tell, where a difference was seen or could not have been, or may be large."""
    open_still = c.verdict in ("not established", "too few seeds") or says_nothing(c, summary)
    unseen = c.verdict == "no difference seen" and c.scale.ratio
    wide = unseen and any(abs(end) > WIDE for end in c.ends)
    if not open_still and not wide:
        return ""
    words = shlex.split(plan.command) if plan.kind == "study" else []  # else perhaps of several
    command = [
        word
        for before, word in pairwise(["", *words])
        if "--seeds" not in (before, word) and not word.startswith("--seeds=")
    ]
    more = ["--seeds", str(max(4, 2 * len(plan.seeds))), "--resume"]
    return f" `{shlex.join(command + more)}` may tell."
