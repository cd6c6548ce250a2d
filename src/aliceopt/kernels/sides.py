"""Memory for the two probe points of captured full steps, written before they are needed.

A captured step points its parameters at their probe points instead of copying them there. The
update that makes nu has it at hand, and knows the next step's directions; so if a full step comes
next it writes ``nu + lambda t`` and ``nu - lambda t`` as well, which spares a later pass the
reading of nu. That relies on the radius, which a schedule may change, and on nu, which a user may
edit: what was foreseen is remembered here, and what is not as foreseen is written anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ..options import has_curvature
from ..site import Draw, Site
from .pointing import is_swappable

__all__ = ["Sides"]


class _Held(NamedTuple):
    """For which directions, radius and center a site's probe points were written.

    Of an edited center torch's version counter tells, unless it was edited through ``.data`` or
    numpy.
    """

    draw: Draw
    radius: float
    center: Tensor
    version: int


class Sides:
    """Two places for each of these sites that can be pointed and has curvature to measure."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._places = {
            site: {name: self.center(site).clone() for name in ("plus", "minus")}
            for site in sites
            if site.numel and has_curvature(site.group) and is_swappable(site)
        }
        self._held: dict[Site, _Held] = {}

    def __contains__(self, site: Site) -> bool:
        """Whether the site has places here."""
        return site in self._places

    @staticmethod
    def center(site: Site) -> Tensor:
        """Nu; of a parameter that never got a gradient, its own memory."""
        own = site.param.data if site.home is None else site.home
        nu: Tensor = site.state.get("probe_center", own)
        return nu

    def place(self, site: Site, round_name: str) -> Tensor:
        """Where the parameter shall point in this evaluation: the center, for sites without."""
        nu = self.center(site)
        return self._places[site].get(round_name, nu) if site in self._places else nu

    def note(self, sites: Sequence[Site], draw: Draw, radii: Mapping[int, float]) -> None:
        """These sites' points, and no others, stand ready for this draw; ``radii`` by group id."""
        self._held = {
            site: _Held(draw, radii[id(site.group)], nu, nu._version)
            for site in sites
            if site in self._places and id(site.group) in radii
            for nu in [site.state["probe_center"]]
        }

    def forget(self) -> None:
        """Nothing stands ready any more."""
        self._held = {}

    def missing(self, draw: Draw) -> list[Site]:
        """The sites whose points for this draw and their radius are yet to be written."""
        return [site for site in self._places if not self._holds(site, draw)]

    def _holds(self, site: Site, draw: Draw) -> bool:
        held = self._held.get(site)
        if held is None:
            return False
        nu = site.state.get("probe_center")
        if held.center is not nu or held.version != nu._version:
            return False
        return held.draw == draw and held.radius == site.radius
