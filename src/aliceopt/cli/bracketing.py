"""Which runs a comparison of methods lacks: rates until the best of each lies inside, then seeds.

Rates lie a factor of two apart, around the one that is filed, and are tried at `TUNING_SEED`. Once
none beyond the best is left to try, the method is run at that rate with the seeds that count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.plans.study import TUNING_SEED
from aliceopt.lab.results.kept import Kept, ended_runs, read_kept
from aliceopt.lab.results.kept_compare import Rates, as_filed, best_rate, by_rate, changed
from aliceopt.lab.spec import Plan

__all__ = ["at_best", "has_run", "lacking", "rounds"]

Lacking = tuple[str, float, int]
"""A method, a rate, and a seed."""


def has_run(plan: Plan, folder: Path, kept: Path | None, *, device: str | None) -> list[Kept]:
    """The runs of a plan's methods that have ended in its folder, or that ``kept`` has.

    Those of its experiment, with its precision and settings as filed, on that device, unless None.
    """
    lines = [] if kept is None else read_kept(kept / f"{plan.name}.jsonl")
    if (folder / "plan.json").exists():
        lines = lines + ended_runs(folder)[0]
    return [
        line
        for line in as_filed(lines)
        if (line.experiment, line.scale) == (plan.name, plan.scale)
        and line.precision == plan.training.precision
        and line.method.partition("@")[0] in plan.methods
        and device in (None, line.device)
    ]


def lacking(
    lines: Sequence[Kept], filed: Mapping[str, float], seeds: Sequence[int], most: int
) -> list[Lacking]:
    """What is to be run next, at ``most`` rates of a method at most; none: all methods compare.

    ``filed`` has every method with its rate, ``lines`` what has been run of them. A method that
    diverges at all rates is left at that.
    """
    tried = by_rate(lines)
    wanted = []
    for method, usual in filed.items():
        mine = tried.get(method, {})
        if new := _beyond(mine, usual, most):
            wanted += [(method, rate, TUNING_SEED) for rate in new]
        elif any(line.final is not None for runs in mine.values() for line in runs.values()):
            best = best_rate(mine)
            wanted += [(method, best, seed) for seed in seeds if seed not in mine[best]]
    return wanted


def _beyond(tried: Rates, usual: float, most: int) -> list[float]:
    """Rates to try next at the tuning seed, of one method; none once the best lies inside."""
    rates = sorted(rate for rate, runs in tried.items() if TUNING_SEED in runs)
    if not rates:
        return [usual / 2, usual, usual * 2]
    if all(tried[rate][TUNING_SEED].final is None for rate in rates):
        new = [rates[0] / 2]  # all diverged
    else:
        best = best_rate(tried)
        new = [best / 2] * (best == rates[0]) + [best * 2] * (best == rates[-1])
    return new if len(rates) + len(new) <= most else []


def rounds(
    plan: Plan, run: Callable[[], Sequence[Kept]], most: int, planned: Callable[..., Plan]
) -> Iterator[Plan]:
    """Plans of what is lacking, one after the other, until nothing is.

    ``run`` returns what has been run so far. ``planned`` is given methods, at rates, and seeds.
    """
    filed, before = _filed_rates(plan), None
    while left := lacking(run(), filed, plan.seeds, most):
        if left == before:
            raise PlanError(
                "what has ended does not count: runs that compare are of one device, with as many "
                "threads on a CPU; choose another --out"
            )
        before = left
        yield _of_runs(
            planned,
            {(key if rate == filed[key] else f"{key}@{rate!r}", seed) for key, rate, seed in left},
        )


def _filed_rates(plan: Plan) -> dict[str, float]:
    """Every method's rate; what would not be compared afterwards is refused."""
    if TUNING_SEED in plan.seeds:
        raise PlanError(f"seed {TUNING_SEED} chooses rates: leave it out of --seeds")
    filed = {}
    for key, method in plan.methods.items():
        if "@" in key:
            raise PlanError(f"--tune finds the rate of {key.partition('@')[0]}: leave out {key!r}")
        if method.lr is None:
            raise PlanError(f"--tune: {key} has no learning rate")
        filed[key] = method.lr
    if other := changed(plan.name, plan.scale, plan.run(plan.runs[0])):
        raise PlanError(
            f"--tune compares runs of {plan.name} as it is filed, and with this data they would "
            f"have {', '.join(other)}"
        )
    return filed


def at_best(
    plan: Plan, folder: Path, lines: Sequence[Kept], planned: Callable[..., Plan]
) -> Plan | None:
    """The runs of the folder that count: each method at its best rate, without the tuning seed.

    ``lines`` has what has been run, there or elsewhere. None: there is no such run.
    """
    best = {method: best_rate(rates) for method, rates in by_rate(lines).items()}
    runs = {
        (line.method, line.seed)
        for line in has_run(plan, folder, None, device=None)
        if line.config.options["lr"] == best.get(line.method.partition("@")[0])
        and line.seed != TUNING_SEED
    }
    return _of_runs(planned, runs) if runs else None


def _of_runs(planned: Callable[..., Plan], named: Collection[tuple[str, int]]) -> Plan:
    """The plan of these methods and seeds, in the order of its file."""
    every = planned(
        methods=sorted({name for name, _ in named}), seeds=sorted({seed for _, seed in named})
    )
    return replace(every, runs=[r for r in every.runs if (r.method, r.seed) in named])
