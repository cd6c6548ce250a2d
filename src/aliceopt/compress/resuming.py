"""Measurements of sensitivity that go on from a file, to the same bits, or are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..sharding import is_distributed, local
from ..site import Site, state_dtype
from .averages import SIDES, Sensitivity

__all__ = ["own_path", "same_everywhere", "save", "started", "zeros"]


def own_path(path: Path) -> Path:
    """The file of this process: with the rank behind its name, if there are several."""
    together = is_distributed()
    return path.with_name(f"{path.name}.{torch.distributed.get_rank()}") if together else path


def started(
    wanted: Sensitivity, path: Path | None, sites: Mapping[str, Site], errors: bool
) -> Sensitivity:
    """Averages of nothing yet, or those of a checkpoint, which must be of the same kind."""
    keys = [
        (term, radius)
        for term in wanted.terms
        for radius in (wanted.radii if term in SIDES else (0.0,))
    ]
    wanted.center = {name: _marks(site) for name, site in sites.items()}
    begun = path is not None and path.exists()
    if path is not None and not same_everywhere(begun):
        raise ValueError(f"some processes have the checkpoint {str(path)!r}, and some have not")
    if path is None or not begun:
        for key in keys:
            for kept in (wanted.means, wanted.spreads) if errors else (wanted.means,):
                kept[key] = {name: zeros(site) for name, site in sites.items()}
        return wanted
    there = _read(path)
    wanted_, there_ = _kind(wanted), _kind(there)
    shapes = {name: tuple(zeros(site).shape) for name, site in sites.items()}
    if wanted_ != there_ or wanted.radii != there.radii or bool(there.spreads) != errors:
        raise ValueError(
            f"{str(path)!r} was measured with {there_}, not {wanted_}: another measurement needs "
            "another checkpoint"
        )
    if {name: tuple(mean.shape) for name, mean in there.means[keys[0]].items()} != shapes:
        raise ValueError(f"{str(path)!r} is of a model with other weights")
    for name, marks in wanted.center.items():
        if not all(map(_close, there.center[name], marks)):
            raise ValueError(f"{str(path)!r} was measured where {name!r} had other values")
    if not same_everywhere(there.batches):
        raise ValueError(f"{str(path)!r} has another number of batches in another process")
    for values in (*there.means.values(), *there.spreads.values()):
        values.update({name: values[name].to(zeros(site)) for name, site in sites.items()})
    return there


def _read(path: Path) -> Sensitivity:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        return Sensitivity.from_state_dict(content)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # whatever torch makes of a file that is something else
        raise ValueError(f"{str(path)!r} is no measurement to go on from: {error}") from error


def _marks(site: Site) -> list[float]:
    place = local(site.param).double()
    return [float(place.sum()), float(place.square().sum())]


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def same_everywhere(value: int) -> bool:
    """Whether all processes have this value."""
    if not is_distributed():
        return True
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return len(set(values)) == 1


def _kind(found: Sensitivity) -> str:
    radii = ", ".join(f"{radius:g}" for radius in found.radii)
    return f"radius {radii}, terms {', '.join(found.terms)}, seed {found.seed}"


def zeros(site: Site) -> Tensor:
    """As much of a weight as this process has, in the precision of averages."""
    return torch.zeros_like(local(site.param), dtype=state_dtype(site.param))


def save(found: Sensitivity, path: Path) -> None:
    """Whole or not at all."""
    beside = path.with_name(path.name + ".writing")
    torch.save(found.state_dict(), beside)
    beside.replace(path)
