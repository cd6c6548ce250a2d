"""Launch tables: addresses, sizes and chunks of many tensors, on the device, rebuilt on change.

A `Table` belongs to a fixed list of sites. Its rows are filled from the sites' tensors each time
it is used; only when an address differs from the last time is the table sent to the device again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..layout import is_dtensor, local
from ..site import Site
from . import triton_parts as parts
from .base import Job
from .memory import conformed, is_dense, memory_order
from .recording import Moment, Rehearsal, Sender

__all__ = ["LaunchKind", "Table", "is_even", "is_supported", "laid_out", "numbers_of", "side_dtype"]

# Elements a program works on. An update has up to 16 streams, and one vector a thread of each keeps
# its registers few enough; a move has 2.
MOVE_BLOCK = 1024
UPDATE_BLOCK = 512
_MOVED_ROWS = (
    ("probe_center", int(parts.CENTER.value)),
    ("position", int(parts.MASTER.value)),
)
_UPDATED_ROWS = (
    *_MOVED_ROWS,
    ("grad_avg", int(parts.GRAD_AVG.value)),
    ("grad_sq", int(parts.GRAD_SQ.value)),
    ("glass_density", int(parts.GLASS.value)),
    ("hess", int(parts.HESS.value)),
)


def _pointer(tensor: Tensor) -> int:
    """Address of the tensor's local data."""
    return local(tensor).data_ptr()


class Table:
    """The launch table of a list of sites that share dtypes and kind of layout."""

    def __init__(self, sites: Sequence[Site], sender: Sender, *, moving: bool):
        self.sites = list(sites)
        self._sender = sender
        self._moving = moving
        self.block = MOVE_BLOCK if moving else UPDATE_BLOCK
        groups = list({id(site.group): site for site in sites}.values())
        ordinals = {id(site.group): i for i, site in enumerate(groups)}
        self.one_per_group = groups
        self.group_column = [ordinals[id(site.group)] for site in sites]
        self.params = [local(site.param) for site in sites]
        self.strides = [param.stride() for param in self.params]
        self.device = self.params[0].device
        self.host = np.zeros((parts.ROWS, len(sites)), dtype=np.int64)
        self.permuted = False
        for i, site in enumerate(sites):
            self._describe(i, site)
        chunks = -(-self.host[parts.NUMEL.value] // self.block)
        owners = np.repeat(np.arange(len(sites), dtype=np.int32), chunks)
        within = np.concatenate([np.arange(count, dtype=np.int32) for count in chunks])
        self.chunk_tensor = sender.table(owners, self.device)
        self.chunk_index = sender.table(within, self.device)
        self.num_chunks = int(chunks.sum())
        # Positions taken aside stand in one buffer, each at a multiple of 16 bytes.
        sizes = -(-self.host[parts.NUMEL.value] // 4) * 4
        self.aside_offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self.aside_size = int(sizes.sum())
        self.even = bool((self.host[parts.NUMEL.value] % 4 == 0).all())
        self._layouts = [(site.param.stride(), site.param.dtype) for site in sites]
        known = set.intersection(*(set(site.state) for site in sites))
        rows = _MOVED_ROWS if moving else _UPDATED_ROWS
        self._state_rows = [(name, row) for name, row in rows if name in known]
        self._sharded = any(is_dtensor(site.param) for site in sites)
        self._sent: Tensor | None = None
        self._sent_host: np.ndarray | None = None
        self.aligned = False

    def _describe(self, i: int, site: Site) -> None:
        first, sizes, strides = memory_order(site)
        self.host[parts.NUMEL.value, i] = self.params[i].numel()
        self.host[parts.INDEX.value, i] = site.index
        self.host[parts.FIRST.value, i] = first
        self.permuted |= len(sizes) > 1 or strides not in ([], [1])
        pad = parts.DIMS - len(sizes)
        self.host[parts.SIZES.value : parts.SIZES.value + parts.DIMS, i] = [1] * pad + sizes
        self.host[parts.STRIDES.value : parts.STRIDES.value + parts.DIMS, i] = [0] * pad + strides

    def refresh(self) -> None:
        """Addresses of parameters and state, as they are now."""
        find = _pointer if self._sharded else Tensor.data_ptr
        self.host[parts.PARAM.value] = [find(site.param) for site in self.sites]
        for name, row in self._state_rows:
            self.host[row] = [find(site.state[name]) for site in self.sites]

    def is_outdated(self) -> bool:
        """Whether a parameter has got another layout or dtype since."""
        now = [(site.param.stride(), site.param.dtype) for site in self.sites]
        return now != self._layouts

    def on(self) -> AbstractContextManager[Any]:
        """Where launches must be made from: the current device may be another."""
        cuda = self.device.type == "cuda"
        return torch.cuda.device(self.device) if cuda else nullcontext()

    def on_device(self) -> Tensor:
        """The table as the kernels read it; sent again only if something moved."""
        if self._sent_host is None or not np.array_equal(self.host, self._sent_host):
            self._sent_host = self.host.copy()
            sent = self.host.copy()
            if isinstance(self._sender, Rehearsal):
                sent[parts.NUMEL.value] = 0
            self._sent = self._sender.table(sent, self.device)
            addresses = self.host[: parts.NUMEL.value]
            self.aligned = bool((addresses % 16 == 0).all())
        assert self._sent is not None
        return self._sent


def is_even(site: Site) -> bool:
    """Whether four elements can be loaded at once."""
    return site.numel % 4 == 0


def is_supported(site: Site) -> bool:
    """Whether the kernels can take a parameter: dense, its state laid out alike, few runs."""
    here = local(site.param)
    laid_out_alike = all(
        local(value).stride() == here.stride()
        for value in site.state.values()
        if isinstance(value, Tensor) and value.dim() == here.dim() and value.dim() > 0
    )
    return is_dense(here) and laid_out_alike and len(memory_order(site)[1]) <= parts.DIMS


def side_dtype(site: Site) -> torch.dtype:
    """What the sides' gradients are in; a missing one is made of zeros in the same."""
    side = site.plus if site.plus is not None else site.minus
    return site.param.dtype if side is None else side.dtype


class LaunchKind(NamedTuple):
    """What an update kernel is compiled for, and what else its sites have in common."""

    name: str
    param: torch.dtype
    grad: torch.dtype
    side: torch.dtype
    limit: str
    hessian: str
    glass: bool
    measuring: bool
    maximize: bool
    ahead: bool
    pointed: bool
    even: bool

    @classmethod
    def of(cls, job: Job, ahead: bool) -> LaunchKind:
        """This job's."""
        site, r = job.site, job.rates
        return cls(
            "update",
            site.param.dtype,
            site.gradient.dtype,
            side_dtype(site),
            r.limit,
            r.hessian,
            r.glass,
            job.measuring,
            bool(site.group["maximize"]),
            ahead,
            site.home is not None,
            is_even(site),
        )


def laid_out(
    grad: Tensor | None,
    param: Tensor,
    strides: tuple[int, ...],
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A gradient in its parameter's memory layout; zeros for one that is missing."""
    if grad is None:
        return torch.zeros_like(param, dtype=dtype)
    if type(grad) is Tensor and grad.stride() == strides:
        return grad
    return conformed(local(grad), param)


def numbers_of(moment: Moment, sites: Sequence[Site]) -> np.ndarray:
    """Seed, step and each site's numbers as int64 bit patterns."""
    rows = np.zeros((len(sites), int(parts.CONFIG_WIDTH.value)))
    for row, site in zip(rows, sites, strict=True):
        row[0] = site.radius
        row[-1] = (moment.ahead or {}).get(id(site.group), -1.0)
        r = moment.rates.get(site)
        if r is not None:
            row[1:-1] = (
                r.lr,
                min(r.lr_min, r.lr),
                r.eps,
                r.step_fraction,
                r.lookahead,
                r.lr * r.weight_decay,
                r.beta1,
                r.beta2,
                r.beta_topo,
                r.grad_weight,
                r.sq_weight,
                r.topo_weight,
            )
    header = np.asarray(moment.draw, dtype=np.int64)
    return np.concatenate([header, rows.reshape(-1).view(np.int64)])
