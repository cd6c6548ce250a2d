"""Which implementation serves which device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..layout import local
from ..site import Site
from .base import Backend
from .eager import EagerBackend

__all__ = ["IMPLEMENTATIONS", "Backends"]

IMPLEMENTATIONS = ("auto", "triton", "compiled", "eager")


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

    def _make(self, device: torch.device) -> Backend:
        if self.implementation == "triton":
            from .fused import TritonBackend

            return TritonBackend()
        return EagerBackend()
