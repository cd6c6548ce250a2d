"""What a plan would do and what it would cost, before anything is run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from rich.table import Table
from rich.text import Text

from aliceopt.lab.data import data_folder
from aliceopt.lab.data.registry import present_files
from aliceopt.lab.results.numbers import show_seconds
from aliceopt.lab.spec import LabProblem, Plan, PlannedMethod
from aliceopt.lab.study import TUNING_SEEDS, Study
from aliceopt.lab.terminal import new_table, stdout_console
from aliceopt.lab.tuning import START
from aliceopt.lab.words import counted, settings_in_words, training_in_words

__all__ = ["print_plan", "print_study"]


def print_plan(plan: Plan) -> None:
    """Every method with its options, and the cost of all in gradient evaluations."""
    _describe(plan)
    seeds = counted(len(plan.seeds), "seed")
    _say(f"in all {_cost(len(plan.runs), plan.gradients, seeds)}")


def print_study(study: Study, paces: Mapping[str, float]) -> None:
    """The same of a study, with the runs that choose its rates, at least so many, and seconds.

    ``paces`` are seconds a step of every method.
    """
    final = study.final
    _describe(final, paces)
    spent = _seconds(final, paces)
    seeds = counted(len(final.seeds), "seed")
    if study.most == 1:
        _say(f"in all {_cost(len(final.runs), final.gradients, seeds)}, {_about(spent)}")
        return
    tuning = study.tuning(product(final.methods, START, TUNING_SEEDS))
    tuned = _seconds(tuning, paces)
    _say(
        f"first {_cost(len(tuning.runs), tuning.gradients)}, {_about(tuned)} or more, to choose "
        f"each method's learning rate: 3 to {study.most} around the one above, the last choice at "
        "two seeds"
    )
    _say(f"then {_cost(len(final.runs), final.gradients, seeds)}, {_about(spent)}")
    both = _cost(len(final.runs) + len(tuning.runs), final.gradients + tuning.gradients)
    _say(f"in all {both}, {_about(spent + tuned)} or more of training steps, one run at a time")


def _seconds(plan: Plan, paces: Mapping[str, float]) -> float:
    """Of all steps; a run that chooses a rate is as fast as its method."""
    return sum(run.steps * paces[run.method.partition("-rate")[0]] for run in plan.runs)


def _about(seconds: float) -> str:
    return f"about {show_seconds(seconds)}"


def _describe(plan: Plan, paces: Mapping[str, float] | None = None) -> None:
    console, shared = stdout_console(), _shared(plan.methods)
    console.print(Text(plan.title, style="bold"))
    console.print(_table(plan, shared, paces or {}))
    for optimizer, options in shared.items():
        if options:
            _say(f"every {optimizer}, also: {_listed(options)}")
    _say(f"problem: {_problem(plan)}")
    own = {method.label: plan.schedule_of(key) for key, method in plan.methods.items()}
    _say(f"training: {training_in_words(plan.training, own)}")
    if plan.kind == "experiment":
        _say_missing_data(plan)


def _say(line: str) -> None:
    stdout_console().print(line, highlight=False, markup=False, soft_wrap=True)


def _cost(runs: int, gradients: int, *more: str) -> str:
    return ", ".join([counted(runs, "run"), *more, counted(gradients, "gradient evaluation")])


def _shared(methods: Mapping[str, PlannedMethod]) -> dict[str, dict[str, Any]]:
    """By optimizer, the options that all its methods have alike, if it has several."""
    shared: dict[str, dict[str, Any]] = {}
    for optimizer in dict.fromkeys(method.optimizer for method in methods.values()):
        first, *rest = [m.options for m in methods.values() if m.optimizer == optimizer]
        alike = {k: v for k, v in first.items() if all(k in o and o[k] == v for o in rest)}
        shared[optimizer] = alike if len(rest) > 1 else {}
    return shared


def _table(
    plan: Plan, shared: Mapping[str, Mapping[str, Any]], paces: Mapping[str, float]
) -> Table:
    heads = ("runs", "steps", "gradients", *(["a run"] if paces else []))
    table = new_table("method", "optimizer and options", *heads, words=2)
    for key, method in plan.methods.items():
        runs = [run for run in plan.runs if run.method == key]
        common = shared[method.optimizer]
        mine = {k: v for k, v in method.options.items() if k not in common}
        options = ": ".join(filter(None, [method.optimizer, _listed(mine)]))
        counts = (len(runs), runs[0].steps, sum(run.gradients for run in runs))
        told = [show_seconds(runs[0].steps * paces[key])] if paces else []
        table.add_row(Text(key), Text(options), *(f"{count:,}" for count in counts), *told)
    return table


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _problem(plan: Plan) -> str:
    """The network, the data and what is measured; options of both behind their names."""
    named = str(plan.problem)
    if isinstance(plan.problem, LabProblem):
        parts = (plan.problem.model, plan.problem.data)
        named = " on ".join(settings_in_words(part) for part in parts)
    return f"{named}; {plan.metric}, {plan.better} is better"


def _say_missing_data(plan: Plan) -> None:
    assert isinstance(plan.problem, LabProblem)
    root = plan.problem.data.get("root")
    if plan.scale == "smoke" and root is None:
        _say(f"data: a small {plan.data} will be generated")
    elif present_files(plan.data, root)[1]:
        folder = f" --data {root}" if root else ""
        where = f"is not in {data_folder(root)}: aliceopt data get {plan.data}{folder}"
        _say(f"data: {plan.data} {where}")
