"""Folders of records as the paper's experiments leave them, with made-up numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aliceopt.lab.plans.plan import experiment_plan
from aliceopt.lab.records import Journal, run_folder, write_plan
from aliceopt.lab.results.kept import Kept
from aliceopt.lab.spec import Plan, Run
from aliceopt.lab.typed import to_json

Value = Callable[[str, int, float], float]
"""The metric of (method, seed, done share of the run)."""

BLOCKS = ("initial convolution", "stage 1", "stage 2", "stage 3", "stage 4", "final layer")


def near_paper(plan: Plan, shift: float = 0.0) -> Value:
    """Runs that approach the paper's median, plus a shift and some luck of the seed."""

    def value(method: str, seed: int, done: float) -> float:
        middle = plan.paper.get(method, [0, 90.0, 0])[1] + shift
        luck = random.Random(f"{method}{seed}").uniform(-1, 1) * 0.004 * middle
        start = 10.0 if plan.better == "higher" else 4 * middle
        return start + (middle + luck - start) * min(1.0, done) ** 0.25

    return value


def write_records(
    folder: Path,
    name: str,
    scale: str = "lab",
    *,
    seeds: int = 3,
    generated: bool = False,
    value: Value | None = None,
    lost: dict[tuple[str, int], str] | None = None,
    sets: Iterable[str] = (),
    methods: Iterable[str] | None = None,
    evaluations: int = 20,
) -> Plan:
    """Write plan and journals of all runs; ``lost`` names those that did not finish, and how.

    A run that is lost as "null" finished with a metric that is not finite. ``sets`` are changes
    as ``--set`` makes them.
    """
    plan = experiment_plan(name, scale, seeds=seeds, sets=sets, methods=methods, read=False)
    write_plan(folder, plan)
    value = value or near_paper(plan)
    for run in plan.runs:
        fate = (lost or {}).get((run.method, run.seed), "finished")
        if fate != "missing":
            _write_run(folder, plan, plan.run(run), fate, value, generated, evaluations)
    return plan


def _write_run(
    folder: Path,
    plan: Plan,
    run: Run,
    fate: str,
    value: Value,
    generated: bool,
    evaluations: int,
) -> None:
    method, seed, steps = run.method, run.seed, run.training.steps
    cost = next(r.gradients for r in plan.runs if (r.method, r.seed) == (method, seed))
    journal = Journal(run_folder(folder, method, seed) / "records.jsonl")
    note = plan.data + (" (generated)" if generated else "")
    journal.write(
        "start",
        run={"method": method, "seed": seed, "label": run.label},
        config=to_json(run),
        data=note,
        device="a GPU",
        versions={},
        parameters=1,
        time="2026-11-16T10:00:00+00:00",
    )
    where: dict[str, Any] = {}
    for i in range(evaluations + 1):
        done = i / evaluations
        if fate not in ("finished", "null") and done > 0.4:
            break
        step = round(done * steps)
        where = {
            "step": step,
            "epoch": step / plan.training.batches,
            "gradients": round(done * cost),
            "seconds": done * cost / 1000,
        }
        journal.write("evaluation", **where, loss=1.0, metric=value(method, seed, done))
        if plan.figure == "power_law":
            _write_exponents(journal, run, where, done)
    if fate in ("finished", "null"):
        final = value(method, seed, 1.0) if fate == "finished" else math.nan
        journal.write("end", **where, status="finished", reason="", metric=final, best=final)
    elif fate != "interrupted":
        journal.write("end", **where, status=fate, reason="loss", metric=None)
    journal.close()


def exponent(block: int, seed: int, done: float, twin: str | None = None) -> float:
    """The made-up exponent of a block: 2 for the last, rising from 1.1 for the others.

    Of a twin 2 for all.
    """
    if block == len(BLOCKS) - 1 or twin is not None:
        return 2.0 - 0.01 * seed
    return 1.1 + 0.1 * block + 0.3 * done + 0.02 * seed


def _write_exponents(journal: Journal, run: Run, where: dict[str, Any], done: float) -> None:
    """At every place that is asked for; the smaller radius has exponents lower by a tenth."""
    law = run.training.power_law
    assert law is not None
    for place in law.places:
        blocks = {}
        for i, name in enumerate(BLOCKS):
            p = exponent(i, run.seed, done, run.problem.twin)
            p -= 0.1 * (place.radius < law.radius and p < 1.9)
            blocks[name] = {
                "exponent": p,
                "low": p - 0.05,
                "high": p + 0.05,
                "variation": 1.0,
                "variation_double": 2**p,
            }
        told: dict[str, Any] = {"step": where["step"], "epoch": where["epoch"]}
        told |= {} if place.batch_size is None else {"batch_size": place.batch_size}
        told |= {"held_out": True} if place.held_out else {}
        numbers = {"radius": place.radius, "factor": 2.0, "directions": law.directions}
        journal.write("power_law", **told, **numbers, displaced=1.0, blocks=blocks)


def kept_run(
    experiment: str,
    method: str,
    seed: int,
    final: float | None,
    *,
    scale: str = "lab",
    device: str = "a GPU",
    curve: dict[str, Any] | None = None,
) -> Kept:
    """A kept run of an experiment as it is filed, which ended like this; None: it diverged."""
    plan = experiment_plan(
        experiment, scale, methods=[method], seeds=[seed], read=False, check=False
    )
    config = plan.run(plan.runs[0])
    columns = ("epoch", "gradients", "seconds", "loss", "metric")
    return Kept(
        id="",
        experiment=experiment,
        scale=plan.scale,
        method=method,
        label=config.label,
        seed=seed,
        precision=config.training.precision,
        status="diverged" if final is None else "finished",
        metric=plan.metric,
        better=plan.better,
        final=final,
        best=final,
        steps=config.training.steps,
        gradients=plan.runs[0].gradients,
        seconds=8.0,
        date="2026-11-16T10:00:00+00:00",
        device=device,
        versions={},
        parameters=1,
        data="some",
        config=config,
        curve={name: [0.0] for name in columns} | (curve or {}),
    )
