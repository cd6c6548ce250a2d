"""What was trained on what, in words, from a plan and its records."""

from __future__ import annotations

from collections.abc import Sequence

from aliceopt.lab.precision import in_words
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.numbers import show_seconds
from aliceopt.lab.spec import Plan, PlannedMethod, Tuned
from aliceopt.lab.words import counted

__all__ = [
    "combination",
    "data_note",
    "is_generated",
    "precision_note",
    "rates_notes",
    "tuning_cost",
    "usual_rates",
]

STEP_NAMES = {"naq": "NAQ steps", "full": "full steps"}


def data_note(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """What the runs say of their data, else the plan's name of it."""
    notes = dict.fromkeys(str(run.start["data"]) for run in runs if run.start.get("data"))
    return "; ".join(notes) or plan.data


def precision_note(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """What the runs computed in, by their records, else by the plan: for the foot of a table."""
    told = [run.ran.training.precision for run in runs if run.ran is not None]
    found = dict.fromkeys(told or [plan.training.precision])
    return f"Precision: {'; '.join(map(in_words, found))}."


def is_generated(plan: Plan, runs: Sequence[RunRecord]) -> bool:
    """Whether invented data stood in for a published set."""
    return "(generated)" in data_note(plan, runs)


def usual_rates(plan: Plan) -> str:
    """Whose the learning rates are that nobody tuned."""
    if plan.kind != "experiment":
        return "the usual ones"
    return "the experiment's own" if plan.reference == "" else "the paper's"


def rates_notes(plan: Plan) -> list[str]:
    """Where the learning rates come from, which decides what the comparison is of."""
    tuned = plan.tuned
    if len(plan.methods) < 2:
        return []
    if not tuned:
        said = f"Learning rates are {usual_rates(plan)}, not tuned here"
        return [f"{said}: this compares settings, not methods."]
    notes = [
        f"Learning rates are the best at {len(tuned.seeds)} other seeds ({tuning_cost(tuned)}); "
        "no interval counts the luck of that choice."
    ]
    edge = [m for m, chosen in tuned.chosen.items() if chosen.edge]
    if edge:
        names = "; ".join(plan.methods[m].label for m in edge)
        beyond = "beyond" if tuned.most > 11 else f"beyond (--tune {tuned.most + 4} --resume)"
        notes.append(
            f"Best at the lowest or highest of {tuned.most} rates, so a better one may lie "
            f"{beyond}: {names}."
        )
    return notes


def tuning_cost(tuned: Tuned) -> str:
    """Runs and seconds that went into the choice of learning rates."""
    return f"{counted(tuned.runs, 'run')}, {show_seconds(tuned.seconds)}"


def combination(about: PlannedMethod) -> str:
    """A method in words: ``glass+abs with NAQ steps``, or its label."""
    if about.terms is None or about.step is None:
        return about.label
    terms = "no term" if about.terms == "none" else about.terms
    return f"{terms} with {STEP_NAMES.get(about.step, about.step)}"
