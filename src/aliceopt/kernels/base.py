"""What every implementation of the optimizer's device work provides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from ..site import Draw, Site
from ..topography import Rates

__all__ = ["Backend", "Job", "Round"]

Round = Literal["plus", "minus", "center"]


class Job(NamedTuple):
    """One parameter's update: its site, the numbers of this step, and whether it measures."""

    site: Site
    rates: Rates
    measuring: bool


class Backend(Protocol):
    """Moves parameters and updates them, all sites of one device at a time.

    `depart` takes every position aside (into ``site.position``) and goes to the first probe
    point, `move` goes to another, `rest` goes back to the positions. `update` turns the
    gradients in the sites and in ``.grad`` into new averages, positions and probe centers,
    leaves the parameters at their new positions, and adds the number of coordinates left alone
    to ``site.skipped``. ``clip`` is a 0-dim factor on all gradients.
    """

    name: str

    def depart(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Take positions aside and go to the first probe point."""
        ...

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to a probe point."""
        ...

    def rest(self, sites: Sequence[Site]) -> None:
        """Go back to the positions."""
        ...

    def square_sum(self, sites: Sequence[Site]) -> Tensor:
        """Sum of squares of all finite entries of ``.grad``, over all shards (0-dim)."""
        ...

    def update(self, jobs: Sequence[Job], draw: Draw, clip: Tensor | None) -> None:
        """Averages, position and probe center of every job."""
        ...
