"""Theorem 1 on real networks: where it holds, and the three places where its bound does not."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from aliceopt import topography
from aliceopt.topography import Gradients

from . import relu_network
from .estimate import Estimate, exponent, mean, ratio
from .excursions import trained_networks
from .registry import Claim, Context, Measurement, register
from .relu_network import HIDDEN, RADII, THRESHOLD, Comparison, NetworkVariation, flatten, slope

CLAIMS: list[Claim] = []
claim = functools.partial(register, CLAIMS)

DRAWS = 300
LARGE_RADIUS = 0.3
BATCHES = (16, 64, 256, 1024)
BATCH_RADIUS = 0.01
EXAMPLES = 16_384
"""Examples per batch size: fewer networks for larger batches."""


def _relu(context: Context) -> NetworkVariation:
    """Variations of fresh ReLU networks: exponents need all their draws, at any ``samples``."""
    return context.once(
        "network-relu",
        lambda: relu_network.measure(
            context.generator("network-relu"), draws=context.draws(DRAWS, least=DRAWS)
        ),
    )


def _fresh(context: Context) -> Comparison:
    """Fresh networks against Theorem 1 at the smallest radius."""

    def compute() -> Comparison:
        count = context.draws(DRAWS, least=DRAWS)
        networks = relu_network.sample_networks(count, context.generator("network-fresh"))
        return relu_network.compare(networks, RADII[0])

    return context.once("network-fresh", compute)


@claim(
    "thm1-net-second",
    "Theorem 1",
    "Fresh ReLU networks: exponent of the second difference of the hidden layer's gradient",
    paper="p = 1",
)
def second_difference(context: Context) -> Measurement:
    """``(g+ + g-)/2 - g0`` cancels the Hessian, and what is left grows linearly in the square."""
    measured = _relu(context).second_exponent
    return Measurement(measured, 1.0, tolerance=0.1, paper=1.0)


@claim(
    "thm1-net-variation",
    "Figure 1",
    "Fresh ReLU networks: exponent of the variation of the hidden layer's gradient",
    paper="< 2",
)
def one_sided(context: Context) -> Measurement:
    """``g(mu + d) - g(mu)`` holds glass and Hessian; at small radii the glass dominates."""
    measured = _relu(context).hidden_exponent
    return Measurement(measured, 1.3, relation="<=", paper=2.0, paper_relation="<=")


@claim(
    "thm1-net-output",
    "Figure 1",
    "Fresh ReLU networks: exponent for the output layer, which has no ReLU behind it",
    paper="p = 2",
)
def output_layer(context: Context) -> Measurement:
    """The gradient of the last layer is continuous, so only the Hessian is left."""
    return Measurement(_relu(context).output_exponent, 2.0, tolerance=0.02, paper=2.0)


@claim(
    "thm1-net-gelu",
    "Theorem 1",
    "Fresh networks with GELU in place of ReLU: exponent for the hidden layer",
    paper="p = 2",
)
def smooth_twin(context: Context) -> Measurement:
    """No kinks, no glass: at radii far below the width of the GELU's bend its Hessian rules."""
    variation = relu_network.measure(
        context.generator("network-relu"),
        draws=context.draws(DRAWS, least=DRAWS),
        activation=nn.GELU,
    )
    return Measurement(variation.hidden_exponent, 2.0, tolerance=0.02, paper=2.0)


def _sharp_gelu(sharpness: float) -> nn.Module:
    """``gelu(s z) / s``: a GELU whose bend is 1/s wide."""

    class Sharp(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return F.gelu(sharpness * z) / sharpness

    return Sharp()


@claim(
    "thm1-net-bend",
    "After Theorem 1",
    "Fresh networks with a smooth bend 1e-4 wide: exponent for the hidden layer above it",
    paper="p = 1",
)
def narrow_bend(context: Context) -> Measurement:
    """A derivative that changes over less than a move is a step: smooth, and glass all the same.

    Pre-activations move by some six radii, so radii from 4e-4 on are above the bend and radii
    from 1e-7 on are below it.
    """
    above, below = (
        relu_network.measure(
            context.generator("network-relu"),
            draws=context.draws(DRAWS, least=DRAWS),
            radii=radii,
            activation=lambda: _sharp_gelu(1e4),
        ).hidden_exponent
        for radii in (RADII, (1e-7, 2e-7))
    )
    relu = _relu(context).hidden_exponent
    return Measurement(
        above, relu, tolerance=0.05, paper=1.0, paper_tolerance=0.1, note=f"below it {below:.2f}"
    )


@claim(
    "thm1-net-value",
    "Theorem 1",
    "Fresh ReLU networks: twice the mean square second difference over its prediction",
    paper="1",
)
def predicted_value(context: Context) -> Measurement:
    """``2 E |(g+ + g-)/2 - g0|^2 = 1/(2 psi) sum_k |gamma_k|^2 (dL/dz_k)^2 |d . gamma_k|``."""
    fresh = _fresh(context)
    measured = ratio(2 * fresh.second.sum(1), fresh.expected.sum(1))
    return Measurement(measured.value, 1.0, error=measured.error, tolerance=0.05, paper=1.0)


@claim(
    "thm1-net-bound",
    "Theorem 1",
    "Fresh ReLU networks, small radius: variation summed over the layer / R|d|",
    paper="<= 1",
)
def layer_bound(context: Context) -> Measurement:
    """``sum_i v_i <= sum_i (R |d|)_i``, loose by the root of the number of inputs of a unit."""
    fresh = _fresh(context)
    measured = ratio(fresh.one_sided.sum(1), fresh.bound.sum(1))
    return Measurement(
        measured.value,
        1.0,
        error=measured.error,
        relation="<=",
        paper=1.0,
        paper_relation="<=",
        note=f"worst single network {_worst(fresh):.2f}",
    )


def _worst(comparison: Comparison) -> float:
    return (comparison.one_sided.sum(1) / comparison.bound.sum(1)).max().item()


@claim(
    "thm1-coordinate",
    "Theorem 1",
    "Coordinate by coordinate v <= R|d|: share of parameters that exceed it",
    paper="0",
    correction="where no kink is near R is 0, but smooth curvature moves the gradient all the "
    "same: the bound holds for a layer, not for each parameter",
)
def coordinates(context: Context) -> Measurement:
    """Share of coordinates with ``v_i > (R |d|)_i``, measured and by exact kinks plus ``H d``."""
    fresh = _fresh(context)
    measured = mean((fresh.one_sided > fresh.bound).double().mean(1))
    exact = (fresh.exact > fresh.bound).double().mean().item()
    empty = (fresh.bound == 0).double().mean().item()
    note = f"R is zero for {empty:.0%} of the parameters"
    return Measurement(measured.value, exact, tolerance=0.01, paper=0.0, note=note)


@claim(
    "thm1-radius",
    "Theorem 1",
    f"Fresh ReLU networks at the large radius {LARGE_RADIUS}: layer variation / R|d|",
    paper="<= 1",
    correction="the Hessian's share grows as the square of the radius and overtakes any multiple "
    "of it: the bound is for small radii",
)
def large_radius(context: Context) -> Measurement:
    """``|H d|^2`` alone exceeds ``sum_i (R |d|)_i`` once the radius is large enough.

    The expected value is that lower bound: the Hessian's share and the glass, without the terms
    of third and higher order that the radius also wakes.
    """
    networks = relu_network.sample_networks(24, context.generator("network-large"))
    compared = relu_network.compare(networks, LARGE_RADIUS)
    smooth = flatten(networks.hessian_step(LARGE_RADIUS), HIDDEN).square()
    measured = ratio(compared.one_sided.sum(1), compared.bound.sum(1))
    expected = (smooth.sum() + compared.expected.sum()) / compared.bound.sum()
    return Measurement(
        measured.value,
        expected.item(),
        error=measured.error,
        relation=">=",
        paper=1.0,
        paper_relation="<=",
    )


@claim(
    "thm1-trained",
    "Theorem 1",
    f"Trained ReLU networks, radius 1e-4, threshold {THRESHOLD}: layer variation / R|d|",
    paper="<= 1",
    correction="training gathers pre-activations at their kinks, so they are not uniform within "
    "the threshold and more of them are crossed than R foresees",
)
def trained(context: Context) -> Measurement:
    """Theorem 1 supposes uniform pre-activations; training makes them pile up at zero.

    The expected value counts the kinks really crossed and adds ``H d``: the gradients are
    understood, only the density is not uniform. A smaller threshold lowers the ratio, to about 1
    at the smallest that holds every ``|d . gamma|``, for then R sees the pile itself.
    """
    networks, after = trained_networks(context)
    compared = relu_network.compare(after, RADII[0] / 4)
    fresh = relu_network.compare(networks, RADII[0] / 4)
    bound = compared.bound.sum(1)
    measured = mean(compared.one_sided.sum(1) / bound)
    expected = (compared.exact.sum(1) / bound).mean().item()
    before = (fresh.one_sided.sum() / fresh.bound.sum()).item()
    return Measurement(
        measured.value,
        expected,
        tolerance=0.05 * expected,
        paper=1.0,
        paper_relation="<=",
        note=f"before training {before:.2f}",
    )


class _AtBatch(NamedTuple):
    """One batch size: glass and Hessian parts of the variation, and its exponent."""

    glass: float
    smooth: float
    exponent: Estimate


def _at_batch(context: Context, batch: int) -> _AtBatch:
    """Fresh networks with this batch size, at ``BATCH_RADIUS`` and twice it."""

    def compute() -> _AtBatch:
        generator = context.generator(f"network-batch-{batch}")
        networks = relu_network.sample_networks(EXAMPLES // batch, generator, batch=batch)
        center, plus, minus, far = (
            flatten(networks.gradients(s * BATCH_RADIUS), HIDDEN) for s in (0, 1, -1, 2)
        )
        smooth = flatten(networks.hessian_step(BATCH_RADIUS), HIDDEN)
        density = topography.glass_sample(Gradients(center, plus, minus, BATCH_RADIUS))
        return _AtBatch(
            glass=BATCH_RADIUS * density.sum(1).mean().item(),
            smooth=_size(smooth).mean().item(),
            exponent=exponent(_size(plus - center), _size(far - center)),
        )

    return context.once(f"network-batch-{batch}", compute)


def _size(change: Tensor) -> Tensor:
    return change.square().sum(1)


@claim(
    "batch-density",
    "Algorithm 1",
    "Glass density measured on one batch of B examples, as a power of B",
    paper="not stated",
)
def density_and_batch(context: Context) -> Measurement:
    """B examples have B times the kinks, each jump 1/B as large: ``rho ~ B (1/B)^2``, power -1."""
    measured = slope(BATCHES, tuple(_at_batch(context, b).glass for b in BATCHES))
    return Measurement(measured, -1.0, tolerance=0.05)


@claim(
    "batch-exponent",
    "Figure 1",
    f"Exponent p of the hidden layer: rise from batch {BATCHES[0]} to batch {BATCHES[-1]}",
    paper="not stated",
)
def exponent_and_batch(context: Context) -> Measurement:
    """With a glass part ``G`` and a Hessian part ``S``, ``p = log2((2 G + 4 S)/(G + S))``."""
    small, large = (_at_batch(context, b) for b in (BATCHES[0], BATCHES[-1]))
    before, after = (math.log2(2 + 2 * x.smooth / (x.glass + x.smooth)) for x in (small, large))
    return Measurement(
        large.exponent.value - small.exponent.value,
        after - before,
        error=math.hypot(small.exponent.error, large.exponent.error),
        tolerance=0.05,
        note=f"p = {small.exponent.value:.2f} and {large.exponent.value:.2f}",
    )
