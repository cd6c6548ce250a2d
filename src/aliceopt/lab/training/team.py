"""The processes that train one run together, and what they have to share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from aliceopt.lab.spec import Run
from aliceopt.lab.training.stopping import Stop, stopped_by_signal

__all__ = ["Team"]


class Team:
    """One process by itself: it leads, and has nothing to share.

    `ranks.Ranks` is several. Every member does everything in the same order; the one that ``leads``
    also evaluates, records and writes checkpoints.
    """

    rank = 0
    size = 1

    @property
    def leads(self) -> bool:
        """Whether this process evaluates and records."""
        return self.rank == 0

    def begin(self, run: Run, saved: dict[str, Any] | None, deadline: float | None) -> None:
        """Tell the others to train this run from this checkpoint, until this time."""

    def stopping(self, deadline: float | None) -> AbstractContextManager[Stop]:
        """What becomes true when a run is to stop before its end."""
        return stopped_by_signal(deadline)

    def stops(self, stop: Stop) -> bool:
        """Whether it is to stop now: the leader says so for all members."""
        return bool(stop)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model to be called in training: its gradients are means over all members."""
        return model

    def part(self, inputs: Any, targets: Any) -> tuple[Any, Any, float]:
        """This member's part of a batch, and the weight of its loss in the mean over members."""
        return inputs, targets, 1.0

    def mean_(self, value: Tensor) -> None:
        """Replace a number by its mean over members."""

    def gather(self, value: Any) -> list[Any]:
        """Every member's value, in the order of ranks, where the leader asks; else nothing."""
        return [value]

    def seed(self, seed: int) -> None:
        """Let members draw different random numbers from here on: masks of dropout, say."""

    def agree(self, error: Exception) -> None:
        """Return if all members failed alike; raise if it was not the run that failed."""
