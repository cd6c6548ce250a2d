"""Where the parameters stand while gradients are taken, and how nothing else notices.

A `Probe` is one step's excursion: it takes the positions aside, moves the parameters to
``nu + lambda t``, ``nu - lambda t`` and ``nu``, collects the gradients, and puts the positions
back. Every evaluation starts from the same random state and the same module buffers, and only the
last one, at the center, leaves its mark on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .kernels import Backend, Backends, Round
from .scaling import clip_factors
from .sharding import check_seen, devices_of, local, recover, reshard
from .site import Draw, Site
from .topography import Rates
from .watching import CenterWatch, Watch

__all__ = ["BufferGuard", "Probe", "RandomState", "Spent", "given"]


class RandomState:
    """A snapshot of torch's default generators: the CPU's and those of the given devices."""

    def __init__(self, devices: Iterable[torch.device]):
        self._cpu = torch.get_rng_state()
        self._others = {
            device: torch.get_device_module(device).get_rng_state(device)
            for device in sorted(set(devices), key=str)
            if device.type not in ("cpu", "meta")
        }

    def restore(self) -> None:
        """Put every generator back."""
        torch.set_rng_state(self._cpu)
        for device, state in self._others.items():
            torch.get_device_module(device).set_rng_state(state, device)


class BufferGuard:
    """A snapshot of every buffer of a model, registered names and tensor identities included."""

    def __init__(self, model: nn.Module | None):
        self._registered = [
            (module, dict(module._buffers))
            for module in (model.modules() if model is not None else ())
            if module._buffers
        ]
        kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        self._odd: list[tuple[Tensor, Tensor]] = []
        for _, buffers in self._registered:
            for buffer in buffers.values():
                if buffer is None or _is_expanded(buffer):
                    continue
                if _is_odd(buffer):
                    self._odd.append((buffer.detach(), buffer.detach().clone()))
                else:
                    kinds.setdefault((buffer.device, buffer.dtype), []).append(buffer.detach())
        # One copy a kind, not one a buffer: BatchNorm networks have many small ones.
        self._copies = [(there, [torch.empty_like(b) for b in there]) for there in kinds.values()]
        for buffers_, saved in self._copies:
            torch._foreach_copy_(saved, buffers_)

    @torch.no_grad()
    def restore(self) -> None:
        """Put every buffer back: the same tensor objects with the same contents."""
        for module, buffers in self._registered:
            module._buffers.clear()
            module._buffers.update(buffers)
        for buffers_, saved in self._copies:
            torch._foreach_copy_(buffers_, saved)
        for buffer, copy in self._odd:
            buffer.copy_(copy)


def _is_odd(buffer: Tensor) -> bool:
    """Sparse, nested, or a view that conjugates: torch copies no list of such."""
    return not _has_strides(buffer) or buffer.is_conj() or buffer.is_neg()


def _has_strides(buffer: Tensor) -> bool:
    return buffer.layout == torch.strided and not buffer.is_nested


def _is_expanded(buffer: Tensor) -> bool:
    """Whether entries share memory, so that nothing can write to the buffer in place."""
    return _has_strides(buffer) and any(
        s == 0 and n > 1 for s, n in zip(buffer.stride(), buffer.shape, strict=True)
    )


def unscaled(grad: Tensor, scaler: Any) -> Tensor:
    """A scaled gradient without its scale, as a new local tensor."""
    mine = local(grad)
    # The public way to the scale that does not wait for the device. Division in float32, because
    # 1/65536 of a half-precision gradient may not be representable.
    scale: Tensor = scaler.scale(torch.ones((), dtype=torch.float32, device=mine.device))
    return mine.to(torch.promote_types(mine.dtype, torch.float32)) / scale


SMALL = 1 << 12


def given(params: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The parameters that are trained and have gradients, with them."""
    trained = (param for param in params if param.requires_grad)
    return [(param, grad) for param in trained if (grad := param.grad) is not None]


class Spent(NamedTuple):
    """A gradient that a step has had; remembered are those of at most `SMALL` elements."""

    param: Tensor
    grad: Tensor | None
    version: int

    def is_still_there(self) -> bool:
        """Whether the parameter has this gradient, untouched."""
        grad = self.param.grad
        if grad is None or self.grad is None:
            return self.grad is None
        return grad is self.grad and grad._version == self.version

    @classmethod
    def of(cls, param: Tensor, grad: Tensor) -> Spent:
        """This gradient."""
        small = grad.numel() <= SMALL and type(grad) is Tensor
        return cls(param, grad if small else None, grad._version if small else 0)


@dataclass
class Probe:
    """One excursion over all sites. ``rounds`` are run in order by the optimizer.

    After `finish` the gradients of the two sides are in the sites and the center's in ``.grad``.
    `cancel` undoes everything. ``keep`` says how a side's ``.grad`` is kept; by default copies go
    to memory of the backends. ``claimed`` says that a step was asked for.

    A ``plain`` one is finished from the start: whoever looks ahead, or has gradients already,
    evaluates as he likes. Its gradients, buffers and random state are not touched.
    """

    sites: list[Site]
    draw: Draw
    measuring: bool
    backends: Backends
    model: nn.Module | None = None
    scaler: Any = None
    random: RandomState | None = None
    keep: Callable[[Tensor], Tensor] | None = None
    plain: bool = False
    watch: Watch | None = None
    finished: bool = False
    claimed: bool = False
    at_rest: bool = True
    _random: RandomState = field(init=False)
    _buffers: BufferGuard = field(init=False)
    _divided: list[tuple[Backend, list[Site]]] = field(init=False)
    _distributed: bool = field(init=False)
    _center: CenterWatch | None = field(init=False, default=None)
    _others: list[nn.Parameter] = field(init=False, default_factory=list)
    _foreign: list[tuple[nn.Parameter, Tensor | None]] = field(init=False, default_factory=list)
    _versions: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.finished = self.plain
        self._distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._divided = self.backends.split(self.sites)
        if self.plain:
            return
        if self.random is None:
            devices = {there[0].param.device for _, there in self._divided}
            if self._distributed:
                devices = devices_of(site.param for site in self.sites)
            self.random = RandomState(devices)
        self._random = self.random
        self._buffers = BufferGuard(self.model)
        if self.measuring and self.model is not None:
            mine = {id(site.param) for site in self.sites}
            self._others = [p for p in self.model.parameters() if id(p) not in mine]

    def follow(self, sites: Iterable[Site]) -> None:
        """At rest, go on with those of these sites that it has, wherever they are by now."""
        there = set(sites)
        self.sites = [site for site in self.sites if site in there]
        self._divided = self.backends.split(self.sites)
        self._center = None

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The evaluations of this step, in order."""
        return ("plus", "minus", "center") if self.measuring else ("center",)

    @torch.no_grad()
    def begin(self, round_name: Round) -> None:
        """Move to a probe point with fresh gradients, replayed randomness and old buffers.

        A plain one only moves; whoever writes to the parameters there is noticed.
        """
        if round_name != self.rounds[0]:
            self._random.restore()
            self._buffers.restore()
        if self._distributed:
            reshard(self.model)
        # Said first, so that a move that fails half-way is undone.
        departing, self.at_rest = self.at_rest, False
        for backend, sites in self._divided:
            if departing:
                backend.depart(sites, round_name, self.draw)
            else:
                backend.move(sites, round_name, self.draw)
        torch.clear_autocast_cache()  # casts of weights that were elsewhere, if autocast is outside
        if self._distributed:
            check_seen((site.param for site in self.sites), self.model)
        if self.plain:
            self._versions = self._versions_now()
            return
        if round_name != "center":
            # Parameters of the model that others train must get one gradient, not three.
            self._foreign = [(p, p.grad) for p in self._others]
            for param, _ in self._foreign:
                param.grad = None
        for site in self.sites:
            site.param.grad = None
        if self.watch is not None:
            self.watch.begin()

    def _versions_now(self) -> list[int]:
        return [-1 if site.sharded else site.param._version for site in self.sites]

    def end(self, round_name: Round) -> None:
        """Keep a side's gradients; the center's stay in ``.grad``."""
        if self.watch is not None:
            self.watch.end(self.sites)
        if round_name == "center":
            return
        for param, grad in self._foreign:
            param.grad = grad
        for _, sites in self._divided:
            measured = [s for s in sites if s.radius > 0 and s.param.grad is not None]
            for site, grad in zip(measured, self._kept(measured, round_name), strict=True):
                setattr(site, round_name, grad)

    def _kept(self, sites: Sequence[Site], round_name: Round) -> list[Tensor]:
        """A side's gradients, unscaled, and safe from the next evaluation."""
        params = [site.param for site in sites]
        if self.scaler is not None:
            return [unscaled(p.grad, self.scaler) for p in params if p.grad is not None]
        if self.keep is not None:
            return [self.keep(param) for param in params]
        indices, keeper = [site.index for site in sites], self.backends.keeper
        kept: list[Tensor] = keeper.keep(params, indices, round_name)
        return kept

    @torch.no_grad()
    def settle(self) -> None:
        """Put the parameters back at mu, keeping the gradients.

        Those that somebody wrote to while they looked ahead, loading weights or training them
        with another optimizer, keep what was written.
        """
        if self.at_rest:
            return
        if self._distributed:
            reshard(self.model)
        now = zip(self.sites, self._versions, self._versions_now(), strict=False)
        edited = [(site, local(site.param).clone()) for site, old, new in now if old != new]
        for backend, sites in self._divided:
            backend.rest(sites)
        for site, value in edited:
            local(site.param).copy_(value)
            local(site.state["probe_center"]).copy_(value)
        torch.clear_autocast_cache()
        self.at_rest = True

    def accept_edits(self) -> None:
        """Writes so far were the model's own, in its forward pass, as of a norm kept by force."""
        if self.plain and not self.at_rest:
            self._versions = self._versions_now()

    @property
    def is_edited(self) -> bool:
        """Whether somebody wrote to parameters that look ahead."""
        return bool(self._versions) and self._versions != self._versions_now()

    def finish(self, *, watching: bool = True) -> None:
        """All evaluations are done; from here on the center's gradients should stay as they are."""
        if watching and self.watch is not None and self.watch.is_looking:
            self._center = CenterWatch([site.param for site in self.sites])
        self.finished = True
        if self.watch is not None:
            self.watch.finish()

    def is_center_edited(self) -> bool:
        """Whether the center's gradients were changed after the loop, and the sides' were not."""
        return self._center is not None and self._center.is_edited(self.scaler)

    @torch.no_grad()
    def update(self, updating: list[Site], rates: list[Rates], max_grad_norm: float | None) -> None:
        """Update these sites, all gradients clipped by one factor; the others go home."""
        if self._distributed:
            reshard(self.model)
        if not self.at_rest and len(updating) < len(self.sites):
            staying = set(updating)
            for backend, sites in self._divided:
                backend.rest([site for site in sites if site not in staying])
        if len(self._divided) == 1:
            divided = [(self._divided[0][0], updating, rates)]
        else:
            numbers = dict(zip(updating, rates, strict=True))
            mine = [
                (backend, [s for s in sites if s in numbers]) for backend, sites in self._divided
            ]
            divided = [(backend, sites, [numbers[s] for s in sites]) for backend, sites in mine]
        clip: dict[torch.device, Tensor] = {}
        if max_grad_norm is not None:
            clip = clip_factors([(backend, sites) for backend, sites, _ in divided], max_grad_norm)
        for backend, sites, there in divided:
            if sites:
                factor = clip.get(local(sites[0].param).device) if clip else None
                backend.update(sites, there, self.draw, factor)
        torch.clear_autocast_cache()
        self.at_rest = True

    def cancel(self) -> None:
        """Undo the excursion: parameters, buffers and random state as before, gradients None.

        A plain one only goes home: gradients that somebody else took are not ours to drop.
        """
        if self._distributed:
            recover(self.model)
        self.settle()
        if self.plain:
            return
        self._random.restore()
        self._buffers.restore()
        for site in self.sites:
            site.param.grad = None
        for param, grad in self._foreign:
            param.grad = grad
