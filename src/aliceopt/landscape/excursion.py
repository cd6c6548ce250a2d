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
from ..ownership import is_owned
from ..probe import Probe
from ..sharding import reshard
from ..site import Draw, Site, state_dtype
from ..warning import warn
from ..watching import BufferWatch
from .packs import Pack, packs_of

__all__ = ["Visit", "excursion", "grid_radius", "inner_name", "named_parameters", "sites_of"]

_WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


def grid_radius(
    center: Tensor, dtype: torch.dtype, radius: float | Tensor, factor: float
) -> Tensor:
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

    Or to a ``place``, a function of the pack, if there is one.
    """

    name = "rays"

    def __init__(self, packs: Sequence[Pack], factor: float) -> None:
        super().__init__()
        self.packs, self.factor = packs, factor
        self.multiple = 0.0
        self.place: Callable[[Pack], Tensor] | None = None
        self.homes: dict[Pack, Tensor] = {}

    def depart(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Keep every position and go to the first point."""
        for pack in self.packs:
            self.homes[pack] = pack.position()
            self.aside.update(zip(pack.sites, pack.parts(self.homes[pack]), strict=True))
        self.move(sites, round_name, draw)

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to ``center + multiple * radius * signs``, or to the place."""
        for pack in self.packs:
            there = self.middle(pack) if self.place is None else self.place(pack)
            if self.place is None and self.multiple:
                # The center as the parameter holds it: displacements start from there.
                there = there.to(pack.param_dtype).to(pack.dtype)
                there = there + self.multiple * self.reach(pack) * pack.signs(draw)
            pack.move_(there)

    def middle(self, pack: Pack) -> Tensor:
        """The centers of a pack."""
        if any("probe_center" in site.state for site in pack.sites):
            return pack.joined(self.center(site) for site in pack.sites)
        return self.homes[pack]

    def reach(self, pack: Pack) -> Tensor:
        """What the radius really is, in every coordinate."""
        center, radii = self.middle(pack), [site.radius for site in pack.sites]
        radius: float | Tensor = radii[0]
        if len(set(radii)) > 1:
            each = zip(pack.sizes, radii, strict=True)
            radius = torch.cat([center.new_full((size,), own) for size, own in each])
        return grid_radius(center, pack.param_dtype, radius, self.factor)


class _Serving(Backends):
    """One backend for all sites of all devices, since it works on any."""

    def __init__(self, backend: Backend) -> None:
        super().__init__("eager")
        self._backend = backend

    def split(self, sites: list[Site]) -> list[tuple[Backend, list[Site]]]:
        """All sites."""
        return [(self._backend, sites)]


class Visit:
    """``visit(draw, multiple)``: gradients at center + multiple * radius * signs.

    ``visit.at(place)``: gradients where ``place`` says, a function of the pack. Parameters and
    gradients stay as they are there until the next visit: ask each of the ``packs`` for its own.
    With ``alone``, that is evaluated there in the closure's stead, and there are no gradients.
    """

    def __init__(self, probe: Probe, rays: _Rays, closure: Callable[[], Any]) -> None:
        self._probe, self._rays, self._closure = probe, rays, closure
        self.packs = rays.packs

    def __call__(self, draw: Draw, multiple: float) -> None:
        """On a ray."""
        self._probe.draw, self._rays.multiple, self._rays.place = draw, multiple, None
        self._go()

    def at(self, place: Callable[[Pack], Tensor], alone: Callable[[], Any] | None = None) -> None:
        """Anywhere."""
        self._rays.place = place
        try:
            self._go(alone)
        finally:
            self._rays.place = None  # which may know this visit, and all would outlive it

    def _go(self, alone: Callable[[], Any] | None = None) -> None:
        self._probe.begin("plus")  # a side: every visit starts from the same state
        if alone is not None:
            with torch.no_grad():
                alone()
            return
        with torch.enable_grad():
            self._closure()
        prepare_gradients_([site.param for site in self._probe.sites])

    def gradients(self) -> list[Tensor]:
        """Copies of the gradients, a row for every pack, that outlive the next visit."""
        if all(site.param.grad is None for site in self._probe.sites):
            raise ValueError(
                "the closure left no gradients: it has to run forward and backward through the "
                "parameters that are given"
            )
        return [pack.gradient() for pack in self.packs]

    def home(self, pack: Pack) -> Tensor:
        """Where it goes back to, in state precision, once it has left; not to be written to."""
        return self._rays.homes[pack]

    def reach(self, pack: Pack) -> Tensor:
        """What the radius really is, in every coordinate, once it has left."""
        return self._rays.reach(pack)


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
        param = sites[name].param
        if place.shape != param.shape:
            raise ValueError(
                f"center of {name!r} must have the parameter's shape {tuple(param.shape)}, got "
                f"{tuple(place.shape)}"
            )
        place = place.detach().to(device=param.device, dtype=state_dtype(param))
        sites[name].state["probe_center"] = place
    return sites


@contextmanager
def excursion(
    sites: Sequence[Site], model: nn.Module | None, closure: Callable[[], Any], factor: float
) -> Iterator[Visit]:
    """Go out, look around with the `Visit`, come back. ``factor`` is the largest multiple."""
    rays = _Rays(packs_of(sites), factor)
    params = [site.param for site in sites]
    known = {id(p): p for p in (*params, *(model.parameters() if model is not None else ()))}
    before = [(param, _copied(param), param.grad) for param in known.values()]
    probe = Probe(list(sites), Draw(0, 0), False, _Serving(rays), model)
    watch = BufferWatch(model)

    try:
        for param, *_ in before:
            param.grad = None  # else a backward would add to what is to be put back
        with standing_still(params):
            yield Visit(probe, rays, closure)
    finally:
        probe.cancel()
        for param, copy, grad in before:
            param.grad = grad
            if copy is not None and not (_is_plain(copy) and torch.equal(grad, copy)):
                grad.copy_(copy)
        if changed := watch.changed():
            given = "only parameters were given" if model is None else "these are not in the model"
            warn(
                f"the evaluations updated buffers of {changed}, and {given}: pass the whole module "
                "instead, whose buffers and gradients are put back"
            )


def _copied(param: Tensor) -> Tensor | None:
    """A copy of a gradient whose memory others may write to, like DDP to its buckets."""
    return None if param.grad is None or is_owned(param) else param.grad.detach().clone()


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.layout == torch.strided
