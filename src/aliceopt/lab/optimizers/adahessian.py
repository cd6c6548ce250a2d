"""AdaHessian as the lab uses it: a step of two halves, both of which a CUDA graph can hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from aliceopt.lab.typed import NotNegative, Positive, checked, whole


class AdaHessian(Optimizer):
    """Adam whose second moment is that of the Hessian's diagonal (Yao et al., 2021).

    With signs z, and averages corrected for bias as Adam's are::

        d = mean of z (H z)      m <- b1 m + (1 - b1) g      v <- b2 v + (1 - b2) d^2
        w <- (1 - lr weight_decay) w - lr m / (v^(hessian_power / 2) + eps)

    `backward` stands in the place of ``loss.backward()``: it leaves ``.grad``, and keeps d for the
    step; `receive` does the same with what was computed elsewhere. d is drawn with torch's
    generator, ``num_samples`` times at every ``update_period``-th gradient; in between v stays. A
    kernel's d is not averaged over its positions.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-16,
        weight_decay: float = 0.0,
        hessian_power: float = 1.0,
        num_samples: int = 1,
        update_period: int = 1,
    ):
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), got {betas!r}")
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            checked(NotNegative, float(value), name)
        checked(Positive, hessian_power, "hessian_power")
        self.num_samples: int = checked(whole(1), num_samples, "num_samples")
        self.update_period: int = checked(whole(1), update_period, "update_period")
        options = {"eps": eps, "weight_decay": weight_decay, "hessian_power": hessian_power}
        super().__init__(params, {"lr": lr, "betas": betas, **options, "calls": 0})
        self._diagonals: dict[Tensor, Tensor] = {}

    def backward(self, loss: Tensor) -> int:
        """Gradients and, when they are due, diagonals; returns how many gradients that cost."""
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        due = self.param_groups[0]["calls"] % self.update_period == 0
        self.param_groups[0]["calls"] += 1
        slopes = torch.autograd.grad(loss, params, create_graph=due, allow_unused=True)
        pairs = [(p, g) for p, g in zip(params, slopes, strict=True) if g is not None]
        for param, grad in zip(params, slopes, strict=True):
            param.grad = None if grad is None else grad.detach()
        if not (due and pairs):
            return 1
        params, grads = [p for p, _ in pairs], [g for _, g in pairs]
        self._diagonals = {p: torch.zeros_like(p) for p in params}
        for sample in range(self.num_samples):
            signs = signs_like(params)
            last = sample == self.num_samples - 1
            found = products(grads, params, signs, last)
            for p, z, product in zip(params, signs, found, strict=True):
                self._diagonals[p].addcmul_(z, product, value=1 / self.num_samples)
        return 1 + 2 * self.num_samples

    def receive(self, grads: Mapping[Tensor, Tensor], diagonals: Mapping[Tensor, Tensor]) -> int:
        """In the place of `backward`: g and z (H z) by parameter; those without have no gradient.

        Returns what that cost: a gradient and one product.
        """
        self.param_groups[0]["calls"] += 1
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = grads.get(param)
        self._diagonals = dict(diagonals)
        return 3

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """From ``.grad`` and the diagonals that `backward` left; without a gradient one stays."""
        if closure is not None:
            raise ValueError("AdaHessian takes no closure: call backward(loss), then step()")
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            for p in params:
                if not self.state[p]:
                    # In float64, since 1 - beta^k of a float32 is right to four digits only.
                    count = torch.zeros((), dtype=torch.float64, device=p.device)
                    zeros = {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                    self.state[p].update({"step": count, **zeros})
            names, (beta1, beta2) = ("step", "m", "v"), group["betas"]
            steps, m, v = ([self.state[p][name] for p in params] for name in names)
            torch._foreach_add_(steps, 1)
            torch._foreach_lerp_(m, [p.grad for p in params], 1 - beta1)
            if self._diagonals:
                d = [self._diagonals[p] for p in params]
                torch._foreach_mul_(v, beta2)
                torch._foreach_addcmul_(v, d, d, 1 - beta2)
            lengths = torch._foreach_div(v, _corrections(beta2, steps))
            torch._foreach_pow_(lengths, group["hessian_power"] / 2)
            torch._foreach_add_(lengths, group["eps"])
            update = torch._foreach_div(m, _corrections(beta1, steps))
            torch._foreach_div_(update, lengths)
            torch._foreach_mul_(update, group["lr"])
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_sub_(params, update)
        self._diagonals = {}


def _corrections(beta: float, steps: list[Tensor]) -> list[Tensor]:
    """``1 - beta^k`` for each k, in a few kernels: a list of numbers would take two for each."""
    powers = torch._foreach_pow(beta, steps)
    torch._foreach_neg_(powers)
    torch._foreach_add_(powers, 1)
    return list(powers)


def signs_like(params: Iterable[Tensor]) -> list[Tensor]:
    """Tensors of -1 and 1 with equal odds: of torch's generator one draw a parameter, in order."""
    signs = [torch.randint_like(p, 0, 2) for p in params]
    torch._foreach_mul_(signs, 2.0)
    torch._foreach_sub_(signs, 1.0)
    return signs


def products(
    grads: list[Tensor], params: list[Tensor], signs: list[Tensor], last: bool
) -> list[Tensor]:
    """``H z``, zero where no gradient depends on a parameter; the ``last`` one frees the graph."""
    curved = [(g, z) for g, z in zip(grads, signs, strict=True) if g.requires_grad]
    if not curved:
        return [torch.zeros_like(p) for p in params]
    bent, along = zip(*curved, strict=True)
    return list(
        torch.autograd.grad(
            bent, params, along, retain_graph=not last, allow_unused=True, materialize_grads=True
        )
    )
