"""Those who look at a run between two steps, and leave it as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from aliceopt.lab.models.blocks import blocks_of
from aliceopt.lab.records import Journal
from aliceopt.lab.spec import Place, PowerLaw
from aliceopt.lab.training.precision import exact_products
from aliceopt.landscape import power_law

if TYPE_CHECKING:
    from aliceopt.lab.training.train import Loop


class Watch(Protocol):
    """Looks at a run before its first step, and after those that are ``due``.

    It may draw random numbers, and must leave the model alone.
    """

    def due(self, step: int) -> bool:
        """Whether to look after so many steps."""
        ...

    def look(self, loop: Loop) -> None:
        """See the parameters as they are evaluated; findings go into the journal."""
        ...


def measured_power_laws(loop: Loop, asked: PowerLaw) -> Iterator[dict[str, Any]]:
    """Figure 1's exponents at every place that is asked for, as they are recorded.

    On the first examples of the epoch, or of the validation data. In float32 whatever the run
    computes in: rounded weights make a smooth gradient jump.
    """
    seed, directions, blocks = loop.run.seed, asked.directions, blocks_of(loop.model)
    for place in asked.places:
        inputs, targets = _examples(loop, place)

        def closure(inputs: Any = inputs, targets: Any = targets) -> Tensor:
            loss = loop.loss(inputs, targets, exact=True)
            loss.backward()
            return loss

        with exact_products(loop.plan.precision):
            law = power_law(
                loop.model,
                closure,
                place.radius,
                directions=directions,
                blocks=blocks,
                seed=seed,
                step=loop.step,
            )
        size = {} if place.batch_size is None else {"batch_size": place.batch_size}
        data = {"held_out": True} if place.held_out else {}
        where = {"step": loop.step, "epoch": loop.step / len(loop.data), **size, **data}
        yield {**where, **law.as_dict()}


def _examples(loop: Loop, place: Place) -> tuple[Any, Any]:
    """As many as are asked for, from the beginning."""
    epoch = loop.step // len(loop.data)
    batches = (loop.data.batch(loop.run.seed, epoch, i) for i in range(len(loop.data)))
    if place.held_out:
        batches = iter(loop.validation.in_order())
    elif place.batch_size is None:
        first: tuple[Any, Any] = next(batches)
        return first
    size = place.batch_size or loop.data.batch_size
    found: list[tuple[Tensor, Tensor]] = []
    while sum(len(targets) for _, targets in found) < size:
        if (batch := next(batches, None)) is None:
            raise ValueError(f"train.power_law: there are no {size:,} examples for a {place}")
        found.append(batch)
    inputs, targets = (torch.cat(parts)[:size] for parts in zip(*found, strict=True))
    return inputs, targets


@contextlib.contextmanager
def mirrored(journal: Journal, place: Path, first: int, wanted: bool) -> Iterator[None]:
    """Also write every number of the journal to TensorBoard; older ones from ``first`` on hide."""
    if not wanted:
        yield
        return
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(place), purge_step=first)

    def show(event: str, fields: dict[str, Any]) -> None:
        for name in ("loss", "lr", "metric", "accuracy", "perplexity"):
            if event in ("train", "evaluation") and fields.get(name) is not None:
                writer.add_scalar(f"{event}/{name}", fields[name], fields["step"])

    journal.mirror = show
    try:
        yield
    finally:
        writer.close()
