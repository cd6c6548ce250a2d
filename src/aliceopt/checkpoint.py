"""Loading a checkpoint without losing precision, and refusing one that cannot fit.

torch casts loaded state to the parameter's dtype, which would round the float32 state of bf16
parameters. `shield` hides the tensors from that cast and `unshield` places them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from .sharding import is_dtensor
from .site import COUNTERS, REQUIRED, state_dtype

__all__ = ["shield", "unshield"]


class _Shielded:
    """A state tensor that torch's cast does not recognise as one."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


def shield(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Check that the checkpoint fits, then wrap its tensors."""
    saved_groups, groups = state_dict["param_groups"], optimizer.param_groups
    _check_groups(saved_groups, groups)
    params = [p for group in groups for p in group["params"]]
    ids = [i for group in saved_groups for i in group["params"]]
    state = dict(state_dict["state"])
    for saved_id, param in zip(ids, params, strict=True):
        entries = state.get(saved_id)
        if entries:
            _check_entries(entries, param, saved_id)
            state[saved_id] = {
                name: _Shielded(value) if isinstance(value, Tensor) else value
                for name, value in entries.items()
            }
    return {**state_dict, "state": state}


def _check_groups(saved_groups: list[dict[str, Any]], groups: list[dict[str, Any]]) -> None:
    if len(saved_groups) != len(groups):
        raise ValueError(
            f"the checkpoint has {len(saved_groups)} parameter groups, the optimizer {len(groups)}"
        )
    for i, (saved, group) in enumerate(zip(saved_groups, groups, strict=True)):
        missing = [name for name in ("limit", "hessian", "cadence") if name not in saved]
        if missing:
            raise ValueError(
                f"the checkpoint is not Alice's: its group {i} has no {', '.join(missing)}"
            )
        if len(saved["params"]) != len(group["params"]):
            raise ValueError(
                f"group {i} has {len(saved['params'])} parameters in the checkpoint, "
                f"{len(group['params'])} in the optimizer"
            )
        kind = saved.get("hessian", group["hessian"])
        if kind != group["hessian"]:
            raise ValueError(
                f"group {i} measured hessian={kind!r} in the checkpoint, but the optimizer has "
                f"hessian={group['hessian']!r}: their averages are different quantities"
            )


def _check_entries(entries: dict[str, Any], param: Tensor, saved_id: Any) -> None:
    missing = [name for name in REQUIRED if not isinstance(entries.get(name), Tensor)]
    if missing:
        raise ValueError(
            f"the checkpoint is incomplete: the state of parameter {saved_id} has no "
            f"{', '.join(missing)}"
        )
    for name, value in entries.items():
        if isinstance(value, Tensor) and name not in COUNTERS and value.shape != param.shape:
            raise ValueError(
                f"{name} of parameter {saved_id} has shape {tuple(value.shape)} in the checkpoint, "
                f"the parameter {tuple(param.shape)}"
            )


def unshield(optimizer: Optimizer) -> None:
    """Unwrap every tensor onto its parameter's device, in state precision, as a copy."""
    for param, entries in optimizer.state.items():
        for name, value in entries.items():
            if isinstance(value, _Shielded):
                entries[name] = _placed(value.tensor, name, param)


def _placed(value: Tensor, name: str, param: Tensor) -> Tensor:
    if name in COUNTERS:
        return value.detach().to("cpu", torch.float64, copy=True)
    value = value.detach()
    if is_dtensor(value) and _placement(value) != _placement(param):
        value = value.full_tensor()  # type: ignore[attr-defined]
    if is_dtensor(param) and not is_dtensor(value):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(param.device), *_placement(param))
    placed = torch.empty_like(param.detach(), dtype=state_dtype(param))
    return placed.copy_(value)


def _placement(tensor: Tensor) -> Any:
    """Mesh and placements of a DTensor, else None."""
    return (tensor.device_mesh, tensor.placements) if is_dtensor(tensor) else None  # type: ignore[attr-defined]
