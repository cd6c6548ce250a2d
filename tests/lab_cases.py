"""Small runs for the tests of the lab: networks that train in milliseconds, and readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aliceopt.lab.plans.plan import plan_of
from aliceopt.lab.plans.study import Study
from aliceopt.lab.records import Journal, RunRecord, read_runs, run_folder, write_plan
from aliceopt.lab.results.tuning import tuned
from aliceopt.lab.spec import Plan, Run, Schedule, Training, UserProblem

PROBLEM = '''
import torch
from torch import nn


class Net(nn.Module):
    """Buffers, dropout, matrices and kernels: all that a checkpoint must remember."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
            nn.Dropout(0.2), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 3))

    def forward(self, images):
        return self.body(images)


def problem():
    random = torch.Generator().manual_seed(5)
    images = torch.randn(40, 1, 4, 4, generator=random)
    labels = torch.randint(3, (40,), generator=random)
    return {"model": Net(), "loss": nn.functional.cross_entropy, "train": (images, labels),
            "validation": (images[:20], labels[:20]), "metric": "accuracy", "batch_size": 8}


def raises():
    made = problem()
    def loss(outputs, targets):
        raise RuntimeError("a loss with [/brackets] in its text")
    return {**made, "loss": loss}


def dies():
    import os
    made = problem()
    def loss(outputs, targets):
        os._exit(7)
    return {**made, "loss": loss}


def explodes():
    made = problem()
    return {**made, "loss": lambda outputs, targets: outputs.square().mean() * 1e30}
'''


def write_problem(folder: Path) -> str:
    """A file of problems; add ``:problem``, ``:raises``, ``:dies`` or ``:explodes``."""
    path = folder / "small_problem.py"
    path.write_text(PROBLEM)
    return str(path)


def small_run(file: str, optimizer: str, options: dict[str, Any], **training: Any) -> Run:
    """Eight steps on the small problem; evaluations at 2, 4, 6, 8 and logs at 3, 6, 8."""
    chosen = {"steps": 8, "evaluations": 4, "logs": 3, "schedule": Schedule("cosine"), **training}
    problem = UserProblem(file if ":" in file else f"{file}:problem")
    return Run(optimizer, optimizer, optimizer, options, 1, problem, Training(**chosen))


def small_plan(file: str, methods: dict[str, dict[str, Any]], **changes: Any) -> Plan:
    """A plan of two seeds on the small problem."""
    settings = {"seeds": 2, "train": {"steps": 6, "evaluations": 3, "logs": 3}, **changes}
    problem = UserProblem(file if ":" in file else f"{file}:problem")
    return plan_of(
        problem,
        settings,
        methods,
        5,
        kind="study",
        name="small",
        title="Small",
        scale="study",
        figure="study",
        metric="accuracy",
        better="higher",
    )


def write_tuning(
    study: Study, folder: Path, end: Callable[[str, int, int], Any]
) -> tuple[list[Plan], Plan]:
    """Carry out a tuning in which each method, place and seed ends so; its plans, and the study's.

    (metric, loss), or None where it diverged.
    """
    plans = []

    def carry_out(plan: Plan) -> list[RunRecord]:
        plans.append(plan)
        write_plan(folder / "tuning", plan)
        for run in plan.runs:
            path = run_folder(folder / "tuning", run.method, run.seed) / "records.jsonl"
            if not path.exists():
                method, _, place = run.method.rpartition("-rate")
                _write_end(path, end(method, int(place), run.seed))
        return read_runs(folder / "tuning", plan)

    return plans, tuned(study, folder, carry_out)


def _write_end(path: Path, found: tuple[float | None, float | None] | None) -> None:
    journal = Journal(path)
    journal.write("start", config={}, run={})
    where = {"step": 1, "gradients": 1, "seconds": 1.0}
    if found is None:
        journal.write("end", **where, status="diverged", reason="", metric=None)
    else:
        journal.write("evaluation", **where, metric=found[0], loss=found[1])
        journal.write("end", **where, status="finished", reason="", metric=found[0])
    journal.close()


def events(folder: Path, method: str, seed: int) -> list[dict[str, Any]]:
    """The records of one run without what no two runs share: times and dates."""
    path = run_folder(folder, method, seed) / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in e.items() if k not in ("seconds", "time")} for e in lines]


def all_events(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """`events` of every run below a folder, by its place there."""
    found = sorted(folder.glob("*/seed-*/records.jsonl"))
    places = [path.parent for path in found]
    return {
        str(place.relative_to(folder)): events(
            folder, place.parent.name, int(place.name.removeprefix("seed-"))
        )
        for place in places
    }


TINY = {"terms": ["none", "glass"], "steps": ["naq"], "baselines": ["adam"], "epochs": 1}
"""The smallest study: for `study_plan`."""


def aliceopt(*arguments: Any) -> Any:
    """The command, in this process."""
    from typer.testing import CliRunner

    from aliceopt.cli import build

    return CliRunner().invoke(build(), [str(argument) for argument in arguments])


def tiny(*more: Any) -> Any:
    """`TINY` with two seeds, from the command line."""
    grid = ("--terms", "none,glass", "--steps", "naq", "--baselines", "adam")
    size = ("--seeds", 2, "--epochs", 1, "--workers", 1, "--device", "cpu")
    return aliceopt("study", *grid, *size, *more)


PRUNED = """
import torch
from torch import nn

def problem():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=random)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    return {"model": model, "loss": nn.functional.cross_entropy, "train": (x, y),
            "validation": (x, y), "metric": "accuracy", "batch_size": 32}
"""
"""A problem whose network is small enough to be pruned in tests."""
