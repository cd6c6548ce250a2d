"""The finding: what to use, lines to paste, and the evidence, computed from the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aliceopt.lab.optimizers.paste import lines_to_paste, scheduler_lines
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results import deviations
from aliceopt.lab.results.comparisons import (
    Comparison,
    asked_twice,
    compare,
    difference,
    missed,
)
from aliceopt.lab.results.decision import Decision, decide, times_the_seconds
from aliceopt.lab.results.deviations import STEP_NAMES, combination
from aliceopt.lab.results.numbers import show_count, show_seconds, show_value
from aliceopt.lab.results.summary import FAMILIES, Summary, best_of_families, summarize
from aliceopt.lab.spec import Plan
from aliceopt.lab.words import counted, schedule_in_words

__all__ = ["Finding", "find"]

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
    trouble = _trouble(summary)
    if decision is None:
        state = "has finished yet" if summary.absent else "ended with a result"
        text = f"No run {state}, so there is nothing to find."
        return Finding(text, "", {"trouble": trouble} if trouble else {}, [])
    seeds = counted(len(plan.seeds), "seed")
    terms = [c for c in comparisons if c.question == "terms"]
    claimed = [c for c in terms if c.verdict in ("better", "worse")]  # with an interval each
    evidence = {
        "setting": [f"{plan.problem}: validation {plan.metric} at the end of training, {seeds}."],
        "terms": _terms(plan, summary, terms),
        "twice": _also_with_best([(combination(plan, c.first), c) for c in claimed], comparisons),
        "steps": [
            f"{STEP_NAMES[c.first]} against {STEP_NAMES[c.second]}, mean over the terms: "
            f"{difference(c, summary)}."
            for c in comparisons
            if c.question == "steps"
        ],
        "bound": _bound(plan, runs),
        "cost": _cost(plan, summary),
        "trouble": trouble,
        "limits": _limits(plan, runs, comparisons),
    }
    told = {topic: said for topic, said in evidence.items() if said}
    lines = _lines(plan, summary, decision)
    absent, total = summary.absent, sum(summary.counts.values())
    if absent:
        early = f"So far, {absent} of {total} runs missing: "
        decision = replace(decision, text=early + decision.text)
    parts = [c for c in comparisons if c.question in _PARTS]
    worth = [*(_worth(plan, summary, c) for c in parts)]
    worth += _also_with_best([(_PARTS[c.question], c) for c in parts], comparisons)
    return Finding(decision.text, lines, told, comparisons, decision.choice, " ".join(worth))


def _also_with_best(
    named: Sequence[tuple[str, Comparison]], comparisons: Sequence[Comparison]
) -> list[str]:
    """Which comparisons have another interval as one of those with the best, and why: a sentence.

    None if none has.
    """
    twice = [{c.first, c.second} for c in asked_twice(comparisons)]
    names = list(dict.fromkeys(name for name, c in named if {c.first, c.second} in twice))
    if not names:
        return []
    are = "is" if len(names) == 1 else "are"
    methods = 1 + sum(c.question == "best" for c in comparisons)
    return [
        f"{' and '.join(names)} {are} also among the comparisons with the best of {methods} "
        "methods, where the interval is another."
    ]


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
    """Constructors of the choice, the best result, the best Alice and the best baseline, once.

    The choice has its scheduler, too.
    """
    use = "the choice so far" if summary.absent else "use this"
    roles: dict[str, list[str]] = {decision.choice: [use]}
    roles.setdefault(decision.best, []).append("the best result")
    for family, best in best_of_families(plan, summary).items():
        roles.setdefault(best.method, []).append(f"the best {FAMILIES[family]}")
    blocks = []
    for method, said in roles.items():
        about = plan.methods[method]
        label = " ".join(about.label.split())
        course = schedule_in_words(plan.schedule_of(method))
        rate = [] if course == "constant" else [f"# lr {course}"]
        lines = [lines_to_paste(about.optimizer, about.options)]
        if method == decision.choice:
            steps = next(run.steps for run in plan.runs if run.method == method)
            course = scheduler_lines(about.optimizer, plan.schedule_of(method), steps)
            lines += [course] if course else []
        blocks.append("\n".join([f"# {', '.join(said)}: {label}", *rate, *lines]))
    return "\n\n".join(blocks)


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
        said.append(f"{combination(plan, c.first)} against no term: {how}.")
    if seen:
        seeds = counted(min(c.seeds for c in seen), "seed")
        names = [f"{combination(plan, c.first)}, {c.scale.said(c.gain)}" for c in seen]
        said.append(f"Seen, but {seeds} cannot establish it: {_listed(names, '; ')}.")
    if unseen:
        other = "" if len(unseen) == len(comparisons) else "other "
        which = f"{len(unseen)} {other}combinations of term and step"
        which = combination(plan, unseen[0].first) if len(unseen) == 1 else which
        said.append(f"{which} against no term: {missed(unseen, summary)}.")
    return said


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
    shares = dict.fromkeys(f"{means[m]:.0%} ({combination(plan, m)})" for m in ends)
    if len(means) > 1 and len({f"{means[m]:.0%}" for m in ends}) == 1:
        shares = {f"{means[ends[0]]:.0%}": None}
    said = f"Coordinates where the rate, not curvature, bounds the step: {' to '.join(shares)}."
    hardly = "The terms could hardly act; a higher learning rate would let them."
    return [said, hardly] if means[ends[0]] > 0.9 else [said]


def _cost(plan: Plan, summary: Summary) -> list[str]:
    """Gradients and seconds of the best two; the quickest to the target."""
    said, quickest = [], []
    for family, s in best_of_families(plan, summary).items():
        name, value = FAMILIES[family], show_value(s.median, plan.metric)
        price = _price(s.gradients, s.seconds)
        said.append(f"Best {name}: {s.label}, median {value}, {price} a run.")
        there = [x for x in summary.methods if x.to_target_gradients is not None]
        mine = [x for x in there if x.family == family]
        if mine:
            first = min(mine, key=lambda x: x.to_target_gradients or 0.0)
            price = _price(first.to_target_gradients, first.to_target_seconds)
            quickest.append(f"{first.label} took {price}")
        else:
            quickest.append(f"no {name} got there in more than half of its runs")
    if summary.target is not None:
        value = show_value(summary.target.value, plan.metric)
        said.append(f"To {value} ({summary.target.rule}): {'; '.join(quickest)}.")
    return said


def _price(gradients: float | None, seconds: float | None) -> str:
    return f"{show_count(gradients)} gradients and {show_seconds(seconds)}"


def _trouble(summary: Summary) -> list[str]:
    """Runs without a result, and what their absence does to the comparisons."""
    total = sum(summary.counts.values())
    said = []
    for state in ("diverged", "failed"):
        hit = [
            f"{s.label} ({s.counts[state]} of {counted(sum(s.counts.values()), 'seed')})"
            for s in summary.methods
            if s.counts[state]
        ]
        if hit:
            said.append(f"{summary.counts[state]} of {total} runs {state}: {_listed(hit)}.")
    if any(s.unstable and s.finished for s in summary.methods):
        said.append("Such methods are compared on the seeds that finished, which flatters them.")
    if summary.absent:
        said.append(f"{summary.absent} of {total} runs without a result yet: this may change.")
    return said


def _limits(plan: Plan, runs: Sequence[RunRecord], comparisons: Sequence[Comparison]) -> list[str]:
    """Where learning rates come from, which decides what is compared; tests; and invented data."""
    said, tuned = [], plan.tuned
    if len(plan.methods) > 1 and not tuned:
        said.append(
            f"Learning rates are {deviations.usual_rates(plan)}, not tuned here: this compares "
            "settings, not methods."
        )
    elif len(plan.methods) > 1 and tuned:
        cost = deviations.tuning_cost(tuned)
        said.append(
            f"Learning rates are the best at {len(tuned.seeds)} other seeds ({cost}); no interval "
            "counts the luck of that choice."
        )
        names = [plan.methods[m].label for m, chosen in tuned.chosen.items() if chosen.edge]
        if names:
            beyond = "beyond" if tuned.most > 11 else f"beyond (--tune {tuned.most + 4} --resume)"
            said.append(
                f"Best at the lowest or highest of {tuned.most} rates, so a better one may lie "
                f"{beyond}: {'; '.join(names)}."
            )
    tested = [c for c in comparisons if c.corrected_p is not None]
    if tested:
        what = "Ratios" if tested[0].scale.ratio else "Differences"
        tests = counted(len(tested), "test")
        said.append(f"{what} are paired by seed; {tests}, Holm-corrected.")
    if deviations.is_generated(plan, runs):
        said.append("The data were generated and say nothing about the real set.")
    return said
