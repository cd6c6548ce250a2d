"""Those who look at a run between two steps, and leave it as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from aliceopt.lab.models.blocks import blocks_of
from aliceopt.lab.records import Journal
from aliceopt.lab.spec import PowerLaw
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


def measured_power_law(loop: Loop, asked: PowerLaw) -> dict[str, Any]:
    """Figure 1's exponents on the first batch of the epoch, at one radius, as they are recorded."""
    seed = loop.run.seed
    inputs, targets = loop.data.batch(seed, loop.step // len(loop.data), 0)

    def closure() -> Tensor:
        loss = loop.loss(inputs, targets)
        loss.backward()
        return loss

    blocks = blocks_of(loop.model)
    law = power_law(loop.model, closure, **vars(asked), blocks=blocks, seed=seed, step=loop.step)
    return {"step": loop.step, "epoch": loop.step / len(loop.data), **law.as_dict()}


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
