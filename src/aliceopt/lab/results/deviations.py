"""How records differ from the paper's experiment: said under every table and figure.

An experiment that is none of the paper's is held against its own file, at the same scale.

A smaller scale, another data set or changed settings make numbers that must not be read against
the paper's, however close they come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from aliceopt.lab.plan import EXPERIMENTS, experiment_plan, scales_of
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.summary import outcome
from aliceopt.lab.spec import (
    LabProblem,
    Plan,
    PlannedMethod,
    PlannedTraining,
    Run,
    Training,
)
from aliceopt.lab.words import counted

__all__ = ["data_name", "differences", "lost", "remark", "setting", "title_of"]

_CHANGES = {
    "schedule": "another schedule",
    "precision": "another precision",
    "validation_batches": "another number of validation batches",
    "power_law": "another measurement of exponents",
}


def setting(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """Data, scale, length, batch size and seeds: ``cifar10, lab scale, 10 epochs, ...``."""
    batch = plan.training.batch_size
    return ", ".join(
        [
            data_name(plan, runs),
            f"{plan.scale} scale",
            _length(plan.training),
            *([f"batch size {batch}"] if batch is not None else []),
            counted(len(plan.seeds), "seed"),
        ]
    )


def data_name(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """The data set, with ``(generated)`` behind it if any record or the plan says so."""
    name = plan.data
    notes = [str(run.start.get("data", "")) for run in runs]
    generated = any("generated" in note for note in notes) and "generated" not in name
    return f"{name} (generated)" if generated else name


def title_of(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """The experiment's title, which names the paper's data; other data is named behind it."""
    name, official = data_name(plan, runs), plan.official_data
    title = plan.title
    if official is None or name == official:
        return title
    bare, _, generated = name.partition(" (")
    said = [f"here: {bare}"] if bare != official else []
    return f"{title} ({', '.join([*said, *(['generated data'] if generated else [])])})"


def lost(runs: Sequence[RunRecord]) -> str:
    """``2 of 24 runs missing, 1 diverged``; empty if all finished."""
    counts = Counter(outcome(run) for run in runs if outcome(run) != "finished")
    said = [f"{counts[s]} {s}" for s in ("diverged", "interrupted", "failed") if counts[s]]
    if counts["missing"]:
        said.insert(0, f"{counts['missing']} missing")
    return f"of {counted(len(runs), 'run')}: {', '.join(said)}" if said else ""


def differences(plan: Plan, runs: Sequence[RunRecord]) -> list[str]:
    """What keeps these numbers from being compared with the paper's; empty if nothing does."""
    found = [] if plan.scale == _scale(plan) else [f"{plan.scale} scale"]
    name = data_name(plan, runs)
    official = plan.official_data
    if official is not None and not name.startswith(official):
        found.append(f"{name} instead of {official}")
    elif "generated" in name:
        found.append("generated data")
    if plan.name in EXPERIMENTS:
        found += _changed(plan, runs)
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


def _changed(plan: Plan, runs: Sequence[RunRecord]) -> list[str]:
    """Settings that are not those of the paper's scale, whoever changed them.

    Seeds, folders, threads and what is recorded on the way may differ.
    """
    paper, wanted = _paper(plan.name, _scale(plan))
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
    found += _changed_data(mine.data, published.data)
    if plan.metric != paper.metric:
        found.append(f"{plan.metric} instead of {paper.metric}")
    return found + _changed_methods(plan, runs, paper, wanted)


def _changed_data(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Options of the data; which set it is has been said, and where it lies does not matter."""
    found = []
    for name, value in ours.items():
        if name not in ("name", "root") and theirs.get(name) != value:
            instead = f" instead of {_plain(theirs[name])}" if name in theirs else ""
            found.append(f"data with {name} {_plain(value)}{instead}")
    return found


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _changed_methods(
    plan: Plan, runs: Sequence[RunRecord], paper: Plan, wanted: Mapping[str, Run]
) -> list[str]:
    """What differs in how methods were trained, and in which of them unless in all."""
    labels = {key: m.label for key, m in plan.methods.items() if key in wanted}
    ours = {key: _training_of(plan, runs, key) for key in labels}
    found = []
    for name, change in _CHANGES.items():
        which = [k for k in labels if getattr(ours[k], name) != getattr(wanted[k].training, name)]
        if name == "precision" and which:
            change = f"{ours[which[0]].precision} instead of {wanted[which[0]].training.precision}"
        in_all = which and len(which) == len(labels)
        found += [change] if in_all else [f"{change} of {labels[k]}" for k in which]
    longer = _common_steps(plan) / _common_steps(paper)
    for key, label in labels.items():
        if abs(ours[key].steps - longer * wanted[key].training.steps) > 1:  # rounded to a step
            found.append(f"another length of {label}")
        if _differ(plan.methods[key], wanted[key]):
            found.append(f"other options of {label}")
    return found


def _training_of(plan: Plan, runs: Sequence[RunRecord], method: str) -> Training:
    """How a method was trained, by its records, else by the plan."""
    told = (run.ran.training for run in runs if run.method == method and run.ran is not None)
    planned = next(run for run in plan.runs if run.method == method)
    return next(told, plan.run(planned).training)


def _common_steps(plan: Plan) -> float:
    """Steps of a method that has no length of its own."""
    training = plan.training
    return training.steps or (training.epochs or 0.0) * training.batches


def _differ(method: PlannedMethod, wanted: Run) -> bool:
    """Whether an option is not the wanted one; options can be changed or added, not removed."""
    changed = any(wanted.options.get(name) != value for name, value in method.options.items())
    return changed or method.optimizer != wanted.optimizer


def _length(training: PlannedTraining) -> str:
    if training.steps is not None:
        return counted(training.steps, "step")
    return counted(training.epochs or 0.0, "epoch")


def remark(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """One sentence on whether the paper's values may be read against these."""
    found = differences(plan, runs)
    papers = _scale(plan) == "paper"
    if not found:
        said = "the paper's or its authors' scripts', as far as known"
        return f"Settings are {said if papers else 'those of the experiment as filed'}."
    whose = "the paper's values" if papers else "the experiment as filed"
    text = f"{', '.join(found)}: not comparable with {whose}."
    return text[0].upper() + text[1:]
