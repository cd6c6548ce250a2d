"""The device work on the CPU in compiled passes, compiled once whatever the tensors.

One call serves all tensors, as `aliceopt.kernels.native` makes it. Where that cannot be had, large
tensors are passed as they are. Such a call costs about as much as thirty thousand elements do, so
small tensors are laid end to end in spare memory, and one call serves many of them.

A parameter that goes to its probe center only is swapped with it, which needs no memory and writes
nothing that was not read just before. One that goes to both sides has its position taken aside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..layout import local
from ..site import Draw, Site, position_of, realised_radius, state_dtype
from ..warning import warn
from .base import Job, Round
from .chunks import ChunkedBackend, slices
from .direct import DirectPass
from .exchange import Witnesses, completed, exchange_, noted
from .memory import BareSites, Room, bare, conformed, flat
from .native import Kernel
from .passes import Kind, Numbers, displace_, hash_, numbers_of, swap_, update_pass_
from .staging import count_skipped, dtypes_of, is_small, zeros
from .structure import Structure, structure_of
from .together import copy_all, displace_all, hash_all, packs_for, swap_all, update_all
from .words import SignWords, Span, hash_span_

__all__ = ["CompilationError", "CompiledBackend"]


class CompilationError(RuntimeError):
    """A pass could not be compiled; nothing was changed by the attempt."""


def _compile(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    return DirectPass(function, name)


@functools.cache
def _hash_pass() -> Callable[..., Any]:
    return _compile(hash_, "hash_words")


@functools.cache
def _displace_pass(dtype: torch.dtype) -> Callable[..., Any]:
    return _compile(displace_, f"displace_{str(dtype)[6:]}")


@functools.cache
def _swap_pass(dtype: torch.dtype) -> Callable[..., Any]:
    return _compile(swap_, f"swap_{str(dtype)[6:]}")


@functools.cache
def _update_pass(structure: Structure) -> Callable[..., Any]:
    kind = structure.kind

    def update(numbers: Tensor, *tensors: Tensor) -> Tensor:
        return update_pass_(kind, numbers, tensors)

    return _compile(update, f"update_{_update_pass.cache_info().misses}")


def _kernel(
    pass_: Callable[..., Any], dtypes: Sequence[torch.dtype], numbers: int | None = None
) -> Kernel | None:
    """What a pass is compiled to, for many tensors in one call; None where that is not known."""
    return pass_.kernel(dtypes, numbers) if isinstance(pass_, DirectPass) else None


def _swap_kernel(dtype: torch.dtype) -> Kernel | None:
    return _kernel(_swap_pass(dtype), [torch.bool, dtype, dtype])


def _displace_kernel(dtype: torch.dtype) -> Kernel | None:
    return _kernel(_displace_pass(dtype), [dtype, dtype, dtype, torch.int32])


def _update_kernel(structure: Structure) -> Kernel | None:
    return _kernel(_update_pass(structure), structure.arguments, len(Numbers._fields))


class CompiledBackend(ChunkedBackend):
    """Compiled passes for every tensor they can take; the rest is done eagerly.

    Where compilation fails, a ``strict`` one raises `CompilationError`. Another warns once and
    goes on as `ChunkedBackend` does.
    """

    def __init__(self, *, strict: bool = False):
        super().__init__()
        self.name = "compiled"
        self._strict = strict
        self._yes = torch.ones((), dtype=torch.bool, device="cpu")
        self._bare = BareSites()
        self._witnesses = Witnesses()
        self._radii = Room()
        self._words = SignWords(self._hash_spans_)

    def _hash_spans_(self, spans: Sequence[Span]) -> None:
        kernel = _kernel(_hash_pass(), [torch.int64, torch.int32], 3)
        if kernel is not None:
            hash_all(kernel, spans)
            return
        for words, key, first in spans:
            if is_small(words.numel()):
                hash_span_(words, key, first)
            else:
                self._call(_hash_pass(), torch.tensor([*key, first], device="cpu"), bare(words))

    def _call(self, function: Callable[..., Any], numbers: Tensor, *tensors: Tensor) -> Any:
        try:
            with torch.no_grad():
                return function(numbers, *tensors)
        except Exception as error:
            brief = (str(error).splitlines() or [type(error).__name__])[0]
            raise CompilationError(
                f"torch.compile failed on the optimizer's pass: {brief}"
            ) from error

    def _manages(self, work: Callable[[], None]) -> bool:
        """Do this, unless compilation fails or has failed before."""
        if self.name != "compiled":
            return False
        try:
            work()
        except CompilationError as error:
            if self._strict:
                raise
            self.name = "eager"
            self._words = SignWords()
            warn(f"{error}; going on with implementation='eager', which is several times slower")
            return False
        return True

    # ---- moving -------------------------------------------------------------------------------

    def _not_swapped(self, sites: Sequence[Site], round_name: Round) -> Sequence[Site]:
        """Swap what goes to its probe center only; return the others."""
        self._take_back([site for site in sites if site.swapped])  # left by an interrupted return
        swapping, others = [], []
        for site in sites:
            staying = round_name == "center" or site.radius == 0
            if staying and site.ready and not site.low_precision and self.name == "compiled":
                swapping.append(site)
            else:
                others.append(site)
        return others + self._swap(swapping)

    def _swap(self, sites: Sequence[Site]) -> list[Site]:
        """Exchange parameters and probe centers, there or back; returns what was not managed.

        The sites are all swapped or all not.
        """
        left = []
        groups: dict[torch.dtype, list[Site]] = {}
        for site in sites:
            groups.setdefault(site.param.dtype, []).append(site)
        for dtype, there in groups.items():
            for pack in packs_for(there, _swap_kernel(dtype)):
                mine = [there[i] for i in pack]
                before = mine[0].swapped
                if not self._manages(partial(self._swap_pack, mine)):
                    left += [site for site in mine if site.swapped is before]
        return left

    def _swap_pack(self, sites: Sequence[Site]) -> None:
        kernel = _swap_kernel(sites[0].param.dtype)
        if kernel is not None:
            swap_all(kernel, self._yes, sites)
        else:
            self._swap_few(sites)
        torch.autograd.graph.increment_version([site.param for site in sites])

    def _swap_few(self, sites: Sequence[Site]) -> None:
        tensors = [self._bare.of(site) for site in sites]
        params = [there["param"] for there in tensors]
        centers = [there["probe_center"] for there in tensors]
        if is_small(sites[0].numel):
            row = self._stage.gather("param", params)
            exchange_(sites, params, centers, self._stage.pieces(row, params))
        else:
            site, param, center = sites[0], params[0], centers[0]
            work = partial(self._call, _swap_pass(param.dtype), self._yes, param, center)
            witness = self._witnesses.of(site, param, center)
            noted(site, witness, work, swapped=not site.swapped)

    def rest(self, sites: Sequence[Site]) -> None:
        """Go back to the positions."""
        self._take_back([site for site in sites if site.swapped])
        super().rest(sites)

    def _take_back(self, sites: Sequence[Site]) -> None:
        """Swap back, compiled or not."""
        for site in self._swap(sites):
            here, there = local(site.param), local(site.state["probe_center"])
            exchange_([site], [here], [there], [here.clone()])

    def _copy(self, there: Sequence[Tensor], here: Sequence[Tensor]) -> None:
        if there and not (self.name == "compiled" and copy_all(there, here)):
            super()._copy(there, here)

    def _go_to_centers(self, sites: Sequence[Site]) -> None:
        high = [site for site in sites if not site.low_precision]
        super()._go_to_centers([site for site in sites if site.low_precision])
        self._copy([site.param for site in high], [site.center for site in high])
        torch.autograd.graph.increment_version([site.param for site in high])

    def _displace(self, sites: Sequence[Site], round_name: Round, draw: Draw) -> None:
        others: list[Site] = []
        groups: dict[tuple[torch.dtype, float], list[Site]] = {}
        for site in sites:
            if site.low_precision or self.name != "compiled":
                others.append(site)
            else:
                groups.setdefault((site.param.dtype, site.radius), []).append(site)
        for (dtype, radius), there in groups.items():
            away = radius if round_name == "plus" else -radius
            shift = torch.tensor(away, dtype=dtype, device="cpu")
            for pack in packs_for(there, _displace_kernel(dtype)):
                mine = [there[i] for i in pack]
                if not self._manages(partial(self._displace_pack, mine, shift, draw)):
                    others += mine
        super()._displace(others, round_name, draw)

    def _displace_pack(self, sites: Sequence[Site], shift: Tensor, draw: Draw) -> None:
        kernel = _displace_kernel(shift.dtype)
        if kernel is not None:
            displace_all(kernel, shift, sites, self._words.each(sites, draw))
        else:
            self._displace_few(sites, shift, draw)
        torch.autograd.graph.increment_version([site.param for site in sites])

    def _displace_few(self, sites: Sequence[Site], shift: Tensor, draw: Draw) -> None:
        tensors = [self._bare.of(site) for site in sites]
        places = [there["param"] for there in tensors]
        # Before the first step there is no center but the position.
        centers = [
            there["probe_center"] if "probe_center" in there else bare(site.center)
            for there, site in zip(tensors, sites, strict=True)
        ]
        words, displace = self._words.of(sites, draw), _displace_pass(shift.dtype)
        if is_small(sites[0].numel):
            row = self._stage.gather("probe_center", centers)
            there = self._stage.room("param", row.numel(), row.dtype)
            self._call(displace, shift, bare(there), bare(row), words)
            self._stage.scatter(there, places)
        else:
            self._call(displace, shift, places[0], centers[0], words)

    # ---- updating -----------------------------------------------------------------------------

    def update(self, jobs: Sequence[Job], draw: Draw, clip: Tensor | None) -> None:
        """Averages, position and probe center of every job."""
        try:
            self._update_all(jobs, draw, clip)
        except BaseException:
            # Those that were at rest before are not taken back by anyone else.
            self._take_back([job.site for job in jobs if job.site.swapped])
            raise

    def _update_all(self, jobs: Sequence[Job], draw: Draw, clip: Tensor | None) -> None:
        others: list[Job] = []
        groups: dict[tuple[Any, ...], list[Job]] = {}
        for job in jobs:
            if self.name == "compiled" and self._takes(job.site):
                # Those who share rates share their group, and so all other options.
                key = (id(job.rates), job.site.radius, job.measuring, *dtypes_of(job))
                groups.setdefault(key, []).append(job)
            else:
                others.append(job)
        for there in groups.values():
            site, rates = there[0].site, there[0].rates
            maximize, factor = site.group["maximize"], 1.0 if clip is None else float(clip)
            structure = structure_of(there[0], scaled=maximize or clip is not None)
            numbers = torch.tensor(
                numbers_of(rates, site.radius, -factor if maximize else factor),
                dtype=state_dtype(site.param),
                device="cpu",
            )
            for pack in packs_for([job.site for job in there], _update_kernel(structure)):
                mine = [there[i] for i in pack]
                if not self._manages(partial(self._update_pack, mine, structure, numbers, draw)):
                    others += mine
        self._take_back([job.site for job in others if job.site.swapped])
        for job in others:
            if job.site.position is None:
                job.site.position = position_of(job.site)
        super().update(others, draw, clip)

    def _update_pack(
        self, jobs: Sequence[Job], structure: Structure, numbers: Tensor, draw: Draw
    ) -> None:
        kind, sites = structure.kind, [job.site for job in jobs]
        if kind.swapped:
            self._be_swapped(sites)
        kernel = _update_kernel(structure)
        if kernel is not None:
            update_all(kernel, numbers, jobs, kind, self._extra(sites, kind, draw))
        else:
            self._update_few(jobs, structure, numbers, draw)
        torch.autograd.graph.increment_version([site.param for site in sites])

    def _extra(self, sites: Sequence[Site], kind: Kind, draw: Draw) -> dict[str, list[Tensor]]:
        """Words of each site and how far its probes went, if an update needs them."""
        extra = {}
        if "words" in kind.tensors:
            extra["words"] = self._words.each(sites, draw)
        if "radius" in kind.tensors:
            pairs = zip(sites, self._radii.divide(sites), strict=True)
            extra["radius"] = [self._radius(site, flat(room)) for site, room in pairs]
        return extra

    def _update_few(
        self, jobs: Sequence[Job], structure: Structure, numbers: Tensor, draw: Draw
    ) -> None:
        kind, sites = structure.kind, [job.site for job in jobs]
        sources = [self._sources(job, kind) for job in jobs]
        staged = is_small(sites[0].numel)
        tensors = {}
        for name in kind.tensors:
            if name == "words":
                tensors[name] = self._words.of(sites, draw)
            elif staged:
                row = self._stage.gather(name, [source[name] for source in sources])
                tensors[name] = bare(row)
            else:
                tensors[name] = sources[0][name]
        work = partial(self._call, _update_pass(structure), numbers, *tensors.values())
        if staged:
            skipped = int(work())
            completed(partial(self._hand_out, jobs, kind.written, tensors, sources))
        elif kind.swapped:
            witness = self._witnesses.of(sites[0], tensors["param"], tensors["probe_center"])
            skipped = int(noted(sites[0], witness, work, swapped=False))
        else:
            skipped = int(work())
        for job in jobs if skipped else ():
            job.site.skipped += skipped if len(jobs) == 1 else count_skipped(job)

    def _hand_out(
        self,
        jobs: Sequence[Job],
        names: Sequence[str],
        rows: Mapping[str, Tensor],
        sources: Sequence[Mapping[str, Tensor]],
    ) -> None:
        """Copy what an update wrote to where it belongs."""
        for name in names:
            self._stage.scatter(rows[name], [source[name] for source in sources])
        for job in jobs:
            job.site.swapped = False

    def _sources(self, job: Job, kind: Kind) -> dict[str, Tensor]:
        """Bare tensors of one job by the names of `Kind.tensors`, all but the words."""
        site, own = job.site, job.site.param
        tensors = dict(self._bare.of(site))
        if not kind.swapped:
            assert site.position is not None
            tensors["mu"] = bare(site.position)
        gradients = {"grad": site.gradient}
        if kind.measuring:
            gradients |= {
                name: zeros(site) if side is None else side
                for name, side in (("plus", site.plus), ("minus", site.minus))
            }
            if kind.low:
                room = torch.empty(site.numel, dtype=state_dtype(own), device="cpu")
                tensors["radius"] = self._radius(site, room)
        for name, grad in gradients.items():
            if type(grad) is not Tensor or grad.stride() != own.stride():
                grad = conformed(local(grad), local(own))
            tensors[name] = bare(grad)
        return tensors

    def _be_swapped(self, sites: Sequence[Site]) -> None:
        """Bring about what a quick update starts from, where a loop or a first step did not."""
        at_rest = [site for site in sites if site.position is None and not site.swapped]
        if at_rest:
            self._swap_pack(at_rest)
        for site in sites:
            if not site.swapped and site.position is not None:
                here, there = local(site.param), local(site.state["probe_center"])
                exchange_([site], [here], [there], [site.position])

    def _radius(self, site: Site, room: Tensor) -> Tensor:
        """`realised_radius` in slices, written to ``room``."""
        for part in slices(site, self.chunk):
            room[part.start : part.start + part.numel] = realised_radius(part)
        return room
