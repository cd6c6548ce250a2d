"""One gradient as a CUDA graph, for optimizers that take a step from one gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from aliceopt.probe import BufferGuard

__all__ = ["CapturedGradient"]

_WARM_UPS = 3  # cuDNN and cuBLAS choose and allocate in the first calls, which a capture must not


class CapturedGradient:
    """Forward and backward on static inputs, replayed; leaves gradients in ``.grad``.

    Capturing trains nothing: buffers are put back as they were, and so is the random state.
    """

    def __init__(
        self, model: nn.Module, loss_of: Callable[[Any, Any], Tensor], batch: tuple[Tensor, Tensor]
    ):
        self._static = tuple(part.clone() for part in batch)
        self._loss_of = loss_of
        self._params = [param for param in model.parameters() if param.requires_grad]
        device = self._static[0].device
        state, buffers = torch.cuda.get_rng_state(device), BufferGuard(model)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        try:
            self._record(side, device)
        finally:
            buffers.restore()
            torch.cuda.set_rng_state(state, device)

    def _record(self, side: torch.cuda.Stream, device: torch.device) -> None:
        with warnings.catch_warnings():
            # Gradients accumulated on another stream than usual: that is what a capture does.
            warnings.filterwarnings("ignore", message=".*AccumulateGrad node's stream.*")
            with torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    self._evaluate()
            torch.cuda.current_stream(device).wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._loss = self._evaluate()
        self._grads = [param.grad for param in self._params]

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of this batch; its gradients are in ``.grad`` until the next call."""
        for static, new in zip(self._static, (inputs, targets), strict=True):
            static.copy_(new, non_blocking=True)
        for param, grad in zip(self._params, self._grads, strict=True):
            param.grad = grad
        self._graph.replay()
        return self._loss

    def _evaluate(self) -> Tensor:
        self._forget()
        loss = self._loss_of(*self._static)
        loss.backward()
        return loss.detach()

    def _forget(self) -> None:
        for param in self._params:
            param.grad = None
