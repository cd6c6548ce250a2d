"""One captured kind of step: its graph, and the tables that the graph reads.

While a CUDA graph is being captured nothing may be copied from the host: the copy itself would be
recorded, and repeated from memory that is long gone. Nor may a table live in the graph's own
memory, which earlier operations of the graph overwrite. So each has a place allocated beforehand.
The addresses in it are those of the moment it was asked for, as in a step that is not captured; its
numbers are refreshed before each replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..kernels.plan import Plan, Send, write_numbers
from ..kernels.table import Row
from ..site import Draw, Site
from ..topography import Rates

__all__ = ["NUMBERS", "Recording", "Rehearsal", "Tables"]

NUMBERS = [Row.SEED, Row.STEP, *range(Row.RADIUS, Row.ROWS)]
"""Rows that change from replay to replay."""


class Rehearsal:
    """Sends tables of empty tensors: every launch happens, and none has an effect."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.tables = 0

    def send(self, array: np.ndarray, device: torch.device) -> Tensor:
        """What the kernels are told; counts the tables."""
        if array.ndim == 2:
            self.tables += 1
            array = array.copy()
            array[:, Row.NUMEL] = 0
        return self._send(array, device)


class Tables:
    """A place on the device for every table of a step, and what is to be copied there."""

    def __init__(self, count: int, shape: tuple[int, ...], device: torch.device) -> None:
        self.host = np.zeros((max(1, count), *shape), dtype=np.int64)
        self.there = torch.zeros(self.host.shape, dtype=torch.int64, device=device)
        self._next = 0

    def send(self, array: np.ndarray, device: torch.device) -> Tensor:
        """The next place. Chunks are known from the rehearsal; sending one would be recorded."""
        if array.shape != self.host.shape[1:] or self._next == len(self.host):
            raise RuntimeError("the captured step asked for other tables than its rehearsal")
        place = self._next
        self.host[place] = array
        self._next += 1
        return self.there[place]


@dataclass
class Recording:
    """A captured step.

    ``sites`` are all that are trained, with the gradients the graph will leave them, and
    ``updating`` those that it updates; ``foreign`` are gradients of parameters that others train.
    The graph also needs the memory of ``plan``.
    """

    graph: torch.cuda.CUDAGraph
    plan: Plan
    tables: Tables
    sites: list[Site]
    grads: list[Tensor | None]
    updating: list[Site]
    foreign: list[tuple[nn.Parameter, Tensor]]
    states: list[torch.Generator]
    loss: Any

    def stage(self, rates: Sequence[Rates], draw: Draw) -> None:
        """Refresh the numbers, without waiting for the device."""
        host, plan = self.tables.host, self.plan
        radii = [site.radius for site in self.sites]
        write_numbers(host[0].T, plan.columns(self.sites), radii, draw)
        radii = [site.radius for site in self.updating]
        write_numbers(host[0].T, plan.columns(self.updating), radii, draw, rates)
        host[1:, :, NUMBERS] = host[0][:, NUMBERS]
        copy_(self.tables.there, host)

    @torch.no_grad()
    def hand_out(self) -> None:
        """Leave gradients where the closure would have: those of others add up."""
        for site, grad in zip(self.sites, self.grads, strict=True):
            site.param.grad = grad
        for param, grad in self.foreign:
            param.grad = grad.clone() if param.grad is None else param.grad.add_(grad)


def copy_(target: Tensor, array: np.ndarray) -> None:
    """Copy an array into a tensor of its size, on whatever device, without waiting for it."""
    host = torch.from_numpy(array)
    if target.device.type == "cuda":
        host = host.pin_memory()  # torch gives out such memory again once the copy is over
    target.copy_(host, non_blocking=True)
