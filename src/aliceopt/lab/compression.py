"""Which weights can go? Criteria of pruning compared on one trained network, at equal gradients.

Every criterion may take as many gradients as the others; each network pruned by it is recalibrated
on the same batches (if it has BatchNorms), perhaps trained a little more, and evaluated on the
whole validation data.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
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
from aliceopt.lab.network import Network
from aliceopt.lab.plan import PlanError
from aliceopt.lab.precision import autocast

__all__ = ["ROWS", "Result", "Row", "check", "compare", "row_of"]

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
