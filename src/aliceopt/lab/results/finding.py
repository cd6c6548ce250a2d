"""The finding: what to use, lines to paste, and the evidence, computed from the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aliceopt.lab.paste import lines_to_paste
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.comparisons import Comparison, compare
from aliceopt.lab.results.decision import Decision, decide, times_the_seconds
from aliceopt.lab.results.describe import (
    STEP_NAMES,
    combination,
    is_generated,
    rates_notes,
)
from aliceopt.lab.results.differences import difference, largest, says_nothing
from aliceopt.lab.results.numbers import show_count, show_seconds, show_value
from aliceopt.lab.results.summary import MethodSummary, Summary, best_method, summarize
from aliceopt.lab.spec import Plan
from aliceopt.lab.words import counted, schedule_in_words

__all__ = ["Finding", "find"]

_FAMILIES = {"alice": "Alice", "baseline": "baseline"}
_PARTS = {"ahead": "Look-ahead", "curvature": "Curvature"}
_FEW = 4
"""As many methods are named before the rest is counted."""


@dataclass(frozen=True)
class Finding:
    """The decision, lines to paste, evidence by topic, the comparisons behind it, the choice.

    ``worth`` is what look-ahead and curvature are worth to Alice, where that was compared.
    """

    decision: str
    lines: str
    evidence: dict[str, list[str]]
    comparisons: list[Comparison]
    choice: str | None = None
    worth: str = ""

    @property
    def bullets(self) -> list[str]:
        """The evidence in order."""
        return [said for topic in self.evidence.values() for said in topic]

    @property
    def text(self) -> str:
        """All of it."""
        bullets = "\n".join(f"- {said}" for said in self.bullets)
        return "\n\n".join(filter(None, (self.decision, self.worth, self.lines, bullets)))


def find(plan: Plan, runs: Sequence[RunRecord], summary: Summary | None = None) -> Finding:
    """What the results say, with their uncertainty."""
    summary = summarize(plan, runs) if summary is None else summary
    comparisons = compare(plan, runs, summary)
    decision = decide(plan, summary, [c for c in comparisons if c.question == "best"])
    if decision is None:
        return Finding(_nothing(summary), "", _told({"trouble": _trouble(summary)}), [])
    evidence = {
        "setting": [_setting(plan)],
        "terms": _terms(plan, summary, [c for c in comparisons if c.question == "terms"]),
        "steps": [
            f"{STEP_NAMES[c.first]} against {STEP_NAMES[c.second]}, mean over the terms: "
            f"{difference(c, summary)}."
            for c in comparisons
            if c.question == "steps"
        ],
        "bound": _bound(plan, runs),
        "cost": _cost(plan, summary),
        "trouble": _trouble(summary),
        "limits": _limits(plan, runs, comparisons),
    }
    lines = _lines(plan, summary, decision)
    worth = " ".join(_worth(plan, summary, c) for c in comparisons if c.question in _PARTS)
    return Finding(decision.text, lines, _told(evidence), comparisons, decision.choice, worth)


def _told(evidence: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Those topics there is something to say about."""
    return {topic: said for topic, said in evidence.items() if said}


def _nothing(summary: Summary) -> str:
    absent = summary.counts["missing"] + summary.counts["interrupted"]
    state = "has finished yet" if absent else "ended with a result"
    return f"No run {state}, so there is nothing to find."


def _worth(plan: Plan, summary: Summary, c: Comparison) -> str:
    """``Look-ahead: 12% lower in loss (95% interval 3% to 20%), at the same seconds.``"""
    about = f" ({plan.methods[c.first].terms})" if c.question == "curvature" else ""
    if plan.methods[c.second].family == "baseline":
        about = f" (against {plan.methods[c.second].label}, Alice without it)"
    rates = _at_rates(plan, c) if c.verdict in ("better", "worse") else ""
    cost = times_the_seconds(summary[c.first], summary[c.second])
    price = "" if plan.paces else f", at {cost}"  # equal seconds by plan
    return f"{_PARTS[c.question]}{about}: {difference(c, summary)}{rates}{price}."


def _lines(plan: Plan, summary: Summary, decision: Decision) -> str:
    """Constructors of the choice, the best result, the best Alice and the best baseline, once."""
    roles: dict[str, list[str]] = {decision.choice: ["use this"]}
    roles.setdefault(decision.best, []).append("the best result")
    for family, name in _FAMILIES.items():
        if (best := best_method(plan, summary, family)) is not None:
            roles.setdefault(best.method, []).append(f"the best {name}")
    blocks = []
    for method, said in roles.items():
        about = plan.methods[method]
        label = " ".join(about.label.split())
        course = schedule_in_words(plan.schedule_of(method))
        rate = [] if course == "constant" else [f"# lr {course}"]
        lines = lines_to_paste(about.optimizer, about.options)
        blocks.append("\n".join([f"# {', '.join(said)}: {label}", *rate, lines]))
    return "\n\n".join(blocks)


def _setting(plan: Plan) -> str:
    seeds = counted(len(plan.seeds), "seed")
    return f"{plan.problem}: validation {plan.metric} at the end of training, {seeds}."


def _combination(plan: Plan, method: str) -> str:
    return combination(plan.methods[method])


def _terms(plan: Plan, summary: Summary, comparisons: list[Comparison]) -> list[str]:
    """Claims one by one, largest first; then what was seen, and what could have been missed."""
    by_size = sorted(comparisons, key=lambda c: -abs(c.gain))
    claimed = [c for c in by_size if c.verdict in ("better", "worse")]
    seen = [c for c in by_size if c.verdict in ("not established", "too few seeds")]
    unseen = [c for c in by_size if c.verdict == "no difference seen"]
    helping = any(c.verdict == "better" for c in claimed)
    said = [] if helping or not comparisons else ["No curvature term is established to help."]
    for c in claimed:
        how = f"{difference(c, summary)}{_at_rates(plan, c)}"
        said.append(f"{_combination(plan, c.first)} against no term: {how}.")
    if seen:
        seeds = counted(min(c.seeds for c in seen), "seed")
        names = [f"{_combination(plan, c.first)}, {c.scale.said(c.gain)}" for c in seen]
        said.append(f"Seen, but {seeds} cannot establish it: {_listed(names, '; ')}.")
    if len(unseen) == 1:
        c = unseen[0]
        how = difference(c, summary)
        said.append(f"{_combination(plan, c.first)} against no term: {how}.")
    elif unseen:
        other = "" if len(unseen) == len(comparisons) else "other "
        which = f"{len(unseen)} {other}combinations of term and step"
        said.append(f"{which} against no term: {_missed(unseen, summary)}.")
    return said


def _missed(unseen: list[Comparison], summary: Summary) -> str:
    """The largest difference that any of them leaves possible."""
    if all(c.gain == 0 and not c.high for c in unseen):
        return "equal"
    if any(says_nothing(c, summary) for c in unseen):
        return f"{counted(min(c.seeds for c in unseen), 'seed')} are too few to tell"
    return f"no difference larger than {largest(unseen)}"


def _listed(names: list[str], mark: str = ", ") -> str:
    """The first few of them, and how many more there are."""
    more = [f"and {len(names) - _FEW} more"] if len(names) > _FEW else []
    return mark.join([*names[:_FEW], *more])


def _at_rates(plan: Plan, c: Comparison) -> str:
    """Both learning rates, where tuning chose different ones: they may be the difference."""
    ours, theirs = (plan.methods[method].lr for method in (c.first, c.second))
    differ = plan.tuned and ours is not None and theirs is not None and ours != theirs
    return f", at learning rate {ours:.2g} against {theirs:.2g}" if differ else ""


def _bound(plan: Plan, runs: Sequence[RunRecord]) -> list[str]:
    """How often the upper bound decided instead of the curvature, on average over all steps.

    By the distance they went: at the end of a schedule, where steps go to zero, it always decides.
    """
    seen: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        if plan.methods[run.method].terms not in (None, "none"):
            groups = [group for t in run.telemetry for group in t["groups"][:1]]
            pairs = [(group["at_upper"], group["step_norm"]) for group in groups]
            told = [(share, norm) for share, norm in pairs if None not in (share, norm)]
            seen.setdefault(run.method, []).extend(told)
    total = {method: sum(norm for _, norm in pairs) for method, pairs in seen.items()}
    means = {m: sum(s * n for s, n in seen[m]) / t for m, t in total.items() if t > 0}
    if not means:
        return []
    ends = [min(means, key=means.__getitem__), max(means, key=means.__getitem__)]
    shares = dict.fromkeys(f"{means[m]:.0%} ({_combination(plan, m)})" for m in ends)
    if len(means) > 1 and len({f"{means[m]:.0%}" for m in ends}) == 1:
        shares = {f"{means[ends[0]]:.0%}": None}
    said = f"Coordinates where the rate, not curvature, bounds the step: {' to '.join(shares)}."
    hardly = "The terms could hardly act; a higher learning rate would let them."
    return [said, hardly] if means[ends[0]] > 0.9 else [said]


def _cost(plan: Plan, summary: Summary) -> list[str]:
    """Gradients and seconds of the best two; the quickest to the target."""
    said = []
    found = {family: best_method(plan, summary, family) for family in _FAMILIES}
    for family, s in found.items():
        if s is not None:
            value, price = show_value(s.median, plan.metric), _price(s.gradients, s.seconds)
            said.append(f"Best {_FAMILIES[family]}: {s.label}, median {value}, {price} a run.")
    if summary.target is not None:
        value = show_value(summary.target.value, plan.metric)
        quickest = [_quickest(summary, family) for family, s in found.items() if s is not None]
        said.append(f"To {value} ({summary.target.rule}): {'; '.join(quickest)}.")
    return said


def _quickest(summary: Summary, family: str) -> str:
    pool = [s for s in summary.methods if s.family == family and s.to_target_gradients is not None]
    if not pool:
        return f"no {_FAMILIES[family]} got there in more than half of its runs"
    first = min(pool, key=lambda s: s.to_target_gradients or 0.0)
    return f"{first.label} took {_price(first.to_target_gradients, first.to_target_seconds)}"


def _price(gradients: float | None, seconds: float | None) -> str:
    return f"{show_count(gradients)} gradients and {show_seconds(seconds)}"


def _trouble(summary: Summary) -> list[str]:
    """Runs without a result, and what their absence does to the comparisons."""
    total = sum(summary.counts.values())
    said = []
    for state in ("diverged", "failed"):
        hit = [_tally(s, state) for s in summary.methods if s.counts[state]]
        if hit:
            said.append(f"{summary.counts[state]} of {total} runs {state}: {_listed(hit)}.")
    if any(s.unstable and s.finished for s in summary.methods):
        said.append("Such methods are compared on the seeds that finished, which flatters them.")
    absent = summary.counts["missing"] + summary.counts["interrupted"]
    if absent:
        said.append(f"{absent} of {total} runs without a result yet: this may change.")
    return said


def _tally(s: MethodSummary, state: str) -> str:
    return f"{s.label} ({s.counts[state]} of {counted(sum(s.counts.values()), 'seed')})"


def _limits(plan: Plan, runs: Sequence[RunRecord], comparisons: Iterable[Comparison]) -> list[str]:
    said = rates_notes(plan)
    tested = [c for c in comparisons if c.corrected_p is not None]
    if tested:
        tests = counted(len(tested), "test")
        said.append(f"{tested[0].scale.noun} are paired by seed; {tests}, Holm-corrected.")
    if is_generated(plan, runs):
        said.append("The data were generated and say nothing about the real set.")
    return said
