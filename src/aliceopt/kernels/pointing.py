"""Parameters that point elsewhere while gradients are taken, instead of being copied there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layout import is_dtensor
from ..site import Site

__all__ = ["go_home", "is_swappable", "point"]


def is_swappable(site: Site) -> bool:
    """Whether the parameter may point at other memory while gradients are taken.

    That saves copying: nothing has to be moved to reach the probe center. Not for low precision
    (nu has another dtype), for shards (FSDP keeps views of them), or for a parameter that is
    part of a larger buffer, as the weights of a cuDNN RNN are: something may rely on it.
    """
    param = site.param
    if site.low_precision or is_dtensor(param):
        return False
    return param.untyped_storage().nbytes() == param.numel() * param.element_size()


def point(sites: Sequence[Site], places: Sequence[Tensor]) -> None:
    """Make parameters point at other memory, visibly to whoever watches their versions."""
    if not sites:
        return
    for site, place in zip(sites, places, strict=True):
        site.param.data = place
    torch.autograd.graph.increment_version([site.param for site in sites])


def go_home(sites: Sequence[Site]) -> None:
    """Make those that point elsewhere point at their own memory again."""
    away = [(site, site.home) for site in sites if site.home is not None]
    point([site for site, _ in away], [home for _, home in away])
    for site, _ in away:
        site.home = None
