"""Gradients at points around a center, and nothing else notices.

Instruments look at a model between two training steps. They go on the optimizer's probe engine:
every evaluation starts from the same random state and the same buffers, and afterwards parameters,
gradients, buffers and random state are what they were, also if the closure raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels import Backend, Backends, Round
from ..kernels.eager import EagerBackend
from ..lookahead import standing_still
from ..options import check_model, check_parameter, prepare_gradients_
from ..probe import Probe
from ..sharding import local, reshard
from ..site import Draw, Site, signs_of, state_dtype
from ..warning import warn
from ..watching import BufferWatch

__all__ = ["Visit", "excursion", "grid_radius", "inner_name", "named_parameters", "sites_of"]

SMALL = 1 << 17
"""Coordinates of a parameter that is small."""

_WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


def grid_radius(center: Tensor, dtype: torch.dtype, radius: float, factor: float) -> Tensor:
    """``radius`` rounded to what a parameter of ``dtype`` can move by, in every coordinate.

    A whole number of the spacings of ``dtype`` at the far end, ``|center| + 2 factor radius``, so
    that a displacement and its multiple keep their ratio but for a last bit of the center. Zero
    where the radius is less than half a spacing: such a coordinate stays where it is.
    """
    info = torch.finfo(dtype)
    size = center.to(dtype).to(center.dtype).abs()
    exponent = torch.frexp(size + 2 * factor * radius).exponent
    spacing = torch.ldexp(torch.full_like(size, info.eps), exponent - 1)
    spacing = spacing.clamp(min=info.smallest_normal * info.eps)
    return (radius / spacing).round() * spacing


class _Rays(EagerBackend):
    """Moves along the signs of a draw, by any multiple of the radius; zero is the center.

    Or to a ``place``, a function of the site, if there is one. Directions and radii of parameters
    of up to `SMALL` coordinates are kept from visit to visit: a network has many such, and on a
    device each takes dozens of launches to make.
    """

    name = "rays"

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.multiple = 0.0
        self.place: Callable[[Site], Tensor] | None = None
        self._signs_kept: dict[Site, tuple[Draw, Tensor]] = {}
        self._reach_kept: dict[Site, tuple[float, Tensor]] = {}

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to ``center + multiple * radius * signs``, or to the place."""
        for site in sites:
            there = self.center(site) if self.place is None else self.place(site)
            if self.place is None and self.multiple:
                signs = self.signs(site, draw)
                # The center as the parameter holds it: displacements start from there.
                there = there.to(site.param.dtype).to(signs.dtype)
                there = there + self.multiple * self.reach(site) * signs
            local(site.param).copy_(there)

    def reach(self, site: Site) -> Tensor:
        """What the radius really is, in every coordinate; not to be written to."""
        known, radius = self._reach_kept.get(site), site.radius
        if known is None or known[0] != radius:
            there = grid_radius(self.center(site), site.param.dtype, radius, self.factor)
            known = radius, there
            if there.numel() <= SMALL:
                self._reach_kept[site] = known
        return known[1]

    def signs(self, site: Site, draw: Draw) -> Tensor:
        """The directions of a draw; not to be written to."""
        known = self._signs_kept.get(site)
        if known is None or known[0] != draw:
            known = draw, signs_of(site, draw)
            if known[1].numel() <= SMALL:
                self._signs_kept[site] = known
        return known[1]


class _Serving(Backends):
    """One backend for all sites of all devices, since it works on any."""

    def __init__(self, backend: Backend) -> None:
        super().__init__("eager")
        self._backend = backend

    def split(self, sites: list[Site]) -> list[tuple[Backend, list[Site]]]:
        """All sites."""
        return [(self._backend, sites)]


class Visit:
    """``visit(draw, multiple)``: gradients at center + multiple * radius * signs, one a site.

    ``visit.at(place)``: gradients where ``place`` says, a function of the site; the parameters
    stand there until the next visit. Gradients are valid until then as well. ``visit.home(site)``
    is where a parameter was, in state precision, after the first visit; not to be written to.
    """

    def __init__(self, probe: Probe, rays: _Rays, closure: Callable[[], Any]) -> None:
        self._probe, self._rays, self._closure = probe, rays, closure

    def __call__(self, draw: Draw, multiple: float) -> list[Tensor | None]:
        """On a ray."""
        self._probe.draw, self._rays.multiple, self._rays.place = draw, multiple, None
        return self._gradients()

    def at(self, place: Callable[[Site], Tensor]) -> list[Tensor | None]:
        """Anywhere."""
        self._rays.place = place
        return self._gradients()

    def home(self, site: Site) -> Tensor:
        """Where it goes back to."""
        return self._rays.aside[site]

    def _gradients(self) -> list[Tensor | None]:
        params = [site.param for site in self._probe.sites]
        self._probe.begin("plus")  # a side: every visit starts from the same state
        with torch.enable_grad():
            self._closure()
        prepare_gradients_(params)
        return [None if p.grad is None else local(p.grad) for p in params]


def named_parameters(
    target: nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]],
) -> tuple[dict[str, Tensor], nn.Module | None]:
    """Names and parameters of a module, of (name, parameter) pairs, or of numbered parameters.

    A tensor with several names (tied weights) is listed under each. Names are those inside
    wrappers such as DistributedDataParallel. The module is returned too, if there is one.
    """
    if isinstance(target, nn.Module):
        check_model(target)
        reshard(target)  # an unsharded FSDP2 module has other parameters
        named = target.named_parameters(remove_duplicate=False)
        return {inner_name(name): param for name, param in named}, target
    if isinstance(target, Tensor) or not isinstance(target, Iterable):
        raise ValueError(
            f"a torch.nn.Module or its parameters are needed, got {type(target).__name__}"
        )
    found: dict[str, Tensor] = {}
    for i, item in enumerate(target):
        name, param = item if isinstance(item, tuple) else (str(i), item)
        if not isinstance(param, Tensor):
            raise ValueError(f"parameter {name!r} must be a tensor, got {type(param).__name__}")
        found[name] = param
    return found, None


def inner_name(name: str) -> str:
    """A parameter's name inside wrappers such as DistributedDataParallel."""
    while name.startswith(_WRAPPERS):
        name = name.partition(".")[2]
    return name


def sites_of(
    named: Mapping[str, Tensor],
    model: nn.Module | None,
    radius: float,
    center: Mapping[str, Tensor] | None,
) -> dict[str, Site]:
    """A site for every trainable tensor, under its first name; tied names share it."""
    sites: dict[str, Site] = {}
    by_tensor: dict[int, Site] = {}
    for name, param in named.items():
        if not param.requires_grad:
            continue
        if id(param) not in by_tensor:
            check_parameter(param, repr(name), model=model)
            site = Site.of(param, len(by_tensor), {})  # type: ignore[arg-type]
            site.radius = radius
            by_tensor[id(param)] = site
        sites[name] = by_tensor[id(param)]
    if not sites:
        raise ValueError("there is nothing to displace: no parameter requires a gradient")
    for name, place in (center or {}).items():
        if name not in sites:
            raise ValueError(f"center names {name!r}, which is no trainable parameter")
        sites[name].state["probe_center"] = _place(place, sites[name].param, name)
    return sites


def _place(place: Tensor, param: Tensor, name: str) -> Tensor:
    if place.shape != param.shape:
        raise ValueError(
            f"center of {name!r} must have the parameter's shape {tuple(param.shape)}, got "
            f"{tuple(place.shape)}"
        )
    return place.detach().to(device=param.device, dtype=state_dtype(param))


@contextmanager
def excursion(
    sites: Sequence[Site], model: nn.Module | None, closure: Callable[[], Any], factor: float
) -> Iterator[tuple[Visit, Callable[[Site], Tensor]]]:
    """Go out, look around with ``visit``, come back.

    Also gives the real radius of a site, a tensor, to be asked after the first visit. ``factor``
    is the largest multiple.
    """
    rays = _Rays(factor)
    params = [site.param for site in sites]
    known = {id(p): p for p in (*params, *(model.parameters() if model is not None else ()))}
    before = [(param, param.grad) for param in known.values()]
    probe = Probe(list(sites), Draw(0, 0), False, _Serving(rays), model)
    watch = BufferWatch(None) if model is None else None

    try:
        for param, _ in before:
            param.grad = None  # else a backward would add to what is to be put back
        with standing_still(params):
            yield Visit(probe, rays, closure), rays.reach
    finally:
        probe.cancel()
        for param, grad in before:
            param.grad = grad
        if watch is not None:
            changed = watch.changed()
            if changed:
                warn(
                    f"the evaluations updated buffers of {changed}, and only parameters were "
                    "given: pass the module instead, whose buffers are put back"
                )
