"""Alice itself: its averages, its step, and what it replicates. Every row runs the package."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from aliceopt import PAPER, Alice, options, step, topography
from aliceopt.theory import nesterov
from aliceopt.topography import Averages, Gradients, Rates

from .estimate import mean
from .registry import Claim, Context, Measurement, register

CLAIMS: list[Claim] = []
claim = functools.partial(register, CLAIMS)

BETA1, BETA2 = PAPER["betas"]
STEPS = 40
SIZE = 8

Gradient = Callable[[Tensor], Tensor]


class _Quadratic:
    """The gradient ``H x`` of a coupled quadratic, counting how often it is asked for."""

    def __init__(self, generator: torch.Generator) -> None:
        half = torch.randn(SIZE, 2 * SIZE, generator=generator, dtype=torch.float64)
        self.hessian = half @ half.T / SIZE
        self.start = torch.randn(SIZE, generator=generator, dtype=torch.float64)
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.hessian @ x


def _alice(start: Tensor, **settings: Any) -> tuple[Tensor, Alice]:
    """A parameter and its Alice with the paper's settings, but for those given."""
    x = start.clone().requires_grad_()
    return x, Alice([x], **{**PAPER, **settings}, implementation="eager")


def _step(optimizer: Alice, x: Tensor, gradient: Gradient) -> None:
    def closure() -> None:
        x.grad = gradient(x.detach()).clone()

    optimizer.step(closure)


@claim(
    "thm6-alice",
    "Theorem 6, Alg. 2 and 3",
    "Alice on a quadratic: error of the running gradient minus -b1^(k+1) g_0, largest",
    paper="0",
)
def alice_is_exact(context: Context) -> Measurement:
    """The optimizer's own ``g``, against the gradient at its own position before each move.

    Curvature terms, bounds, weight decay and a look-ahead of 1.5 are on: phi follows from it.
    """
    gradient = _Quadratic(context.generator("thm6-alice"))
    settings = {"lr": 0.05, "lookahead": 1.5, "weight_decay": 0.1, "quick_steps": 1}
    x, optimizer = _alice(gradient.start, **settings)
    first, gaps = gradient(gradient.start), []
    for k in range(STEPS):
        true = gradient(x.detach())
        _step(optimizer, x, gradient)
        error = optimizer.state[x]["grad_avg"] - true
        gaps.append(error - nesterov.gradient_error(first, BETA1, k + 1))
    gap = (torch.stack(gaps).abs().max() / first.norm()).item()
    return Measurement(gap, 0.0, tolerance=1e-12, paper=0.0)


@claim(
    "signed-unbiased",
    "Theorem 3, Alg. 2",
    "Alice's signed Hessian of a random quadratic, projected on its diagonal",
    paper="1",
)
def signed_unbiased(context: Context) -> Measurement:
    """``E[t (g+ - g-)/(2 lambda)] = diag(H)``, negative entries included.

    Alice's own signs, probes and averages, in many copies of the quadratic at once, standing
    still.
    """
    generator = context.generator("signed")
    half = torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)
    hessian = half + half.T
    start = torch.ones(context.draws(512, least=128), SIZE, dtype=torch.float64)
    settings = {"lr": 1e-9, "probe_radius": 0.01, "hessian": "signed", "quick_steps": 0}
    x, optimizer = _alice(start, **settings)
    for _ in range(STEPS):
        _step(optimizer, x, lambda p: p @ hessian)
    found = optimizer.state[x]["hess"] / (1 - BETA2**STEPS)
    diagonal = hessian.diagonal()
    measured = mean(found @ diagonal / diagonal.square().sum())
    return Measurement(measured.value, 1.0, error=measured.error, tolerance=1e-6, paper=1.0)


def _replicates(
    context: Context, settings: dict[str, Any], other: Callable[[Tensor], torch.optim.Optimizer]
) -> Measurement:
    """Largest difference of two trajectories, over the distance travelled, with their cost."""
    ours, theirs = (_Quadratic(context.generator("replicates")) for _ in range(2))
    x, optimizer = _alice(ours.start, step_fraction=1.0, lookahead=1.0, **settings)
    y = theirs.start.clone().requires_grad_()
    rival, gap = other(y), 0.0
    for _ in range(STEPS):
        _step(optimizer, x, ours)
        y.grad = theirs(y.detach())
        rival.step()
        gap = max(gap, (x - y).abs().max().item())
    gap /= (y.detach() - theirs.start).norm().item()
    note = f"{ours.calls / theirs.calls:g} gradients a step against 1"
    return Measurement(gap, 0.0, tolerance=1e-12, paper=0.0, note=note)


@claim(
    "replicates-adam",
    "Methods",
    "phi = omega = 1, equal Adam bounds: largest distance from torch's Adam",
    paper="0",
)
def replicates_adam(context: Context) -> Measurement:
    """Step for step, with bias-corrected averages; curvature is measured and never used."""
    settings = {"lr": 0.01, "lr_min": 0.01}
    return _replicates(context, settings, lambda y: torch.optim.Adam([y], lr=0.01))


@claim(
    "replicates-sgdm",
    "Methods",
    "phi = omega = 1, equal SGD-M bounds: largest distance from torch's SGD with momentum",
    paper="0",
)
def replicates_sgdm(context: Context) -> Measurement:
    """A rate L on the running average is torch's rate ``L (1 - b1)`` with momentum ``b1``."""
    settings = {"lr": 0.1, "lr_min": 0.1, "limit": "sgd", "probe_radius": 0.01}
    rate = 0.1 * (1 - BETA1)
    return _replicates(context, settings, lambda y: torch.optim.SGD([y], lr=rate, momentum=BETA1))


@claim(
    "quick-steps",
    "Methods",
    "Gradients per 4 steps with 3 quick steps between measuring ones",
    paper="6",
)
def quick_steps(context: Context) -> Measurement:
    """One measuring step of 3 gradients and q quick ones of 1: ``(q + 3)`` per ``q + 1`` steps."""
    counts = []
    for quick in (3, 0):
        gradient = _Quadratic(context.generator("quick-steps"))
        x, optimizer = _alice(gradient.start, quick_steps=quick)
        for _ in range(STEPS):
            _step(optimizer, x, gradient)
        counts.append(4 * gradient.calls / STEPS)
    return Measurement(counts[0], 3 + 3, paper=6.0, note=f"{counts[1]:g} without quick steps")


@claim(
    "quick-memory",
    "Algorithm 2",
    "Steps in which h forgets, 3 quick steps between measuring ones, over those without",
    paper="4",
    correction="a choice, not a slip: with b2 at every measuring step, as printed, curvature is "
    "remembered for q + 1 times as many steps; Alice uses b2^(q + 1)",
)
def quick_memory(context: Context) -> Measurement:
    """A curvature that is there for the first measurement only fades by ``b2`` a step."""
    often, seldom = (_fading(quick) for quick in (0, 3))
    return Measurement(often / seldom, 1.0, tolerance=1e-9, paper=4.0)


def _fading(quick: int) -> float:
    """By what power of e a step ``h`` falls once the loss has become linear."""
    x, optimizer = _alice(torch.ones(1, dtype=torch.float64), quick_steps=quick)
    _step(optimizer, x, lambda p: p)
    first = optimizer.state[x]["hess"].item()
    for _ in range(STEPS):
        _step(optimizer, x, torch.ones_like)
    return math.log(first / optimizer.state[x]["hess"].item()) / STEPS


def _after_one(
    context: Context, *, glass: bool, hessian: str, **settings: Any
) -> tuple[Averages, Rates]:
    """Averages after the first step, a measuring one, and the numbers that go with it."""
    generator = context.generator("first-step")
    center, change, jump, zero = torch.rand(4, 100, generator=generator, dtype=torch.float64) + 0.1
    zero = torch.zeros_like(zero)
    group = {**PAPER, "glass": glass, "hessian": hessian, "quick_steps": 0, "eps": 0.0}
    rates = options.rates(
        {**group, **settings, "maximize": False}, count=1, weight=0.0, measuring=True
    )
    grads = Gradients(center, center + change + jump, center - change + jump, 0.01)
    empty = Averages(zero, zero, zero if glass else None, zero if hessian != "none" else None)
    return topography.updated(empty, grads, rates), rates


def _as_printed(rates: Rates) -> Rates:
    """The same without any correction for averages that start at zero."""
    return replace(rates, grad_weight=1.0, sq_weight=1.0, topo_weight=1.0)


def _inflation(context: Context, *, glass: bool) -> float:
    """Quasi-Newton length of the first step, as printed over Alice's."""
    averages, rates = _after_one(context, glass=glass, hessian="none" if glass else "abs")
    printed, ours = (step.anatomy(averages, r).newton for r in (_as_printed(rates), rates))
    assert printed is not None
    assert ours is not None
    return (printed / ours).mean().item()


@claim(
    "zero-hessian",
    "Algorithms 1 and 2",
    "First quasi-Newton length without a correction over Alice's, Hessian only",
    paper="not stated",
)
def zero_hessian(context: Context) -> Measurement:
    """``(1 - b1)/(1 - b2)``: the length is ``g/h`` and h has hardly begun to grow."""
    expected = (1 - BETA1) / (1 - BETA2)
    return Measurement(_inflation(context, glass=False), expected, tolerance=1e-9 * expected)


@claim(
    "zero-glass",
    "Algorithms 1 and 2",
    "First quasi-Newton length without a correction over Alice's, glass only",
    paper="not stated",
)
def zero_glass(context: Context) -> Measurement:
    """``(1 - b1)^2/(1 - b2)``: the length is ``2 pi g^2 / (3 rho)``."""
    expected = (1 - BETA1) ** 2 / (1 - BETA2)
    return Measurement(_inflation(context, glass=True), expected, tolerance=1e-9 * expected)


@claim(
    "zero-bound",
    "Algorithm 3",
    "First step as printed, at its Adam bound, over the first step of Adam",
    paper="1",
    correction="averages that start at zero need Adam's correction; as printed the upper bound "
    "itself is too long at first, and equal bounds do not replicate Adam",
)
def zero_bound(context: Context) -> Measurement:
    """``(1 - b1)/sqrt(1 - b2)``: the clamp holds an inflated step, at an inflated bound."""
    averages, rates = _after_one(context, glass=True, hessian="abs", lr=1e-9)
    printed = step.anatomy(averages, _as_printed(rates)).length().max().item()
    ours = step.anatomy(averages, rates).length().max().item()
    expected = (1 - BETA1) / math.sqrt(1 - BETA2)
    return Measurement(
        printed / rates.lr,
        expected,
        tolerance=1e-9,
        paper=1.0,
        note=f"Alice's {ours / rates.lr:g}",
    )


@claim(
    "thm5-eps",
    "Theorem 5, Alg. 3",
    "Alice's glass curvature at |g| = eps = rho",
    paper="Thm 5: 3 rho / (4 pi |g| + eps)",
    correction="Theorem 5 adds eps to 4 pi |g|, Algorithm 3 to |g|; the package follows the "
    "algorithm",
)
def two_epsilons(context: Context) -> Measurement:
    """``(3/4 pi) rho / (|g| + eps) = 3/(8 pi)`` against ``3 rho / (4 pi |g| + eps)``."""
    averages, rates = _after_one(context, glass=True, hessian="none")
    eps = torch.full((1,), 1e-8, dtype=torch.float64)
    averages = averages._replace(grad_avg=eps, grad_sq=eps.square(), glass_density=eps)
    found = step.anatomy(averages, replace(_as_printed(rates), eps=1e-8)).glass_curvature
    assert found is not None
    printed = 3 / (4 * math.pi + 1)
    note = f"Theorem 5's form gives {printed:.4f}"
    return Measurement(found.item(), 3 / (8 * math.pi), tolerance=1e-12, paper=printed, note=note)
