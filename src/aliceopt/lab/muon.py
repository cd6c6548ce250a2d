"""Muon as the lab uses it: which parameters it takes, and convolution kernels as matrices."""

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
    muon = (KernelMuon if kernels else Muon)(matrices, **options)
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


class KernelMuon(Muon):
    """torch's Muon, which takes matrices alone, for kernels: [o, i, h, w] as [o, i h w].

    Its parameters are views of the kernels, so their columns stand in the order of memory, whether
    that is channels last or not; the orthogonal factor of a matrix does not depend on it.
    """

    def __init__(self, kernels: Iterable[nn.Parameter], **options: Any):
        self._kernels = list(kernels)
        views = [nn.Parameter(_matrix(p.detach(), like=p)) for p in self._kernels]
        super().__init__(views, **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A step from the kernels' gradients; one without a gradient stays."""
        views = [p for group in self.param_groups for p in group["params"]]
        for view, kernel in zip(views, self._kernels, strict=True):
            view.grad = None if kernel.grad is None else _matrix(kernel.grad, like=kernel)
        return super().step(closure)  # type: ignore[no-untyped-call]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the kernels; those of the views are made at every step."""
        for kernel in self._kernels:
            kernel.grad = None


def _matrix(kernel: Tensor, *, like: Tensor) -> Tensor:
    """A kernel as a matrix, of ``like`` without a copy."""
    return (kernel if like.is_contiguous() else kernel.permute(0, 2, 3, 1)).flatten(1)
