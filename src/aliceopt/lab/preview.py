"""What a plan would do and what it would cost, before anything is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from aliceopt.lab.data import data_folder
from aliceopt.lab.data.checking import present_files
from aliceopt.lab.plan import Plan
from aliceopt.lab.results.describe import problem_name
from aliceopt.lab.results.numbers import show_seconds
from aliceopt.lab.study import TUNING_SEEDS, Study
from aliceopt.lab.terminal import stdout_console
from aliceopt.lab.tuning import START
from aliceopt.lab.words import counted, settings_in_words, training_in_words

__all__ = ["print_plan", "print_study"]


def print_plan(plan: Plan) -> None:
    """Every method with its options, and the cost of all in gradient evaluations."""
    _describe(plan)
    seeds = counted(len(plan.document["seeds"]), "seed")
    _say(f"in all {_cost(len(plan.runs), plan.gradients, seeds)}")


def print_study(study: Study, paces: Mapping[str, float]) -> None:
    """The same of a study, with the runs that choose its rates, at least so many, and seconds.

    ``paces`` are seconds a step of every method.
    """
    final = study.final
    _describe(final, paces)
    spent = _seconds(final, paces)
    seeds = counted(len(final.document["seeds"]), "seed")
    if study.most == 1:
        _say(f"in all {_cost(len(final.runs), final.gradients, seeds)}, {_about(spent)}")
        return
    tuning = study.tuning(product(study.methods, START, TUNING_SEEDS))
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
    return sum(run.training.steps * paces[run.method.partition("-rate")[0]] for run in plan.runs)


def _about(seconds: float) -> str:
    return f"about {show_seconds(seconds)}"


def _describe(plan: Plan, paces: Mapping[str, float] | None = None) -> None:
    document, console = plan.document, stdout_console()
    shared = _shared(document["methods"])
    console.print(Text(document["title"], style="bold"))
    console.print(_table(document, shared, paces or {}))
    for optimizer, options in shared.items():
        if options:
            _say(f"every {optimizer}, also: {_listed(options)}")
    _say(f"problem: {_problem(document)}")
    own = {run.label: asdict(run.training.schedule) for run in plan.runs}
    _say(f"training: {training_in_words(document['training'], own)}")
    if document["kind"] == "experiment":
        _say_missing_data(document)


def _say(line: str) -> None:
    stdout_console().print(line, highlight=False, markup=False, soft_wrap=True)


def _cost(runs: int, gradients: int, *more: str) -> str:
    return ", ".join([counted(runs, "run"), *more, counted(gradients, "gradient evaluation")])


def _shared(methods: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By optimizer, the options that all its methods have alike, if it has several."""
    shared: dict[str, dict[str, Any]] = {}
    for optimizer in dict.fromkeys(method["optimizer"] for method in methods.values()):
        first, *rest = [m["options"] for m in methods.values() if m["optimizer"] == optimizer]
        alike = {k: v for k, v in first.items() if all(k in o and o[k] == v for o in rest)}
        shared[optimizer] = alike if len(rest) > 1 else {}
    return shared


def _table(
    document: Mapping[str, Any],
    shared: Mapping[str, Mapping[str, Any]],
    paces: Mapping[str, float],
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    table.add_column("optimizer and options")
    for head in ("runs", "steps", "gradients", *(["a run"] if paces else [])):
        table.add_column(head, justify="right", no_wrap=True)
    for key, method in document["methods"].items():
        runs = [run for run in document["runs"] if run["method"] == key]
        common = shared[method["optimizer"]]
        mine = {k: v for k, v in method["options"].items() if k not in common}
        options = ": ".join(filter(None, [method["optimizer"], _listed(mine)]))
        counts = (len(runs), runs[0]["steps"], sum(run["gradients"] for run in runs))
        told = [show_seconds(runs[0]["steps"] * paces[key])] if paces else []
        table.add_row(Text(key), Text(options), *(f"{count:,}" for count in counts), *told)
    return table


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _problem(document: Mapping[str, Any]) -> str:
    """The network, the data and what is measured; options of both behind their names."""
    problem = document["problem"]
    parts = [problem[part] for part in ("model", "data") if part in problem]
    named = " on ".join(settings_in_words(part) for part in parts) or problem_name(document)
    return f"{named}; {document['metric']}, {document['better']} is better"


def _say_missing_data(document: Mapping[str, Any]) -> None:
    source = document["problem"]["data"]
    name, root = source["name"], source.get("root")
    if document["scale"] == "smoke" and root is None:
        _say(f"data: a small {name} will be generated")
    elif present_files(name, root)[1]:
        folder = f" --data {root}" if root else ""
        _say(f"data: {name} is not in {data_folder(root)}: aliceopt data get {name}{folder}")
