"""Kept results compared: every method at the rate that suits it, beside one of them.

A rate is chosen at `TUNING_SEED` alone, and the differences are those of the other seeds, paired: a
rate that was lucky at the seed it was chosen at gains nothing by it.

An experiment's file may change after runs were kept, and runs are kept of what was tried on the
way. Only runs of the same settings are compared; the others say in what they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from aliceopt.lab.plans.plan import PlanError, experiment_plan, settings_of
from aliceopt.lab.plans.study import TUNING_SEED
from aliceopt.lab.records import RecordError
from aliceopt.lab.results import numbers
from aliceopt.lab.results.kept import Kept, check_alike, mean_seconds, read_kept
from aliceopt.lab.results.paired import ALPHA, Paired
from aliceopt.lab.spec import Run
from aliceopt.lab.words import meant

PLACES = {"accuracy": 2, "loss": 3, "perplexity": 2}
"""Decimals of a final metric, and at least of a difference."""

Runs = Mapping[int, Kept]
"""Of a method at a rate, by seed."""
Rates = Mapping[float, Runs]


@dataclass(frozen=True)
class Compared:
    """A method at its rate. Without other seeds its runs are those of the tuning seed."""

    method: str
    label: str
    metric: str
    rate: float
    at_edge: bool
    """Whether no higher, or no lower, rate was tried."""
    runs: Runs
    tuning_only: bool
    paired: Paired | None
    """Differences to the method compared with, over the seeds that both have.

    None below two seeds, and where a run of either diverged.
    """

    @property
    def finals(self) -> list[float]:
        """Final metrics of the runs that finished."""
        return [line.final for line in self.runs.values() if line.final is not None]

    def cells(self) -> tuple[str, ...]:
        """The row of a table, below `HEAD`."""
        finals = self.finals
        seeds = numbers.show_share(len(finals), len(self.runs))
        return (
            self.label,
            f"{self.rate:g}{' (edge)' if self.at_edge else ''}",
            f"{seeds} (tuning)" if self.tuning_only else seeds,
            numbers.signed(fmean(finals), PLACES[self.metric]) if finals else "diverged",
            difference(self.paired, self.metric),
            numbers.show_count(fmean(line.gradients for line in self.runs.values())),
            numbers.show_seconds(mean_seconds(self.runs.values())),
        )


HEAD = ("method", "lr", "seeds", "final", "difference", "gradients", "seconds")


def difference(paired: Paired | None, metric: str, level: float = ALPHA) -> str:
    """A mean difference and half of its interval, of 95% unless told; a dash where there is none.

    >>> difference(Paired((0.1, 0.3)), "accuracy"), difference(Paired((0.1,)), "accuracy")
    ('+0.20 \u00b1 1.27', '+0.10')
    """
    if paired is None:
        return numbers.NONE
    places, half = PLACES[metric], None
    if len(paired.differences) > 1:
        half = paired.half_width(level)
        places = max(places, numbers.decimals(half))
    mean = numbers.signed(paired.mean, places)
    said = mean if mean.startswith(numbers.MINUS) else f"+{mean}"
    return said if half is None else f"{said} \u00b1 {half:.{places}f}"


def as_filed(lines: Sequence[Kept]) -> list[Kept]:
    """Those without `changes`."""
    return [line for line in lines if not changes(line)]


def changes(line: Kept) -> list[str]:
    """A kept run's problem, options and schedule where they are not the filed ones."""
    return changed(line.experiment, line.scale, replace(line.config, method=line.method))


def changed(experiment: str, scale: str, run: Run) -> list[str]:
    """Like ``max_grad_norm 1.0``, or ``no max_grad_norm``, of any run of an experiment.

    A learning rate behind the method's name, ``adamw@1e-3``, is no change.
    """
    filed = _filed(experiment, scale, run.method)
    if filed is None:
        return ["no longer filed"]
    mine = _named(run)
    names = [name for name in {**filed, **mine} if mine.get(name) != filed.get(name)]
    return [f"{name} {mine[name]}" if name in mine else f"no {name}" for name in names]


@cache
def _filed(experiment: str, scale: str, method: str) -> dict[str, Any] | None:
    try:
        plan = experiment_plan(experiment, scale, methods=[method], read=False, check=False)
    except PlanError:
        return None
    return _named(plan.run(plan.runs[0]))


def _named(run: Run) -> dict[str, Any]:
    """The settings of a run that make it another one, by name; a switch that is off is none."""
    settings = run.settings
    course = ("steps", "schedule", "validation_batches", "compile")
    training = {k: v for k, v in settings["training"].items() if k in course and v is not False}
    return {"optimizer": run.optimizer, **run.options, **training, **settings["problem"]}


def compare_kept(folder: Path, experiment: str, scale: str, to: str = "adamw") -> list[Compared]:
    """`compare` on what a folder keeps of an experiment as it is filed."""
    settings_of(experiment, scale)  # refuses a name or scale that there is not
    there = read_kept(folder / f"{experiment}.jsonl")
    lines = [line for line in as_filed(there) if line.scale == scale]
    if not lines:
        raise RecordError(
            f"no results of {experiment!r} at scale {scale} with its settings as filed in "
            f"{str(folder)!r}: see aliceopt results show; those of the documentation are in the "
            "folder results of a clone (--from)"
        )
    return compare(lines, to)


def compare(lines: Sequence[Kept], to: str = "adamw") -> list[Compared]:
    """Every method of one experiment at its best rate, beside ``to`` at its own."""
    check_alike(lines)
    tried = by_rate(lines)
    if to not in tried:
        raise RecordError(f"no kept run of method {to!r}{meant(to, tried)}")
    usual = best_rate(tried[to])
    base = _others(tried[to][usual])
    rows = [_compared(name, rates, best_rate(rates, usual), base) for name, rates in tried.items()]
    sign = -1 if lines[0].better == "higher" else 1
    worst = float("inf")
    return sorted(rows, key=lambda row: sign * fmean(row.finals) if row.finals else worst)


def by_rate(lines: Sequence[Kept]) -> dict[str, dict[float, dict[int, Kept]]]:
    """The runs of every method, by rate and seed."""
    tried: dict[str, dict[float, dict[int, Kept]]] = {}
    for line in lines:
        rates = tried.setdefault(line.method.partition("@")[0], {})
        rates.setdefault(line.config.options["lr"], {})[line.seed] = line
    return tried


def best_rate(rates: Rates, usual: float | None = None) -> float:
    """The rate that ended best at the tuning seed, of equal ones the lowest.

    A method that was not tuned is taken at the ``usual`` rate, that of the method compared with; if
    it was not tried there, at the one with most runs.
    """
    ends = {rate: runs[TUNING_SEED] for rate, runs in rates.items() if TUNING_SEED in runs}
    finals = {rate: line.final for rate, line in ends.items() if line.final is not None}
    if not finals:
        most = max(rates, key=lambda rate: len(rates[rate]))
        return most if usual is None or usual not in rates else usual
    higher = next(iter(ends.values())).better == "higher"
    return (max if higher else min)(sorted(finals), key=finals.__getitem__)


def _others(runs: Runs) -> dict[int, Kept]:
    return {seed: line for seed, line in sorted(runs.items()) if seed != TUNING_SEED}


def _compared(name: str, rates: Rates, rate: float, base: Runs) -> Compared:
    one, others = next(iter(rates[rate].values())), _others(rates[rate])
    pairs = [(others[seed].final, x.final) for seed, x in base.items() if seed in others]
    both = [mine - its for mine, its in pairs if mine is not None and its is not None]
    lost = len(both) < len(pairs)  # those that went well alone would lie
    same = others == base
    return Compared(
        name,
        one.called.partition(", lr ")[0],
        one.metric,
        rate,
        rate in (min(rates), max(rates)),
        others or rates[rate],
        not others,
        Paired(tuple(both)) if len(both) > 1 and not (same or lost) else None,
    )
