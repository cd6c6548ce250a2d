"""The work of ``aliceopt compress``: criteria compared on one trained network, at equal gradients.

Every criterion may take as many gradients as the others; each network pruned by it is recalibrated
on the same batches (if it has BatchNorms), perhaps trained a little more, and evaluated on the
validation data. Records are written as it goes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from aliceopt.compress import (
    NotFiniteError,
    Pruned,
    Sensitivity,
    default_radius,
    input_norms,
    masks_of,
    measured_increase,
    predicted_increase,
    prune,
    recalibrate,
    refit,
    removal,
    scores,
    sensitivity,
    sparsegpt,
    temper_by_loss,
    weights_of,
)
from aliceopt.lab.records import Journal, save_checkpoint
from aliceopt.lab.spec import Run
from aliceopt.lab.training.clock import Clock, now
from aliceopt.lab.words import counted
from aliceopt.trained.compress import records
from aliceopt.trained.compress.rows import (
    POINT,
    WHOLE,
    Ask,
    Key,
    LayerIncrease,
    Result,
    Row,
    row_of,
)
from aliceopt.trained.network import Batch, Network

CALIBRATION_BATCHES = 50
"""For BatchNorm statistics and norms of inputs."""

UPDATE_BATCHES = 20
"""For updates of what stays, which go over them once a layer."""

CHOICE_BATCHES = 20
"""For the exponent of lowest loss."""

MEASURED_BATCHES = 20
"""For what the removal of one layer's weights costs."""

FINETUNE_RATE = 1e-3


def compress_network(
    network: Network, run: Run, folder: Path, names: tuple[str, str], ask: Ask
) -> Iterator[str]:
    """Make what is asked for and not recorded yet; a sentence for each that was made.

    ``names`` are those of the problem and its scale. The best network at every sparsity is kept
    beside the records.
    """
    there = records.results_of(records.read_folder(folder))
    done = {result.key for result in there if result.seed == run.seed}
    layers = ask.layers if _layers_left(network.model, run, folder, ask) else None
    said = records.about(*names, run, network)
    keeper = _Keeper(folder, there)
    path = records.journal_path(folder, run)
    whole = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
    with closing(Journal(path, whole)) as journal:  # a kill may have left half a line
        for result, model in compare(network, run.seed, ask, done):
            if result.key != WHOLE:
                keeper(result, model)
            del model  # before the next one is copied
            journal.write("pruned", **{**said, **asdict(result)}, date=now())
            journal.synced()
            yield f"{result.criterion} {100 * result.sparsity:g}%: loss {result.loss:.4f}"
        if layers is not None:
            found = calibrate(network, run.seed, layers, ask.gradients)
            for layer in found:
                asked = {"sparsity": layers, "budget": ask.gradients}
                journal.write("layer", **said, **asked, **asdict(layer), date=now())
            journal.synced()
            yield f"{counted(len(found), 'layer')}: predicted and measured"


def _layers_left(model: nn.Module, run: Run, folder: Path, ask: Ask) -> bool:
    """Whether a layer that is asked for is not recorded; if so, the others are forgotten."""

    def asked_for(line: records.Line) -> bool:
        return line["event"] == "layer" and records.asked_for(ask, line)

    there = {line["layer"] for line in records.read_run(folder, run) if asked_for(line)}
    left = set(weights_of(model)) - there
    if left and there:  # a kill between two of their lines
        records.forget(folder, run, asked_for)
    return bool(left)


class _Keeper:
    """Keeps the network of lowest loss of every table and sparsity, its masks made final."""

    def __init__(self, folder: Path, there: Iterable[Result]):
        self.folder = folder
        self.best: dict[Path, float] = {}
        for result in there:
            path = self._path(result)
            if path.exists() and result.loss < self.best.get(path, float("inf")):
                self.best[path] = result.loss

    def _path(self, result: Result) -> Path:
        name = f"pruned-{100 * result.sparsity:g}"
        name += "-2-4" if result.structure == "2:4" else ""
        name += f"-rounds-{result.rounds}" if result.rounds > 1 else ""
        name += f"-finetune-{result.finetune:g}" if result.finetune else ""
        return self.folder / f"{name}.pt"

    def __call__(self, result: Result, model: nn.Module) -> None:
        path = self._path(result)
        if not result.loss < self.best.get(path, float("inf")):
            return
        self.best[path] = result.loss
        for weight in weights_of(model).values():
            if weight.mask is not None:
                torch_prune.remove(weight.layer, "weight")
        save_checkpoint(path, model.state_dict())


def compare(
    network: Network, seed: int, ask: Ask, done: Collection[Key] = ()
) -> Iterator[tuple[Result, nn.Module]]:
    """Prune by every criterion to every sparsity, one after the other, but those done."""
    if WHOLE not in done:
        told = network.evaluated(network.model)
        yield Result("none", 0.0, seed, told["loss"], told["metric"]), network.model
    rows = {name: row_of(name) for name in ask.criteria}
    known: dict[Any, tuple[Measured, int, float]] = {}
    for name, row in rows.items():
        alike = [other for other in rows.values() if other.kind == row.kind]
        terms = dict.fromkeys(term for other in alike for term in other.terms)
        judge = _Judge(network, row, ask, seed, known, tuple(terms))
        for sparsity in ask.sparsities:
            if (name, sparsity, ask.group) in done:
                continue
            model = copy.deepcopy(network.model)
            removed = judge.prune(model, sparsity).sparsity
            costs = judge.gradients, judge.clock.seconds, judge.temper, judge.radius
            judge.restore(model)
            told = network.evaluated(model)
            numbers = told["loss"], told["metric"], *costs, removed
            yield Result(name, sparsity, seed, *numbers, *ask.group), model
            del model


Measured = Sensitivity | dict[str, Tensor] | None
"""A sensitivity, norms of inputs, or nothing."""


class _Judge:
    """A criterion at work: it measures, scores and prunes, and counts what that takes."""

    def __init__(
        self,
        network: Network,
        row: Row,
        ask: Ask,
        seed: int,
        known: dict[Any, tuple[Measured, int, float]],
        shared: tuple[str, ...],
    ):
        """``known`` are measurements of the whole network, with terms for all that share them."""
        self.network, self.row, self.ask, self.seed = network, row, ask, seed
        self.known, self.shared = known, shared
        self.radius, self.temper = row.radius, row.temper
        if row.gradients > 1 and self.radius is None:
            self.radius = default_radius(network.model)
        self.clock = Clock(network.device)
        self.gradients = 0

    def seen(self, model: nn.Module, count: int) -> tuple[Callable[[Batch], Any], Iterator[Batch]]:
        """A forward pass of the model, and batches to go through it."""
        batches = islice(self.network.batches(self.seed), count)
        return lambda batch: self.network.forward(batch, model), batches

    def recalibrate(self, model: nn.Module) -> None:
        with suppress(NotFiniteError):  # what is lost keeps its statistics, and its loss tells
            recalibrate(model, *self.seen(model, CALIBRATION_BATCHES))

    def refit(self, model: nn.Module) -> None:
        refit(model, *self.seen(model, UPDATE_BATCHES))

    def prune(self, model: nn.Module, sparsity: float) -> Pruned:
        """The model, pruned in place in as many rounds as asked for; what that takes, anew."""
        row, rounds, structure = self.row, self.ask.rounds, self.ask.structure
        measured = self.first()
        for turn in range(1, rounds + 1):
            share = 1 - (1 - sparsity) ** (turn / rounds)
            if turn > 1:
                self.recalibrate(model)
                measured = self.measured(model, row.terms)
            self.clock.start()
            if row.criterion == "sparsegpt":
                seen = self.seen(model, UPDATE_BATCHES)
                pruned = sparsegpt(model, *seen, share, structure=structure)
                self.clock.pause()
                continue
            worth = self.scores(model, measured, share)
            self.clock.pause()
            pruned = prune(model, worth, share, scope=row.scope, structure=structure)
            if row.refit:
                self.recalibrate(model)
                self.clock.start()
                self.refit(model)
                self.clock.pause()
        return pruned

    def first(self) -> Measured:
        """What the scores need of the whole network; the costs of a sparsity begin with it."""
        kind = self.row.kind
        if kind not in self.known:
            self.gradients, self.clock.seconds = 0, 0.0
            found = self.measured(self.network.model, self.shared)
            self.known[kind] = found, self.gradients, self.clock.seconds
        found, self.gradients, self.clock.seconds = self.known[kind]
        return found

    def measured(self, model: nn.Module, terms: tuple[str, ...]) -> Measured:
        """What the scores need of a model.

        In float32 at a radius of its own, which bf16 may not resolve; else as it is used.
        """
        row = self.row
        found: Measured = None
        self.clock.start()
        if row.criterion == "wanda":
            found = input_norms(model, *self.seen(model, CALIBRATION_BATCHES))
        elif row.gradients:
            allowed = self.ask.gradients // self.ask.rounds // row.gradients
            given = nullcontext(self.network) if row.radius is None else self.network.precisely()
            with given as network:
                found = sensitivity(
                    model,
                    lambda batch: network.loss(batch, model).backward(),
                    islice(network.batches(self.seed), max(1, allowed)),
                    1.0 if self.radius is None else self.radius,  # not used without probes
                    terms=terms,
                    seed=self.seed,
                )
            self.gradients += found.gradients
        self.clock.pause()
        return found

    def scores(self, model: nn.Module, found: Measured, share: float) -> dict[str, Tensor]:
        """How much every weight of the model is worth."""
        measured, norms = (found, None) if isinstance(found, Sensitivity) else (None, found)
        if measured is not None and self.row.temper is None:
            self.temper = self.best_temper(model, measured, share)
        assert self.temper is not None  # chosen by loss where there are gradients, else given
        return scores(model, measured, self.row.criterion, temper=self.temper, norms=norms)

    def best_temper(self, model: nn.Module, measured: Sensitivity, share: float) -> float:
        """By the loss at the end of an epoch, at whose beginning scores and refit are made."""
        network, row, count = self.network, self.row, len(self.network.train)
        refitted = UPDATE_BATCHES if count > UPDATE_BATCHES else 0  # if there are any others
        places = range(max(refitted, count - CHOICE_BATCHES), count)

        def mend() -> None:
            self.recalibrate(model)
            if row.refit:
                self.refit(model)
                self.recalibrate(model)

        return temper_by_loss(
            model,
            measured,
            share,
            lambda batch: network.loss(batch, model),
            (network.train.batch(self.seed, 0, i) for i in places),
            mend=mend,
            criterion=row.criterion,
            scope=row.scope,
            structure=self.ask.structure,
        )

    def restore(self, model: nn.Module) -> None:
        """BatchNorm statistics of what is left, or a little training with the masks on."""
        network, epochs = self.network, self.ask.finetune
        if not epochs:
            self.recalibrate(model)
            return
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=FINETUNE_RATE)
        steps = max(1, round(epochs * len(network.train)))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, FINETUNE_RATE, total_steps=steps)
        for batch in islice(network.batches(self.seed + 1), steps):
            optimizer.zero_grad()
            network.loss(batch, model).backward()
            optimizer.step()
            schedule.step()
        model.eval()


# ---- layer by layer ----------------------------------------------------------------------------


def calibrate(network: Network, seed: int, sparsity: float, gradients: int) -> list[LayerIncrease]:
    """Predict and measure what it costs to remove the smaller weights of every layer alone.

    Each of three sensitivities may take as many gradients. The network is not changed.
    """
    radius = default_radius(network.model, sparsity=sparsity)
    kinds = {
        "fisher": (("fisher",), 1, POINT),
        "point": (("signed",), 2, POINT),
        "radius": (("signed", "gradient", "glass"), 3, radius),
    }
    found: dict[str, Sensitivity] = {}
    for kind, (terms, each, length) in kinds.items():
        with network.precisely() if kind == "point" else nullcontext(network) as there:
            found[kind] = sensitivity(
                there.model,
                lambda batch, there=there: there.loss(batch).backward(),  # type: ignore[misc]
                islice(there.batches(seed), max(1, gradients // each)),
                length,
                terms=terms,
                seed=seed,
            )
    masks, _ = masks_of(scores(network.model, criterion="magnitude"), sparsity, scope="layer")
    layers = []
    for name, mask in masks.items():
        moves = removal(network.model, {name: mask})
        batches = islice(network.batches(seed + 1), MEASURED_BATCHES)
        rise = measured_increase(network.model, moves, network.loss, batches)
        fisher = found["fisher"].mean("fisher")[name] * network.train.batch_size
        over, _ = predicted_increase(found["radius"], moves)
        predicted = {
            "fisher": float((fisher * moves[name].to(fisher).square()).sum()) / 2,
            "point": predicted_increase(found["point"], moves)[0].total,
            "radius": over.hessian or 0.0,
            "glass": over.total,
        }
        layers.append(LayerIncrease(name, rise, predicted))
    return layers
