"""Which weights can go? Criteria of pruning compared on one trained network, at equal gradients.

Every criterion may take as many gradients as the others; each network pruned by it is recalibrated
on the same batches (if it has BatchNorms), perhaps trained a little more, and evaluated on the
whole validation data.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aliceopt.compress import (
    CRITERIA,
    Sensitivity,
    default_radius,
    input_norms,
    prune,
    recalibrate,
    scores,
    sensitivity,
    tempering_for,
)
from aliceopt.lab.evaluation import evaluate
from aliceopt.lab.plan import EXPERIMENTS, PlanError, experiment_plan
from aliceopt.lab.precision import ChannelsLast, autocast, lay_out_, set_products
from aliceopt.lab.problem import Problem
from aliceopt.lab.problems import build_problem
from aliceopt.lab.records import load_checkpoint, run_folder
from aliceopt.lab.rules import try_problem
from aliceopt.lab.spec import Run, Schedule, Training
from aliceopt.lab.study import SETTINGS
from aliceopt.lab.train import train
from aliceopt.lab.writing import replacing

__all__ = [
    "ROWS",
    "Network",
    "Result",
    "Row",
    "check",
    "compare",
    "network_of",
    "problem_run",
    "row_of",
]

Batch = tuple[Any, Any]

RECALIBRATION_BATCHES = 50
FINETUNE_RATE = 1e-3
TRIAL_SHARE = 0.2
"""Of the gradients of a criterion whose exponent is found by a removal on trial."""


class Row(NamedTuple):
    """A criterion: its score, gradients a batch, its exponent (None: by trial), its radius."""

    label: str
    criterion: str
    gradients: int
    temper: float | None = 1.0
    radius: float | None = None
    scope: str = "global"


ROWS: dict[str, Row] = {
    "magnitude": Row("magnitude", "magnitude", 0),
    "wanda": Row("Wanda: |w| times its inputs, by row", "wanda", 0, scope="row"),
    "taylor": Row("Taylor: |g w|", "taylor", 1),
    "fisher": Row("Fisher: F w\u00b2", "fisher", 1),
    "fisher-root": Row("Fisher, tempered: F^\u00bd w\u00b2", "fisher", 1, 0.5),
    "fisher-trial": Row("Fisher, tempered by trial", "fisher", 1, None),
    "point": Row("h at a point: h w\u00b2", "curvature", 2, 1.0, 1e-4),
    "curvature": Row("h over a radius: h w\u00b2", "curvature", 2),
    "free": Row("h free of kinks: h w\u00b2", "free", 3),
    "both": Row("h and glass, by Theorem 4", "both", 3),
    "trial": Row("h, tempered by trial", "curvature", 2, None),
}
"""By the names of ``--criteria``; ``curvature@1e-3`` is the criterion at another radius."""


def row_of(name: str) -> Row:
    """The criterion of a name, perhaps at a radius of its own."""
    key, at, radius = name.partition("@")
    if key not in ROWS:
        raise PlanError(f"--criteria has {name!r}; there are {', '.join(ROWS)}")
    row = ROWS[key]
    if not at:
        return row
    try:
        value = float(radius)
    except ValueError:
        value = 0.0
    if row.gradients < 2 or not 0 < value < math.inf:
        raise PlanError(
            f"--criteria has {name!r}: a radius > 0 stands behind the @ of one that probes, like "
            "curvature@1e-3"
        )
    return row._replace(label=f"{row.label}, radius {value:g}", radius=value)


@dataclass(frozen=True)
class Network:
    """A trained model with its data on a device, and how it is computed."""

    problem: Problem
    model: nn.Module
    train: Any
    validation: Any
    precision: str
    device: torch.device

    def loss(self, batch: Batch, model: nn.Module | None = None) -> Tensor:
        """Of a batch."""
        with autocast(self.precision, self.device):
            outputs = (self.model if model is None else model)(batch[0])
            return self.problem.loss(outputs, batch[1]).reshape(())

    def batches(self, seed: int) -> Iterator[Batch]:
        """Training batches without end."""
        epoch = 0
        while True:
            yield from (self.train.batch(seed, epoch, i) for i in range(len(self.train)))
            epoch += 1

    def evaluated(self, model: nn.Module) -> dict[str, float]:
        """Loss and metric on the validation data."""
        with autocast(self.precision, self.device):
            return evaluate(self.problem, model, self.validation)


@dataclass(frozen=True)
class Result:
    """A network pruned by one criterion to one sparsity; ``seconds`` are those of the scores."""

    criterion: str
    sparsity: float
    seed: int
    loss: float
    metric: float
    gradients: int
    seconds: float
    temper: float | None
    finetune: int


# ---- the network --------------------------------------------------------------------------------


def problem_run(
    source: str | None,
    seed: int,
    *,
    scale: str = "lab",
    data: Path | None = None,
    precision: str | None = None,
    epochs: float | None = None,
) -> Run:
    """How the network is trained: with AdamW, as an experiment, a study or the digits have it.

    ``source`` names an experiment that has a method ``adamw``, or a function
    (``file.py:function``); None: the digits.
    """
    if source is not None and ":" not in source:
        if source not in EXPERIMENTS:
            raise PlanError(
                f"{source!r} is neither an experiment (aliceopt list) nor file.py:function"
            )
        plan = experiment_plan(
            source, scale, seeds=[seed], methods=["adamw"], precision=precision, root=data
        )
        run = plan.runs[0]
        return replace(run, training=replace(run.training, keep_checkpoint=True))
    return _studied_run(source, seed, precision, epochs)


def _studied_run(source: str | None, seed: int, precision: str | None, epochs: float | None) -> Run:
    """A function's problem or the digits, trained as a study trains AdamW."""
    settings = SETTINGS
    problem: dict[str, Any] = {"function": source}
    if source is None:
        problem = {key: settings[key] for key in ("model", "data")}
        problem |= {"batch_size": settings["train"]["batch_size"], "metric": "accuracy"}
    made = build_problem(problem, seed)
    try_problem(made)
    steps = max(1, round((epochs or settings["train"]["epochs"]) * len(made.train)))
    schedule = Schedule(**settings["train"]["schedule"])
    training = Training(
        steps=steps,
        schedule=schedule,
        precision=precision or "float32",
        evaluations=1,
        logs=8,
        keep_checkpoint=True,
    )
    options = {
        k: v for k, v in settings["baselines"]["adamw"].items() if k in ("lr", "weight_decay")
    }
    return Run("adamw", "AdamW", "adamw", options, seed, problem, training)


def network_of(
    run: Run, folder: Path, device: torch.device, checkpoint: Path | None = None
) -> Network:
    """Train, or go on with what the folder has; or read the weights of a checkpoint."""
    place = run_folder(folder, run.method, run.seed) / "checkpoint.pt"
    if checkpoint is None:
        _check_same(run, place.with_name("network.json"), begun=place.exists())
        done = load_checkpoint(place)
        if done is None or done["step"] < run.training.steps:
            status = train(run, folder, device=str(device), resume=done is not None)
            if status != "finished":
                raise PlanError(f"training ended {status}: see {str(place.parent)!r}")
            done = load_checkpoint(place)
        assert done is not None
        weights = done["model"]
    else:
        weights = _weights(checkpoint)
    problem, precision = build_problem(run.problem, run.seed), run.training.precision
    set_products(precision)
    try:
        problem.model.load_state_dict(weights)
    except RuntimeError as error:
        raise PlanError(f"the checkpoint does not fit the model: {error}") from error
    model = problem.model.to(device).eval()
    train_, validation = problem.train.to(device), problem.validation.to(device)
    if lay_out_(model, precision):
        train_, validation = ChannelsLast(train_), ChannelsLast(validation)
    return Network(problem, model, train_, validation, precision, device)


def _check_same(run: Run, path: Path, *, begun: bool) -> None:
    """A folder's network is used again only for the run that made it."""
    source = str(run.problem.get("function", "")).rpartition(":")[0]
    code = Path(source).read_bytes() if source and Path(source).exists() else b""
    made_by = {**run.as_dict(), "code": hashlib.sha256(code).hexdigest()}
    text = json.dumps(made_by, sort_keys=True, indent=1)
    if begun and (not path.exists() or path.read_text(encoding="utf-8") != text):
        raise PlanError(f"{str(path.parent)!r} holds another network: choose another --out")
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _weights(path: Path) -> Mapping[str, Tensor]:
    """A state dict, or the lab's checkpoint that has one."""
    content = load_checkpoint(path)
    if content is None:
        raise PlanError(f"there is no checkpoint {str(path)!r}")
    weights: Mapping[str, Tensor] = content.get("model", content)
    return weights


# ---- the comparison -----------------------------------------------------------------------------


def check(
    criteria: Sequence[str], sparsities: Sequence[float], gradients: int, finetune: int
) -> dict[str, Row]:
    """The criteria by name; refuses what cannot be compared, before anything is trained."""
    for sparsity in sparsities:
        if not 0 < sparsity < 1:
            raise PlanError(f"--sparsity must be numbers in (0, 1), got {sparsity!r}")
    if gradients < 10:
        raise PlanError(f"--gradients must be at least 10, got {gradients}")
    if finetune < 0:
        raise PlanError(f"--finetune must be a whole number of epochs >= 0, got {finetune}")
    return {name: row_of(name) for name in criteria}


def compare(
    network: Network,
    seed: int,
    sparsities: Sequence[float],
    *,
    criteria: Sequence[str] = tuple(ROWS),
    gradients: int = 300,
    finetune: int = 0,
    keep: Callable[[Result, nn.Module], Any] = lambda result, model: None,
) -> Iterator[Result]:
    """Prune by every criterion to every sparsity, one result after the other."""
    rows = check(criteria, sparsities, gradients, finetune)
    told = network.evaluated(network.model)
    yield Result("none", 0.0, seed, told["loss"], told["metric"], 0, 0.0, None, 0)
    for name, row in rows.items():
        begun = time.perf_counter()
        measured, norms = _measured(network, row, gradients, seed)
        spent = time.perf_counter() - begun
        for sparsity in sparsities:
            begun = time.perf_counter()
            taken = 0 if measured is None else measured.gradients
            temper = row.temper
            if temper is None:
                assert measured is not None
                temper, more = _trial(network, row, measured, gradients, sparsity, seed)
                taken += more
            worth = scores(network.model, measured, row.criterion, temper=temper, norms=norms)
            cost = taken, spent + time.perf_counter() - begun, temper
            model = copy.deepcopy(network.model)
            prune(model, worth, sparsity, scope=row.scope)
            _restore(network, model, finetune, seed)
            told = network.evaluated(model)
            result = Result(name, sparsity, seed, told["loss"], told["metric"], *cost, finetune)
            keep(result, model)
            yield result


def _measured(
    network: Network, row: Row, gradients: int, seed: int
) -> tuple[Sensitivity | None, dict[str, Tensor] | None]:
    if row.criterion == "wanda":
        seen = islice(network.batches(seed), RECALIBRATION_BATCHES)
        with autocast(network.precision, network.device):
            return None, input_norms(network.model, lambda batch: network.model(batch[0]), seen)
    if not row.gradients:
        return None, None
    share = 1 - TRIAL_SHARE if row.temper is None else 1.0
    return _sensitivity(network, row, int(share * gradients), seed), None


def _sensitivity(
    network: Network,
    row: Row,
    gradients: int,
    seed: int,
    center: Mapping[str, Tensor] | None = None,
) -> Sensitivity:
    radius = default_radius(network.model) if row.radius is None else row.radius
    return sensitivity(
        network.model,
        lambda batch: network.loss(batch).backward(),
        islice(network.batches(seed + (center is not None)), max(1, gradients // row.gradients)),
        radius,
        terms=CRITERIA[row.criterion][0],
        seed=seed,
        center=center,
    )


def _trial(
    network: Network, row: Row, measured: Sensitivity, gradients: int, sparsity: float, seed: int
) -> tuple[float, int]:
    """The exponent, and the gradients it took; the Fisher is a square, and gets half of it."""
    taken = []

    def measure(center: Mapping[str, Tensor]) -> Sensitivity:
        there = _sensitivity(network, row, int(TRIAL_SHARE * gradients), seed, center)
        taken.append(there.gradients)
        return there

    slope = tempering_for(network.model, measured, sparsity, measure, criterion=row.criterion)
    return min(1.0, max(0.05, slope)) / (2 if row.criterion == "fisher" else 1), taken[0]


def _restore(network: Network, model: nn.Module, finetune: int, seed: int) -> None:
    """BatchNorm statistics of what is left, and a little training with the masks on."""
    if finetune:
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=FINETUNE_RATE)
        steps = finetune * len(network.train)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, FINETUNE_RATE, total_steps=steps)
        for batch in islice(network.batches(seed + 1), steps):
            optimizer.zero_grad()
            network.loss(batch, model).backward()
            optimizer.step()
            schedule.step()
        model.eval()
    else:
        seen = islice(network.batches(seed), RECALIBRATION_BATCHES)
        with autocast(network.precision, network.device):
            recalibrate(model, lambda batch: model(batch[0]), seen)
