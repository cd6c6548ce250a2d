"""Which implementation serves which device."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence

import torch

from ..ownership import Keeper
from ..site import Site
from ..warning import warn
from .base import Backend
from .chunks import ChunkedBackend
from .eager import EagerBackend

__all__ = ["IMPLEMENTATIONS", "Backends"]

IMPLEMENTATIONS = ("auto", "triton", "compiled", "eager")
WORTH_COMPILING = 1 << 22
"""Coordinates on a CPU from which on "auto" compiles.

Compiling takes about a quarter of a minute, unless torch has the result in its cache, and saves
some five seconds in a thousand steps for every million coordinates.
"""


class Backends:
    """One backend per device in use, made when first asked for."""

    def __init__(self, implementation: str):
        self.implementation = implementation
        self._made: dict[torch.device, Backend] = {}
        self._counts: dict[torch.device, int] = {}
        self.keeper = Keeper()

    def split(self, sites: Sequence[Site]) -> Iterator[tuple[Backend, list[Site]]]:
        """The sites of each device with the backend that serves it."""
        by_device: dict[torch.device, list[Site]] = {}
        for site in sites:
            by_device.setdefault(site.device, []).append(site)
        for device, there in by_device.items():
            count = sum(site.numel for site in there)
            # Parameters may be added; parts of those that are there never count for more.
            grown = self._counts.get(device, count) < WORTH_COMPILING <= count
            if device not in self._made or (grown and device.type == "cpu"):
                self._made[device] = self._make(device, count)
                self._counts[device] = count
            yield self._made[device], there

    def forget(self) -> None:
        """Drop what backends remember of tensors; something has replaced them."""
        self._made.clear()
        self.keeper.forget()

    def describe(self) -> str:
        """What was picked, device by device, once there was something to pick for."""
        if not self._made:
            return self.implementation
        return ", ".join(f"{backend.name} on {device}" for device, backend in self._made.items())

    def _make(self, device: torch.device, count: int) -> Backend:
        wanted = self.implementation
        if wanted == "triton" or (wanted == "auto" and device.type == "cuda"):
            obstacle = _no_triton(device)
            if obstacle is None:
                from .fused import TritonBackend

                return TritonBackend()
        elif wanted == "compiled" or (wanted == "auto" and count >= WORTH_COMPILING):
            obstacle = _no_compiler(device)
            if obstacle is None:
                from .compiled import CompiledBackend

                return CompiledBackend(strict=wanted == "compiled")
        else:
            obstacle = None
        if obstacle is not None and wanted != "auto":
            raise RuntimeError(f"implementation {wanted!r} cannot run on {device}: {obstacle}")
        return ChunkedBackend() if device.type == "cpu" else EagerBackend()


def _no_compiler(device: torch.device) -> str | None:
    """Why passes cannot be compiled there; None if they can."""
    if device.type != "cpu":
        return "it is for parameters on the CPU"
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX", default)
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler {compiler!r} on the path (CXX names another)"
    return None


def _no_triton(device: torch.device) -> str | None:
    """Why Triton kernels cannot run there; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type == "cuda":
        return _triton_failure(device)
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return "Triton needs a CUDA device (or its interpreter, TRITON_INTERPRET=1)"


@functools.cache
def _triton_failure(device: torch.device) -> str | None:
    """What went wrong with a first tiny launch; None if nothing did. Tried, and warned of, once."""
    try:
        _launch(device)
    except Exception as error:
        brief = (str(error).splitlines() or [""])[0]
        failure = f"Triton is installed but does not work: {type(error).__name__}: {brief}"
        warn(f"{failure}; on {device} 'auto' means implementation='eager', which is slower")
        return failure
    return None


def _launch(device: torch.device) -> None:
    """Compile and run one of the kernels."""
    from .fused import TritonBackend

    param = torch.nn.Parameter(torch.zeros(4, device=device))
    param.grad = torch.zeros_like(param)
    TritonBackend().square_sum([Site.of(param, 0, {})])
