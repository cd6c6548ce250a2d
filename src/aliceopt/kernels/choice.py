"""Which implementation serves which device."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch

from ..site import Site
from ..warning import warn
from .backend import MultiTensorBackend
from .base import Backend
from .eager import EagerBackend

__all__ = ["IMPLEMENTATIONS", "make"]

IMPLEMENTATIONS = ("auto", "triton", "compiled", "eager")
WORTH_A_WARNING = 1 << 20
"""Coordinates from which on a machine without a compiler is slow enough to speak of it."""


def make(implementation: str, device: torch.device, count: int) -> Backend:
    """A backend for ``count`` coordinates on this device."""
    if implementation == "triton" or (implementation == "auto" and device.type == "cuda"):
        obstacle = _no_triton(device)
        if obstacle is None:
            from .triton_launch import TritonKernels

            return MultiTensorBackend(TritonKernels())
        if implementation == "triton":
            raise RuntimeError(f"implementation 'triton' cannot run on {device}: {obstacle}")
    elif implementation == "compiled" and device.type != "cpu":
        raise RuntimeError(
            f"implementation 'compiled' cannot run on {device}: it is for parameters on the CPU"
        )
    elif implementation in ("auto", "compiled") and device.type == "cpu":
        from .native import BuildError, CpuKernels

        try:
            return MultiTensorBackend(CpuKernels())
        except BuildError as error:
            if implementation == "compiled" or count >= WORTH_A_WARNING:
                _warn_once(f"{error}. implementation='eager' is used instead, which is slower")
    return EagerBackend()


@functools.cache
def _warn_once(message: str) -> None:
    warn(message)


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
    from .triton_launch import TritonKernels

    param = torch.nn.Parameter(torch.zeros(4, device=device))
    param.grad = torch.zeros_like(param)
    site = Site.of(param, 0, {})
    site.state = {name: torch.zeros_like(param) for name in ("probe_center", "grad_avg", "grad_sq")}
    MultiTensorBackend(TritonKernels()).square_sum([site])
