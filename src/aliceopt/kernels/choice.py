"""Which implementation serves which device."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence

import torch

from ..site import Site
from .base import Backend
from .eager import EagerBackend

__all__ = ["IMPLEMENTATIONS", "Backends"]

IMPLEMENTATIONS = ("auto", "triton", "eager")


class Backends:
    """One backend per device in use, made when first asked for."""

    def __init__(self, implementation: str):
        self.implementation = implementation
        self._made: dict[torch.device, Backend] = {}

    def split(self, sites: Sequence[Site]) -> Iterator[tuple[Backend, list[Site]]]:
        """The sites of each device with the backend that serves it."""
        by_device: dict[torch.device, list[Site]] = {}
        for site in sites:
            by_device.setdefault(site.device, []).append(site)
        for device, there in by_device.items():
            if device not in self._made:
                self._made[device] = self._make(device)
            yield self._made[device], there

    def forget(self) -> None:
        """Drop what backends remember of tensors; something has replaced them."""
        self._made.clear()

    def describe(self) -> str:
        """What was picked, device by device, once there was something to pick for."""
        if not self._made:
            return self.implementation
        return ", ".join(f"{backend.name} on {device}" for device, backend in self._made.items())

    def _make(self, device: torch.device) -> Backend:
        wanted = self.implementation == "triton" or (
            self.implementation == "auto" and device.type == "cuda"
        )
        if not wanted:
            return EagerBackend()
        obstacle = _no_triton(device)
        if obstacle is None:
            from .fused import TritonBackend

            return TritonBackend()
        if self.implementation == "triton":
            raise RuntimeError(f"implementation 'triton' cannot run on {device}: {obstacle}")
        return EagerBackend()


def _no_triton(device: torch.device) -> str | None:
    """Why Triton kernels cannot run there; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return "Triton needs a CUDA device (or its interpreter, TRITON_INTERPRET=1)"
