"""Those who look at a run between two steps, and leave it as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from aliceopt.lab.blocks import blocks_of
from aliceopt.landscape import power_law

__all__ = ["Watch", "Watched", "measured_power_law"]


class Watched(Protocol):
    """What is seen of a run."""

    model: nn.Module
    step: int
    data: Any
    journal: Any


class Watch(Protocol):
    """Looks at a run before its first step, and after those that are ``due``.

    It may draw random numbers, and must leave the model alone.
    """

    def due(self, step: int) -> bool:
        """Whether to look after so many steps."""
        ...

    def look(self, loop: Watched) -> None:
        """See the parameters as they are evaluated; findings go into the journal."""
        ...


def measured_power_law(
    loop: Watched,
    loss_of: Callable[[Any, Any], Tensor],
    seed: int,
    radius: float,
    directions: int = 4,
) -> dict[str, Any]:
    """Figure 1's exponents on the first batch of the epoch, at one radius, as they are recorded."""
    epoch = loop.step // len(loop.data)
    inputs, targets = loop.data.batch(seed, epoch, 0)

    def closure() -> Tensor:
        loss = loss_of(inputs, targets)
        loss.backward()
        return loss

    blocks = blocks_of(loop.model)
    law = power_law(
        loop.model,
        closure,
        radius,
        directions=directions,
        blocks=blocks,
        seed=seed,
        step=loop.step,
    )
    return {"step": loop.step, "epoch": loop.step / len(loop.data), **law.as_dict()}
