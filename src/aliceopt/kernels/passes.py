"""What is compiled for the CPU: single passes over flat tensors, every number a tensor value.

The arithmetic is that of `aliceopt.topography` and `aliceopt.step`, arranged for few divisions and
roots, so results agree with theirs to rounding. With ``y = |g| + eps`` and
``q = (3 / 8 pi) rho`` Theorem 5's denominator is a square,

    y hbar = (sqrt(q) + sqrt(q + h y))^2 + eps y,

which needs no special case for ``q = 0``; and where the bounds are proportional to ``|g|``, the
step is ``-g`` times a clamped ratio, which needs no sign.

Options that change the structure are Python constants (`Kind`); what changes from step to step
comes in one tensor of `Numbers`. So a pass is compiled once for each kind, whatever the learning
rate and the number of elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..signs import Key, _hash_words
from ..theory.curvature import GLASS_CURVATURE_FACTOR
from ..topography import Rates
from .words import WORD_BITS

__all__ = ["Kind", "Numbers", "displace_", "hash_", "numbers_of", "swap_", "update_pass_"]


class Kind(NamedTuple):
    """The structure of one update.

    ``low``: the parameter has fewer bits than its state, so a copy of the new mu is kept, and the
    probes' distance is a tensor. ``scaled``: gradients are multiplied by a factor. ``floor``,
    ``decay`` and ``eps``: these are not zero.
    """

    limit: str
    hessian: str
    glass: bool
    measuring: bool
    measured: bool
    low: bool
    scaled: bool
    floor: bool
    decay: bool
    eps: bool

    @property
    def swapped(self) -> bool:
        """Whether the parameter holds nu and the probe center mu when the update begins.

        Otherwise mu is read from a tensor of its own.
        """
        return not (self.measuring or self.low)

    @property
    def written(self) -> tuple[str, ...]:
        """Names of the tensors that the update writes."""
        kept = {"grad", "plus", "minus", "mu", "radius", "words"}
        if not self.measuring:
            kept |= {"glass_density", "hess"}
        return tuple(name for name in self.tensors if name not in kept)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the flat tensors the update reads or writes, in the order it takes them."""
        curvature = self.measuring or self.measured
        wanted = {
            "param": True,
            "probe_center": True,
            "grad_avg": True,
            "grad_sq": True,
            "grad": True,
            "mu": not self.swapped,
            "position": self.low,
            "glass_density": self.glass and curvature,
            "hess": self.hessian != "none" and curvature,
            "plus": self.measuring,
            "minus": self.measuring,
            "radius": self.measuring and self.low,
            "words": self.measuring and self.hessian == "signed",
        }
        return tuple(name for name, on in wanted.items() if on)


class Numbers(NamedTuple):
    """The numbers of one update: floats, or 0-dim tensors in state precision."""

    factor: Any
    beta1: Any
    rest1: Any
    beta2: Any
    rest2: Any
    beta_topo: Any
    rest_topo: Any
    over_grad_weight: Any
    over_sq_weight: Any
    over_topo_weight: Any
    half_glass: Any
    over_two_radius: Any
    two_over_radius: Any
    lower: Any
    upper: Any
    eps: Any
    step_fraction: Any
    lookahead: Any
    decay: Any


def numbers_of(rates: Rates, radius: float, factor: float) -> Numbers:
    """The `Numbers` of an update at these rates; ``factor`` multiplies every gradient."""
    # The bounds multiply the corrected |g|, but "sgd" means the uncorrected one.
    unit = rates.grad_weight if rates.limit == "sgd" else 1.0
    over_topo = 1 / rates.topo_weight if rates.topo_weight > 0 else 0.0
    return Numbers(
        factor=factor,
        beta1=rates.beta1,
        rest1=1 - rates.beta1,
        beta2=rates.beta2,
        rest2=1 - rates.beta2,
        beta_topo=rates.beta_topo,
        rest_topo=1 - rates.beta_topo,
        over_grad_weight=1 / rates.grad_weight,
        over_sq_weight=1 / rates.sq_weight,
        over_topo_weight=over_topo,
        half_glass=GLASS_CURVATURE_FACTOR / 2 * over_topo,
        over_two_radius=1 / (2 * radius) if radius > 0 else 0.0,
        two_over_radius=2 / radius if radius > 0 else 0.0,
        lower=min(rates.lr_min, rates.lr) * unit,
        upper=rates.lr * unit,
        eps=rates.eps,
        step_fraction=rates.step_fraction,
        lookahead=rates.lookahead,
        decay=rates.lr * rates.weight_decay,
    )


def hash_(key: Tensor, words: Tensor) -> None:
    """Fill ``words`` with those of consecutive indices; ``key`` is low, high and first index."""
    low, high, first = key.unbind()
    index = first + torch.arange(words.shape[0], device=words.device)
    words.copy_(_hash_words(Key(low, high), index))  # type: ignore[arg-type]


def displace_(radius: Tensor, param: Tensor, probe_center: Tensor, words: Tensor) -> None:
    """``param = nu + radius t``; a negative radius gives the other side."""
    param.copy_(probe_center + radius * _signs(words, param))


def swap_(yes: Tensor, param: Tensor, probe_center: Tensor) -> None:
    """Exchange the two, if ``yes``: as values that depend on it, they are read before either is
    written, in one pass.
    """
    first, second = (
        torch.where(yes, probe_center, param),
        torch.where(yes, param, probe_center),
    )
    param.copy_(first)
    probe_center.copy_(second)


def _signs(words: Tensor, like: Tensor) -> Tensor:
    index = torch.arange(like.shape[0], device=like.device)
    bits = (words[index // WORD_BITS] >> (index % WORD_BITS)) & 1
    return (2 * bits - 1).to(like.dtype)


def update_pass_(kind: Kind, numbers: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
    """Averages, position and probe center of every element; returns how many were left alone."""
    n = Numbers(*numbers.unbind())
    t = dict(zip(kind.tensors, tensors, strict=True))
    mu, nu = (t["probe_center"], t["param"]) if kind.swapped else (t["mu"], t["probe_center"])
    names = ("grad", "plus", "minus") if kind.measuring else ("grad",)
    grads = [t[name].to(mu.dtype) for name in names]
    if kind.scaled:
        grads = [grad * n.factor for grad in grads]
    ok = grads[0].abs() < math.inf
    for grad in grads[1:]:
        ok = ok & (grad.abs() < math.inf)
    new = {
        "grad_avg": n.beta1 * t["grad_avg"] + n.rest1 * grads[0],
        "grad_sq": n.beta2 * t["grad_sq"] + n.rest2 * (grads[0] * grads[0]),
    }
    if kind.measuring:
        new |= _topography(kind, n, t, grads)
    u = _step(kind, n, {**t, **new})
    if kind.decay:
        u = u - n.decay * mu
    new = {name: torch.where(ok, value, t[name]) for name, value in new.items()}
    new["probe_center"] = torch.where(ok, mu + n.lookahead * u, nu)
    new["param"] = torch.where(ok, mu + n.step_fraction * u, mu)
    if kind.low:
        new["position"] = new["param"]
    for name, value in new.items():
        t[name].copy_(value)
    return ok.logical_not().sum()


def _topography(
    kind: Kind, n: Numbers, t: dict[str, Tensor], grads: Sequence[Tensor]
) -> dict[str, Tensor]:
    """New averages of glass density and Hessian from the three gradients of a full step."""
    g0, plus, minus = grads
    new = {}
    if kind.glass:
        second = (plus + minus) * 0.5 - g0
        two_over_radius = 2 / t["radius"] if kind.low else n.two_over_radius
        new["glass_density"] = second * second * two_over_radius
    if kind.hessian != "none":
        x = (plus - minus) * (0.5 / t["radius"] if kind.low else n.over_two_radius)
        if kind.hessian == "abs":
            x = x.abs()
        elif kind.hessian == "rms":
            x = x * x
        else:
            x = x * _signs(t["words"], x)
        new["hess"] = x
    return {name: n.beta_topo * t[name] + n.rest_topo * sample for name, sample in new.items()}


def _step(kind: Kind, n: Numbers, t: dict[str, Tensor]) -> Tensor:
    """The bounded quasi-Newton step from the averages in ``t``."""
    g = t["grad_avg"] * n.over_grad_weight
    lower, length = n.lower, n.upper
    if kind.limit == "adam":
        over_root = 1 / ((t["grad_sq"] * n.over_sq_weight).sqrt() + n.eps)
        lower, length = lower * over_root, length * over_root
    if kind.measured:
        newton = _over_curvature(kind, n, t, g.abs())
        if kind.limit == "fixed":
            newton = g.abs() * newton
        if kind.floor:
            newton = torch.maximum(newton, lower)
        length = torch.minimum(newton, length)
    if kind.limit != "fixed":
        # Without eps the length may not be a number where the gradient vanishes.
        return -g * length if kind.eps else torch.where(g == 0, 0.0, -g * length)
    return torch.where(g == 0, 0.0, torch.where(g > 0, -length, length))


def _over_curvature(kind: Kind, n: Numbers, t: dict[str, Tensor], size: Tensor) -> Tensor:
    """``1 / hbar`` at gradients of this size."""
    over: Tensor
    y = size + n.eps
    if kind.hessian == "none":
        over = y / (4 * (t["glass_density"] * n.half_glass) + n.eps * y)
        return over
    h = t["hess"] * n.over_topo_weight
    h = h.sqrt() if kind.hessian == "rms" else h.abs() if kind.hessian == "signed" else h
    if kind.glass:
        q = t["glass_density"] * n.half_glass
        root = q.sqrt() + (q + h * y).sqrt()
        over = y / (root * root + n.eps * y)
    else:
        over = 1 / (h + n.eps)
    return over
