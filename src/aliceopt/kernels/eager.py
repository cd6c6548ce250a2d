"""The device work in plain torch operations: what every other form is checked by.

It is also what serves wherever the kernels cannot. A chain of operations on a large CPU tensor
writes one large temporary after the other, and fresh memory costs page faults. So there a tensor is
worked on in slices whose temporaries stay in the cache. An interrupt leaves each slice, with its
state, as before an update or as after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..displacement import displaced, realised_radius
from ..layout import conformed, is_dense, same_layout
from ..sharding import block_of, local, sum_over_shards
from ..signs import run_words, sign_key, signs_in
from ..site import Draw, Site, averages, signs_of, state_dtype
from ..step import bounded_step, moved
from ..topography import Averages, Gradients, Rates, updated
from .base import Round

__all__ = ["EagerBackend", "position_of", "sum_dtype"]

SLICE = 1 << 17
"""Elements of a slice; a multiple of 32. A few fit in the cache, yet threads have enough to do."""


def update_(
    there: list[Tensor], mu: Tensor, nu: Tensor, old: Averages, grads: Gradients, rates: Rates
) -> Tensor | int:
    """Topography and step in one go, in place; returns how many coordinates were left alone.

    The new mu also goes ``there``. A coordinate any of whose gradients is not finite keeps mu, nu
    and averages. All is written in one call at the end, which Python cannot interrupt: before it
    mu, nu and averages are old, and after it they are new.
    """
    new = updated(old, grads, rates)
    pairs = zip((mu, nu, *old), (*moved(mu, bounded_step(new, rates), rates), *new), strict=True)
    kept = [(x, y) for x, y in pairs if x is not None and y is not None and y is not x]
    left_alone: Tensor | int = 0
    if (ok := _finite(grads)) is not None:
        left_alone = ok.logical_not().sum()
        kept = [(x, torch.where(ok, y, x)) for x, y in kept]
    kept += [(place, kept[0][1]) for place in there]
    torch._foreach_copy_([x for x, _ in kept], [y for _, y in kept])
    return left_alone


def _finite(grads: Gradients) -> Tensor | None:
    """Where all gradients of a coordinate are finite; None: a sum, cheap on a CPU, says all are."""
    given = [g for g in (grads.center, grads.plus, grads.minus) if g is not None]
    if given[0].device.type == "cpu" and all(math.isfinite(float(g.sum())) for g in given):
        return None
    return torch.stack([g.isfinite() for g in given]).all(0)


def position_of(site: Site) -> Tensor:
    """Mu of a parameter that is at home, in state precision, as a new local tensor.

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


def sum_dtype(sites: Sequence[Site]) -> torch.dtype:
    """What a sum over many parameters is kept in: float64, where the device has it."""
    has_float64 = local(sites[0].param).device.type in ("cpu", "cuda")
    return torch.float64 if has_float64 else torch.float32


def in_slices(
    work: Callable[..., Any], written: Sequence[Tensor | None], *read: Tensor | None
) -> list[Any]:
    """``work(start, *slices)`` on tensors of one shape, cut alike in memory order.

    They stay whole unless those to be written lie on a CPU, are large and dense, and are laid out
    alike; what is only read is brought to that layout.
    """
    like, *others = (t for t in written if t is not None)
    small = like.device.type != "cpu" or like.numel() <= SLICE
    if small or not is_dense(like) or not all(same_layout(t, like) for t in others):
        return [work(0, *written, *read)]
    laid_out = [None if t is None else conformed(t, like) for t in (*written, *read)]
    flat = [None if t is None else t.as_strided((t.numel(),), (1,)) for t in laid_out]
    starts = range(0, like.numel(), SLICE)
    pieces = [[None] * len(starts) if t is None else t.split(SLICE) for t in flat]
    return [work(start, *slices) for start, *slices in zip(starts, *pieces, strict=True)]


class EagerBackend:
    """One parameter after the other, on any device.

    ``aside`` has the positions of those that are away.
    """

    name = "eager"

    def __init__(self) -> None:
        self.aside: dict[Site, Tensor] = {}
        self._room: dict[Site, Tensor] = {}
        self._signs: dict[Site, _Signs] = {}

    def center(self, site: Site) -> Tensor:
        """The probe center nu; the position, as long as no step was taken."""
        nu = site.state.get("probe_center")
        return local(nu) if nu is not None else self.aside[site]

    def depart(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Keep every position and go to the first probe point."""
        self._signs.clear()  # of a step that was not finished
        for site in sites:
            if site not in self.aside:
                self.aside[site] = self._taken(site)
        self.move(sites, round_name, draw)

    def _taken(self, site: Site) -> Tensor:
        """A parameter's position; on a CPU, in memory that is kept from step to step."""
        here = local(site.param)
        if here.device.type != "cpu" or site.low_precision:
            return position_of(site)
        room = self._room.get(site)
        if room is None or room.stride() != here.stride() or room.dtype != here.dtype:
            room = self._room[site] = torch.empty_like(here)
        return room.copy_(here)

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to another probe point."""
        for site in sites:
            here, center = local(site.param), self.center(site)
            if round_name == "center" or site.radius == 0:
                here.copy_(center)
                continue
            self._displace(site, center, round_name, self._signs_for(site, draw))

    def _displace(self, site: Site, center: Tensor, round_name: Round, signs: _Signs) -> None:
        def work(start: int, param: Tensor, nu: Tensor) -> None:
            t, side = signs.of(start, nu), 1 if round_name == "plus" else -1
            displaced(nu, param.dtype, site.radius, t, side=side, out=param)

        in_slices(work, [local(site.param)], center)

    def _signs_for(self, site: Site, draw: Draw) -> _Signs:
        """A parameter's directions, kept from the first probe to the update."""
        known = self._signs.get(site)
        if known is None or known.draw != draw:
            known = self._signs[site] = _Signs(site, draw)
        return known

    def rest(self, sites: Sequence[Site]) -> None:
        """Go back to the positions; those that are there stay."""
        for site in sites:
            if site in self.aside:
                local(site.param).copy_(self.aside[site])
                del self.aside[site]

    def square_sum(self, sites: Sequence[Site]) -> Tensor:
        """Sum of squares of all finite entries of ``.grad``, over all shards."""
        total = torch.zeros((), dtype=sum_dtype(sites), device=local(sites[0].param).device)
        for site in sites:
            if site.param.grad is not None:
                finite = site.gradient.nan_to_num(0.0, 0.0, 0.0)
                norm = torch.linalg.vector_norm(finite, dtype=total.dtype)  # may overflow float32
                total += sum_over_shards(norm.square(), site.param)
        return total

    def update(
        self, sites: Sequence[Site], rates: Sequence[Rates], draw: Draw, clip: Tensor | None
    ) -> None:
        """Averages, position and probe center of every site."""
        for site, numbers in zip(sites, rates, strict=True):
            if site not in self.aside:
                self.aside[site] = self._taken(site)
            self._update(site, numbers, draw, clip)
            del self.aside[site]
            self._signs.pop(site, None)

    def _update(self, site: Site, rates: Rates, draw: Draw, clip: Tensor | None) -> None:
        """Averages, position and probe center of one site."""
        mu, nu, old = self.aside[site], self.center(site), averages(site.state, site.group)
        sides = (site.plus, site.minus) if rates.measuring else (None, None)
        signs = self._signs_for(site, draw)

        def prepared(grad: Tensor | None, like: Tensor) -> Tensor:
            if grad is None:
                return torch.zeros_like(like)  # a side that got none
            grad = grad.to(like.dtype)
            if clip is not None:
                grad = grad * clip.to(like.dtype)
            return -grad if rates.maximize else grad

        def work(start: int, *pieces: Any) -> Tensor | int:
            here, master, mu, nu, *averages, grad, plus, minus = pieces
            grads = Gradients(prepared(grad, mu))
            if rates.measuring:
                grads = Gradients(
                    grads.center,
                    prepared(plus, mu),
                    prepared(minus, mu),
                    realised_radius(nu, site.param.dtype, site.radius),
                    signs.of(start, nu) if rates.hessian == "signed" else None,
                )
            there = [here] if master is None else [here, master]
            return update_(there, mu, nu, Averages(*averages), grads, rates)

        master = site.state.get("position")  # also of a parameter that was cast to float32 since
        written = (local(site.param), None if master is None else local(master), mu, nu, *old)
        for left_alone in in_slices(work, written, site.gradient, *sides):
            site.skipped += left_alone


class _Signs:
    """A parameter's directions in one draw, slice by slice.

    Kept are the words that they are bits of, one bit an element: an operation on the few words of
    one slice would be mostly overhead. What is not cut has its directions kept if they are few.
    """

    def __init__(self, site: Site, draw: Draw) -> None:
        self.draw, self._site = draw, site
        self._words: Tensor | None = None
        self._whole: Tensor | None = None

    def of(self, start: int, piece: Tensor) -> Tensor:
        """Those of a slice that begins at this element in memory."""
        site, here = self._site, local(self._site.param)
        if piece.numel() == here.numel():
            whole = signs_of(site, self.draw) if self._whole is None else self._whole
            self._whole = whole if here.numel() <= SLICE else None
            return whole
        block = block_of(site.param)
        if here.is_contiguous() and block.shape[1:] == block.global_shape[1:]:
            first = block.offsets[0] * (here.numel() // block.shape[0])
            if self._words is None:
                key = sign_key(self.draw.seed, self.draw.step, site.index)
                # Far fewer operations than slices, yet temporaries no larger than theirs.
                edges = range(first - first % 32, first + here.numel(), 8 * SLICE)
                ends = (min(edge + 8 * SLICE, first + here.numel()) for edge in edges)
                runs = zip(edges, ends, strict=True)
                self._words = torch.cat([run_words(key, a, b - a, piece.device) for a, b in runs])
            word, skip = divmod(first % 32 + start, 32)
            words = self._words[word : word - (-(skip + piece.numel()) // 32)]
            return signs_in(words, skip, piece.numel(), piece.dtype)
        if self._whole is None:
            laid_out = conformed(signs_of(site, self.draw), here)
            self._whole = laid_out.as_strided((here.numel(),), (1,))
        return self._whole[start : start + piece.numel()]
