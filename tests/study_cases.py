"""Invented studies with known truth, in memory and as folders of records."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aliceopt.lab.records import Journal, RunRecord, run_folder, write_plan

TERMS = ("none", "glass", "abs", "glass+abs", "rms", "signed")
STEPS = ("naq", "full")
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
) -> dict[str, Any]:
    """A plan as a study writes it."""
    methods: dict[str, Any] = {}
    for step in STEPS:
        for term in terms:
            shown = {"naq": "NAQ", "full": "full"}[step]
            methods[f"alice-{term.replace('+', '-')}-{step}"] = {
                "label": f"Alice, {term}, {shown}",
                "family": "alice",
                "terms": term,
                "step": step,
                "optimizer": "alice",
                "options": {"lr": 0.01, "terms": term, "step": step},
            }
    for name in baselines:
        methods[name] = {
            "label": BASELINES[name],
            "family": "baseline",
            "terms": None,
            "step": None,
            "optimizer": "sgd" if name == "nesterov" else name,
            "options": {"lr": 0.001},
        }
    order = range(seeds)
    return {
        "kind": "study",
        "name": "digits-study",
        "title": "Which curvature terms help: a small convnet on digits",
        "scale": "study",
        "budget": "steps",
        "target": None,
        "tuned": False,
        "paper": {},
        "training": {
            "epochs": 12,
            "evaluations": 20,
            "batch_size": 64,
            "precision": "float32",
            "schedule": {"shape": "cosine", "warmup": 0.05},
            "batches": 22,
        },
        "problem": {
            "model": {"name": "convnet"},
            "data": {"name": "digits"},
            "batch_size": 64,
            "metric": metric,
        },
        "metric": metric,
        "better": "higher" if metric == "accuracy" else "lower",
        "data": "digits",
        "figure": "study",
        "methods": methods,
        "seeds": list(order),
        "runs": [
            {"method": m, "seed": s, "steps": BUDGET, "gradients": gradients_of(methods[m])}
            for s in order
            for m in methods
        ],
        **more,
    }


def gradients_of(about: Mapping[str, Any]) -> int:
    """Gradient evaluations of a run of `BUDGET` steps."""
    probes = about["terms"] not in (None, "none")
    return BUDGET * 3 // 2 if probes else BUDGET


def invented_results(
    plan: Mapping[str, Any],
    effects: Mapping[str, float] | None = None,
    *,
    seed: int = 0,
    noise: float = 0.3,
    grain: float = 0.0,
    base: float | None = None,
) -> dict[tuple[str, int], float]:
    """Final results: a base, a seed's own luck, a method's effect, and noise of each run."""
    draw = random.Random(seed)
    base = {"accuracy": 97.0, "loss": 0.2}.get(plan["metric"], 30.0) if base is None else base
    luck = {s: draw.gauss(0, noise) for s in plan["seeds"]}
    results = {}
    for run in plan["runs"]:
        m, s = run["method"], run["seed"]
        value = base + luck[s] + (effects or {}).get(m, 0.0) + draw.gauss(0, noise)
        results[m, s] = round(value / grain) * grain if grain else value
    return results


def in_memory(plan: Mapping[str, Any], results: Mapping[tuple[str, int], Any]) -> list[RunRecord]:
    """Records of runs that ended so: a number finished, a word is the status, absent missing.

    Not a number finished without a result, as early records can say.
    """
    runs = []
    for planned in plan["runs"]:
        m, s = planned["method"], planned["seed"]
        run = RunRecord(m, plan["methods"][m]["label"], s)
        result = results.get((m, s))
        if isinstance(result, str):
            run.status = result  # type: ignore[assignment]
        elif result is not None:
            run.status, run.final = "finished", result if math.isfinite(result) else None
            run.gradients, run.seconds = planned["gradients"], planned["gradients"] / 100
            run.evaluations = [
                {
                    "event": "evaluation",
                    "step": part * BUDGET // 4,
                    "gradients": part * planned["gradients"] // 4,
                    "seconds": part * planned["gradients"] / 400,
                    "metric": _or_null(on_the_way(plan, result, part / 4)),
                }
                for part in range(5)
            ]
        runs.append(run)
    return runs


def _or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def on_the_way(plan: Mapping[str, Any], final: float, share: float) -> float:
    """A learning curve that ends at `final`."""
    start = {"accuracy": 10.0, "loss": 2.3}.get(plan["metric"], 300.0)
    left = (math.exp(-5 * share) - math.exp(-5)) / (1 - math.exp(-5))
    return final + (start - final) * left


def write_folder(
    folder: Path,
    plan: Mapping[str, Any],
    results: Mapping[tuple[str, int], Any],
    reason: str = "the loss became nan at step 37",
) -> Path:
    """A folder of records; results as for `in_memory`."""
    write_plan(folder, plan)
    for planned in plan["runs"]:
        m, s = planned["method"], planned["seed"]
        if (result := results.get((m, s))) is not None:
            journal = Journal(run_folder(folder, m, s) / "records.jsonl")
            _write_run(journal, plan, planned, result, reason)
            journal.close()
    return folder


def _write_run(
    journal: Journal, plan: Mapping[str, Any], planned: Mapping[str, Any], result: Any, reason: str
) -> None:
    method, seed = planned["method"], planned["seed"]
    about = plan["methods"][method]
    journal.write(
        "start",
        run={"method": method, "label": about["label"], "seed": seed},
        config={"optimizer": about["optimizer"], "options": about["options"], "steps": BUDGET},
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
    cost = {"gradients": planned["gradients"], "seconds": planned["gradients"] / 100}
    if result in ("diverged", "failed"):
        journal.write("end", status=result, reason=reason, step=37, metric=None, best=None, **cost)
    elif result != "interrupted":
        journal.write(
            "end", status="finished", reason=None, step=BUDGET, metric=result, best=result, **cost
        )


def _write_point(
    journal: Journal,
    plan: Mapping[str, Any],
    planned: Mapping[str, Any],
    final: float,
    share: float,
) -> None:
    gradients = round(share * planned["gradients"])
    where = {"step": round(share * BUDGET), "gradients": gradients, "seconds": gradients / 100}
    value = on_the_way(plan, final, share)
    metric = plan["metric"]
    named = {"loss": value} if metric == "loss" else {"loss": 2.3 - 2 * share, metric: value}
    if share:
        journal.write("train", epoch=4 * share, loss=2.3 - 2 * share, lr=0.01, **where)
    journal.write("evaluation", epoch=4 * share, metric=value, **named, **where)
    if plan["methods"][planned["method"]]["terms"] not in (None, "none"):
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
