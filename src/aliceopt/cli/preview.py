"""What a plan would do and what it would cost, before anything is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from rich.text import Text

from aliceopt.lab.data import data_folder
from aliceopt.lab.data.registry import present_files
from aliceopt.lab.plans.study import TUNING_SEEDS, Study
from aliceopt.lab.results.numbers import show_seconds
from aliceopt.lab.results.tuning import START
from aliceopt.lab.spec import LabProblem, Plan, PlannedMethod, PlannedRun
from aliceopt.lab.terminal import new_table, stdout_console
from aliceopt.lab.words import counted, settings_in_words, training_in_words


def print_plan(plan: Plan) -> None:
    """Every method of an experiment with its options, and the cost of all in gradients."""
    _describe(plan, {})
    assert isinstance(plan.problem, LabProblem)
    root = plan.problem.data.get("root")
    if plan.scale == "smoke" and root is None:
        _say(f"data: a small {plan.data} will be generated")
    elif present_files(plan.data, root)[1]:
        folder = f" --data {root}" if root else ""
        where = f"is not in {data_folder(root)}: aliceopt data get {plan.data}{folder}"
        _say(f"data: {plan.data} {where}")
    _say(f"in all {_cost(plan.runs, counted(len(plan.seeds), 'seed'))}")


def print_study(study: Study, paces: Mapping[str, float]) -> None:
    """The same of a study, with the runs that choose its rates, at least so many, and seconds.

    ``paces`` are seconds a step of every method; a run that chooses a rate is as fast.
    """

    def about(runs: Iterable[PlannedRun]) -> str:
        seconds = sum(run.steps * paces[run.method.partition("-rate")[0]] for run in runs)
        return f"about {show_seconds(seconds)}"

    runs, seeds = study.final.runs, counted(len(study.final.seeds), "seed")
    _describe(study.final, paces)
    if study.most == 1:
        _say(f"in all {_cost(runs, seeds)}, {about(runs)}")
        return
    tuning = study.tuning(product(study.final.methods, START, TUNING_SEEDS)).runs
    _say(
        f"first {_cost(tuning)}, {about(tuning)} or more, to choose each method's learning rate: "
        f"3 to {study.most} around the one above, the last choice at two seeds"
    )
    _say(f"then {_cost(runs, seeds)}, {about(runs)}")
    both = runs + tuning
    _say(f"in all {_cost(both)}, {about(both)} or more of training steps, one run at a time")


def _cost(runs: Sequence[PlannedRun], *more: str) -> str:
    gradients = sum(run.gradients for run in runs)
    return ", ".join([counted(len(runs), "run"), *more, counted(gradients, "gradient evaluation")])


def _say(line: str) -> None:
    stdout_console().print(line, highlight=False, markup=False, soft_wrap=True)


def _describe(plan: Plan, paces: Mapping[str, float]) -> None:
    heads = ("runs", "steps", "gradients", *(["a run"] if paces else []))
    table = new_table("method", "optimizer and options", *heads, words=2)
    shared = _shared(plan.methods)
    for key, method in plan.methods.items():
        runs = [run for run in plan.runs if run.method == key]
        mine = {k: v for k, v in method.options.items() if k not in shared[method.optimizer]}
        mine |= {"twin": method.twin} if method.twin else {}
        options = ": ".join(filter(None, [method.optimizer, _listed(mine)]))
        counts = (len(runs), runs[0].steps, sum(run.gradients for run in runs))
        told = [show_seconds(runs[0].steps * paces[key])] if paces else []
        table.add_row(Text(key), Text(options), *(f"{count:,}" for count in counts), *told)
    console = stdout_console()
    console.print(Text(plan.title, style="bold"))
    console.print(table)
    for optimizer, alike in shared.items():
        if alike:
            _say(f"every {optimizer}, also: {_listed(alike)}")
    named = str(plan.problem)
    if isinstance(plan.problem, LabProblem):  # with the options of both
        named = " on ".join(map(settings_in_words, (plan.problem.model, plan.problem.data)))
    _say(f"problem: {named}; {plan.metric}, {plan.better} is better")
    own = {method.label: plan.schedule_of(key) for key, method in plan.methods.items()}
    _say(f"training: {training_in_words(plan.training, own)}")


def _shared(methods: Mapping[str, PlannedMethod]) -> dict[str, dict[str, Any]]:
    """By optimizer, the options that all its methods have alike, if it has several."""
    shared: dict[str, dict[str, Any]] = {}
    for optimizer in dict.fromkeys(method.optimizer for method in methods.values()):
        first, *rest = [m.options for m in methods.values() if m.optimizer == optimizer]
        alike = {k: v for k, v in first.items() if all(k in o and o[k] == v for o in rest)}
        shared[optimizer] = alike if len(rest) > 1 else {}
    return shared


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
