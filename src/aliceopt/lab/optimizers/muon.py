"""Muon as the lab uses it: which parameters it takes, kernels as matrices, and in a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer


def muon_and_adamw(model: nn.Module, options: dict[str, Any]) -> list[Optimizer]:
    """Muon for the hidden matrices, AdamW for all the rest.

    ``kernels``: whether convolution kernels are matrices too. ``adam_lr``, ``adam_betas`` and
    ``adam_weight_decay`` are AdamW's, by default 1e-3, torch's and 0; with
    ``adjust_lr_fn="match_rms_adamw"`` Muon's steps are as long as AdamW's and ``adam_lr`` is
    Muon's unless given. All others are Muon's.
    """
    kernels = options.pop("kernels", False)
    matched = options.get("adjust_lr_fn") == "match_rms_adamw"
    adam: dict[str, Any] = {"lr": options.get("lr", 1e-3) if matched else 1e-3, "weight_decay": 0.0}
    for name in [name for name in options if name.startswith("adam_")]:
        adam[name.removeprefix("adam_")] = options.pop(name)
    matrices = matrices_of(model, kernels=kernels)
    if not matrices:
        hint = "" if kernels else ": kernels = true takes those of convolutions"
        raise ValueError(
            f"Muon needs hidden layers that are matrices, and the model has none{hint}"
        )
    mine = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in mine]
    muon = MatrixMuon(matrices, **options)
    return [muon, AdamW(others, fused=True, **adam)] if others else [muon]


def matrices_of(model: nn.Module, *, kernels: bool = False) -> list[nn.Parameter]:
    """The parameters that Muon takes: matrices, with ``kernels`` also [out, in, height, width].

    Not tables of embeddings, nor what the model itself names as its ``ends``, the prefixes of its
    first and last layers.
    """
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    tables = {id(p) for module in embeddings for p in module.parameters()}
    ends = tuple(f"{prefix}." for prefix in getattr(model, "ends", ()))
    return [
        p
        for name, p in model.named_parameters()
        if p.dim() in ((2, 4) if kernels else (2,))
        and id(p) not in tables
        and not f"{name}.".startswith(ends)
    ]


class MatrixMuon(Muon):
    """torch's Muon, for kernels too, and with a rate that a CUDA graph can read.

    A kernel [o, i, h, w] counts as [o, i h w], its columns in the order of memory, whether that is
    channels last or not: the orthogonal factor of a matrix does not depend on it. torch's Muon
    reads its rate on the host. So it trains matrices of zeros here, at rate 1 and without decay;
    the weights take what it made of those, at the rate::

        w <- (1 - lr weight_decay) w + lr step
    """

    def __init__(self, weights: Iterable[nn.Parameter], **options: Any):
        self.weights = list(weights)
        steps = [nn.Parameter(torch.zeros_like(w.detach().flatten(1))) for w in self.weights]
        super().__init__(steps, **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A step from the weights' gradients; one without a gradient stays."""
        (group,) = self.param_groups
        for step, weight in zip(group["params"], self.weights, strict=True):
            if (step.dtype, step.device) != (weight.dtype, weight.device):
                step.data = step.data.to(weight)  # the model was cast or moved
            step.grad = None if weight.grad is None else _matrix(weight.grad, like=weight)
        rate, decay = group["lr"], group["weight_decay"]
        group.update(lr=1.0, weight_decay=0.0)
        try:
            loss = super().step(closure)  # type: ignore[no-untyped-call]
        finally:
            group.update(lr=rate, weight_decay=decay)
        pairs = [
            (step, _matrix(weight, like=weight))
            for step, weight in zip(group["params"], self.weights, strict=True)
            if step.grad is not None
        ]
        if pairs:
            steps, matrices = zip(*pairs, strict=True)
            torch._foreach_mul_(matrices, 1 - rate * decay)
            torch._foreach_mul_(steps, rate)
            torch._foreach_add_(matrices, steps)
            torch._foreach_zero_(steps)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the weights; those of the steps are made at every step."""
        for weight in self.weights:
            weight.grad = None


def _matrix(weight: Tensor, *, like: Tensor) -> Tensor:
    """A weight as a matrix, of ``like`` without a copy."""
    return (weight if like.is_contiguous() else weight.permute(0, 2, 3, 1)).flatten(1)
