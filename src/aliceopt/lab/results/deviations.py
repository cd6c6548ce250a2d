"""What was run on what, in words, and how it differs from the paper's experiment.

An experiment that is none of the paper's is held against its own file, at the same scale. A smaller
scale, another data set or changed settings make numbers that must not be read against the paper's,
however close they come: that is said under every table and figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from aliceopt.lab.plans.plan import EXPERIMENTS, experiment_plan, scales_of
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.numbers import show_seconds
from aliceopt.lab.results.summary import outcome
from aliceopt.lab.spec import LabProblem, Plan, PlannedTraining, Run, Tuned
from aliceopt.lab.training.precision import in_words
from aliceopt.lab.words import counted

STEP_NAMES = {"naq": "NAQ steps", "full": "full steps"}
_CHANGES = {
    "schedule": "another schedule",
    "precision": "another precision",
    "validation_batches": "another number of validation batches",
    "power_law": "another measurement of exponents",
}


def data_note(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """What the runs say of their data, else the plan's name of it."""
    notes = dict.fromkeys(str(run.start["data"]) for run in runs if run.start.get("data"))
    return "; ".join(notes) or plan.data


def is_generated(plan: Plan, runs: Sequence[RunRecord]) -> bool:
    """Whether invented data stood in for a published set."""
    return "(generated)" in data_note(plan, runs)


def data_name(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """The data set, with ``(generated)`` behind it if any record or the plan says so."""
    generated = is_generated(plan, runs) and "generated" not in plan.data
    return f"{plan.data} (generated)" if generated else plan.data


def precision_note(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """What the runs computed in, by their records, else by the plan: for the foot of a table."""
    ran = [(r.ran.training.precision, bool(r.start.get("compiled"))) for r in runs if r.ran]
    found = dict.fromkeys(ran or [(plan.training.precision, bool(plan.training.compile))])
    told = [f"{in_words(name)}{', compiled' if fused else ''}" for name, fused in found]
    return f"Precision: {'; '.join(told)}."


def usual_rates(plan: Plan) -> str:
    """Whose the learning rates are that nobody tuned."""
    if plan.kind != "experiment":
        return "the usual ones"
    return "the experiment's own" if plan.reference == "" else "the paper's"


def tuning_cost(tuned: Tuned) -> str:
    """Runs and seconds that went into the choice of learning rates."""
    return f"{counted(tuned.runs, 'run')}, {show_seconds(tuned.seconds)}"


def combination(plan: Plan, method: str) -> str:
    """A method in words: ``glass+abs with NAQ steps``, or its label."""
    about = plan.methods[method]
    if about.terms is None or about.step is None:
        return about.label
    terms = "no term" if about.terms == "none" else about.terms
    return f"{terms} with {STEP_NAMES.get(about.step, about.step)}"


def setting(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """Data, scale, length, batch size and seeds: ``cifar10, lab scale, 10 epochs, ...``."""
    said = [data_name(plan, runs), f"{plan.scale} scale", _length(plan.training)]
    batch = plan.training.batch_size
    said += [f"batch size {batch}"] if batch is not None else []
    finished = Counter(run.method for run in runs if run.final is not None)
    fewest, most = min(finished.values(), default=0), max(finished.values(), default=0)
    seeds = counted(len(plan.seeds), "seed") if fewest == most else f"{fewest} to {most} seeds"
    return ", ".join([*said, seeds])


def title_of(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """The experiment's title, which names the paper's data; other data is named behind it."""
    name, official = data_name(plan, runs), plan.official_data
    if official is None or name == official:
        return plan.title
    bare, _, generated = name.partition(" (")
    said = [f"here: {bare}"] if bare != official else []
    said += ["generated data"] if generated else []
    return f"{plan.title} ({', '.join(said)})"


def lost(runs: Sequence[RunRecord]) -> str:
    """``of 24 runs: 2 missing, 1 diverged``; empty if all finished."""
    counts: Counter[str] = Counter(outcome(run) for run in runs)
    states = ("missing", "diverged", "interrupted", "failed")
    said = [f"{counts[state]} {state}" for state in states if counts[state]]
    return f"of {counted(len(runs), 'run')}: {', '.join(said)}" if said else ""


def remark(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """One or two sentences on whether the paper's values may be read against these."""
    found, rounded = differences(plan, runs), _precision(plan, runs)
    papers = _scale(plan) == "paper"
    if not found:
        said = "the paper's or its authors' scripts', as far as known"
        whose = said if papers else "those of the experiment as filed"
        return f"Settings are {whose}{f', but for {rounded}' if rounded else ''}."
    found = [*found, *([rounded] if rounded else [])]
    whose = "the paper's values" if papers else "the experiment as filed"
    text = f"{', '.join(found)}: not comparable with {whose}."
    return text[0].upper() + text[1:]


def differences(plan: Plan, runs: Sequence[RunRecord]) -> list[str]:
    """What keeps these numbers from being compared with the paper's; empty if nothing does.

    Another precision of all methods alike does not, but `remark` names it.
    """
    found = [] if plan.scale == _scale(plan) else [f"{plan.scale} scale"]
    name, official = data_name(plan, runs), plan.official_data
    if official is not None and not name.startswith(official):
        found.append(f"{name} instead of {official}")
    elif "generated" in name:
        found.append("generated data")
    if plan.name in EXPERIMENTS:
        paper, wanted = _paper(plan.name, _scale(plan))
        found += changed(plan, paper) + _changed_methods(plan, runs, paper, wanted)
    return found


def _scale(plan: Plan) -> str:
    """The scale to be held against."""
    ours = plan.name in EXPERIMENTS and "paper" not in scales_of(plan.name)
    return plan.scale if ours else "paper"


@cache
def _paper(name: str, scale: str) -> tuple[Plan, Mapping[str, Run]]:
    """The experiment as the paper did it, or as it is filed: its plan, and one run a method."""
    plan = experiment_plan(name, scale, read=False, check=False)
    return plan, {run.method: plan.run(run) for run in plan.runs}


def _precision(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """Like ``bf16 instead of tf32``, where all methods have another precision; or nothing."""
    if plan.name not in EXPERIMENTS:
        return ""
    ours = {run.ran.training.precision for run in runs if run.ran is not None}
    ours = ours or {plan.training.precision}
    theirs = _paper(plan.name, _scale(plan))[0].training.precision
    return f"{ours.pop()} instead of {theirs}" if len(ours) == 1 and theirs not in ours else ""


def changed(plan: Plan, paper: Plan) -> list[str]:
    """Settings of all runs that are not those of the paper's scale, whoever changed them.

    Seeds, folders, threads and what is recorded on the way may differ.
    """
    found = []
    ours, theirs = _length(plan.training), _length(paper.training)
    if ours != theirs:
        short, same_unit = ours.split()[0], ours.split()[1] == theirs.split()[1]
        found.append(f"{short if same_unit else ours} instead of {theirs}")
    batch = paper.training.batch_size
    if plan.training.batch_size != batch:
        found.append(f"batch size {plan.training.batch_size} instead of {batch}")
    mine, published = plan.problem, paper.problem
    assert isinstance(mine, LabProblem)
    assert isinstance(published, LabProblem)
    if mine.model != published.model:
        sizes = [f"{k} {v}" for k, v in mine.model.items() if published.model.get(k) != v]
        found.append(f"another network ({', '.join(sizes)})")
    for name, value in mine.data.items():
        # Which set it is has been said, and where it lies does not matter.
        if name not in ("name", "root") and published.data.get(name) != value:
            said = [value, *([published.data[name]] if name in published.data else [])]
            shown = [str(v).lower() if isinstance(v, bool) else str(v) for v in said]
            found.append(f"data with {name} {' instead of '.join(shown)}")
    if plan.metric != paper.metric:
        found.append(f"{plan.metric} instead of {paper.metric}")
    return found


def _changed_methods(
    plan: Plan, runs: Sequence[RunRecord], paper: Plan, wanted: Mapping[str, Run]
) -> list[str]:
    """What differs in how methods were trained, and in which of them unless in all.

    Options can be changed or added, not removed.
    """
    labels = {key: m.label for key, m in plan.methods.items() if key in wanted}
    ours = {run.method: plan.run(run).training for run in plan.runs}
    ours |= {run.method: run.ran.training for run in reversed(runs) if run.ran is not None}
    found = []
    for name, change in _CHANGES.items():
        which = [k for k in labels if getattr(ours[k], name) != getattr(wanted[k].training, name)]
        if name == "precision" and which:
            change = f"{ours[which[0]].precision} instead of {wanted[which[0]].training.precision}"
        in_all = which and len(which) == len(labels)
        if name == "precision" and in_all:
            continue
        found += [change] if in_all else [f"{change} of {labels[k]}" for k in which]
    longer = _common_steps(plan) / _common_steps(paper)
    for key, label in labels.items():
        mine, theirs = plan.methods[key], wanted[key]
        if abs(ours[key].steps - longer * theirs.training.steps) > 1:  # rounded to a step
            found.append(f"another length of {label}")
        changed = any(theirs.options.get(name) != value for name, value in mine.options.items())
        if changed or mine.optimizer != theirs.optimizer:
            found.append(f"other options of {label}")
    return found


def _common_steps(plan: Plan) -> float:
    """Steps of a method that has no length of its own."""
    training = plan.training
    return training.steps or (training.epochs or 0.0) * training.batches


def _length(training: PlannedTraining) -> str:
    if training.steps is not None:
        return counted(training.steps, "step")
    return counted(training.epochs or 0.0, "epoch")
