"""Kept runs against their experiment as it is filed now.

An experiment's file may change after runs were kept, and runs are kept of what was tried on the
way. Only runs of the same settings are compared; the others say in what they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from aliceopt.lab.plan import EXPERIMENTS, PlanError, experiment_plan
from aliceopt.lab.results.kept import Line
from aliceopt.lab.typed import to_json

__all__ = ["as_filed", "changes"]


def as_filed(lines: Sequence[Line]) -> list[Line]:
    """Those without `changes`."""
    return [line for line in lines if not changes(line)]


def changes(line: Line) -> list[str]:
    """A kept run's problem, options and schedule where they are not the filed ones.

    Like ``max_grad_norm 1.0``, or ``no max_grad_norm``. A learning rate behind the method's name,
    ``adamw@1e-3``, is no change.
    """
    filed = _filed(line["experiment"], line["scale"], line["method"])
    if filed is None:
        return ["no longer filed"]
    mine = _named(line["config"])
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
    return _named(to_json(plan.run(plan.runs[0])))


def _named(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that make it another one, by name."""
    course = {name: config["training"][name] for name in ("steps", "schedule")}
    return {"optimizer": config["optimizer"], **config["options"], **course, **config["problem"]}
