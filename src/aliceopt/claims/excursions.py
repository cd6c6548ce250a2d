"""Theorem 4 on real networks: what kinks do to the loss, before and after training."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from aliceopt import topography
from aliceopt.theory import glass_bound
from aliceopt.topography import Gradients

from . import relu_network
from .estimate import Estimate, estimate, exponent, ratio
from .registry import Claim, Context, Measurement, register
from .relu_network import BATCH, RADII, Networks, slope

CLAIMS: list[Claim] = []
claim = functools.partial(register, CLAIMS)

RADIUS = 1.6e-3
FAR = 4 * RADIUS
WIDTHS = (16, 64, 256)
FRESH, TRAINED = 300, 8
"""Networks measured as they are, and networks that are trained first."""

EXAMPLES, HELD_OUT = 4 * BATCH, 8 * BATCH
"""Examples that are trained on in minibatches, and examples that are kept for later."""

STEPS = 600
TINY = RADII[0] / 4


class _Probes(NamedTuple):
    """Excursions of the loss [networks], one direction each, and the glass that Alice measures.

    ``along`` [networks] are samples of ``rho_t``; ``density`` [networks, parameters] is the
    running density of each network, here a plain mean over directions.
    """

    excursions: Tensor
    along: Tensor
    density: Tensor

    def separable(self, radius: float) -> Tensor:
        """Theorem 4's bound for a move by ``radius`` in every coordinate, [networks]."""
        return glass_bound.glass_loss_bound(self.density, radius * torch.ones_like(self.density))


def _flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([v.flatten(1) for v in values.values()], dim=1)


def _probes(networks: Networks, radius: float, generator: torch.Generator, draws: int) -> _Probes:
    """Loss and gradients at ``+-radius`` along signs, ``draws`` directions for the density."""
    center, along, density = _flat(networks.gradients()), [], []
    excursions = networks.excursions(radius).abs().mean(0)
    for _ in range(draws):
        plus, minus = (_flat(networks.gradients(s * radius)) for s in (1, -1))
        density.append(topography.glass_sample(Gradients(center, plus, minus, radius)))
        second = (plus + minus) / 2 - center
        along.append(glass_bound.directional_density(second, _flat(networks.signs), radius))
        networks = networks.turned(generator)
    return _Probes(excursions, torch.stack(along).mean(0), torch.stack(density).mean(0))


def _fresh(context: Context) -> _Probes:
    def compute() -> _Probes:
        generator = context.generator("excursion-fresh")
        count = context.draws(FRESH, least=FRESH)
        return _probes(relu_network.sample_networks(count, generator), RADIUS, generator, 4)

    return context.once("excursion-fresh", compute)


@claim(
    "thm4-net",
    "Theorem 4",
    "Fresh ReLU networks: mean loss excursion over sqrt(2/3pi) sqrt(rho_t) lambda^(3/2)",
    paper="1",
)
def along_the_move(context: Context) -> Measurement:
    """Theorem 4 along the direction of the move, ``rho_t = (2/lambda)(t . D)^2``.

    The loss with its gradient and Hessian taken away, ``|L(lambda t) - L - ...|``, against the
    glass that the slope along t meets. Few kinks are crossed, so the sum is not quite normal.
    """
    found = _fresh(context)
    one = torch.full((1,), RADIUS, dtype=torch.float64)

    def against(excursion: Tensor, along: Tensor) -> Tensor:
        return excursion / glass_bound.glass_loss_bound.unchecked(along[None], one)

    measured = estimate(against, found.excursions, found.along)
    return Measurement(measured.value, 1.0, error=measured.error, tolerance=0.1, paper=1.0)


@claim(
    "thm4-net-separable",
    "Theorem 4",
    "Fresh ReLU networks: the separable bound with Alice's rho over the mean loss excursion",
    paper=">= 1",
)
def separable(context: Context) -> Measurement:
    """``sum_i sqrt(rho_i)`` counts every coordinate as a floor of its own: ``1 / kappa`` too much.

    A bound, and a loose one. A step that only glass limits is too short by ``1 / kappa^2``.
    """
    found = _fresh(context)
    measured = ratio(found.separable(RADIUS), found.excursions)
    kappa = glass_bound.glass_coherence(found.along.mean(), found.density.sqrt().mean(0).square())
    return Measurement(
        measured.value,
        1 / kappa.item(),
        error=measured.error,
        tolerance=0.1 / kappa.item(),
        paper=1.0,
        paper_relation=">=",
        note=f"kappa = {kappa:.3f} with {found.density.shape[1]} parameters",
    )


@claim(
    "thm4-net-dimension",
    "Theorem 4",
    "Separable bound over mean loss excursion, as a power of the number of parameters",
    paper="not stated",
)
def dimension(context: Context) -> Measurement:
    """Jumps of mean zero add up like a random walk, the bound adds their sizes: ``sqrt(n)``."""
    sizes, ratios = [], []
    for units in WIDTHS:
        generator = context.generator(f"excursion-{units}")
        count = 16 * WIDTHS[-1] // units
        networks = relu_network.sample_networks(count, generator, units=units)
        found = _probes(networks, FAR, generator, 10)
        sizes.append(found.density.shape[1])
        # The excursion is that of the walk: its own spread over networks is larger than the law's.
        along = found.along.mean()[None]
        walk = glass_bound.glass_loss_bound(along, torch.full_like(along, FAR))
        ratios.append((found.separable(FAR).mean() / walk).item())
    note = ", ".join(f"{r:.0f} at {n}" for n, r in zip(sizes, ratios, strict=True))
    return Measurement(slope(sizes, ratios), 0.5, tolerance=0.12, note=note)


def _balance(excursions: Tensor) -> Estimate:
    """``mean / mean absolute``, with a standard error over networks, the last dimension."""
    return ratio(_by_network(excursions), _by_network(excursions.abs()))


def _by_network(x: Tensor) -> Tensor:
    return x.flatten(0, -2).mean(0)


@claim(
    "jumps-fresh",
    "Theorem 4",
    "Fresh ReLU networks: mean loss excursion over its mean absolute value",
    paper="0",
)
def fresh_jumps(context: Context) -> Measurement:
    """Theorem 4 supposes jumps of mean zero: kinks that bend up as often as down."""
    generator = context.generator("jumps-fresh")
    count = context.draws(FRESH, least=FRESH)
    networks = relu_network.sample_networks(count, generator)
    measured = _balance(networks.excursions(RADIUS))
    return Measurement(measured.value, 0.0, error=measured.error, tolerance=0.02, paper=0.0)


CONVEX = (
    "training comes to rest in kinks that bend up and leaves those that bend down: on the "
    "examples trained on jumps are not of mean zero"
)


class _Trained(NamedTuple):
    """Networks trained on their batch, and what their kinks do at two radii, by counting."""

    networks: Networks
    near: tuple[Tensor, Tensor]
    far: tuple[Tensor, Tensor]


def trained_networks(context: Context) -> tuple[Networks, Networks]:
    """Eight networks before and after training on their one batch."""

    def compute() -> tuple[Networks, Networks]:
        networks = relu_network.sample_networks(TRAINED, context.generator("network-trained"))
        return networks, relu_network.train(networks, steps=STEPS)

    return context.once("network-trained", compute)


def _trained(context: Context) -> _Trained:
    def compute() -> _Trained:
        networks = trained_networks(context)[1]
        near, far = (relu_network.kink_excursions(networks, r) for r in (TINY, 2 * TINY))
        return _Trained(networks, near, far)

    return context.once("excursion-trained", compute)


@claim(
    "jumps-trained",
    "Theorem 4",
    f"The same after {STEPS} steps on one batch, on that batch",
    paper="0",
    correction=CONVEX,
)
def trained_jumps(context: Context) -> Measurement:
    """A kink with ``dL/dz > 0`` bends up. The expected value counts the kinks crossed."""
    found = _trained(context)
    measured = _balance(found.networks.excursions(TINY))
    counted = _balance(found.near[0])
    return Measurement(measured.value, counted.value, tolerance=0.02, paper=0.0)


@claim(
    "jumps-power",
    "Theorem 4",
    f"Trained on one batch: mean loss excursion as a power of the radius, from {TINY:g}",
    paper="3/2",
    correction="excursions that all go up add, where those of a glass are a random walk: the "
    "loss over kinks piled up at zero grows nearly as the distance",
)
def trained_power(context: Context) -> Measurement:
    """Kinks at the position itself give ``|d|``; the expected value counts the kinks crossed."""
    found = _trained(context)
    near, far = (_by_network(found.networks.excursions(r)) for r in (TINY, 2 * TINY))
    expected = exponent(_by_network(found.near[0]), _by_network(found.far[0]))
    measured = exponent(near, far)
    return Measurement(measured.value, expected.value, tolerance=0.02, paper=1.5)


@claim(
    "signed-trained",
    "Theorem 3",
    f"Trained on one batch, radius {TINY:g}: signed Hessian sample, summed, over t'Ht",
    paper="1",
    correction="the sign removes the jumps of other coordinates, not kinks that bend up: what "
    "'signed' measures is the curvature averaged over the probe, kinks included",
)
def signed_sees_kinks(context: Context) -> Measurement:
    """``t . (g+ - g-)/(2 lambda)`` is ``t'Ht`` plus what kinks turn the slope by over the probe."""
    found = _trained(context)
    networks = found.networks
    center, plus, minus = (_flat(networks.gradients(s * TINY)) for s in (0, 1, -1))
    grads = Gradients(center, plus, minus, TINY, _flat(networks.signs))
    sampled = topography.hess_sample(grads, "signed").sum(1).mean()
    bend = networks.along(networks.hessian_step(1.0)).mean()
    kinks = found.near[1].mean() / TINY
    expected = (bend + kinks) / bend
    return Measurement(
        (sampled / bend).item(), expected.item(), tolerance=0.02 * expected.item(), paper=1.0
    )


class _Minibatched(NamedTuple):
    """Excursions after minibatch training [batches, sides, networks], seen and held-out."""

    seen: Tensor
    unseen: Tensor


def _minibatched(context: Context) -> _Minibatched:
    def compute() -> _Minibatched:
        generator = context.generator("jumps-minibatch")
        count = context.draws(TRAINED, least=TRAINED)
        everything = relu_network.sample_networks(count, generator, batch=EXAMPLES + HELD_OUT)
        trained = relu_network.train(
            everything.on(slice(EXAMPLES)), steps=STEPS, batch=BATCH, generator=generator
        )
        everything, found = replace(everything, params=trained.params), []
        for start in range(0, EXAMPLES + HELD_OUT, BATCH):
            batch = everything.on(slice(start, start + BATCH)).turned(generator)
            found.append(batch.excursions(RADIUS))
        cut = EXAMPLES // BATCH
        return _Minibatched(torch.stack(found[:cut]), torch.stack(found[cut:]))

    return context.once("jumps-minibatch", compute)


@claim(
    "jumps-minibatch",
    "Theorem 4",
    f"The same after {STEPS} steps on minibatches of {BATCH}, on training batches",
    paper="0",
    correction=CONVEX,
)
def minibatch_jumps(context: Context) -> Measurement:
    """Minibatches of four batches' worth of examples: nearly every excursion goes up."""
    measured = _balance(_minibatched(context).seen)
    return Measurement(measured.value, 1.0, tolerance=0.05, paper=0.0)


@claim(
    "jumps-held-out",
    "Theorem 4",
    "The same networks, on batches held out: at most a fifth",
    paper="0",
)
def held_out_jumps(context: Context) -> Measurement:
    """Other examples have other kinks, which training has not chosen.

    They bend up no more often than down; by a little, more of them bend down.
    """
    measured = _balance(_minibatched(context).unseen)
    return Measurement(measured.value, 0.2, error=measured.error, relation="<=")
