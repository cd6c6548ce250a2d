"""What serves a device: backends, and the kernels that a multi-tensor backend launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ..site import Draw, Site
from ..topography import Rates

if TYPE_CHECKING:
    from .table import Goal, Launch

__all__ = ["Backend", "Kernels", "Round"]

Round = Literal["plus", "minus", "center"]


class Backend(Protocol):
    """Moves parameters and updates them, all sites of one device at a time.

    The backend knows where mu is while a parameter is away, and puts it back wherever it was
    interrupted. Between two calls the parameters stand at one point: their positions, or where the
    last call sent them.
    """

    name: str

    def depart(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Keep every position and go to the first probe point."""

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to another probe point."""

    def rest(self, sites: Sequence[Site]) -> None:
        """Go back to the positions; those that are there stay."""

    def square_sum(self, sites: Sequence[Site]) -> Tensor:
        """Sum of squares of all finite entries of ``.grad``, over all shards (0-dim)."""

    def update(
        self, sites: Sequence[Site], rates: Sequence[Rates], draw: Draw, clip: Tensor | None
    ) -> None:
        """Turn the gradients in the sites and in ``.grad`` into averages, positions and centers.

        Leaves the parameters at their new positions, and adds the number of coordinates left alone
        to ``site.skipped``. ``clip`` is a 0-dim factor on all gradients.
        """


class Kernels(Protocol):
    """A kernel source: C++ for the CPU, Triton for CUDA. Both read the same `table`."""

    name: str
    move_block: int
    update_block: int

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether parameters may have this dtype."""

    def send(self, array: np.ndarray, device: torch.device) -> Tensor:
        """The array as the kernels can read it, without waiting for the device."""

    def move(self, launch: Launch, goal: Goal, *, depart: bool, swap: bool) -> None:
        """Send parameters to a probe point or back, in this launch's chunks."""

    def update(self, launch: Launch, clip: Tensor | None) -> None:
        """Averages, step, position and probe center of every element."""

    def square_sum(self, launch: Launch) -> Tensor:
        """Sum of squares of the finite gradient entries (0-dim, float64)."""
