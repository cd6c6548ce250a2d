"""What is left of a plan, beside the records that its folder has already."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.records import ENDED, RunRecord, read_plan, read_runs, write_plan
from aliceopt.lab.spec import Plan, Run
from aliceopt.lab.training.launch import Launcher, Setting
from aliceopt.lab.training.train import Watcher
from aliceopt.lab.typed import from_json, to_json
from aliceopt.lab.words import counted

__all__ = ["Left", "outstanding", "refuse_fewer", "threads_each"]


@dataclass(frozen=True)
class Left:
    """What is left of a plan: ``runs``; and the records of all that it names."""

    plan: Plan
    runs: list[Run]
    records: list[RunRecord]

    def launch(self, launcher: Launcher, setting: Setting, watch: Watcher) -> None:
        """Write the plan, and let the launcher train what is left.

        Not on a GPU what began on a CPU, nor back: their seconds do not go into one median.
        """
        for record in self.records:
            device = record.start.get("device", "")
            if device and device.startswith("cpu") != launcher.on_cpu:
                raise PlanError(
                    f"the records of {record.method}, seed {record.seed}, were made on {device}: "
                    "go on there (--device), choose another --out, or --overwrite"
                )
        write_plan(setting.folder, self.plan)
        # Sums depend on the threads of a run, so a plan goes on with those it began with.
        before = [record.ran.training.threads for record in self.records if record.ran]
        threads = before[0] if before else setting.threads
        threads = threads or threads_each(launcher, len(self.records))
        launcher.launch([_threaded(run, threads) for run in self.runs], setting, watch)


def outstanding(plan: Plan, folder: Path, *, resume: bool) -> Left:
    """What is to be done; what the folder holds already must belong to the same plan."""
    there, others = _before(plan, folder)
    records = read_runs(folder, plan)
    begun = [record for record in records if record.status != "missing"]
    if there is not None and (begun or any(record.status != "missing" for record in others)):
        if (there.kind, there.name, there.scale) != (plan.kind, plan.name, plan.scale):
            raise PlanError(
                f"{str(folder)!r} holds the records of {there.name!r} at scale {there.scale}: "
                "choose another --out, or --overwrite"
            )
        _refuse_left_out(plan, others, folder)
    if begun and not resume:
        raise PlanError(
            f"{str(folder)!r} already holds records of {counted(len(begun), 'run')}: --resume to "
            "go on with them, --overwrite to begin anew, or another --out"
        )
    runs = []
    for run, record in zip(map(plan.run, plan.runs), records, strict=True):
        _check_same(run, record)
        if record.status not in ENDED:
            runs.append(run)
    return Left(plan, runs, records)


def refuse_fewer(plan: Plan, folder: Path) -> None:
    """Refuse a study without runs that have ended here: its report would not have them.

    Runs that failed or were stopped may be left out.
    """
    there, others = _before(plan, folder)
    if there is not None and there.kind == plan.kind:
        _refuse_left_out(plan, others, folder)


def _before(plan: Plan, folder: Path) -> tuple[Plan | None, list[RunRecord]]:
    """The plan in the folder, and the records of runs that it names and this one does not."""
    if not (folder / "plan.json").exists():
        return None, []
    there = read_plan(folder)
    named = {(run.method, run.seed) for run in plan.runs}
    runs = [run for run in there.runs if (run.method, run.seed) not in named]
    return there, read_runs(folder, replace(there, runs=runs))


def _refuse_left_out(plan: Plan, others: Sequence[RunRecord], folder: Path) -> None:
    left = dict.fromkeys(
        f"{run.label} seed {run.seed}" if run.method in plan.methods else run.label
        for run in others
        if run.status in ENDED
    )
    if left and plan.kind != "experiment":
        raise PlanError(
            f"{str(folder)!r} also holds results of {'; '.join(left)} that this command leaves "
            "out: ask for as many terms, steps, baselines and seeds as before, choose another "
            "--out, or --overwrite"
        )


def _check_same(run: Run, record: RunRecord) -> None:
    """Refuse to go on with records of another run."""
    if not record.config:
        return
    other = ["optimizer", "options", "problem", "training"]  # if another version wrote it
    if record.ran is not None:
        before = _threaded(record.ran, run.training.threads)
        now = from_json(Run, to_json(run))  # as it is read: without tuples
        other = [name for name in other[:3:2] if getattr(before, name) != getattr(now, name)]
        other += _changes("", before.options, now.options)
        other += _changes("train.", vars(before.training), vars(now.training))
    if other:
        raise PlanError(
            f"the records of {run.method}, seed {run.seed}, were made with other settings "
            f"({'; '.join(other)}): choose another --out, or --overwrite"
        )


def _changes(prefix: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Like ``train.steps 40, now 20``; of what has parts, or was not there, the name alone."""
    names, gone = {**old, **new}, object()
    changed = [name for name in names if old.get(name, gone) != new.get(name, gone)]
    told = {name: (old.get(name), new.get(name)) for name in changed}
    plain = (bool, int, float, str)
    return [
        f"{prefix}{name} {a}, now {b}"
        if isinstance(a, plain) and isinstance(b, plain)
        else f"{prefix}{name}"
        for name, (a, b) in told.items()
    ]


def threads_each(launcher: Launcher, runs: int) -> int:
    """Threads that each of so many runs gets, if none has begun."""
    share = launcher.threads(runs)
    most = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(share, int(most))) if most.isdecimal() else share


def _threaded(run: Run, threads: int) -> Run:
    return replace(run, training=replace(run.training, threads=threads))
