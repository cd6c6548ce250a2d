"""Parameters that point at their probe points while gradients are taken, instead of being copied.

In a captured step nothing else can rely on a parameter's address, so its ``data`` may be nu, or
memory that holds nu + lambda t or nu - lambda t, for as long as an evaluation is recorded. One
kernel writes both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.autograd.graph import increment_version

from ..kernels import MultiTensorBackend, Round
from ..kernels.base import Kernels
from ..kernels.table import DIMS, Goal, Row
from ..layout import is_dense
from ..options import has_curvature
from ..site import Draw, Site
from ..topography import Rates

__all__ = ["PointingBackend", "is_swappable"]


def is_swappable(site: Site) -> bool:
    """Whether the parameter may point at other memory while gradients are taken.

    Not in low precision (nu has another dtype), for shards (FSDP keeps views of them), for what the
    kernels cannot describe, or for a parameter that is part of a larger buffer, as the weights of a
    cuDNN RNN are: something may rely on it.
    """
    param = site.param
    if site.low_precision or site.sharded or param.numel() == 0:
        return False
    if param.dim() > DIMS or not is_dense(param):
        return False
    return param.untyped_storage().nbytes() == param.nbytes


class PointingBackend(MultiTensorBackend):
    """A `MultiTensorBackend` whose swappable sites are pointed; the others are moved as ever."""

    def __init__(self, kernels: Kernels, sites: Sequence[Site]) -> None:
        super().__init__(kernels)
        self._homes: dict[Site, Tensor] = {}
        self._sides: dict[Site, tuple[Tensor, Tensor]] = {}
        for site in filter(is_swappable, sites):
            sides = 2 if has_curvature(site.group) else 0
            self._sides[site] = tuple(site.param.detach().clone() for _ in range(sides))  # type: ignore[assignment]

    def is_displaced(self, site: Site) -> bool:
        """Whether the site has memory for its two sides."""
        return bool(self._sides.get(site))

    def depart(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Write the sides' probe points, and go to the first point."""
        pointed, others = self._divided(sites)
        if others:
            super().depart(others, round_name, draw)
        displaced = [site for site in pointed if self.is_displaced(site)]
        if displaced and round_name != "center":
            self._write_sides(displaced, draw)
        self._homes.update({site: site.param.data for site in pointed})
        self._point(pointed, round_name)

    def _divided(self, sites: Sequence[Site]) -> tuple[list[Site], list[Site]]:
        pointed = [site for site in sites if site in self._sides]
        return pointed, [site for site in sites if site not in self._sides]

    def _write_sides(self, sites: Sequence[Site], draw: Draw) -> None:
        plan = self.plan(sites)
        columns = plan.columns(sites)
        for row, side in ((Row.AT_PLUS, 0), (Row.AT_MINUS, 1)):
            plan.write(row, columns, [self._sides[site][side].data_ptr() for site in sites])
        plan.write_numbers(sites, columns, draw)
        plan.stand()
        for launch in plan.launches(columns, self.kernels.move_block, self.send):
            self.kernels.move(launch, Goal.BOTH, depart=False, swap=False)

    def _point(self, sites: Sequence[Site], round_name: Round) -> None:
        """Visibly to whoever watches the parameters' versions."""
        for site in sites:
            if round_name == "center" or not self.is_displaced(site):
                site.param.data = site.state.get("probe_center", self._homes[site])
            else:
                site.param.data = self._sides[site][0 if round_name == "plus" else 1]
        increment_version([site.param for site in sites])

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to another probe point."""
        pointed, others = self._divided(sites)
        if others:
            super().move(others, round_name, draw)
        self._point(pointed, round_name)

    def rest(self, sites: Sequence[Site]) -> None:
        """Go back to the positions; those that are there stay."""
        self._go_home(sites)
        super().rest([site for site in sites if site not in self._sides])

    def _go_home(self, sites: Sequence[Site]) -> None:
        away = [site for site in sites if site in self._homes]
        for site in away:
            site.param.data = self._homes[site]
        increment_version([site.param for site in away])
        for site in away:
            del self._homes[site]

    def update(
        self, sites: Sequence[Site], rates: Sequence[Rates], draw: Draw, clip: Tensor | None
    ) -> None:
        """Averages, position and probe center of every site."""
        self._go_home(sites)
        super().update(sites, rates, draw, clip)

    def abandon(self) -> None:
        """A recording failed: nothing has run, so only pointers need to be put right."""
        self._go_home(list(self._homes))
