"""The report of a study or an experiment: one HTML file that explains itself.

It needs nothing but itself: figures are inside, nothing is requested, and it reads with scripts
off. What did not finish is said as plainly as what did.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aliceopt.lab.figures.study_all import draw_study
from aliceopt.lab.figures.study_look import Picture
from aliceopt.lab.records import RunRecord, read_plan, read_runs
from aliceopt.lab.results.describe import (
    data_note,
    is_generated,
    precision_note,
    problem_name,
    usual_rates,
)
from aliceopt.lab.results.deviations import remark
from aliceopt.lab.results.finding import Finding, find
from aliceopt.lab.results.numbers import show_count, show_seconds, show_value
from aliceopt.lab.results.report_page import (
    escape,
    figures_section,
    folded,
    page,
    pairs,
    section,
)
from aliceopt.lab.results.report_tables import (
    comparison_table,
    method_table,
    run_table,
    settings_table,
)
from aliceopt.lab.results.summary import Summary, describe_counts, outcome, reason, summarize
from aliceopt.lab.results.table import unique_labels
from aliceopt.lab.words import counted, settings_in_words, training_in_words
from aliceopt.lab.writing import replacing

__all__ = ["write_report"]

_READING = {
    "Curvature term": "what shortens Alice's steps: glass, the gradient's jumps at ReLU-like "
    "kinks; abs, rms and signed, three ways to average the Hessian's diagonal; or none of them.",
    "Step": "NAQ (Nesterov-accelerated quasi-Newton) goes a fraction of each quasi-Newton step and "
    "takes gradients further ahead; full goes all of it.",
    "Gradient": "one forward and backward pass on a batch. Alice takes three of them when it "
    "measures curvature and one otherwise.",
    "Time": "training steps only, without evaluation; runs done side by side slow each other down.",
    "95% interval": "where the true mean difference at these learning rates lies, by a paired "
    "t-test over seeds. Comparisons are corrected (Holm), those of terms and steps together and "
    "those with the best method together: where these settings do not truly differ, either claims "
    "a difference at most 1 time in 20, and an interval leaves out zero exactly where one is "
    "claimed. Rates tuned at one seed may differ by luck, which no interval counts. Each holds "
    "with 95% confidence or more, not all at once. Those of the best method allow for its being "
    "picked.",
    "Not established": "a difference that one test alone would see, or results of one method that "
    "all lie beyond those of the other, but not enough after the correction.",
}


def write_report(folder: str | os.PathLike[str], target: float | None = None) -> Path:
    """Write ``report.html``, and its figures under ``figures``, from the records in ``folder``.

    Works on whatever is there: runs may be missing, interrupted or diverged.
    """
    place = Path(folder)
    plan = _told_apart(read_plan(place))
    runs = read_runs(place, plan)
    summary = summarize(plan, runs, target)
    finding = find(plan, runs, summary)
    others = _other_pictures(plan, place / "figures")
    # The paper's figure, redrawn, compares the methods already.
    drawn = draw_study(plan, runs, place / "figures", summary=summary, methods=not others)
    sections = [
        _header(plan, runs, summary),
        _finding_section(plan, runs, finding),
        _results_section(plan, runs, summary),
        figures_section([*others, *drawn]),
        _missing_section(runs),
        _reading_section(plan),
        _setting_section(plan, runs, summary),
        _runs_section(plan, runs),
        _reproduce_section(plan, runs),
    ]
    path = place / "report.html"
    with replacing(path) as beside:
        beside.write_text(page(_title(plan), "\n".join(filter(None, sections))), encoding="utf-8")
    return path


def _told_apart(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan with labels that no two methods share."""
    labels = unique_labels(plan)
    named = {key: {**about, "label": labels[key]} for key, about in plan["methods"].items()}
    return {**plan, "methods": named}


def _title(plan: Mapping[str, Any]) -> str:
    return str(plan.get("title") or plan.get("name") or "Report")


def _header(plan: Mapping[str, Any], runs: Sequence[RunRecord], summary: Summary) -> str:
    scale = f", scale {plan['scale']}" if plan["kind"] == "experiment" else ""
    facts = [
        problem_name(plan),
        f"{counted(len(plan['methods']), 'method')}, {counted(len(plan['seeds']), 'seed')}",
        f"runs: {describe_counts(summary.counts)}",
        _dates(runs),
    ]
    return (
        f'<header><p class="kind">aliceopt {escape(plan["kind"])}{escape(scale)}</p>'
        f"<h1>{escape(_title(plan))}</h1>"
        f"<p>{escape('; '.join(filter(None, facts)))}</p></header>"
    )


def _dates(runs: Sequence[RunRecord]) -> str:
    days = sorted({str(run.start["time"])[:10] for run in runs if run.start.get("time")})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""


def _finding_section(plan: Mapping[str, Any], runs: Sequence[RunRecord], finding: Finding) -> str:
    bullets = "".join(f"<li>{_unbroken(said)}</li>" for said in finding.bullets)
    box = '<pre tabindex="0" role="region" aria-label="Lines to paste">'
    shown = [
        f'<p class="decision">{_unbroken(finding.decision)}</p>',
        f"{box}<code>{escape(finding.lines)}</code></pre>" if finding.lines else "",
        f"<ul>{bullets}</ul>" if bullets else "",
    ]
    body = f'<div class="finding" id="finding">{"".join(shown)}</div>'
    if finding.comparisons:
        count = len(finding.comparisons)
        unit = "points" if plan["metric"] == "accuracy" else f"units of {plan['metric']}"
        said = f"In {unit}; a positive gain is better. {precision_note(plan, runs)}"
        note = f'<p class="note">{escape(said)}</p>'
        title = "The comparison behind it" if count == 1 else f"The {count} comparisons behind it"
        body += folded(title, comparison_table(plan, finding.comparisons) + note)
    return section("Finding", body)


def _unbroken(text: str) -> str:
    """Escaped, with numbers and units of time kept on one line."""
    return re.sub(r"(\d) (s|min|h)\b", "\\1&nbsp;\\2", escape(text))


def _results_section(plan: Mapping[str, Any], runs: Sequence[RunRecord], summary: Summary) -> str:
    better = "higher" if plan["better"] == "higher" else "lower"
    notes = [
        f"Final validation {plan['metric']} ({better} is better) over finished seeds; gradient "
        "evaluations and time are medians of a run. The best median of each family is bold.",
        precision_note(plan, runs),
    ]
    if summary.target is not None:
        value = show_value(summary.target.value, plan["metric"])
        notes.append(
            f"Target: {value}, {summary.target.rule}; its cost is read at the first evaluation "
            "that reaches it, and is the median over seeds."
        )
    if plan.get("reference"):
        notes.append(f"The paper: {plan['reference']}.")
    if plan["kind"] == "experiment":
        notes.append(remark(plan, runs))
    note = f'<p class="note">{escape(" ".join(filter(None, notes)))}</p>'
    return section("Results", method_table(plan, summary) + note)


def _other_pictures(plan: Mapping[str, Any], folder: Path) -> list[Picture]:
    """Figures that others left in the folder, such as the paper's redrawn; .svg before .png."""
    found: dict[str, Path] = {}
    for suffix in (".svg", ".png"):
        for path in sorted(folder.glob(f"*{suffix}")):
            if not path.name.startswith("study-"):
                found.setdefault(path.stem, path)
    caption = "Redrawn from the records of this folder."
    reference = plan.get("reference") or _title(plan)
    title = "All methods" if plan.get("reference") == "" else "The paper's figure, redrawn"
    return [Picture(p, title, caption, str(reference)) for p in found.values()]


def _missing_section(runs: Sequence[RunRecord]) -> str:
    """Runs without a result, by method, state and reason."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for run in runs:
        if outcome(run) != "finished":
            groups.setdefault((run.label, outcome(run), reason(run)), []).append(run.seed)
    if not groups:
        return section("What is missing", "<p>Nothing: every planned run finished.</p>")
    items = []
    for (label, status, why), seeds in groups.items():
        which = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
        why = f": {why}" if why else ""
        items.append(f"<li>{escape(f'{label}, {which}: {status}{why}')}</li>")
    return section("What is missing", f"<ul>{''.join(items)}</ul>")


def _reading_section(plan: Mapping[str, Any]) -> str:
    return section("How to read this", pairs(_READING))


def _setting_section(plan: Mapping[str, Any], runs: Sequence[RunRecord], summary: Summary) -> str:
    starts = [run.start for run in runs if run.start]
    training = plan.get("training") or {}
    source = plan.get("problem")
    model = source.get("model") if isinstance(source, Mapping) else None
    steps = sorted({run["steps"] for run in plan["runs"]})
    facts = {
        "Command": str(plan.get("command") or ""),
        "Problem": problem_name(plan),
        "Data": data_note(plan, runs) + _generated(plan, runs),
        "Model": settings_in_words(model) if isinstance(model, Mapping) else "",
        "Parameters": _unique(show_count(s.get("parameters")) for s in starts),
        "Budget": f"{_range(steps)} steps a run, equal {plan.get('budget', 'steps')}",
        "Training": training_in_words(training, _schedules(runs)) if training else "",
        "Learning rates": f"{_rates(plan)}; see below",
        "Seeds": ", ".join(map(str, plan["seeds"])),
        "Versions": _unique(settings_in_words(s.get("versions") or {}) for s in starts),
        "Device": _unique(str(s.get("device", "")) for s in starts),
        "Date": _unique(str(s.get("time", "")) for s in starts[:1]),
        "In all": f"{show_count(summary.gradients)} gradient evaluations, "
        f"{show_seconds(summary.seconds)} of training steps",
    }
    table = settings_table(plan) + _precision(plan, runs)
    settings = folded("Settings of every method", table)
    return section("How it was run", pairs(facts) + settings)


def _runs_section(plan: Mapping[str, Any], runs: Sequence[RunRecord]) -> str:
    table = run_table(plan, runs) + _precision(plan, runs)
    return section("All runs", folded(counted(len(runs), "planned run"), table))


def _precision(plan: Mapping[str, Any], runs: Sequence[RunRecord]) -> str:
    return f'<p class="note">{escape(precision_note(plan, runs))}</p>'


def _schedules(runs: Sequence[RunRecord]) -> dict[str, Mapping[str, Any]]:
    """The schedule of every method that has begun, by its label."""
    found = {run.label: (run.config.get("training") or {}).get("schedule") for run in runs}
    return {label: schedule for label, schedule in found.items() if schedule is not None}


def _rates(plan: Mapping[str, Any]) -> str:
    tuned = plan.get("tuned")
    if isinstance(tuned, Mapping):
        return (
            f"the best of {tuned['rates']} tried for each method, half a power of ten apart, at "
            f"seed {tuned['seed']}, whose runs do not count here"
        )
    if plan["kind"] == "experiment":
        return f"{usual_rates(plan)}, not tuned here"
    return "not tuned: each method's usual one"


def _generated(plan: Mapping[str, Any], runs: Sequence[RunRecord]) -> str:
    return (
        "; generated data, which say nothing about the real set" if is_generated(plan, runs) else ""
    )


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no"
    return " to ".join(show_count(n) for n in dict.fromkeys((numbers[0], numbers[-1])))


def _unique(values: Any) -> str:
    return "; ".join(dict.fromkeys(v for v in values if v))


def _reproduce_section(plan: Mapping[str, Any], runs: Sequence[RunRecord]) -> str:
    commit = next(
        (v["commit"] for r in runs if (v := r.start.get("versions") or {}).get("commit")), ""
    )
    words = plan.get("command") or _command(plan)
    code = f"<pre><code>{escape(words)}</code></pre>"
    where = f" at commit {commit}" if commit else ""
    note = (
        f"With aliceopt{where}. Seeds fix the weights, the order of the data and the probes; on a "
        "CPU the same versions and number of threads give the same results to the bit. The "
        "records beside this file hold every number shown here."
    )
    return section("How to reproduce it", f"{code}<p>{escape(note)}</p>")


def _command(plan: Mapping[str, Any]) -> str:
    """The command that the plan amounts to."""
    which = plan["seeds"]
    first = which == list(range(len(which)))
    seeds = ["--seeds", str(len(which)) if first else ",".join(map(str, which)) + ","]
    if plan["kind"] == "experiment":
        return shlex.join(["aliceopt", "run", plan["name"], "--scale", plan["scale"], *seeds])
    source = plan.get("problem")
    function = source.get("function") if isinstance(source, Mapping) else None
    return shlex.join(["aliceopt", "study", *(["--problem", function] if function else []), *seeds])
