"""The report of a study or an experiment: one HTML file that explains itself.

It needs nothing but itself: figures are inside, nothing is requested, and it reads with scripts
off. What did not finish is said as plainly as what did.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from aliceopt.lab.records import Records, RunRecord, read_records
from aliceopt.lab.report import panels, strips, tables
from aliceopt.lab.report.page import data_uri, write_page
from aliceopt.lab.results import deviations
from aliceopt.lab.results.comparisons import Comparison, asked_twice
from aliceopt.lab.results.finding import find
from aliceopt.lab.results.numbers import show_count, show_seconds, show_value
from aliceopt.lab.results.summary import (
    Summary,
    best_of_families,
    describe_counts,
    outcome,
    reason,
    summarize,
)
from aliceopt.lab.results.table import unique_labels
from aliceopt.lab.spec import LabProblem, Plan, UserProblem
from aliceopt.lab.words import counted, settings_in_words, training_in_words


def write_report(folder: str | os.PathLike[str] | Records, target: float | None = None) -> Path:
    """Write ``report.html`` from the records in ``folder``, which may have been read already.

    Works on whatever is there: runs may be missing, interrupted or diverged.
    """
    records = folder if isinstance(folder, Records) else read_records(Path(folder))
    labels = unique_labels(records.plan)
    methods = {key: replace(m, label=labels[key]) for key, m in records.plan.methods.items()}
    plan = replace(records.plan, methods=methods)
    runs = [replace(run, label=labels[run.method]) for run in records.runs]
    summary = summarize(plan, runs, target)
    finding = find(plan, runs, summary)
    scale = f", scale {plan.scale}" if plan.kind == "experiment" else ""
    drawn = [records.folder / "figures" / f"{plan.name}{suffix}" for suffix in (".svg", ".png")]
    redrawn = [path for path in drawn if plan.kind == "experiment" and path.exists()]
    chips = _chips(plan, summary)
    best = [method for method, (_, family) in chips.items() if family]
    commits = ((run.start.get("versions") or {}).get("commit") for run in runs)
    return write_page(
        records.folder / "report.html",
        Path(__file__).with_name("study.html"),
        kind=f"{plan.kind}{scale}",
        plan=plan,
        title=plan.title or plan.name,
        facts=_facts(plan, runs, summary),
        finding=finding,
        forest=strips.forest(plan, finding.comparisons, finding.choice),
        picked=_picked(plan, finding.comparisons),
        comparisons=tables.comparison_table(plan, finding.comparisons),
        precision=deviations.precision_note(plan, runs),
        results=tables.method_table(plan, summary, finding.choice),
        results_note=_results_note(plan, runs, summary),
        chips=chips,
        redrawn=data_uri(redrawn[0]) if redrawn else "",
        rates=panels.rate_panel(plan, best),
        curves=panels.curve_panels(plan, runs, best),
        costs=panels.COSTS,
        terms=strips.term_strips(plan, finding.comparisons),
        finals=strips.result_strips(plan, runs, summary),
        curvature=panels.curvature_panels(plan, runs),
        lost=_lost(runs),
        setting=_setting(plan, runs, summary),
        settings=tables.settings_table(plan),
        runs=tables.run_table(plan, runs),
        planned=counted(len(runs), "planned run"),
        command=plan.command or _command(plan),
        commit=next(filter(None, commits), ""),
    )


def _facts(plan: Plan, runs: Sequence[RunRecord], summary: Summary) -> str:
    days = sorted({str(run.start["time"])[:10] for run in runs if run.start.get("time")})
    facts = [
        str(plan.problem),
        f"{counted(len(plan.methods), 'method')}, {counted(len(plan.seeds), 'seed')}",
        f"runs: {describe_counts(summary.counts)}",
        _span(days),
    ]
    return "; ".join(filter(None, facts))


def _picked(plan: Plan, comparisons: Sequence[Comparison]) -> str:
    """Which intervals with the best method stand elsewhere as others, and why; empty if none."""
    names = [plan.methods[c.second].label for c in asked_twice(comparisons)]
    methods = 1 + sum(c.question == "best" for c in comparisons)
    have = "has" if len(names) == 1 else "have"
    said = f"These intervals allow for the best having been picked from {methods} methods"
    return f"{said}; for its own sake, {'; '.join(names)} {have} another." if names else ""


def _span(values: Sequence[str]) -> str:
    """The first to the last, or the only one; empty if there is none."""
    return " to ".join(dict.fromkeys([*values[:1], *values[-1:]]))


def _chips(plan: Plan, summary: Summary) -> dict[str, tuple[str, str]]:
    """Every method's label, and the family whose best it is; those with a result only."""
    best = {s.method: family for family, s in best_of_families(plan, summary).items()}
    done = [s for s in summary.methods if s.median is not None]
    return {s.method: (s.label, best.get(s.method, "")) for s in done}


def _results_note(plan: Plan, runs: Sequence[RunRecord], summary: Summary) -> str:
    notes = [
        f"Final validation {plan.metric} ({plan.better} is better) over finished seeds; gradient "
        "evaluations and time are medians of a run. The best median of each family is bold.",
        deviations.precision_note(plan, runs),
    ]
    if summary.target is not None:
        value = show_value(summary.target.value, plan.metric)
        notes.append(
            f"Target: {plan.metric} {value}, {summary.target.rule}; its cost is read at the "
            "first evaluation that reaches it, and is the median over seeds."
        )
    if plan.reference:
        notes.append(f"The paper: {plan.reference}.")
    if plan.kind == "experiment":
        notes.append(deviations.remark(plan, runs))
    return " ".join(notes)


def _lost(runs: Sequence[RunRecord]) -> list[str]:
    """Runs without a result, by method, state and reason."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for run in runs:
        if outcome(run) != "finished":
            groups.setdefault((run.label, outcome(run), reason(run)), []).append(run.seed)
    return [
        f"{label}, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}: "
        f"{status}{f': {why}' if why else ''}"
        for (label, status, why), seeds in groups.items()
    ]


def _setting(plan: Plan, runs: Sequence[RunRecord], summary: Summary) -> dict[str, str]:
    """How it was run; what is unknown is empty."""
    starts = [run.start for run in runs if run.start]
    generated = deviations.is_generated(plan, runs)
    known = "; generated data, which say nothing about the real set" if generated else ""
    steps = _span([show_count(n) for n in sorted({run.steps for run in plan.runs})]) or "no"
    budget = f"equal {plan.budget}"
    if plan.paces:
        ends = min(plan.paces.values()), max(plan.paces.values())
        span = " to ".join(f"{1000 * pace:.3g}" for pace in ends)
        budget = f"as many as fit into {plan.budget}, by timing a few first ({span} ms a step)"
    schedules = {run.label: run.ran.training.schedule for run in runs if run.ran is not None}
    model = plan.problem.model if isinstance(plan.problem, LabProblem) else {}
    return {
        "Command": plan.command,
        "Problem": str(plan.problem),
        "Data": deviations.data_note(plan, runs) + known,
        "Model": settings_in_words(model),
        "Parameters": _unique(show_count(s.get("parameters")) for s in starts),
        "Budget": f"{steps} steps a run, {budget}",
        "Training": training_in_words(plan.training, schedules),
        "Learning rates": f"{_rates(plan)}; see below",
        "Seeds": ", ".join(map(str, plan.seeds)),
        "Versions": _unique(settings_in_words(s.get("versions") or {}) for s in starts),
        "Device": _unique(str(s.get("device", "")) for s in starts),
        "Date": _unique(str(s.get("time", "")) for s in starts[:1]),
        "In all": f"{show_count(summary.gradients)} gradient evaluations, "
        f"{show_seconds(summary.seconds)} of training steps",
    }


def _rates(plan: Plan) -> str:
    if tuned := plan.tuned:
        return (
            f"for each method the best of those tried, half a power of ten apart, at seeds "
            f"{' and '.join(map(str, tuned.seeds))}: {deviations.tuning_cost(tuned)}, not counted "
            "here"
        )
    if plan.kind == "experiment":
        return f"{deviations.usual_rates(plan)}, not tuned here"
    return "not tuned: each method's usual one"


def _unique(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, values)))


def _command(plan: Plan) -> str:
    """The command that the plan amounts to."""
    first = plan.seeds == list(range(len(plan.seeds)))
    which = str(len(plan.seeds)) if first else ",".join(map(str, plan.seeds)) + ","
    seeds = ["--seeds", which]
    if plan.kind == "experiment":
        return shlex.join(["aliceopt", "run", plan.name, "--scale", plan.scale, *seeds])
    mine = [str(plan.problem)] if isinstance(plan.problem, UserProblem) else []
    return shlex.join(["aliceopt", "study", *mine, *seeds])
