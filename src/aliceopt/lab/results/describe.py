"""What was trained on what, in words, from a plan and its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aliceopt.lab.precision import in_words
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.numbers import show_seconds
from aliceopt.lab.words import counted

__all__ = [
    "combination",
    "data_note",
    "is_generated",
    "precision_note",
    "problem_name",
    "rates_notes",
    "tuning_cost",
    "usual_rates",
]

STEP_NAMES = {"naq": "NAQ steps", "full": "full steps"}


def problem_name(plan: Mapping[str, Any]) -> str:
    """``convnet on digits``, or where the user's function is.

    >>> problem_name({"problem": {"model": {"name": "convnet"}, "data": {"name": "digits"}}})
    'convnet on digits'
    """
    problem = plan.get("problem") or plan.get("name", "the problem")
    if not isinstance(problem, Mapping):
        return str(problem)
    if "function" in problem:
        return str(problem["function"])
    parts = (problem.get("model", {}).get("name"), problem.get("data", {}).get("name"))
    return " on ".join(str(part) for part in parts if part) or str(plan.get("name", "the problem"))


def data_note(plan: Mapping[str, Any], runs: Sequence[RunRecord]) -> str:
    """What the runs say of their data, else the plan's name of it."""
    notes = dict.fromkeys(str(run.start["data"]) for run in runs if run.start.get("data"))
    return "; ".join(notes) or str(plan.get("data", ""))


def precision_note(plan: Mapping[str, Any], runs: Sequence[RunRecord]) -> str:
    """What the runs computed in, by their records, else by the plan: for the foot of a table.

    >>> precision_note({"training": {"precision": "float32"}}, [])
    'Precision: float32.'
    """
    told = [(run.config.get("training") or {}).get("precision") for run in runs]
    found = dict.fromkeys(p for p in told if p)
    usual = str((plan.get("training") or {}).get("precision", "float32"))
    return f"Precision: {'; '.join(in_words(p) for p in found) or in_words(usual)}."


def is_generated(plan: Mapping[str, Any], runs: Sequence[RunRecord]) -> bool:
    """Whether invented data stood in for a published set."""
    return "(generated)" in data_note(plan, runs)


def usual_rates(plan: Mapping[str, Any]) -> str:
    """Whose the learning rates are that nobody tuned."""
    if plan["kind"] != "experiment":
        return "the usual ones"
    return "the experiment's own" if plan.get("reference") == "" else "the paper's"


def rates_notes(plan: Mapping[str, Any]) -> list[str]:
    """Where the learning rates come from, which decides what the comparison is of."""
    tuned = plan.get("tuned")
    if len(plan["methods"]) < 2:
        return []
    if not tuned:
        said = f"Learning rates are {usual_rates(plan)}, not tuned here"
        return [f"{said}: this compares settings, not methods."]
    notes = [
        f"Learning rates are the best at {len(tuned['seeds'])} other seeds ({tuning_cost(plan)}); "
        "no interval counts the luck of that choice."
    ]
    edge = [m for m, chosen in tuned["chosen"].items() if chosen["edge"]]
    if edge:
        names = "; ".join(str(plan["methods"][m]["label"]) for m in edge)
        beyond = "beyond" if tuned["most"] > 11 else f"beyond (--tune {tuned['most'] + 4} --resume)"
        notes.append(
            f"Best at the lowest or highest of {tuned['most']} rates, so a better one may lie "
            f"{beyond}: {names}."
        )
    return notes


def tuning_cost(plan: Mapping[str, Any]) -> str:
    """Runs and seconds that went into the choice of learning rates."""
    tuned = plan["tuned"]
    return f"{counted(tuned['runs'], 'run')}, {show_seconds(tuned['seconds'])}"


def combination(about: Mapping[str, Any]) -> str:
    """A method in words: ``glass+abs with NAQ steps``, or its label."""
    if about.get("terms") is None or about.get("step") is None:
        return str(about["label"])
    terms = "no term" if about["terms"] == "none" else about["terms"]
    return f"{terms} with {STEP_NAMES.get(about['step'], about['step'])}"
