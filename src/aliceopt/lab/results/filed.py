"""Kept runs against their experiment as it is filed now.

An experiment's file may change after runs were kept, and runs are kept of what was tried on the
way. Only runs of the same settings are compared; the others say in what they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from aliceopt.lab.plan import EXPERIMENTS, PlanError, experiment_plan
from aliceopt.lab.results.kept import Kept
from aliceopt.lab.spec import Run
from aliceopt.lab.typed import to_json

__all__ = ["as_filed", "changes"]


def as_filed(lines: Sequence[Kept]) -> list[Kept]:
    """Those without `changes`."""
    return [line for line in lines if not changes(line)]


def changes(line: Kept) -> list[str]:
    """A kept run's problem, options and schedule where they are not the filed ones.

    Like ``max_grad_norm 1.0``, or ``no max_grad_norm``. A learning rate behind the method's name,
    ``adamw@1e-3``, is no change.
    """
    filed = _filed(line.experiment, line.scale, line.method)
    if filed is None:
        return ["no longer filed"]
    mine = _named(line.config)
    names = [name for name in {**filed, **mine} if mine.get(name) != filed.get(name)]
    return [f"{name} {mine[name]}" if name in mine else f"no {name}" for name in names]


@cache
def _filed(experiment: str, scale: str, method: str) -> dict[str, Any] | None:
    if experiment not in EXPERIMENTS:
        return None
    try:
        plan = experiment_plan(experiment, scale, methods=[method], read=False, check=False)
    except PlanError:
        return None
    return _named(plan.run(plan.runs[0]))


def _named(run: Run) -> dict[str, Any]:
    """The settings of a run that make it another one, by name."""
    course = {"steps": run.training.steps, "schedule": to_json(run.training.schedule)}
    return {"optimizer": run.optimizer, **run.options, **course, **to_json(run.problem)}
