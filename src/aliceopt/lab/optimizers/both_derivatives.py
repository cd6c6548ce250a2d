"""A gradient and the Hessian along signs as one function, which torch.compile can take as a whole.

What torch.compile makes of a loss cannot be differentiated twice; what it makes of both
derivatives need not be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.func import functional_call, grad

from aliceopt.lab.optimizers.adahessian import products, signs_like
from aliceopt.probe import BufferGuard, RandomState

LossOf = Callable[[Any, Any], Tensor]
Named = dict[str, Tensor]
Take = Callable[["_Called", Named, Named, LossOf, Any, Any], tuple[Tensor, Named, Named]]

TOLERANCE = 0.05
"""How far two ways to the same products may be apart, of their size: bfloat16 has two digits."""


class BothDerivatives:
    """Loss, gradients g and ``z (H z)`` of a batch for random signs z, compiled.

    For batches shaped like ``batch`` (`fits`), and for the parameters that its loss reaches.
    Buffers are left as one forward pass leaves them. Making it tries ``batch``, which changes
    nothing, and raises where torch.compile cannot take the whole, or would make something else of
    it than plain double backward.
    """

    def __init__(self, model: nn.Module, loss_of: LossOf, batch: tuple[Any, Any]):
        if not all(isinstance(part, Tensor) for part in batch):
            raise TypeError("batches are no pairs of tensors")
        self._shapes = [part.shape for part in batch]
        self._model = _Called(model)
        self._take: Take = both_derivatives
        named = self._model.named_parameters()
        trained: Named = {name: param for name, param in named if param.requires_grad}
        buffers, random = BufferGuard(model), RandomState(p.device for p in trained.values())

        def start_again() -> None:
            buffers.restore()
            random.restore()

        try:
            loss = loss_of(*batch)
            refuse_own_backward(loss)
            self._params = reached(loss, trained)
            start_again()
            wanted = _plain_diagonals(loss_of, batch, list(self._params.values()))
            start_again()
            _, _, found = self(loss_of, *batch)
            apart = [f - w for f, w in zip(found.values(), wanted, strict=True)]
            if _size(apart) > TOLERANCE * _size(wanted):
                raise RuntimeError("torch.func and plain double backward give different products")
            self._take = torch.compile(both_derivatives, fullgraph=True)
            self(loss_of, *batch)
        finally:
            start_again()

    def fits(self, *batch: Any) -> bool:
        """Whether a batch is shaped like the first."""
        return [getattr(part, "shape", None) for part in batch] == self._shapes

    @torch.no_grad()
    def __call__(
        self, loss_of: LossOf, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[Tensor, Tensor], dict[Tensor, Tensor]]:
        """The loss, and by parameter g and ``z (H z)``, z drawn as `signs_like` does."""
        params = {name: p.detach() for name, p in self._params.items()}
        # Drawn here, since what is compiled would draw other numbers.
        signs = dict(zip(params, signs_like(params.values()), strict=True))
        loss, *found = self._take(self._model, params, signs, loss_of, inputs, targets)
        grads, diagonals = ({p: one[name] for name, p in self._params.items()} for one in found)
        return loss, grads, diagonals


def both_derivatives(
    model: _Called, params: Named, signs: Named, loss_of: LossOf, inputs: Any, targets: Any
) -> tuple[Tensor, Named, Named]:
    """The loss with ``params`` in the model, its gradient g, and z (H z), H z the gradient of g z.

    Reverse over reverse, as plain double backward: forward over reverse is no cheaper, and under
    autocast torch's forward derivative of BatchNorm is float32 where the next layer is bfloat16.
    """
    buffers = dict(model.named_buffers())

    def loss(params: Named) -> tuple[Tensor, tuple[Tensor, Named]]:
        # Copies, since within a derivative nothing may be written to what it was not given.
        state = params | {name: buffer.clone() for name, buffer in buffers.items()}
        value = functional_call(model, state, (loss_of, inputs, targets))
        return value, (value, {name: state[name] for name in buffers})

    def slope(params: Named) -> tuple[Tensor, tuple[Named, Tensor, Named]]:
        grads, (value, after) = grad(loss, has_aux=True)(params)
        along = torch.stack([(grads[name] * z).sum() for name, z in signs.items()]).sum()
        return along, (grads, value, after)

    curved, (grads, value, after) = grad(slope, has_aux=True)(params)
    for name, buffer in buffers.items():
        buffer.copy_(after[name])
    return value, grads, {name: z * curved[name] for name, z in signs.items()}


def reached(loss: Tensor, params: Named) -> Named:
    """Those of the parameters that a loss depends on."""
    grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
    pairs = zip(params.items(), grads, strict=True)
    return {name: param for (name, param), grad in pairs if grad is not None}


def refuse_own_backward(loss: Tensor) -> None:
    """Raise where an `autograd.Function` is on the way to a loss.

    Of what it saves for its backward torch.compile makes a constant, and the product is wrong.
    """
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, BackwardCFunction):
            raise RuntimeError(f"{node.name()} is of an autograd.Function")
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [behind for behind, _ in node.next_functions]


def _plain_diagonals(loss_of: LossOf, batch: tuple[Any, Any], params: list[Tensor]) -> list[Tensor]:
    """``z (H z)`` by plain double backward; signs are drawn first, as `BothDerivatives` does."""
    signs = signs_like(params)
    grads = torch.autograd.grad(loss_of(*batch), params, create_graph=True)
    found = products(list(grads), params, signs, last=True)
    return [z * product for z, product in zip(signs, found, strict=True)]


def _size(tensors: list[Tensor]) -> float:
    return float(torch.stack(torch._foreach_norm(tensors)).norm())


class _Called(nn.Module):
    """A model that somebody calls while `functional_call` has its tensors replaced."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, loss_of: LossOf, inputs: Any, targets: Any) -> Tensor:
        """The loss, from a function that calls the model."""
        return loss_of(inputs, targets)
