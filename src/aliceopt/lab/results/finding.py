"""The finding: one paragraph in plain English, computed from the numbers.

"No difference seen" is a finding too, and then the paragraph says how large a difference could
have been missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.comparisons import Comparison, compare
from aliceopt.lab.results.describe import (
    STEP_NAMES,
    combination,
    is_generated,
    problem_name,
    rates_note,
)
from aliceopt.lab.results.numbers import (
    decimals,
    show_count,
    show_difference,
    show_seconds,
    show_value,
    signed,
    unit,
)
from aliceopt.lab.results.summary import MethodSummary, Summary, best_method, summarize

__all__ = ["Finding", "find", "join"]

_EXPLAINED = {
    "NAQ steps": "NAQ steps go a fraction of the quasi-Newton step and look ahead",
    "full steps": "full steps go all of it",
}
_SHORTER = {" points of accuracy": " points", "(95% interval ": "("}


@dataclass(frozen=True)
class Finding:
    """What was found, by topic, and the comparisons behind it."""

    parts: dict[str, str]
    comparisons: list[Comparison]

    @property
    def paragraph(self) -> str:
        """All of it in one paragraph."""
        return " ".join(self.parts.values())


def find(
    plan: Mapping[str, Any], runs: Sequence[RunRecord], summary: Summary | None = None
) -> Finding:
    """What the results say, with their uncertainty."""
    summary = summarize(plan, runs) if summary is None else summary
    comparisons = compare(plan, runs, summary)
    by_question = {
        question: [c for c in comparisons if c.question == question]
        for question in ("terms", "steps", "best")
    }
    if not summary.counts["finished"]:
        return Finding(_told({"terms": _nothing(summary), "trouble": _trouble(summary)}), [])
    parts = _told(
        {
            "terms": _terms(plan, summary, by_question["terms"]),
            "steps": _steps(plan, summary, by_question["steps"]),
            "bound": _bound(plan, runs),
            "best": _best(plan, summary, by_question["best"]),
            "cost": _cost(plan, summary),
            "trouble": _trouble(summary),
            "limits": _limits(plan, runs, comparisons),
        }
    )
    parts = _with_setting(plan, comparisons, parts)
    parts["limits"] = " ".join(filter(None, (parts.get("limits"), _explain(parts))))
    return Finding(_polish(_told(parts)), comparisons)


def _told(parts: Mapping[str, str]) -> dict[str, str]:
    """Those topics there is something to say about."""
    return {topic: text for topic, text in parts.items() if text}


def _nothing(summary: Summary) -> str:
    absent = summary.counts["missing"] + summary.counts["interrupted"]
    state = "has finished yet" if absent else "ended with a result"
    return f"No run {state}, so there is nothing to find."


def join(words: Iterable[str]) -> str:
    """``a, b and c``."""
    *most, last = list(words)
    return f"{', '.join(most)} and {last}" if most else last


def _polish(parts: Mapping[str, str]) -> dict[str, str]:
    """Units are written out at their first place only."""
    text = "\n".join(parts.values())
    for long, short in _SHORTER.items():
        head, found, rest = text.partition(long)
        text = head + found + rest.replace(long, short)
    return dict(zip(parts, text.split("\n"), strict=True))


def _explain(parts: Mapping[str, str]) -> str:
    """What the kinds of step that were mentioned are."""
    text = " ".join(parts.values())
    told = [meaning for name, meaning in _EXPLAINED.items() if name in text]
    if len(told) == 1:
        told = [told[0].replace("all of it", "all of the quasi-Newton step")]
    return f"{'; '.join(told)[0].upper()}{'; '.join(told)[1:]}." if told else ""


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _size(value: float, metric: str) -> str:
    return f"{signed(value, max(1, decimals(abs(value))))} {unit(metric)}"


def _sided(c: Comparison, metric: str, *, bare: bool = False) -> str:
    """``better by`` or ``worse by`` the mean difference; the interval counts the same way."""
    side = 1 if c.gain > 0 else -1
    word = "better" if c.gain > 0 else "worse"
    if bare or c.low is None or c.high is None:
        return f"{word} by {_size(abs(c.gain), metric)}"
    low, high = sorted((side * c.low, side * c.high))
    return f"{word} by {show_difference(abs(c.gain), low, high, metric)}"


def _with_setting(
    plan: Mapping[str, Any], comparisons: list[Comparison], parts: dict[str, str]
) -> dict[str, str]:
    """What was measured goes in front of the first sentence."""
    seeds = _plural(len(plan["seeds"]), "seed")
    text = f"For {problem_name(plan)} (validation {plan['metric']} at the end of training, {seeds})"
    tested = any(c.corrected_p is not None for c in comparisons)
    if len(plan["seeds"]) == 1 or (comparisons and not tested):
        have = "one seed" if len(plan["seeds"]) == 1 else "only one finished seed to compare"
        text += f": with {have} no uncertainty can be given, and any difference may be luck."
    topic, first = next(iter(parts.items()), ("terms", "There is nothing to compare."))
    joined = f"{text} {first}" if text.endswith(".") else f"{text}, {first[0].lower()}{first[1:]}"
    return {**parts, topic: joined.replace("\n", " ")}


def _bound(plan: Mapping[str, Any], runs: Sequence[RunRecord]) -> str:
    """How often the upper bound decided instead of the curvature, on average over all steps.

    By the distance they went: at the end of a schedule, where steps go to zero, it always decides.
    """
    seen: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        if plan["methods"][run.method].get("terms") not in (None, "none"):
            groups = [group for t in run.telemetry for group in t["groups"][:1]]
            pairs = [(group["at_upper"], group["step_norm"]) for group in groups]
            told = [(share, norm) for share, norm in pairs if None not in (share, norm)]
            seen.setdefault(run.method, []).extend(told)
    total = {method: sum(norm for _, norm in pairs) for method, pairs in seen.items()}
    means = {m: sum(s * n for s, n in seen[m]) / t for m, t in total.items() if t > 0}
    if not means:
        return ""
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    share, highest = f"{means[least]:.0%}", f"{means[most]:.0%}"
    if share != highest:
        ends = (f"{share} ({_combination(plan, least)})", f"{highest} ({_combination(plan, most)})")
        share = f"from {ends[0]} to {ends[1]}"
    elif len(means) == 1:
        share = f"{share} ({_combination(plan, least)})"
    text = (
        "At the upper bound, where the learning rate decides and curvature has no say, were on "
        f"average {share} of the coordinates."
    )
    hardly = " So the terms could hardly act here; a higher learning rate would let them."
    return text + hardly * (means[least] > 0.9)


def _combination(plan: Mapping[str, Any], method: str) -> str:
    return combination(plan["methods"][method])


def _terms(plan: Mapping[str, Any], summary: Summary, comparisons: list[Comparison]) -> str:
    if not comparisons:
        return ""
    claimed = sorted(
        (c for c in comparisons if c.verdict in ("better", "worse")), key=lambda c: -abs(c.gain)
    )
    unsure = [c for c in comparisons if c.verdict == "no difference seen"]
    untested = [c for c in comparisons if c.verdict == "too few seeds"]
    sentences = []
    if claimed:
        sentences.append(_claims(plan, claimed))
    if unsure:
        sentences.append(_unseen(plan, summary, unsure, bool(claimed)))
    if untested:
        sentences.append(_untested(plan, untested))
    return " ".join(sentences)


def _claims(plan: Mapping[str, Any], claimed: list[Comparison]) -> str:
    """Which terms help, then which hurt; if none helps that comes first."""
    told: dict[str, list[str]] = {"better": [], "worse": []}
    for c in claimed:
        size = f"{_sided(c, plan['metric'])}{_at_rates(plan, c)}"
        told[c.verdict].append(f"{_combination(plan, c.first)} is {size}")
    helping, hurting = (join(told[side]) if told[side] else "" for side in ("better", "worse"))
    one = len(told["better"]) == 1
    if not helping:
        return f"No curvature term was seen to help; compared to none, {hurting}."
    opening = "A curvature term helps" if one else "Curvature terms help"
    return f"{opening}, compared to none: {helping}" + (f"; but {hurting}." if hurting else ".")


def _at_rates(plan: Mapping[str, Any], c: Comparison) -> str:
    """Both learning rates, where tuning chose different ones: they may be the difference."""
    options = [plan["methods"][method]["options"] for method in (c.first, c.second)]
    ours, theirs = (chosen.get("lr") for chosen in options)
    differ = plan.get("tuned") and ours is not None and theirs is not None and ours != theirs
    return f", at learning rate {ours:.2g} against {theirs:.2g}" if differ else ""


def _unseen(
    plan: Mapping[str, Any], summary: Summary, unsure: list[Comparison], others: bool
) -> str:
    """The largest difference that may be luck, and the largest that could have been missed."""
    top = max(unsure, key=lambda c: abs(c.gain))
    missed = max(max(abs(c.low or 0.0), abs(c.high or 0.0)) for c in unsure)
    if others:
        count = "combination" if len(unsure) == 1 else f"{len(unsure)} combinations"
        opening = f"For the other {count} of term and step no difference was seen"
    else:
        opening = "No difference was seen between training with a curvature term and without"
    if all(c.gain == 0 for c in unsure):
        return f"{opening}: the results are the same on average."
    hopeless = _hopeless(top, summary)
    largest = f"{_combination(plan, top.first)}, {_sided(top, plan['metric'], bare=hopeless)}"
    if hopeless:
        return (
            f"{opening}; the largest is {largest}, and the seeds are too few to exclude "
            "differences as large as any between the results here."
        )
    return (
        f"{opening}; the largest is {largest}, and a difference of "
        f"up to {_size(missed, plan['metric'])} could have been missed."
    )


def _untested(plan: Mapping[str, Any], untested: list[Comparison]) -> str:
    top = max(untested, key=lambda c: c.gain)
    if top.gain <= 0:
        count = _plural(len(untested), "combination")
        return f"None of {count} of term and step ended better than no term at a single seed."
    size = _size(top.gain, plan["metric"])
    where = _combination(plan, top.first)
    return f"The largest gain over no curvature term at a single seed is {size}, by {where}."


def _steps(plan: Mapping[str, Any], summary: Summary, comparisons: list[Comparison]) -> str:
    if not comparisons:
        return ""
    c = comparisons[0]
    naq, full = STEP_NAMES["naq"], STEP_NAMES["full"]
    hopeless = _hopeless(c, summary)
    size = "equal" if c.gain == 0 else _sided(c, plan["metric"], bare=hopeless)
    if c.verdict == "no difference seen":
        return (
            f"Between {naq} and {full} no difference was seen: averaged over the terms, "
            f"NAQ is {size}{', and the seeds are too few to say more' if hopeless else ''}."
        )
    return f"Averaged over the terms, {naq} compared to {full} are {size}."


def _best(plan: Mapping[str, Any], summary: Summary, comparisons: list[Comparison]) -> str:
    metric = plan["metric"]
    if not comparisons:
        best = best_method(plan, summary)
        if best is None:
            return ""
        which = "best median" if len(summary.methods) > 1 else "median"
        return f"The {which} is {show_value(best.median, metric)}, by {best.label}."
    c = comparisons[0]
    ours, theirs = summary[c.first], summary[c.second]
    ours_name = f"{_combination(plan, c.first)}, median {show_value(ours.median, metric)}"
    theirs_name = f"{theirs.label}, {show_value(theirs.median, metric)}"
    ours_pair, theirs_pair = f"the best Alice ({ours_name})", f"the best baseline ({theirs_name})"
    pair = f"{ours_pair} and {theirs_pair}"
    if c.verdict == "too few seeds":
        return f"{pair[0].upper()}{pair[1:]} were picked after the fact, which flatters both."
    if c.gain == 0:
        return f"Between {pair} no difference was seen: they are equal on average."
    size = _sided(c, metric)
    allowance = f"with allowance for picking them from {_plural(c.choices, 'pair')} after the fact"
    if _hopeless(c, summary):
        size = _sided(c, metric, bare=True)
        return f"The seeds are too few to tell {pair} apart: Alice is on average {size}."
    if c.verdict == "no difference seen":
        return f"Between {pair} no difference was seen: Alice is on average {size}, {allowance}."
    return f"Compared to {theirs_pair}, {ours_pair} is {size}, {allowance}."


def _hopeless(c: Comparison, summary: Summary) -> bool:
    """Whether the interval reaches further than all results together, and so says nothing."""
    lows = [s.low for s in summary.methods if s.low is not None]
    highs = [s.high for s in summary.methods if s.high is not None]
    if c.low is None or c.high is None:
        return False
    return (c.high - c.low) / 2 > max(highs) - min(lows) > 0


def _cost(plan: Mapping[str, Any], summary: Summary) -> str:
    """Gradients and seconds of the best two; the quickest to the target."""
    alice = best_method(plan, summary, "alice")
    baseline = best_method(plan, summary, "baseline")
    if alice is None or baseline is None:
        return ""
    by_gradients = plan.get("budget") == "gradients"
    opening = (
        "Equal gradients are not equal time" if by_gradients else "Equal steps are not equal cost"
    )
    text = (
        f"{opening}: a run took {_price(alice.gradients, alice.seconds)} "
        f"with this Alice, {show_count(baseline.gradients)} and {show_seconds(baseline.seconds)} "
        "with this baseline."
    )
    return " ".join(filter(None, (text, _to_target(plan, summary))))


def _price(gradients: float | None, seconds: float | None) -> str:
    return f"{show_count(gradients)} gradient evaluations and {show_seconds(seconds)}"


def _to_target(plan: Mapping[str, Any], summary: Summary) -> str:
    if summary.target is None:
        return ""
    told = []
    for family, name in (("alice", "Alice"), ("baseline", "baseline")):
        pool = [
            s for s in summary.methods if s.family == family and s.to_target_gradients is not None
        ]
        if pool:
            first = min(pool, key=lambda s: s.to_target_gradients or 0.0)
            price = _price(first.to_target_gradients, first.to_target_seconds)
            told.append(f"the quickest {name} ({_combination(plan, first.method)}) took {price}")
        else:
            told.append(f"no {name} got there in more than half of its runs")
    value = show_value(summary.target.value, plan["metric"])
    return f"To reach {value} ({summary.target.rule}), {join(told)}."


def _trouble(summary: Summary) -> str:
    """Runs without a result, and what their absence does to the comparisons."""
    total = sum(summary.counts.values())
    sentences = []
    for state in ("diverged", "failed"):
        hit = [s for s in summary.methods if s.counts[state]]
        if hit:
            names = [_tally(s, state) for s in hit[:4]]
            names += [_plural(len(hit) - 4, "other method")] if len(hit) > 4 else []
            opening = f"{summary.counts[state]} of {total} runs {state}"
            sentences.append(f"{opening}: {join(names)}.")
    if any(s.unstable and s.finished for s in summary.methods):
        sentences.append("Their comparisons rest on the seeds that finished, which flatters them.")
    absent = summary.counts["missing"] + summary.counts["interrupted"]
    if absent:
        verb = "has" if absent == 1 else "have"
        sentences.append(f"{absent} of {total} runs {verb} no result yet, so this may change.")
    return " ".join(sentences)


def _tally(s: MethodSummary, state: str) -> str:
    return f"{s.label} ({s.counts[state]} of {_plural(sum(s.counts.values()), 'seed')})"


def _limits(
    plan: Mapping[str, Any], runs: Sequence[RunRecord], comparisons: list[Comparison]
) -> str:
    sentences = []
    tested = sum(c.corrected_p is not None for c in comparisons)
    if tested:
        many = f", corrected for {tested} comparisons (Holm)" if tested > 1 else ""
        sentences.append(f"Differences are means over seeds, paired by seed{many}.")
        if all(c.seeds < 5 for c in comparisons):
            sentences.append("With so few seeds only large differences can be told from luck.")
    sentences.append(rates_note(plan))
    if is_generated(plan, runs):
        sentences.append("The data were generated and say nothing about the real set.")
    return " ".join(filter(None, sentences))
