"""A step from one gradient as a CUDA graph: forward, backward, and the update where possible."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer

from aliceopt.lab.optimizers.adahessian import AdaHessian
from aliceopt.lab.optimizers.muon import MatrixMuon
from aliceopt.probe import BufferGuard

_WARM_UPS = 3  # cuDNN and cuBLAS choose and allocate in the first calls, which a capture must not


def is_capturable(optimizer: Optimizer) -> bool:
    """Whether a graph can hold its update: all it reads is, or can be made, a device's tensor."""
    # The first step does not dampen, which a graph cannot know.
    dampened = any(group.get("dampening") for group in optimizer.param_groups)
    return type(optimizer) in (Adam, AdamW, NAdam, SGD, MatrixMuon, AdaHessian) and not dampened


class GraphStep:
    """A step on static inputs, replayed; ``gradient(inputs, targets)`` leaves ``.grad``.

    If ``optimizers`` are given, ``update``, which has them step, is part of it, and their learning
    rates become tensors. Capturing trains nothing: buffers are put back as they were, and so is
    the random state.
    """

    def __init__(
        self,
        model: nn.Module,
        gradient: Callable[[Any, Any], Tensor],
        batch: tuple[Tensor, Tensor],
        optimizers: Sequence[Optimizer],
        update: Callable[[], None],
    ):
        self._static = tuple(part.clone() for part in batch)
        self._gradient = gradient
        self._params = [param for param in model.parameters() if param.requires_grad]
        device = self._static[0].device
        state, buffers = torch.cuda.get_rng_state(device), BufferGuard(model)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        try:
            with warnings.catch_warnings():
                # Gradients accumulated on another stream than usual: that is what a capture does.
                warnings.filterwarnings("ignore", message=".*AccumulateGrad node's stream.*")
                with torch.cuda.stream(side):
                    for _ in range(_WARM_UPS):
                        self._evaluate()
                    for optimizer in optimizers:
                        _make_capturable(optimizer, device)
                torch.cuda.current_stream(device).wait_stream(side)
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph):
                    self._loss = self._evaluate()
                    if optimizers:
                        update()
            self._grads = [param.grad for param in self._params]
        finally:
            buffers.restore()
            torch.cuda.set_rng_state(state, device)

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of this batch; its gradients are in ``.grad`` until the next call."""
        for static, new in zip(self._static, (inputs, targets), strict=True):
            static.copy_(new, non_blocking=True)
        for param, grad in zip(self._params, self._grads, strict=True):
            param.grad = grad
        self._graph.replay()
        return self._loss

    def _evaluate(self) -> Tensor:
        for param in self._params:
            param.grad = None
        return self._gradient(*self._static)


@torch.no_grad()
def _make_capturable(optimizer: Optimizer, device: torch.device) -> None:
    """Rates that a graph can read, and states that are there before it; nothing is trained."""
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(float(group["lr"]), device=device)
        if "capturable" in group:
            group["capturable"] = True
    for state in optimizer.state.values():  # of a run that goes on
        state.update({k: v.to(device) for k, v in state.items() if isinstance(v, Tensor)})
    if optimizer.state:
        return
    rates = [group["lr"].clone() for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"].zero_()
        for param in group["params"]:
            if param.grad is not None:
                param.grad.zero_()
    optimizer.step()  # makes the states; all start at zero but NAdam's product of momenta
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"].copy_(rate)
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor):
                value.fill_(1.0 if name == "mu_product" else 0.0)
