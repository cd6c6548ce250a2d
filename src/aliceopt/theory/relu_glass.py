r"""Theorem 1: ReLUs turn the gradient into a glass.

A unit ``z = max(y, 0)`` with pre-activation gradient ``gamma = dy/dtheta`` adds ``dL/dz gamma`` to
the loss gradient when a displacement carries ``y`` through zero. With ``y`` uniform in
``[-threshold, threshold]`` that happens with probability ``|d . gamma| / (2 threshold)`` for a
displacement ``d``, and with independent jumps the mean square change of the gradient is

    v(d) = 1/(2 threshold) sum_k gamma_k^2 (dL/dz_k)^2 |d . gamma_k|  <=  R |d|,
    R_ij = 1/(2 threshold) sum_k gamma_ki^2 (dL/dz_k)^2 |gamma_kj|,

linear in the length of ``d`` where a Hessian would make it quadratic. The middle form is
`expected_variation`, the right one `variation_bound`; the triangle inequality between them is
loose by about the root of the number of parameters that feed a unit.

Units: ``R`` is (loss / length)^2 per length. Where the bound does *not* hold: see the errata.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ._checks import FINITE, POSITIVE, require, require_shape

__all__ = [
    "ReluGlass",
    "expected_variation",
    "from_module",
    "glass_density",
    "glass_density_matrix",
    "variation_bound",
]

_RELUS = {F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}
_LEAKY = {F.leaky_relu, F.leaky_relu_}
_CLAMPS = {
    getattr(owner, name + suffix)
    for owner in (torch, Tensor)
    for name in ("clamp", "clamp_min", "clip")
    for suffix in ("", "_")
}
_CHUNK = 256


def glass_density_matrix(preact_grads: Tensor, loss_grads: Tensor, threshold: float) -> Tensor:
    """``R`` of Theorem 1, [parameters, parameters], from the units inside the threshold.

    ``preact_grads`` is [units, parameters] (``dy_k/dtheta``), ``loss_grads`` [units]
    (``dL/dz_k``). No units give a zero matrix: no ReLU, no glass.

    >>> glass_density_matrix(torch.tensor([[1.0, -2.0]]), torch.tensor([3.0]), 0.5)
    tensor([[ 9., 18.],
            [36., 72.]])
    """
    weights = _jump_weights(preact_grads, loss_grads, threshold)
    return (preact_grads.square() * weights[:, None]).T @ preact_grads.abs()


def glass_density(preact_grads: Tensor, loss_grads: Tensor, threshold: float) -> Tensor:
    """Diagonal of ``R``, ``1/(2 threshold) sum_k |gamma_ki|^3 (dL/dz_k)^2``, without forming it."""
    weights = _jump_weights(preact_grads, loss_grads, threshold)
    return weights @ preact_grads.abs() ** 3


def variation_bound(
    preact_grads: Tensor, loss_grads: Tensor, threshold: float, displacement: Tensor
) -> Tensor:
    """Theorem 1's bound ``R |d|`` on the mean square gradient change, without forming ``R``."""
    weights = _jump_weights(preact_grads, loss_grads, threshold)
    _check_displacement(displacement, preact_grads)
    return (weights * (preact_grads.abs() @ displacement.abs())) @ preact_grads.square()


def expected_variation(
    preact_grads: Tensor, loss_grads: Tensor, threshold: float, displacement: Tensor
) -> Tensor:
    """The same with ``|d . gamma_k|`` kept, before the triangle inequality: a prediction.

    Never above `variation_bound`, and equal to it where ``d`` has one nonzero entry.
    """
    weights = _jump_weights(preact_grads, loss_grads, threshold)
    _check_displacement(displacement, preact_grads)
    return (weights * (preact_grads @ displacement).abs()) @ preact_grads.square()


def _jump_weights(preact_grads: Tensor, loss_grads: Tensor, threshold: float) -> Tensor:
    """``(dL/dz_k)^2 / (2 threshold)`` per unit, once the arguments are known to be sound."""
    require("threshold", threshold, POSITIVE)
    require_shape("preact_grads", preact_grads, (None, None))
    require_shape("loss_grads", loss_grads, (preact_grads.shape[0],))
    require("preact_grads", preact_grads, FINITE)
    require("loss_grads", loss_grads, FINITE)
    return loss_grads.square() / (2 * threshold)


def _check_displacement(displacement: Tensor, preact_grads: Tensor) -> None:
    require_shape("displacement", displacement, (preact_grads.shape[1],))
    require("displacement", displacement, FINITE)


@dataclass(frozen=True)
class ReluGlass:
    """The kinks of one network on one batch: every ReLU unit within ``threshold`` of its kink.

    ``preacts`` [units], ``preact_grads`` [units, parameters] and ``loss_grads`` [units] are what
    the functions of this module take; parameters are flattened in the order of
    ``model.named_parameters()`` and ``slices`` says where each stands. ``total_units`` also
    counts the units beyond the threshold.
    """

    threshold: float
    preacts: Tensor
    preact_grads: Tensor
    loss_grads: Tensor
    slices: dict[str, slice]
    total_units: int

    def density_matrix(self) -> Tensor:
        """`glass_density_matrix` of these units."""
        return glass_density_matrix(self.preact_grads, self.loss_grads, self.threshold)

    def density(self) -> Tensor:
        """`glass_density` of these units."""
        return glass_density(self.preact_grads, self.loss_grads, self.threshold)

    def bound(self, displacement: Tensor) -> Tensor:
        """`variation_bound` of these units."""
        return variation_bound(self.preact_grads, self.loss_grads, self.threshold, displacement)

    def expected(self, displacement: Tensor) -> Tensor:
        """`expected_variation` of these units."""
        return expected_variation(self.preact_grads, self.loss_grads, self.threshold, displacement)


class _ReluTap(TorchFunctionMode):
    """Sees every ReLU call, records its input and adds a given tensor to its output.

    The added tensors are zeros; the loss gradient with respect to them is ``dL/dz``.
    """

    def __init__(self, offsets: list[Tensor] | None = None):
        super().__init__()
        self.offsets = offsets
        self.preacts: list[Tensor] = []
        self.jumps: list[float] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        jump = _slope_jump(func, args, kwargs)
        if jump is None:
            return func(*args, **kwargs)
        preact = args[0] if args else kwargs["input"]
        offset = None if self.offsets is None else self.offsets[len(self.preacts)]
        self.preacts.append(preact.clone())  # an in-place ReLU overwrites its input
        self.jumps.append(jump)
        z = func(*args, **kwargs)
        if offset is None:
            return z
        return z.add_(offset) if z is preact else z + offset


def _slope_jump(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> float | None:
    """Size of the derivative's jump at zero if ``func`` is a ReLU or leaky ReLU, else None."""
    if func in _RELUS:
        return 1.0
    if func in _LEAKY:
        slope = args[1] if len(args) > 1 else kwargs.get("negative_slope", 0.01)
        return 1.0 - float(slope)
    if func in _CLAMPS:
        low = args[1] if len(args) > 1 else kwargs.get("min")
        high = args[2] if len(args) > 2 else kwargs.get("max")
        if high is None and isinstance(low, (int, float)) and low == 0:
            return 1.0
    return None


def from_module(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    batch: tuple[Any, Any],
    threshold: float,
) -> ReluGlass:
    """All kinks of ``loss(model(inputs), targets)`` within ``threshold``, by exact Jacobians.

    Finds every ReLU, as a module, a function, a method or a clamp at zero, one unit per entry
    and example; leaky ReLUs count with ``1 - negative_slope`` folded into ``loss_grads``. Other
    kinks (max pooling, hard tanh) do not. Every unit within the threshold costs one Jacobian
    row of the size of the model, so this is for small networks: it exists to test the theorem.
    The model is left as it was. Dropout must be off, because the network runs three times.

    A model with no ReLU has no units and zero density. Works in the parameters' own dtype.
    """
    require("threshold", threshold, POSITIVE)
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(f"batch must be a pair (inputs, targets), got {type(batch).__name__}")
    inputs, targets = batch
    model = copy.deepcopy(model)  # functional_call can damage a module that is shared
    params = {name: p.detach() for name, p in model.named_parameters()}
    if not params:
        raise ValueError("model must have parameters, got none")

    def run(values: dict[str, Tensor], tap: _ReluTap) -> Any:
        buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
        with tap:
            return functional_call(model, (values, buffers), (inputs,))

    loss_grads = _loss_grads(lambda tap: loss(run(params, tap), targets))
    y, pull_back = vjp(lambda values: _preactivations(values, run), params)[:2]
    if bool(y.isnan().any()):
        raise ValueError(
            "pre-activations must be numbers, got nan: check the batch and the parameters"
        )
    near = (y.abs() < threshold).nonzero().squeeze(1)
    return ReluGlass(
        threshold=threshold,
        preacts=y[near].detach(),
        preact_grads=_jacobian_rows(pull_back, y, near, params),
        loss_grads=loss_grads.to(y)[near],
        slices=_slices(params),
        total_units=y.numel(),
    )


def _preactivations(
    values: dict[str, Tensor], run: Callable[[dict[str, Tensor], _ReluTap], Any]
) -> Tensor:
    """Every ReLU input of the network at these parameter values, flattened and joined."""
    tap = _ReluTap()
    run(values, tap)
    return torch.cat([next(iter(values.values())).new_zeros(0), *map(torch.flatten, tap.preacts)])


def _loss_grads(loss_through: Callable[[_ReluTap], Tensor]) -> Tensor:
    """``dL/dz`` of every unit, times the jump of its slope, in the order of `_preactivations`."""
    tap = _ReluTap()
    with torch.no_grad():
        loss_through(tap)
    if not tap.preacts:
        return torch.zeros(0)
    zeros = [torch.zeros_like(y) for y in tap.preacts]
    grads = grad(lambda offsets: loss_through(_ReluTap(offsets)))(zeros)
    jumps = zip(grads, tap.jumps, strict=True)
    return torch.cat([(g * jump).flatten() for g, jump in jumps]).detach()


def _slices(params: dict[str, Tensor]) -> dict[str, slice]:
    slices, start = {}, 0
    for name, p in params.items():
        slices[name] = slice(start, start + p.numel())
        start += p.numel()
    return slices


def _jacobian_rows(
    pull_back: Callable[..., Any], y: Tensor, rows: Tensor, params: dict[str, Tensor]
) -> Tensor:
    """``dy[rows]/dparams``, flattened, a chunk of rows at a time."""
    width = sum(p.numel() for p in params.values())
    out = [y.new_zeros(0, width).detach()]
    for chunk in rows.split(_CHUNK) if len(rows) else ():
        one_hot = torch.zeros(len(chunk), y.numel(), dtype=y.dtype, device=y.device)
        one_hot[torch.arange(len(chunk), device=y.device), chunk] = 1
        (grads,) = vmap(pull_back)(one_hot)
        out.append(torch.cat([grads[name].reshape(len(chunk), -1) for name in params], dim=1))
    return torch.cat(out).detach()
