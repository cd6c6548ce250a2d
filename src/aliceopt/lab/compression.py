"""Which weights can go? Criteria of pruning compared on one trained network, at equal gradients.

Every criterion may take as many gradients as the others; each network pruned by it is recalibrated
on the same batches (if it has BatchNorms), perhaps trained a little more, and evaluated on the
validation data.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from aliceopt.compress import (
    Pruned,
    Sensitivity,
    default_radius,
    input_norms,
    prune,
    recalibrate,
    refit,
    scores,
    sensitivity,
    sparsegpt,
    temper_by_loss,
)
from aliceopt.lab.clock import Clock
from aliceopt.lab.compression_rows import ROWS, Row, row_of, spelled
from aliceopt.lab.network import Network
from aliceopt.lab.plan import PlanError

__all__ = ["Ask", "Key", "Result", "compare"]

CALIBRATION_BATCHES = 50
"""For BatchNorm statistics and norms of inputs."""

UPDATE_BATCHES = 20
"""For updates of what stays, which go over them once a layer."""

CHOICE_BATCHES = 20
"""For the exponent of lowest loss."""

FINETUNE_RATE = 1e-3

STRUCTURES = ("unstructured", "2:4")


Key = tuple[str, float, str, int, float, int]
"""Criterion, sparsity, structure, rounds, epochs of fine-tuning, gradients allowed."""


@dataclass(frozen=True)
class Result:
    """A network pruned by one criterion to one sparsity.

    ``removed`` is the share that went: less than the sparsity where 2:4 leaves layers dense.
    ``gradients`` and ``seconds`` are those of the scores, all rounds, up to the masks; seconds are
    None where other work shared the device. ``temper`` is the exponent, the last round's if it is
    chosen in each.
    """

    criterion: str
    sparsity: float
    seed: int
    loss: float
    metric: float
    gradients: int = 0
    seconds: float | None = 0.0
    temper: float | None = None
    radius: float | None = None
    removed: float = 0.0
    structure: str = "unstructured"
    rounds: int = 1
    finetune: float = 0
    budget: int = 0

    @property
    def key(self) -> Key:
        """What was asked for, but the seed."""
        kind = self.structure, self.rounds, self.finetune, self.budget
        return (self.criterion, self.sparsity, *kind)


WHOLE: Key = ("none", 0.0, "unstructured", 1, 0, 0)
"""The network before anything is removed."""


@dataclass(frozen=True)
class Ask:
    """What is compared, with what; checked before anything is trained."""

    sparsities: tuple[float, ...]
    criteria: tuple[str, ...] = tuple(ROWS)
    gradients: int = 300
    finetune: float = 0
    rounds: int = 1
    structure: str = "unstructured"
    layers: float | None = None
    """A share of every layer alone, whose removal is predicted and measured; None: not."""

    def __post_init__(self) -> None:
        for sparsity in self.sparsities:
            if not 0 < sparsity < 1:
                raise PlanError(f"--sparsity must be numbers in (0, 1), got {sparsity!r}")
        if self.rounds < 1:
            raise PlanError(f"--rounds must be a whole number >= 1, got {self.rounds}")
        if self.gradients < 10 * self.rounds:
            raise PlanError(f"--gradients must be at least 10 a round, got {self.gradients}")
        if not 0 <= self.finetune < math.inf:
            raise PlanError(f"--finetune must be a number of epochs >= 0, got {self.finetune:g}")
        if self.structure not in STRUCTURES:
            raise PlanError(
                f"--structure must be one of {', '.join(STRUCTURES)}; got {self.structure!r}"
            )
        if self.structure == "2:4" and (self.sparsities != (0.5,) or self.rounds != 1):
            raise PlanError("--structure 2:4 removes one half in one round: no other --sparsity")
        if len(set(self.sparsities)) < len(self.sparsities):
            raise PlanError("--sparsity must be different numbers, and one is there twice")
        if self.layers is not None and not 0 < self.layers < 1:
            raise PlanError(f"--layers must be a number in (0, 1), got {self.layers!r}")
        criteria = dict.fromkeys(map(spelled, self.criteria))
        object.__setattr__(self, "criteria", tuple(criteria))

    def rows(self) -> dict[str, Row]:
        """The criteria by name."""
        return {name: row_of(name) for name in self.criteria}

    def key(self, criterion: str, sparsity: float) -> Key:
        """Of one result."""
        kind = self.structure, self.rounds, self.finetune, self.gradients
        return (criterion, sparsity, *kind)

    def keys(self) -> list[Key]:
        """Of all results, but for the whole network's."""
        return [self.key(c, s) for c in self.criteria for s in self.sparsities]


def compare(
    network: Network,
    seed: int,
    ask: Ask,
    *,
    done: Collection[Key] = (),
    keep: Callable[[Result, nn.Module], Any] = lambda result, model: None,
) -> Iterator[Result]:
    """Prune by every criterion to every sparsity, one result after the other, but those done."""
    if WHOLE not in done:
        told = network.evaluated(network.model)
        yield Result("none", 0.0, seed, told["loss"], told["metric"])
    known: dict[Any, tuple[Measured, int, float]] = {}
    for name, row in (rows := ask.rows()).items():
        alike = [other for other in rows.values() if other.kind == row.kind]
        terms = dict.fromkeys(term for other in alike for term in other.terms)
        judge = _Judge(network, row, ask.gradients // ask.rounds, seed, known, tuple(terms))
        for sparsity in ask.sparsities:
            key = ask.key(name, sparsity)
            if key in done:
                continue
            model = copy.deepcopy(network.model)
            found = _pruned(judge, model, judge.first(), sparsity, ask)
            costs = judge.costs()
            _restore(network, model, ask.finetune, seed)
            told = network.evaluated(model)
            result = Result(
                name, sparsity, seed, told["loss"], told["metric"], *costs, found.sparsity, *key[2:]
            )
            keep(result, model)
            yield result


Measured = Sensitivity | dict[str, Tensor] | None
"""A sensitivity, norms of inputs, or nothing."""


class _Judge:
    """A criterion at work: it measures and scores, and counts what that takes."""

    def __init__(
        self,
        network: Network,
        row: Row,
        gradients: int,
        seed: int,
        known: dict[Any, tuple[Measured, int, float]],
        shared: tuple[str, ...],
    ):
        """``known`` are measurements of the whole network, with terms for all that share them."""
        self.known, self.shared = known, shared
        self.network, self.row, self.seed, self.allowed = network, row, seed, gradients
        self.radius = row.radius
        if row.gradients > 1 and self.radius is None:
            self.radius = default_radius(network.model)
        self.temper = row.temper
        self.clock = Clock(network.device)
        self.gradients = 0

    def first(self) -> Measured:
        """What the scores need of the whole network; the costs of a sparsity begin with it."""
        kind = self.row.kind
        if kind not in self.known:
            self.gradients, self.clock.seconds = 0, 0.0
            found = self.measured(self.network.model, self.shared)
            self.known[kind] = found, self.gradients, self.clock.seconds
        found, self.gradients, self.clock.seconds = self.known[kind]
        return found

    def costs(self) -> tuple[int, float, float | None, float | None]:
        """Gradients, seconds, exponent and radius."""
        return self.gradients, self.clock.seconds, self.temper, self.radius

    def measured(self, model: nn.Module, terms: tuple[str, ...] | None = None) -> Measured:
        """What the scores need of a model."""
        self.clock.start()
        found = self._measured(model, self.row.terms if terms is None else terms)
        if isinstance(found, Sensitivity):
            self.gradients += found.gradients
        self.clock.pause()
        return found

    def _measured(self, model: nn.Module, terms: tuple[str, ...]) -> Measured:
        if self.row.criterion == "wanda":
            seen = islice(self.network.batches(self.seed), CALIBRATION_BATCHES)
            return input_norms(model, lambda batch: self.network.forward(batch, model), seen)
        if not self.row.gradients:
            return None
        return self._sensitivity(model, terms)

    def _sensitivity(self, model: nn.Module, terms: tuple[str, ...]) -> Sensitivity:
        """In float32 at a radius of its own, which bf16 may not resolve; else as it is used."""
        row = self.row
        given = nullcontext(self.network) if row.radius is None else self.network.precisely()
        with given as network:
            return sensitivity(
                model,
                lambda batch: network.loss(batch, model).backward(),
                islice(network.batches(self.seed), max(1, self.allowed // row.gradients)),
                1.0 if self.radius is None else self.radius,  # not used without probes
                terms=terms,
                seed=self.seed,
            )

    def scores(
        self, model: nn.Module, found: Measured, sparsity: float, structure: str
    ) -> dict[str, Tensor]:
        """How much every weight of the model is worth."""
        self.clock.start()
        measured = found if isinstance(found, Sensitivity) else None
        if measured is not None and self.row.temper is None:
            self.temper = self._best_temper(model, measured, sparsity, structure)
        norms = None if isinstance(found, Sensitivity) else found
        temper = 1.0 if self.temper is None else self.temper
        worth = scores(model, measured, self.row.criterion, temper=temper, norms=norms)
        self.clock.pause()
        return worth

    def _best_temper(
        self, model: nn.Module, measured: Sensitivity, sparsity: float, structure: str
    ) -> float:
        """By the loss at the end of an epoch, at whose beginning scores and refit are made."""
        network, row, count = self.network, self.row, len(self.network.train)
        refitted = UPDATE_BATCHES if count > UPDATE_BATCHES else 0  # if there are any others
        places = range(max(refitted, count - CHOICE_BATCHES), count)
        return temper_by_loss(
            model,
            measured,
            sparsity,
            lambda batch: network.loss(batch, model),
            (network.train.batch(self.seed, 0, i) for i in places),
            mend=lambda: self._mend(model),
            criterion=row.criterion,
            scope=row.scope,
            structure=structure,
        )

    def _mend(self, model: nn.Module) -> None:
        _recalibrate(self.network, model, self.seed)
        if self.row.refit:
            self._refit(model)
            _recalibrate(self.network, model, self.seed)

    def _refit(self, model: nn.Module) -> None:
        seen = islice(self.network.batches(self.seed), UPDATE_BATCHES)
        refit(model, lambda batch: self.network.forward(batch, model), seen)

    def update(self, model: nn.Module, sparsity: float, structure: str) -> Pruned | None:
        """Update what stays, in place: as SparseGPT does it with its masks, or behind others."""
        self.clock.start()
        found = None
        if self.row.refit:
            self._refit(model)
        else:
            seen = islice(self.network.batches(self.seed), UPDATE_BATCHES)
            found = sparsegpt(
                model,
                lambda batch: self.network.forward(batch, model),
                seen,
                sparsity,
                structure=structure,
            )
        self.clock.pause()
        return found


def _pruned(judge: _Judge, model: nn.Module, first: Measured, sparsity: float, ask: Ask) -> Pruned:
    """The model, pruned in place, in as many rounds as asked for."""
    row, found = judge.row, first
    for turn in range(1, ask.rounds + 1):
        share = 1 - (1 - sparsity) ** (turn / ask.rounds)
        if turn > 1:
            _recalibrate(judge.network, model, judge.seed)
            found = judge.measured(model)
        if row.criterion == "sparsegpt":
            pruned = judge.update(model, share, ask.structure)
        else:
            worth = judge.scores(model, found, share, ask.structure)
            pruned = prune(model, worth, share, scope=row.scope, structure=ask.structure)
            if row.refit:
                _recalibrate(judge.network, model, judge.seed)
                judge.update(model, share, ask.structure)
    assert pruned is not None
    return pruned


def _restore(network: Network, model: nn.Module, finetune: float, seed: int) -> None:
    """BatchNorm statistics of what is left, or a little training with the masks on."""
    if not finetune:
        _recalibrate(network, model, seed)
        return
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=FINETUNE_RATE)
    steps = max(1, round(finetune * len(network.train)))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, FINETUNE_RATE, total_steps=steps)
    for batch in islice(network.batches(seed + 1), steps):
        optimizer.zero_grad()
        network.loss(batch, model).backward()
        optimizer.step()
        schedule.step()
    model.eval()


def _recalibrate(network: Network, model: nn.Module, seed: int) -> None:
    seen = islice(network.batches(seed), CALIBRATION_BATCHES)
    recalibrate(model, lambda batch: network.forward(batch, model), seen)
