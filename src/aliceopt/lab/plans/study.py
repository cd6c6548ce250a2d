"""What to train with here? Alice, a grid of its terms and steps, and baselines, on one problem.

Every method sees the same batches and starts from the same weights, seed by seed, so differences
are taken within seeds. Methods are given the same number of steps or, if asked, of gradients or
seconds.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from aliceopt.lab.optimizers.methods import STEPS, TERMS, mean_gradients
from aliceopt.lab.plans.plan import PlanError, choose, gradients_of, merged, plan_of
from aliceopt.lab.problems.problem import Problem, ProblemError, source_of
from aliceopt.lab.problems.rules import checked_problem, lacks
from aliceopt.lab.spec import (
    LabProblem,
    Plan,
    PlannedMethod,
    Source,
    UserProblem,
    checked_precision,
)
from aliceopt.lab.typed import Finite, Positive, Rule, checked, whole

__all__ = ["Study", "rate_at", "study_plan"]

SETTINGS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("study.toml").read_text(encoding="utf-8")
)
BASELINES = tuple(name for name in SETTINGS["baselines"] if name != "alice-plain")
GRID_TERMS = tuple(term for term in TERMS if term != "glass+signed")
GRID_STEPS = ("naq",)
"""Of a study that is not told others; ``alice-plain`` is AdamW once more, up to rounding."""
BUDGETS = ("steps", "gradients")
TUNING_SEED = 1000
TUNING_SEEDS = (TUNING_SEED, 1001)
"""Seeds of the runs that choose learning rates; never of the study's own."""
_SEEDS = Annotated[
    int,
    Rule("from 1 to 1,000 (seeds from 1000 on choose learning rates)", range(1, 1001).__contains__),
]


Tried = tuple[str, int, int]
"""A method, a place on its grid of rates, and a seed."""


@dataclass(frozen=True)
class Study:
    """A study before its learning rates are known: ``final`` is its plan at the usual ones.

    ``most`` rates are tried for every method; 1: none.
    """

    final: Plan
    most: int

    def lasting(self, paces: Mapping[str, float], seconds: float) -> Study:
        """The same with as many steps of every method as fit; ``paces`` are seconds a step."""
        plan = self.final
        runs = []
        for run in plan.runs:
            steps = max(1, int(seconds / paces[run.method]))
            gradients = gradients_of(plan.methods[run.method], plan.training, steps)
            runs.append(replace(run, steps=steps, gradients=gradients))
        mine = {key: paces[key] for key in plan.methods}
        training = replace(plan.training, epochs=None)
        return replace(self, final=replace(plan, training=training, runs=runs, paces=mine))

    def tuning(self, tried: Iterable[Tried]) -> Plan:
        """The plan of these runs, which choose rates."""
        plan = self.final
        usual = {run.method: run for run in plan.runs}
        methods, runs = {}, []
        for key, place, seed in sorted(tried):
            name, mine = self.name_of(key, place), at_place(plan.methods[key], place)
            methods[name] = replace(mine, label=f"{mine.label}, lr {mine.lr:.2g}")
            runs.append(replace(usual[key], method=name, seed=seed))
        return replace(
            plan,
            kind="tuning",
            title=f"Learning rates for: {plan.title}",
            methods=methods,
            seeds=list(TUNING_SEEDS),
            runs=sorted(runs, key=lambda run: run.seed),
        )

    @staticmethod
    def name_of(method: str, place: int) -> str:
        """What a method at a rate is called among the runs that choose rates."""
        return f"{method}-rate{place:+d}"

    @staticmethod
    def named(name: str) -> tuple[str, int] | None:
        """The method and the place that `name_of` calls so; None if it calls nothing so.

        >>> Study.named("adam-rate+2"), Study.named("adam")
        (('adam', 2), None)
        """
        found = re.fullmatch(r"(.+)-rate([+-]\d+)", name)
        return None if found is None else (found[1], int(found[2]))


def seconds_of(budget: str) -> float | None:
    """The seconds that a budget gives every run, if it is one of seconds.

    >>> seconds_of("60s"), seconds_of("1.5s"), seconds_of("steps"), seconds_of("0s")
    (60.0, 1.5, None, None)
    """
    found = re.fullmatch(r"(\d+\.?\d*) ?s", budget)
    return float(found[1]) or None if found else None


def rate_at(usual: float, place: int) -> float:
    """So many halves of a power of ten beyond the usual rate.

    >>> tuple(round(rate_at(0.01, place), 4) for place in (-1, 0, 1))
    (0.0032, 0.01, 0.0316)
    """
    return float(usual * 10 ** (place / 2))


def at_place(method: PlannedMethod, place: int) -> PlannedMethod:
    """The method at that rate of its grid."""
    return replace(method, options={**method.options, "lr": rate_at(method.options["lr"], place)})


def study_plan(
    problem: str | None = None,
    *,
    terms: Iterable[str] | None = None,
    steps: Iterable[str] | None = None,
    baselines: Iterable[str] | None = None,
    seeds: int | None = None,
    epochs: float | None = None,
    lr: float | None = None,
    quick_steps: int | None = None,
    limit: str = "fixed",
    budget: str = "steps",
    target: float | None = None,
    tune: int = 7,
    precision: str | None = None,
) -> Study:
    """A study of ``problem``, by default of a small convnet on scikit-learn's digits.

    ``problem`` is ``package.module:function`` or ``file.py:function``. The problem is made here
    and tried, so that what is wrong with it is told at once.
    """
    given = {"seeds": seeds, "epochs": epochs, "lr": lr, "quick_steps": quick_steps}
    _check({**given, "limit": limit, "target": target, "tune": tune})
    _check_length(epochs, budget)
    changes = {
        "seeds": seeds,
        "train": {"epochs": epochs, "precision": checked_precision(precision)},
        "alice": {"limit": limit, "quick_steps": quick_steps},
    }
    settings = merged(SETTINGS, changes)
    train, alice = settings["train"], settings["alice"]
    source: Source = LabProblem(settings["model"], settings["data"], train["batch_size"])
    if problem is not None:
        source = UserProblem(problem, source_of(problem))
    made = checked_problem(source)
    train["batch_size"] = made.train.batch_size
    methods = _grid(terms, steps, limit, lr) | _baselines(baselines, made)
    if not methods:
        raise PlanError("nothing to compare: name at least one of --terms or --baselines")
    if budget == "gradients":  # fewer epochs, as many as a method's gradients a step allow
        for key, method in methods.items():
            share = 1 / mean_gradients(method["optimizer"], {**alice, **method})
            methods[key] = {**method, "epochs": train["epochs"] * share}
    plan = plan_of(
        source,
        settings,
        methods,
        len(made.train),
        kind="study",
        name=problem or "digits",
        title=f"What to train with: {problem or 'a small convnet on digits'}",
        scale="study",
        figure="study",
        metric=made.measure.name,
        better=made.measure.better,
        budget=budget,
        target=target,
    )
    return Study(plan, tune)


_FLAGS: dict[str, Any] = {
    "seeds": _SEEDS | None,
    "epochs": Positive | None,
    "lr": Positive | None,
    "quick_steps": whole(0) | None,
    "limit": Literal[tuple(SETTINGS["rates"])],
    "target": Finite | None,
    "tune": Annotated[int, Rule("that is 1 or from 3 to 15", (1, *range(3, 16)).__contains__)],
}


def _check(given: Mapping[str, Any]) -> None:
    """Refuse a value that its flag does not take."""
    for name, value in given.items():
        checked(_FLAGS[name], value, f"--{name.replace('_', '-')}")


def _check_length(epochs: float | None, budget: str) -> None:
    """Refuse a budget that there is not, and one that says how long a run is beside ``epochs``."""
    if budget not in BUDGETS and seconds_of(budget) is None:
        raise PlanError(
            f"--budget must be steps, gradients or a number of seconds like 60s, got {budget!r}"
        )
    if epochs is not None and seconds_of(budget) is not None:
        raise PlanError(f"--epochs and --budget {budget} both say how long a run is: choose one")


def _grid(
    terms: Iterable[str] | None, steps: Iterable[str] | None, limit: str, lr: float | None
) -> dict[str, dict[str, Any]]:
    """Every term with every kind of step; a given rate is for NAQ, that of full in proportion."""
    usual = SETTINGS["rates"][limit]
    scale = 1.0 if lr is None else lr / usual["naq"]
    wanted = choose(TERMS, GRID_TERMS if terms is None else terms, "term")
    return {
        f"{step}-{term.replace('+', '-')}": {
            "optimizer": "alice",
            "terms": term,
            "step": step,
            "lr": usual[step] * scale,
        }
        for step in choose(STEPS, GRID_STEPS if steps is None else steps, "kind of step")
        for term in wanted
    }


def _baselines(names: Iterable[str] | None, problem: Problem) -> dict[str, dict[str, Any]]:
    """Those asked for; of the usual ones only those that have what they need in the problem."""
    fitting = {}
    wanted = choose(SETTINGS["baselines"], BASELINES if names is None else names, "baseline")
    for key, method in wanted.items():
        lack = lacks(problem, method["optimizer"])
        if lack is None:
            fitting[key] = method
        elif names is not None:
            raise ProblemError(lack)
    return fitting
