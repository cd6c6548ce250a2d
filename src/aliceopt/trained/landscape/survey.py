"""Which curvature a trained network has: ladders on its own batches, and on held-out ones.

The network is looked at as it is trained: in training mode, on batches of one size. An activation
twin is measured on the same batches, along the same directions and at the same radii.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from aliceopt.lab.data.splits import Split
from aliceopt.lab.models.blocks import blocks_of
from aliceopt.lab.optimizers.methods import make_method
from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.spec import Run
from aliceopt.lab.training.precision import autocast, set_products
from aliceopt.lab.words import counted
from aliceopt.landscape import (
    BoundCheck,
    Cut,
    Diagonals,
    Ladder,
    Radii,
    Slice,
    bound_check,
    choose_radii,
    cut_together,
    diagonals,
    exact_diagonals,
    ladder,
)
from aliceopt.landscape.subject import Blocks, Subject
from aliceopt.trained.landscape.presets import Asked, Cost, checked_batches
from aliceopt.trained.network import Batch, Network, fresh_network

__all__ = ["Instruments", "Tick", "View", "batches_of", "check_fits", "last_step", "see", "silent"]

_SPACINGS = {"tf32": 2.0**-11, "bf16": 2.0**-8}


@dataclass(frozen=True)
class View:
    """One network on one kind of batches; loss and metric are those of the validation data."""

    network: str
    part: str
    batch_size: int
    loss: float
    metric: float
    ladder: Ladder
    readable: dict[str, bool]
    bounds: tuple[BoundCheck, ...]
    diagonals: Diagonals
    exact: dict[str, dict[str, float]] | None
    slices: tuple[Slice, ...]

    @property
    def cost(self) -> Cost:
        """Of all of it."""
        both: tuple[BoundCheck | Slice, ...] = (*self.bounds, *self.slices)
        alike = self.ladder.gradients + self.diagonals.gradients
        return Cost(alike + sum(one.gradients for one in both), sum(one.losses for one in both))


class Tick(Protocol):
    """Called after every gradient, or loss, with what it was taken for, one of `INSTRUMENTS`."""

    def __call__(self, instrument: str, *, gradient: bool) -> Any:
        """One was taken."""


def silent(instrument: str, *, gradient: bool) -> None:
    """Nobody looks on."""


def check_fits(run: Run, asked: Asked) -> None:
    """Refuse a batch size, blocks or weights that the run's network does not have.

    Before it is trained for them.
    """
    before = fresh_network(run, torch.device("cpu"))
    if asked.between is not None:
        _check_between(before.model, asked.between, asked.evaluating)
    there = Instruments(before, replace(asked, precision="float32", between=None), silent)
    for part in asked.parts:
        next(there.batches(part))
    Subject(there.model, 1.0).blocks(there.blocks)


def see(networks: dict[str, Network], asked: Asked, tick: Tick = silent) -> Iterator[View]:
    """Measure every network on every kind of batches.

    All are measured at the same radii: those of the network that needs the largest.
    """
    told = {name: network.evaluated(network.model) for name, network in networks.items()}
    set_products(asked.precision)
    there = {name: Instruments(network, asked, tick) for name, network in networks.items()}
    for measured in there.values():
        for part in asked.parts:
            next(measured.batches(part))  # a size that there is not is refused before all else
    chosen = {name: measured.radii() for name, measured in there.items()}
    radii = max((found.radii for found in chosen.values()), key=lambda r: r[0])
    for name, measured in there.items():
        for part in asked.parts:
            found = measured.climb(part, replace(chosen[name], radii=radii))
            if asked.radius is not None and found.total.verdict == "nothing":
                raise PlanError(
                    f"--radius {asked.radius:g}: no gradient changes, or none is finite"
                )
            middle, largest = radii[len(radii) // 2], radii[-1]
            checked = [measured.check(part, radius) for radius in (middle, largest)]
            yield View(
                network=name,
                part=part,
                batch_size=measured.batch_size,
                loss=told[name]["loss"],
                metric=told[name]["metric"],
                ladder=found,
                readable=chosen[name].readable,
                bounds=tuple(checked),
                diagonals=measured.diagonals(part, middle),
                exact=measured.exact(part) if asked.exact else None,
                slices=tuple(measured.slices(part, middle)),
            )


class Instruments:
    """A network in the precision and the mode in which it is measured."""

    def __init__(self, network: Network, asked: Asked, tick: Tick):
        self.asked, self.tick = asked, tick
        self.moves = {} if network.method is None else {"optimizer": last_step(network)}
        self.network = replace(network, precision=asked.precision)
        self.model = network.model.train(not asked.evaluating)
        self.double = asked.precision == "float64"
        self.plain = asked.precision in ("float32", "float64")
        if self.plain:  # what is fast on tensor cores is slow without them
            self.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        if self.double:
            self.model.double()
            if isinstance(network.problem.loss, nn.Module):
                network.problem.loss.double()
        if asked.between is not None:
            _check_between(self.model, asked.between, asked.evaluating)
            _check_other(self.model, asked.between)
        self.batch_size = asked.batch_size or network.train.batch_size
        own = blocks_of(self.model)
        self.blocks: Blocks = own if asked.blocks is None and own else asked.blocks

    def batches(self, part: str) -> Iterator[Batch]:
        """Of one kind, the same every time."""
        split = self.network.train if part == "training" else self.network.validation
        drawn = batches_of(split, self.batch_size, self.asked.preset.batches, self.asked.seed, part)
        for inputs, targets in drawn:
            yield self._cast(inputs), self._cast(targets)

    def _cast(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        here = value.contiguous() if self.plain else value
        return here.double() if self.double else here

    def closure(self, instrument: str, batch: Batch) -> Tensor:
        """Forward and backward."""
        loss = self.network.loss(batch)
        loss.backward()
        self.tick(instrument, gradient=True)
        return loss.detach()

    def loss(self, instrument: str, batch: Batch) -> Tensor:
        """Forward alone."""
        loss = self.network.loss(batch)
        self.tick(instrument, gradient=False)
        return loss

    def radii(self, smallest: float | None = None) -> Radii:
        """From the smallest that is given or asked for, or as small as can be read."""
        batch = next(self.batches(self.asked.parts[0]))
        return choose_radii(
            self.model,
            lambda: self.closure("radii", batch),
            count=self.asked.preset.radii,
            smallest=smallest or self.asked.radius,
            samples=self.asked.preset.directions * self.asked.preset.batches,
            spacing=_SPACINGS.get(self.asked.precision),
            blocks=self.blocks,
            seed=self.asked.seed,
        )

    def climb(self, part: str, radii: Radii) -> Ladder:
        """The ladder."""
        return ladder(
            self.model,
            partial(self.closure, "ladder"),
            radii,
            batches=self.batches(part),
            directions=self.asked.preset.directions,
            blocks=self.blocks,
            seed=self.asked.seed,
        )

    def check(self, part: str, radius: float) -> BoundCheck:
        """Bounds at one radius."""
        return bound_check(
            self.model,
            partial(self.closure, "bounds"),
            radius,
            loss=partial(self.loss, "bounds"),
            batches=islice(self.batches(part), checked_batches(self.asked.preset.batches)),
            probes=self.asked.preset.directions,
            directions=self.asked.preset.directions,
            moves=self.moves,
            spacing=_SPACINGS.get(self.asked.precision),
            seed=self.asked.seed,
        )

    def diagonals(self, part: str, radius: float) -> Diagonals:
        """Curvature by coordinate."""
        return diagonals(
            self.model,
            partial(self.closure, "diagonals"),
            radius,
            batches=self.batches(part),
            directions=self.asked.preset.directions,
            blocks=self.blocks,
            coordinates=self.asked.coordinates,
            seed=self.asked.seed,
        )

    def exact(self, part: str) -> dict[str, dict[str, float]]:
        """The same from the exact Hessian."""
        return exact_diagonals(
            self.model, self.network.loss, batches=self.batches(part), blocks=self.blocks
        )

    def slices(self, part: str, reach: float) -> list[Slice]:
        """Along the gradient, random signs, the optimizer's step and to other weights; a plane."""
        preset, batch = self.asked.preset, next(self.batches(part))

        def cut(cuts: Mapping[str, Cut]) -> list[Slice]:
            found = cut_together(
                self.model,
                lambda: self.closure("slices", batch),
                list(cuts.values()),
                loss=lambda: self.loss("slices", batch),
                probes=preset.directions,
                seed=self.asked.seed,
            )
            return [
                one if len(one.directions) > 1 else replace(one, directions=(name,))
                for name, one in zip(cuts, found, strict=True)
            ]

        together = {name: Cut(name, reach, preset.points) for name in ("gradient", "random")}
        for name, move in self.moves.items():
            if 0 < (size := _size(move)) < math.inf:  # else there is no way to go
                together[name] = Cut(move, reach / size, preset.points)
        if preset.plane:
            together["plane"] = Cut(["gradient", "random"], reach, preset.plane)
        found = cut(together)
        if self.asked.between is not None:  # further away, so with curvature of its own
            here = {name: param.detach() for name, param in self.model.named_parameters()}
            others = self.asked.between
            move = {n: (others[n].to(p) - p).cpu() for n, p in here.items()}
            found += cut({"other weights": Cut(move, 1.0, preset.points)})
        return sorted(found, key=lambda one: len(one.directions))  # planes last


def _check_between(model: nn.Module, others: Mapping[str, Tensor], evaluating: bool) -> None:
    """Refuse weights that a slice cannot go to, before anything is measured."""
    for name, buffer in model.named_buffers() if evaluating else ():
        if name in others and not torch.equal(others[name].to(buffer), buffer):
            raise PlanError(
                f"--between with --eval: the checkpoint has another {name!r}, which a slice of "
                "weights does not take along; without --eval normalisation has the batch's own "
                "statistics"
            )
    named = dict(model.named_parameters())
    for name, param in named.items():
        if name not in others or others[name].shape != param.shape:
            raise PlanError(f"--between: the checkpoint has no {name!r} of the model's shape")


def _check_other(model: nn.Module, others: Mapping[str, Tensor]) -> None:
    """A slice to the network itself has no direction."""
    named = dict(model.named_parameters())
    if all(torch.equal(others[name].to(param), param) for name, param in named.items()):
        raise PlanError("--between: the checkpoint has the very weights of the network")


def _size(move: Mapping[str, Tensor]) -> float:
    """Root mean square over all coordinates."""
    square = sum(float(u.double().square().sum()) for u in move.values())
    return math.sqrt(square / max(1, sum(u.numel() for u in move.values())))


def last_step(network: Network) -> dict[str, Tensor]:
    """The step that the network's optimizer takes next, on a copy: one batch more, at full rate.

    On the CPU, as a network on a device may want the memory while it is measured.
    """
    run, saved = network.run, network.method
    assert run is not None
    assert saved is not None
    model, loss_of = copy.deepcopy((network.model, network.problem.loss))
    method = make_method(run.optimizer, model.train(), run.options, seed=run.seed)
    method.load_state_dict(saved)
    method.set_rate(1.0)
    batch = network.train.batch(run.seed, 0, 0)

    def loss(inputs: Any, targets: Any) -> Tensor:
        with autocast(network.precision, network.device):
            return loss_of(model(inputs), targets).reshape(())

    method.bind(loss, batch, capture=False)(*batch)
    here = dict(network.model.named_parameters())
    return {name: (p - here[name]).detach().cpu() for name, p in model.named_parameters()}


def batches_of(split: Split, size: int, most: int, seed: int, part: str) -> Iterator[Batch]:
    """Up to ``most`` batches of ``size`` different examples, put together from the split's own."""
    examples = len(split) * split.batch_size
    if size < 1 or size > examples:
        raise PlanError(
            f"--batch-size must be from 1 to {examples}, the {part} examples there are; got {size}"
        )
    count = min(most, examples // size)
    own = (split.batch(seed, 0, index) for index in range(len(split)))
    if size == split.batch_size:
        yield from (next(own) for _ in range(count))
        return
    kept: list[Tensor] = []
    for _ in range(count):
        while not kept or len(kept[0]) < size:
            more = next(own)
            if not all(isinstance(value, Tensor) for value in more):
                raise PlanError(
                    f"--batch-size {size}: batches that are not tensors cannot be put together; "
                    f"the problem's own have {counted(split.batch_size, 'example')}"
                )
            kept = [torch.cat(pair) for pair in zip(kept, more, strict=True)] if kept else [*more]
        yield kept[0][:size], kept[1][:size]
        kept = [values[size:] for values in kept]
