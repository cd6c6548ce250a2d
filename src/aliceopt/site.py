"""One parameter during a step: where it stands, where it is sent, and what was found there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .layout import block_of, local
from .signs import block_signs, sign_key
from .topography import Rates

__all__ = ["Draw", "Site", "bound", "displaced", "position_of", "realised_radius", "state_dtype"]


class Draw(NamedTuple):
    """Which random directions: the optimizer's seed and its number of steps so far."""

    seed: int
    step: int


@dataclass(eq=False, slots=True)
class Site:
    """A parameter, its group and state, and one excursion's findings.

    ``radius`` is zero where the parameter stays at the probe center. ``position`` is mu, taken
    aside in state precision while the parameter is elsewhere; or the parameter points elsewhere,
    and ``home`` is its own data, still at mu; or the two are ``swapped``, the parameter holding nu
    and the state's probe center mu. ``plus`` and ``minus`` are the gradients of the two sides.
    ``index`` is the parameter's place in the optimizer, ``skipped`` counts coordinates that
    updates left alone (0-dim int64, on the parameter's device), and ``numel`` those that this
    process holds. ``rates`` are the numbers of the last update, and ``fitted_for`` the curvature
    terms that the state is known to have.
    """

    param: nn.Parameter
    index: int
    group: dict[str, Any]
    state: dict[str, Any]
    skipped: Tensor
    device: torch.device
    numel: int
    radius: float = 0.0
    position: Tensor | None = None
    home: Tensor | None = None
    swapped: bool = False
    rates: Rates | None = None
    fitted_for: tuple[bool, str] | None = None
    plus: Tensor | None = None
    minus: Tensor | None = None
    unscaled: Tensor | None = None

    @classmethod
    def of(cls, param: nn.Parameter, index: int, group: dict[str, Any]) -> Site:
        """A site for a parameter, with no state yet."""
        here = local(param)
        counter = torch.zeros((), dtype=torch.int64, device=here.device)
        return cls(param, index, group, {}, counter, here.device, here.numel())

    def reset(self) -> None:
        """Forget the last excursion."""
        self.radius = 0.0
        self.position = self.home = self.plus = self.minus = self.unscaled = None

    @property
    def center(self) -> Tensor:
        """The probe center nu; the position, as long as no step was taken."""
        if self.swapped:
            return local(self.param)
        nu = self.state.get("probe_center")
        if nu is not None:
            return local(nu)
        assert self.position is not None
        return self.position

    @property
    def gradient(self) -> Tensor:
        """The gradient at the center: ``.grad``, or what a loss scale left of it in float32."""
        if self.unscaled is not None:
            return self.unscaled
        assert self.param.grad is not None
        return self.param.grad

    @property
    def ready(self) -> bool:
        """Whether the state has what a move needs."""
        return "probe_center" in self.state and (not self.low_precision or "position" in self.state)

    @property
    def low_precision(self) -> bool:
        """Whether the parameter is held in fewer bits than its state."""
        return self.param.dtype != state_dtype(self.param)

    def signs(self, draw: Draw) -> Tensor:
        """This parameter's Rademacher directions, regenerated."""
        block = block_of(self.param)
        return block_signs(
            sign_key(draw.seed, draw.step, self.index),
            block.global_shape,
            offsets=block.offsets,
            shape=block.shape,
            dtype=state_dtype(self.param),
            device=self.device,
        )


def state_dtype(param: Tensor) -> torch.dtype:
    """float64 for float64 parameters, float32 for all others."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def bound(
    sites: list[Site], groups: list[dict[str, Any]], states: Mapping[Tensor, dict[str, Any]]
) -> tuple[list[Site], bool]:
    """A site for every parameter, the same as before where possible, with its state as it is now.

    Also tells whether a state in use was replaced behind the optimizer's back.
    """
    if len(sites) != sum(len(group["params"]) for group in groups):
        owners = [(group, param) for group in groups for param in group["params"]]
        sites = [Site.of(param, i, group) for i, (group, param) in enumerate(owners)]
    replaced = False
    for site in sites:
        state = states.get(site.param)
        if state is not site.state and (state or site.rates is not None):
            replaced = replaced or site.rates is not None
            site.state, site.rates, site.fitted_for = state or {}, None, None
    return sites, replaced


def position_of(site: Site) -> Tensor:
    """Mu in state precision, as a new local tensor.

    A low-precision parameter has a master copy, which counts as long as it rounds to what the
    parameter holds; a parameter that was edited between steps counts itself.
    """
    here, dtype = local(site.param), state_dtype(site.param)
    if not site.low_precision:
        return here.clone()
    if "position" not in site.state:
        return here.to(dtype)
    master = local(site.state["position"])
    return torch.where(master.to(here.dtype) == here, master, here.to(dtype))


def displaced(site: Site, signs: Tensor) -> tuple[Tensor, Tensor]:
    """Where the parameter really stands at the two probes: ``nu + d t`` and ``nu - d t``.

    ``d`` is the probe radius or, in bf16 and fp16, the `realised_radius`; ``nu`` is then rounded.
    """
    center, radius = site.center, realised_radius(site, fall_back=False)
    if site.low_precision:
        center = center.to(site.param.dtype).to(center.dtype)
    return center + radius * signs, center - radius * signs


def realised_radius(site: Site, *, fall_back: bool = True) -> float | Tensor:
    """How far a probe really goes from the center, in every coordinate.

    Low precision rounds. Were the two sides rounded separately, a quadratic would look like glass
    wherever they came out unequal. So the radius is rounded once, on the side away from zero: the
    grid there is the coarser one, and what fits on it fits on the other side too, as long as the
    probe does not cross zero; if it does, the sides differ by less than a rounding of the radius.
    Where it rounds to zero nothing is displaced, and ``fall_back`` gives the nominal radius.
    """
    if not site.low_precision:
        return site.radius
    size = site.center.to(site.param.dtype).to(site.center.dtype).abs()
    radius = (size + site.radius).to(site.param.dtype).to(size.dtype) - size
    return torch.where(radius > 0, radius, site.radius) if fall_back else radius
