"""Kept results read as the records of a folder, so that tables and figures can be made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from aliceopt.lab.plans.plan import experiment_plan, settings_of
from aliceopt.lab.records import RecordError, Records, RunRecord
from aliceopt.lab.results.kept import Kept, check_alike, read_kept
from aliceopt.lab.results.kept_compare import as_filed
from aliceopt.lab.typed import to_json


def kept_records(path: Path, name: str, scale: str) -> Records:
    """What a file keeps of an experiment at one scale, with its settings as filed.

    The plan is that of the runs that are kept. They have no telemetry, and no folder of their own.
    """
    lines = [line for line in as_filed(read_kept(path)) if line.experiment == name]
    mine = [line for line in lines if line.scale == scale]
    if not mine:
        scales = dict.fromkeys(line.scale for line in lines)
        others = f"; there are some at {' and '.join(f'--scale {s}' for s in scales)}"
        raise RecordError(
            f"{str(path)!r} keeps no runs of {name!r} at scale {scale} with its settings as filed"
            f"{others if scales else ''}"
        )
    check_alike(mine)
    plan = experiment_plan(
        name,
        scale,
        seeds=sorted({line.seed for line in mine}),
        methods=list(dict.fromkeys(line.method for line in mine)),
        precision=mine[0].precision,
        read=False,
        check=False,
    )
    kept = {(line.method, line.seed): line for line in mine}
    if len(kept) < len(mine):
        twice = next(line for line in mine if line not in kept.values())
        raise RecordError(
            f"{str(path)!r} keeps several results of {twice.method} seed {twice.seed} at scale "
            f"{scale}: see aliceopt results show {name}"
        )
    order = list(settings_of(name, scale)["methods"])
    methods = sorted(plan.methods, key=lambda key: order.index(key.partition("@")[0]))
    planned = [run for run in plan.runs if (run.method, run.seed) in kept]
    plan = replace(plan, runs=planned, methods={key: plan.methods[key] for key in methods})
    return Records(path, plan, [_record(kept[run.method, run.seed]) for run in planned])


def _record(line: Kept) -> RunRecord:
    curve = line.curve | {"seconds": [math.nan if s is None else s for s in line.curve["seconds"]]}
    epochs = curve["epoch"][-1] or 1
    seconds = math.nan if line.seconds is None else line.seconds
    where: dict[str, Any] = {"gradients": line.gradients, "seconds": seconds}
    return RunRecord(
        line.method,
        line.called,
        line.seed,
        line.status,
        to_json(line.config),
        line.config,
        {name: getattr(line, name) for name in ("device", "versions", "parameters", "data")},
        training=list(_events(curve["training"])) if "training" in curve else [],
        evaluations=[
            event | {"step": round(event["epoch"] / epochs * line.steps)}
            for event in _events({k: curve[k] for k in curve if k not in ("training", "exponents")})
        ],
        power_law=curve.get("exponents", []),
        end={"status": line.status, "metric": line.final, "step": line.steps, **where},
        final=line.final,
        **where,
    )


def _events(columns: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Rows of columns of equal length, by name."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))
