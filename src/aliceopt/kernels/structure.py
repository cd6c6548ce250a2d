"""What updates that share a call have in common, besides their numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .base import Job
from .passes import Kind
from .staging import dtypes_of

__all__ = ["Structure", "structure_of"]


class Structure(NamedTuple):
    """The kind of update, and the dtypes of the parameter and its gradients."""

    kind: Kind
    dtypes: tuple[torch.dtype, ...]

    @property
    def arguments(self) -> list[torch.dtype]:
        """Dtypes of the numbers and of the tensors that the update takes."""
        param, *grads = self.dtypes
        state = torch.float64 if param == torch.float64 else torch.float32
        special = {"param": param, "words": torch.int32}
        special |= dict(zip(("grad", "plus", "minus"), grads, strict=False))
        return [state, *(special.get(name, state) for name in self.kind.tensors)]


def structure_of(job: Job, *, scaled: bool) -> Structure:
    """Of one job; ``scaled``: its gradients are multiplied by a factor."""
    site, r = job.site, job.rates
    kind = Kind(
        limit=r.limit,
        hessian=r.hessian,
        glass=r.glass,
        measuring=job.measuring,
        measured=r.measured,
        low=site.low_precision,
        scaled=scaled,
        floor=r.lr_min > 0,
        decay=r.weight_decay > 0,
        eps=r.eps > 0,
    )
    return Structure(kind, dtypes_of(job))
