"""Invented studies with known truth, in memory and as folders of records."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from aliceopt.lab.records import Journal, RunRecord, run_folder, write_plan
from aliceopt.lab.spec import (
    Chosen,
    LabProblem,
    Plan,
    PlannedMethod,
    PlannedRun,
    PlannedTraining,
    Schedule,
    TriedRate,
    Tuned,
)

TERMS = ("none", "glass", "abs", "glass+abs", "rms", "signed")
STEPS = {"naq": "NAQ", "full": "full"}
BASELINES = {
    "adam": "Adam",
    "adamw": "AdamW",
    "sgd": "SGD with momentum",
    "nesterov": "SGD, Nesterov",
    "adahessian": "AdaHessian",
    "schedule-free": "Schedule-free AdamW",
    "muon": "Muon",
}
BUDGET = 200


def grid_plan(
    seeds: int = 3,
    *,
    metric: str = "accuracy",
    terms: tuple[str, ...] = TERMS,
    baselines: tuple[str, ...] = tuple(BASELINES),
    **more: Any,
) -> Plan:
    """A plan as a study writes it."""
    methods = {
        f"alice-{term.replace('+', '-')}-{step}": PlannedMethod(
            label=f"Alice, {term}, {shown}",
            family="alice",
            optimizer="alice",
            options={"lr": 0.01, "terms": term, "step": step},
            terms=term,
            step=step,
        )
        for step, shown in STEPS.items()
        for term in terms
    }
    for name in baselines:
        optimizer = "sgd" if name == "nesterov" else name
        methods[name] = PlannedMethod(BASELINES[name], "baseline", optimizer, {"lr": 0.001})
    fields: dict[str, Any] = {
        "kind": "study",
        "name": "digits-study",
        "title": "Which curvature terms help: a small convnet on digits",
        "scale": "study",
        "training": PlannedTraining(
            epochs=12, batch_size=64, batches=22, schedule=Schedule("cosine", warmup=0.05)
        ),
        "problem": LabProblem({"name": "convnet"}, {"name": "digits"}, 64, metric),
        "metric": metric,
        "better": "higher" if metric == "accuracy" else "lower",
        "data": "digits",
        "figure": "study",
        "methods": methods,
        "seeds": list(range(seeds)),
        "runs": [
            PlannedRun(key, seed, BUDGET, gradients_of(method))
            for seed in range(seeds)
            for key, method in methods.items()
        ],
    }
    return Plan(**fields | more)


def gradients_of(method: PlannedMethod) -> int:
    """Gradient evaluations of a run of `BUDGET` steps."""
    return BUDGET * 3 // 2 if method.terms not in (None, "none") else BUDGET


def tuned_as(
    edge: Collection[str] = (), most: int = 7, **tried: list[tuple[float, list[float | None]]]
) -> Tuned:
    """What a plan says of rates that ended so; the first is the one chosen."""
    chosen = {
        method: Chosen(found[0][0], method in edge, [TriedRate(*one) for one in sorted(found)])
        for method, found in tried.items()
    }
    return Tuned([8, 9], most, runs=14, gradients=999, seconds=188.0, chosen=chosen)


def invented_results(
    plan: Plan,
    effects: Mapping[str, float] | None = None,
    *,
    seed: int = 0,
    noise: float = 0.3,
    grain: float = 0.0,
    base: float | None = None,
) -> dict[tuple[str, int], float]:
    """Final results: a base, a seed's own luck, a method's effect, and noise of each run."""
    draw = random.Random(seed)
    base = {"accuracy": 97.0, "loss": 0.2}.get(plan.metric, 30.0) if base is None else base
    luck = {s: draw.gauss(0, noise) for s in plan.seeds}
    results = {}
    for run in plan.runs:
        m, s = run.method, run.seed
        value = base + luck[s] + (effects or {}).get(m, 0.0) + draw.gauss(0, noise)
        results[m, s] = round(value / grain) * grain if grain else value
    return results


def in_memory(plan: Plan, results: Mapping[tuple[str, int], Any]) -> list[RunRecord]:
    """Records of runs that ended so: a number finished, a word is the status, absent missing.

    Not a number finished without a result, as early records can say.
    """
    runs = []
    for planned in plan.runs:
        m, s = planned.method, planned.seed
        run = RunRecord(m, plan.methods[m].label, s)
        result = results.get((m, s))
        if isinstance(result, str):
            run.status = result  # type: ignore[assignment]
        elif result is not None:
            run.status, run.final = "finished", result if math.isfinite(result) else None
            run.gradients, run.seconds = planned.gradients, planned.gradients / 100
            run.evaluations = [
                {
                    "event": "evaluation",
                    "step": part * BUDGET // 4,
                    "gradients": part * planned.gradients // 4,
                    "seconds": part * planned.gradients / 400,
                    "metric": _or_null(on_the_way(plan, result, part / 4)),
                }
                for part in range(5)
            ]
        runs.append(run)
    return runs


def _or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def on_the_way(plan: Plan, final: float, share: float) -> float:
    """A learning curve that ends at `final`."""
    start = {"accuracy": 10.0, "loss": 2.3}.get(plan.metric, 300.0)
    left = (math.exp(-5 * share) - math.exp(-5)) / (1 - math.exp(-5))
    return final + (start - final) * left


def write_folder(
    folder: Path,
    plan: Plan,
    results: Mapping[tuple[str, int], Any],
    reason: str = "the loss became nan at step 37",
) -> Path:
    """A folder of records; results as for `in_memory`."""
    write_plan(folder, plan)
    for planned in plan.runs:
        m, s = planned.method, planned.seed
        if (result := results.get((m, s))) is not None:
            journal = Journal(run_folder(folder, m, s) / "records.jsonl")
            _write_run(journal, plan, planned, result, reason)
            journal.close()
    return folder


def _write_run(journal: Journal, plan: Plan, planned: PlannedRun, result: Any, reason: str) -> None:
    method, seed = planned.method, planned.seed
    about = plan.methods[method]
    journal.write(
        "start",
        run={"method": method, "label": about.label, "seed": seed},
        config={"optimizer": about.optimizer, "options": about.options, "steps": BUDGET},
        versions={
            "aliceopt": "0.1.0",
            "commit": "0123456789abcdef",
            "python": "3.12.3",
            "torch": "2.13.0",
            "numpy": "2.4.6",
        },
        device="cpu (x86_64, 1 thread)",
        parameters=12345,
        batches=22,
        data="digits: 1437 training and 360 validation images",
        time="2026-03-01T12:00:00+00:00",
    )
    stop = 1.0 if isinstance(result, float | int) else 0.4
    final = result if isinstance(result, float | int) else on_the_way(plan, 60.0, 0.4)
    for part in range(21):
        share = part / 20
        if share > stop:
            break
        _write_point(journal, plan, planned, final, share)
    cost = {"gradients": planned.gradients, "seconds": planned.gradients / 100}
    if result in ("diverged", "failed"):
        journal.write("end", status=result, reason=reason, step=37, metric=None, best=None, **cost)
    elif result != "interrupted":
        journal.write(
            "end", status="finished", reason=None, step=BUDGET, metric=result, best=result, **cost
        )


def _write_point(
    journal: Journal,
    plan: Plan,
    planned: PlannedRun,
    final: float,
    share: float,
) -> None:
    gradients = round(share * planned.gradients)
    where = {"step": round(share * BUDGET), "gradients": gradients, "seconds": gradients / 100}
    value = on_the_way(plan, final, share)
    metric = plan.metric
    named = {"loss": value} if metric == "loss" else {"loss": 2.3 - 2 * share, metric: value}
    if share:
        journal.write("train", epoch=4 * share, loss=2.3 - 2 * share, lr=0.01, **where)
    journal.write("evaluation", epoch=4 * share, metric=value, **named, **where)
    if plan.methods[planned.method].terms not in (None, "none"):
        blocks = {}
        for depth, name in enumerate(("conv1", "conv2", "hidden", "output")):
            glass = 0.75 - 0.2 * depth + 0.1 * share
            blocks[name] = {
                "coordinates": 100 * (depth + 1),
                "at_upper": 0.6 - 0.1 * depth - 0.3 * share,
                "at_lower": 0.0,
                "quasi_newton": 0.4 + 0.1 * depth + 0.3 * share,
                "glass_density": 0.01,
                "hess": 0.1,
                "glass_share": glass,
                "step_norm": 0.1,
                "grad_norm": 1.0,
                "skipped_coordinates": 0,
            }
        journal.write("telemetry", groups=[], blocks=blocks, **where)
