"""The eager form on the CPU, slice by slice, at a part of the cost of `eager`.

A chain of operations on a large tensor writes one large temporary after the other, and memory that
was just handed out costs a page fault every few kilobytes. Here a large tensor is worked on in
flat slices whose temporaries stay in the cache, small ones are laid end to end, and where all
gradients of a slice are finite, `clean_update_` does without temporaries and masks. Moves are
`eager`'s to the bit, updates to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..layout import local, sum_over_shards
from ..site import Draw, Site, displaced, position_of, state_dtype
from .base import Job, Round
from .clean import LEAST_EPS, SPARE, clean_update_, masked_update_
from .eager import EagerBackend, gradients_of, sum_dtype, target_of
from .memory import Room, conformed, flat, flat_state, is_flat
from .passes import numbers_of
from .staging import Stage, count_skipped, dtypes_of, is_small, joined, packs
from .words import WORD_BITS, SignWords, displacements

__all__ = ["ChunkedBackend", "Slice", "slices"]


@dataclass(eq=False, slots=True)
class Slice(Site):
    """A flat piece of a site; what holds for sites holds for it, too."""

    start: int = 0
    words: Tensor | None = None

    def signs(self, draw: Draw) -> Tensor:
        """This piece's Rademacher directions."""
        assert self.words is not None
        return displacements(self.words, 1.0, state_dtype(self.param))[: self.numel]


def slices(site: Site, length: int, words: Tensor | None = None) -> Iterator[Slice]:
    """Pieces of ``length`` elements (a multiple of 32) in memory order, the last one shorter.

    ``words`` are the signs.
    """
    here = local(site.param)
    grad = None if site.param.grad is None and site.unscaled is None else site.gradient
    columns: dict[str, Tensor] = {"param": flat(here), **flat_state(site)}
    columns["mu"] = columns["param"] if site.position is None else flat(site.position)
    for name, value in (("grad", grad), ("plus", site.plus), ("minus", site.minus)):
        if value is not None:
            columns[name] = flat(conformed(local(value), here))
    if words is not None:
        words = words[: -(-site.numel // WORD_BITS)]
    pieces = {name: _split(column, length) for name, column in columns.items()}
    state_names = [name for name in columns if name in site.state]
    word_pieces = None if words is None else _split(words, length // WORD_BITS)
    for i, param in enumerate(pieces["param"]):
        yield Slice(
            param=param,  # type: ignore[arg-type]
            index=site.index,
            group=site.group,
            state={name: pieces[name][i] for name in state_names},
            skipped=site.skipped,
            device=site.device,
            numel=param.numel(),
            radius=site.radius,
            position=pieces["mu"][i],
            unscaled=pieces["grad"][i] if grad is not None else None,
            plus=pieces["plus"][i] if site.plus is not None else None,
            minus=pieces["minus"][i] if site.minus is not None else None,
            start=i * length,
            words=None if word_pieces is None else word_pieces[i],
        )


def _split(column: Tensor, length: int) -> Sequence[Tensor]:
    return (column,) if column.numel() <= length else column.split(length)


class ChunkedBackend(EagerBackend):
    """`EagerBackend` for the CPU, in slices of ``chunk`` elements.

    Positions are taken aside in memory that is kept from step to step. Left to `EagerBackend` are
    tensors that are empty, have gaps in their memory or are sharded other than by rows.
    """

    def __init__(self, chunk: int | None = None):
        # Threads share each operation, and each of them should find more than a little to do.
        self.chunk = chunk or min(torch.get_num_threads() << 19, 1 << 20)
        self._room = Room()
        self._stage = Stage()
        self._spare: dict[torch.dtype, Sequence[Tensor]] = {}
        self._words = SignWords()
        self._known: dict[int, tuple[Site, dict[str, Any], tuple[Any, ...], bool]] = {}

    def _takes(self, site: Site) -> bool:
        """Whether this form, and not `EagerBackend`, serves the site.

        The answer is remembered as long as parameter and state are the same.
        """
        now = (len(site.state), site.param.stride())
        known = self._known.get(id(site))
        if known is None or known[1] is not site.state or known[2] != now:
            known = (site, site.state, now, site.numel > 0 and is_flat(site))
            self._known[id(site)] = known
        return known[3]

    def _divide(self, sites: Sequence[Site]) -> tuple[list[Site], list[Site]]:
        mine = [site for site in sites if self._takes(site)]
        taken = set(map(id, mine))
        return mine, [site for site in sites if id(site) not in taken]

    # ---- moving -------------------------------------------------------------------------------

    def depart(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Take positions aside and go to the first probe point."""
        self._words.clear()
        mine, others = self._divide(sites)
        super().depart(others, round_name, draw)
        leaving = self._not_swapped(mine, round_name)
        self._take_aside(leaving, self._room.divide(leaving))
        self._send(mine, round_name, draw)

    def _not_swapped(self, sites: Sequence[Site], round_name: Round) -> Sequence[Site]:
        """Sites whose position has to be taken aside: here, all."""
        return sites

    def move(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Go to a probe point."""
        mine, others = self._divide(sites)
        super().move(others, round_name, draw)
        self._send(mine, round_name, draw)

    def _take_aside(self, sites: Sequence[Site], places: Sequence[Tensor]) -> None:
        """Write the positions to these places."""
        for site, place in zip(sites, places, strict=True):
            if site.low_precision:
                for part in slices(site, self.chunk):
                    flat(place)[part.start : part.start + part.numel] = position_of(part)
        high = [i for i, site in enumerate(sites) if not site.low_precision]
        self._copy([places[i] for i in high], [sites[i].param for i in high])
        for site, place in zip(sites, places, strict=True):
            site.position = place  # only now: a position that is set is one to go back to

    def _copy(self, there: Sequence[Tensor], here: Sequence[Tensor]) -> None:
        """Copy tensors to others of the same dtypes and layouts."""
        if there:
            torch._foreach_copy_(list(map(local, there)), list(map(local, here)))

    def _send(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Bring parameters to a probe point; those that are swapped are there."""
        displacing, going = [], []
        for site in sites:
            if round_name != "center" and site.radius > 0:
                displacing.append(site)
            elif not site.swapped:
                going.append(site)
        self._go_to_centers(going)
        self._displace(displacing, round_name, draw)

    def _go_to_centers(self, sites: Sequence[Site]) -> None:
        """Write nu to the parameters."""
        if sites:
            centers = [site.center for site in sites]
            torch._foreach_copy_([local(site.param) for site in sites], centers)

    def _displace(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        """Write ``nu + lambda t`` or ``nu - lambda t`` to the parameters."""
        singly = self._words_of_large(sites, draw)
        for pack in packs(sites, [(site.param.dtype, site.radius) for site in sites]):
            mine = [sites[i] for i in pack]
            words = singly.get(id(mine[0]))
            if words is None:
                words = self._words.of(mine, draw)
            if len(mine) == 1:
                self._displace_one(mine[0], round_name, words, draw)
            else:
                row = self._center_row(mine)
                self._displace_one(row, round_name, words, draw)
                self._stage.scatter(row.param, [flat(local(site.param)) for site in mine])

    def _words_of_large(self, sites: Sequence[Site], draw: Draw) -> dict[int, Tensor]:
        """Of those that are not laid end to end, made in one go."""
        large = [site for site in sites if not is_small(site.numel)]
        return dict(zip(map(id, large), self._words.each(large, draw), strict=True))

    def _center_row(self, sites: Sequence[Site]) -> Site:
        """Small sites end to end, with their centers and memory for where they go."""
        centers = self._stage.row("probe_center", [flat(site.center) for site in sites])
        there = self._stage.room("param", centers.numel(), sites[0].param.dtype)
        row = Site.of(there, sites[0].index, sites[0].group)  # type: ignore[arg-type]
        row.radius, row.state = sites[0].radius, {"probe_center": centers}
        return row

    def _displace_one(self, site: Site, round_name: Round, words: Tensor, draw: Draw) -> None:
        if site.low_precision:
            for part in slices(site, self.chunk, words):
                plus, minus = displaced(part, part.signs(draw))
                part.param.copy_(plus if round_name == "plus" else minus)
            return
        radius = site.radius if round_name == "plus" else -site.radius
        columns = (flat(local(site.param)), flat(site.center))
        parts = zip(
            *(_split(column, self.chunk) for column in columns),
            _split(words, self.chunk // WORD_BITS),
            strict=False,  # there may be a word more than is needed
        )
        integer = torch.int64 if site.param.dtype == torch.float64 else torch.int32
        for there, center, bits in parts:
            room = self._stage.room("signs", bits.numel() * WORD_BITS, integer)
            shift = displacements(bits, radius, there.dtype, room)
            torch.add(center, shift[: there.numel()], out=there)

    # ---- updating -----------------------------------------------------------------------------

    def square_sum(self, sites: Sequence[Site]) -> Tensor:
        """Sum of squares of all finite entries of ``.grad``, over all shards."""
        mine, others = self._divide([site for site in sites if site.param.grad is not None])
        total = torch.zeros((), dtype=sum_dtype(sites), device="cpu")
        if others:
            total += super().square_sum(others)
        for site in mine:
            square = torch.zeros_like(total)
            for part in slices(site, self.chunk):
                g = part.gradient.to(state_dtype(part.param))
                here = torch.dot(g, g)
                if not math.isfinite(here.item()):
                    here = torch.where(torch.isfinite(g), g, 0.0).square().sum()
                square += here
            total += sum_over_shards(square, site.param)
        return total

    def update(self, jobs: Sequence[Job], draw: Draw, clip: Tensor | None) -> None:
        """Averages, position and probe center of every job."""
        flat_jobs: list[Job] = []
        for job in jobs:
            if job.rates.eps < LEAST_EPS:
                super().update([job], draw, clip)
            elif self._takes(job.site):
                flat_jobs.append(job)
            else:
                self._update(job, draw, clip)
        sites = [job.site for job in flat_jobs]
        # Those who share rates share their group, and so all other options.
        keys = [(id(j.rates), j.site.radius, j.measuring, *dtypes_of(j)) for j in flat_jobs]
        signed = [j.measuring and j.rates.hessian == "signed" for j in flat_jobs]
        singly = self._words_of_large([s for s, t in zip(sites, signed, strict=True) if t], draw)
        for pack in packs(sites, keys):
            mine = [flat_jobs[i] for i in pack]
            words = singly.get(id(mine[0].site))
            if words is None and signed[pack[0]]:
                words = self._words.of([sites[i] for i in pack], draw)
            if len(mine) == 1:
                self._update_slices(mine[0], words, draw, clip)
            else:
                self._update_joined(mine, words, draw, clip)
        self._words.clear()

    def _update_joined(
        self, jobs: Sequence[Job], words: Tensor | None, draw: Draw, clip: Tensor | None
    ) -> None:
        """Small tensors end to end, and back to where they belong."""
        states = [flat_state(job.site) for job in jobs]
        row = joined(self._stage, jobs, states)
        self._update_slices(row, words, draw, clip)
        self._stage.scatter(row.site.param, [flat(local(job.site.param)) for job in jobs])
        for name, values in row.site.state.items():
            self._stage.scatter(values, [state[name] for state in states])
        if int(row.site.skipped):
            for job in jobs:
                job.site.skipped += count_skipped(job)

    def _update_slices(
        self, job: Job, words: Tensor | None, draw: Draw, clip: Tensor | None
    ) -> None:
        for part in slices(job.site, self.chunk, words):
            self._update(Job(part, job.rates, job.measuring), draw, clip)

    def _update(self, job: Job, draw: Draw, clip: Tensor | None) -> None:
        site, rates, state = job.site, job.rates, job.site.state
        grads, target, here = gradients_of(job, draw, clip), target_of(job), local(site.param)
        there = target.position if site.low_precision else here
        numbers, spare = numbers_of(rates, site.radius, 1.0), self._spare_for(target.position)
        if not clean_update_(target, there, grads, rates, numbers, spare):
            site.skipped += masked_update_(target, there, grads, rates, numbers, spare)
        if site.low_precision:
            here.copy_(there)
            local(state["position"]).copy_(there)

    def _spare_for(self, like: Tensor) -> Sequence[Tensor]:
        """Memory for `clean_update_`, kept from step to step for slices."""
        if like.dim() != 1:
            return [torch.empty_like(like) for _ in range(SPARE)]
        rows = self._spare.get(like.dtype)
        if rows is None or rows[0].numel() < like.numel():
            rows = torch.empty(SPARE, like.numel(), dtype=like.dtype, device="cpu").unbind()
            self._spare[like.dtype] = rows
        return [row[: like.numel()] for row in rows]
