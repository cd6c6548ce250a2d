"""Each method's learning rate: a grid that grows until the best of it is inside.

Three rates half a power of ten apart, the usual one in the middle, are tried at a first seed. While
the lowest or the highest is best, one beyond it is tried, up to a limit. The best and its two
neighbours are then tried at a second seed, and the best mean of both is chosen, on the scale on
which the study compares its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from aliceopt.lab.plans.study import TUNING_SEEDS, Study, Tried, at_place
from aliceopt.lab.records import RunRecord, read_plan
from aliceopt.lab.results.scale import scale_of
from aliceopt.lab.spec import Chosen, Plan, TriedRate, Tuned

__all__ = ["choice", "tuned", "wanted"]

FIRST, _ = TUNING_SEEDS
START = (-1, 0, 1)
"""Places on the grid, in halves of a power of ten from the usual rate, that are tried at once."""

Rank = tuple[float, float]
"""Of a result and, for equal ones, of its loss: smaller is better; inf if it diverged."""
Ends = Mapping[int, Mapping[int, Rank]]
"""How one method ended, by place and seed."""


def wanted(ends: Ends, most: int) -> set[tuple[int, int]]:
    """Places and seeds to be tried next, at ``most`` places at most; none: `choice` may choose.

    >>> sorted(wanted({-1: {1000: (3, 3)}, 0: {1000: (2, 2)}, 1: {1000: (1, 1)}}, most=5))
    [(2, 1000)]
    """
    tried = sorted(ends)
    best = _lowest({place: ranks[FIRST] for place, ranks in ends.items()})
    if best in (tried[0], tried[-1]) and len(tried) < most:
        return {(best - 1 if best == tried[0] else best + 1, FIRST)}
    around = {place + side for place in (best, choice(ends)) for side in (-1, 0, 1)}
    if len(around | set(tried)) > most:
        around &= set(tried)
    return {
        (place, seed)
        for place in around
        for seed in TUNING_SEEDS
        if seed not in ends.get(place, {})
    }


def choice(ends: Ends) -> int:
    """The place with the best mean over both seeds; of equal ones, or if all diverged, the lowest.

    Before any has both, the best at the first seed.
    """
    both = {
        place: (fmean(result for result, _ in ranks.values()), fmean(x for _, x in ranks.values()))
        for place, ranks in ends.items()
        if len(ranks) == len(TUNING_SEEDS)
    }
    return _lowest(both or {place: ranks[FIRST] for place, ranks in ends.items()})


def _lowest(ranks: Mapping[int, Rank]) -> int:
    return min(sorted(ranks), key=ranks.__getitem__)


def tuned(study: Study, folder: Path, carry_out: Callable[[Plan], Sequence[RunRecord]]) -> Plan:
    """The study's plan with each method's best rate.

    ``carry_out`` is given plans of runs for ``folder``/tuning, one after the other, and returns
    their records. Each plan has the runs of the last, and the first those of a plan that is there.
    """
    if study.most == 1:
        return study.final
    tried = {(method, place, FIRST) for method in study.final.methods for place in START}
    tried |= _tried(study, folder)
    while True:
        found = {(r.method, r.seed): r for r in carry_out(study.tuning(tried))}
        runs = {run: found[Study.name_of(*run[:2]), run[2]] for run in sorted(tried)}
        ends = _ends(study, runs)
        more = {(m, *new) for m, mine in ends.items() for new in wanted(mine, study.most)}
        if not more:
            return _chosen(study, runs, ends)
        tried |= more


def _chosen(study: Study, runs: Mapping[Tried, RunRecord], ends: Mapping[str, Ends]) -> Plan:
    """The plan at the best rates, with what was tried and what that took."""
    methods, chosen = {}, {}
    for key, method in study.final.methods.items():
        best, tried = choice(ends[key]), sorted(ends[key])
        methods[key] = at_place(method, best)
        rates = [
            TriedRate(
                at_place(method, place).options["lr"],
                [runs[key, place, seed].final for seed in ends[key][place]],
            )
            for place in tried
        ]
        chosen[key] = Chosen(methods[key].options["lr"], best in (tried[0], tried[-1]), rates)
    about = Tuned(
        seeds=list(TUNING_SEEDS),
        most=study.most,
        runs=len(runs),
        gradients=sum(run.gradients for run in runs.values()),
        seconds=math.fsum(run.seconds for run in runs.values()),
        chosen=chosen,
    )
    return replace(study.final, methods=methods, tuned=about)


def _tried(study: Study, folder: Path) -> set[Tried]:
    """The runs of the study's methods that the plan of its tuning names, if there is one."""
    if not (folder / "tuning" / "plan.json").exists():
        return set()
    return {
        (*name, run.seed)
        for run in read_plan(folder / "tuning").runs
        if (name := Study.named(run.method)) is not None
        and name[0] in study.final.methods
        and run.seed in TUNING_SEEDS
    }


def _ends(study: Study, runs: Mapping[Tried, RunRecord]) -> dict[str, dict[int, dict[int, Rank]]]:
    """Where every run stands, on the scales that the finals of all runs have, and their losses."""
    plan = study.final
    finals = {key: run.final for key, run in runs.items() if run.final is not None}
    losses = {key: runs[key].evaluations[-1]["loss"] for key in finals if runs[key].evaluations}
    losses = {key: loss for key, loss in losses.items() if loss is not None}
    by_metric = scale_of(plan, finals.values())
    by_loss = scale_of(replace(plan, metric="loss", better="lower"), losses.values())
    ends: dict[str, dict[int, dict[int, Rank]]] = {}
    for key in runs:
        method, place, seed = key
        ends.setdefault(method, {}).setdefault(place, {})[seed] = (
            -by_metric.standing(finals[key]) if key in finals else math.inf,
            -by_loss.standing(losses[key]) if key in losses else math.inf,
        )
    return ends
