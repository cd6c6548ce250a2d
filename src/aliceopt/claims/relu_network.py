"""Theorem 1 on a real network: two layers, fresh initialisations, exact gradients.

`measure` finds how the mean squared gradient change of each layer grows with the radius of a
random sign displacement of *all* parameters; `compare` sets the change of the hidden layer against
Theorem 1, kink by kink; `kink_excursions` does so for the loss. Many networks are evaluated at
once, each on its own batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F

from aliceopt.theory import relu_glass

from .simulated_glass import random_signs

__all__ = [
    "HIDDEN",
    "OUTPUT",
    "RADII",
    "THRESHOLD",
    "Comparison",
    "NetworkVariation",
    "Networks",
    "compare",
    "flatten",
    "kink_excursions",
    "measure",
    "sample_networks",
    "slope",
    "train",
]

INPUTS, UNITS, CLASSES, BATCH = 32, 64, 10, 64
HIDDEN, OUTPUT = "0", "2"
"""Names of the two linear layers in the model."""

RADII = (4e-4, 8e-4, 1.6e-3)
THRESHOLD = 0.02
"""Holds every ``|d . gamma|`` of the smallest radius, yet few enough units to treat one by one."""

Params = dict[str, Tensor]


@dataclass(frozen=True)
class Networks:
    """Independent networks of one shape; every tensor has the networks as first dimension.

    ``signs`` is the direction in which all parameters are displaced.
    """

    model: nn.Sequential
    params: Params
    signs: Params
    inputs: Tensor
    labels: Tensor

    def gradient(self, params: Params, inputs: Tensor, labels: Tensor) -> Params:
        """Gradient of the mean cross entropy of *one* network on one batch."""

        def loss(values: Params) -> Tensor:
            return F.cross_entropy(functional_call(self.model, values, (inputs,)), labels)

        gradients: Params = grad(loss)(params)
        return gradients

    def gradients(self, radius: float = 0.0) -> Params:
        """Gradients of all networks at ``params + radius * signs``."""
        moved = {name: p + radius * self.signs[name] for name, p in self.params.items()}
        gradients: Params = vmap(self.gradient)(moved, self.inputs, self.labels)
        return gradients

    def losses(self, radius: float = 0.0) -> Tensor:
        """Mean cross entropies of all networks at ``params + radius * signs``."""
        moved = {name: p + radius * self.signs[name] for name, p in self.params.items()}

        def loss(params: Params, inputs: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(self.model, params, (inputs,)), labels)

        return torch.as_tensor(vmap(loss)(moved, self.inputs, self.labels))

    def along(self, values: Params) -> Tensor:
        """``t . values`` of every network, t being its ``signs``."""
        products = [(v * self.signs[name]).flatten(1).sum(1) for name, v in values.items()]
        return torch.stack(products).sum(0)

    def excursions(self, radius: float) -> Tensor:
        """``L(+-lambda t) - L -+ lambda g.t - lambda^2 t'Ht / 2``, [2, networks].

        What is left of the loss when gradient and Hessian are taken away: kinks.
        """
        slope = self.along(self.gradients())
        bend = self.along(self.hessian_step(1.0))
        start = self.losses()
        sides = [
            self.losses(s * radius) - start - s * radius * slope - radius**2 * bend / 2
            for s in (1, -1)
        ]
        return torch.stack(sides)

    def on(self, examples: slice) -> Networks:
        """The same networks on some of their examples."""
        return replace(self, inputs=self.inputs[:, examples], labels=self.labels[:, examples])

    def turned(self, generator: torch.Generator) -> Networks:
        """The same networks with other random directions."""
        signs = {k: random_signs(tuple(t.shape), generator) for k, t in self.signs.items()}
        return replace(self, signs=signs)

    def hessian_step(self, radius: float) -> Params:
        """``H (radius * signs)``: the change of the gradients if there were no kinks."""

        def product(params: Params, signs: Params, inputs: Tensor, labels: Tensor) -> Params:
            gradient = functools.partial(self.gradient, inputs=inputs, labels=labels)
            change: Params = jvp(gradient, (params,), (signs,))[1]
            return change

        change = vmap(product)(self.params, self.signs, self.inputs, self.labels)
        return {name: radius * c for name, c in change.items()}


def sample_networks(
    count: int,
    generator: torch.Generator,
    *,
    batch: int = BATCH,
    units: int = UNITS,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> Networks:
    """Networks at torch's default initialisation of linear layers, in float64.

    That is, every weight and bias uniform on ``[-1, 1] / sqrt(fan in)``. Inputs are standard
    normal; labels come from a random linear teacher.
    """
    model = nn.Sequential(_linear(INPUTS, units), activation(), _linear(units, CLASSES))
    params, signs = {}, {}
    for name, p in model.named_parameters():
        fan_in = INPUTS if _layer(name) == HIDDEN else units
        uniform = torch.rand(count, *p.shape, generator=generator, dtype=p.dtype)
        params[name] = (2 * uniform - 1) / fan_in**0.5
        signs[name] = random_signs((count, *p.shape), generator)
    inputs = torch.randn(count, batch, INPUTS, generator=generator, dtype=torch.float64)
    teacher = torch.randn(count, INPUTS, CLASSES, generator=generator, dtype=torch.float64)
    return Networks(model, params, signs, inputs, (inputs @ teacher).argmax(2))


def _linear(inputs: int, outputs: int) -> nn.Module:
    # Values are drawn from the caller's generator: torch's own is neither read nor advanced.
    layer: nn.Module = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=torch.float64)
    return layer


def _layer(name: str) -> str:
    return name.partition(".")[0]


def flatten(values: Params, layer: str) -> Tensor:
    """Everything that belongs to a layer, `HIDDEN` or `OUTPUT`, as [networks, parameters]."""
    return torch.cat([v.flatten(1) for name, v in values.items() if _layer(name) == layer], dim=1)


@dataclass(frozen=True)
class NetworkVariation:
    """Mean over networks of squared gradient changes summed over a layer, one value a radius.

    ``one_sided`` is ``|g(mu + d) - g(mu)|^2``; ``second`` is ``|(g(mu + d) + g(mu - d))/2 -
    g(mu)|^2``, which holds kinks but no Hessian. Exponents are those of a power of the radius.
    """

    radii: tuple[float, ...]
    hidden_one_sided: tuple[float, ...]
    hidden_second: tuple[float, ...]
    output_one_sided: tuple[float, ...]

    @property
    def hidden_exponent(self) -> float:
        """Of the one-sided variation of the layer before the activation: glass plus Hessian."""
        return slope(self.radii, self.hidden_one_sided)

    @property
    def second_exponent(self) -> float:
        """Of the second difference of that layer: glass alone."""
        return slope(self.radii, self.hidden_second)

    @property
    def output_exponent(self) -> float:
        """Of the one-sided variation of the last layer, with no kink behind it."""
        return slope(self.radii, self.output_one_sided)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares power: the slope of ``log2 y`` against ``log2 x``."""
    u, v = (torch.tensor(values, dtype=torch.float64).log2() for values in (x, y))
    u = u - u.mean()
    return ((u @ v) / (u @ u)).item()


def measure(
    generator: torch.Generator,
    *,
    draws: int = 300,
    radii: tuple[float, ...] = RADII,
    batch: int = BATCH,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> NetworkVariation:
    """Gradient variations of ``draws`` freshly initialised networks at each radius."""
    networks = sample_networks(draws, generator, batch=batch, activation=activation)
    center = networks.gradients()
    rows = []
    for radius in radii:
        plus, minus = networks.gradients(radius), networks.gradients(-radius)
        one_sided = {name: plus[name] - g for name, g in center.items()}
        second = {name: (plus[name] + minus[name]) / 2 - g for name, g in center.items()}
        rows.append((_size(one_sided, HIDDEN), _size(second, HIDDEN), _size(one_sided, OUTPUT)))
    hidden_one_sided, hidden_second, output_one_sided = zip(*rows, strict=True)
    return NetworkVariation(tuple(radii), hidden_one_sided, hidden_second, output_one_sided)


def _size(change: Params, layer: str) -> float:
    return flatten(change, layer).square().sum(1).mean().item()


@dataclass(frozen=True)
class Comparison:
    """Squared gradient changes of the hidden layer, [networks, parameters], and their theory.

    ``bound`` is ``R |d|``, ``expected`` its form before the triangle inequality, both for kinks
    uniform within ``threshold``; ``exact`` counts the kinks that *are* crossed and adds ``H d``.
    """

    one_sided: Tensor
    second: Tensor
    bound: Tensor
    expected: Tensor
    exact: Tensor


def compare(networks: Networks, radius: float, threshold: float = THRESHOLD) -> Comparison:
    """Measured changes at one radius against Theorem 1, for every network."""
    center = flatten(networks.gradients(), HIDDEN)
    plus, minus = (flatten(networks.gradients(s * radius), HIDDEN) for s in (1, -1))
    smooth = flatten(networks.hessian_step(radius), HIDDEN)
    rows = [_kinks(networks, index, radius, threshold) for index in range(len(center))]
    bound, expected, jumps = (torch.stack(column) for column in zip(*rows, strict=True))
    return Comparison(
        one_sided=(plus - center).square(),
        second=((plus + minus) / 2 - center).square(),
        bound=bound,
        expected=expected,
        exact=(jumps + smooth).square(),
    )


def _glass(networks: Networks, index: int, threshold: float) -> tuple[relu_glass.ReluGlass, Tensor]:
    """The kinks of one network within ``threshold``, and its direction as one vector."""
    with torch.no_grad():
        for name, p in networks.model.named_parameters():
            p.copy_(networks.params[name][index])
    batch = (networks.inputs[index], networks.labels[index])
    glass = relu_glass.from_module(networks.model, F.cross_entropy, batch, threshold)
    return glass, torch.cat([t[index].flatten() for t in networks.signs.values()])


def _kinks(
    networks: Networks, index: int, radius: float, threshold: float
) -> tuple[Tensor, Tensor, Tensor]:
    """For one network: ``R |d|``, its unbounded form, and the sum of jumps really crossed."""
    glass, signs = _glass(networks, index, threshold)
    displacement = radius * signs
    after = glass.preacts + glass.preact_grads @ displacement
    crossed = (after > 0).double() - (glass.preacts > 0).double()
    jumps = (crossed * glass.loss_grads) @ glass.preact_grads
    hidden = slice(0, glass.slices[f"{HIDDEN}.bias"].stop)
    return glass.bound(displacement)[hidden], glass.expected(displacement)[hidden], jumps[hidden]


def kink_excursions(
    networks: Networks, radius: float, threshold: float = THRESHOLD
) -> tuple[Tensor, Tensor]:
    """What kinks do to the loss and to its slope along the signs, both [2 sides, networks].

    A unit that ends at ``y`` on the other side of its kink adds ``(dL/dz) |y|`` to the loss,
    whichever way it went: the sign is that of ``dL/dz``. It turns the slope outwards,
    ``t . g`` on the plus side and ``-t . g`` on the minus side, by ``(dL/dz) |t . gamma|``.
    """
    losses, slopes = [], []
    for index in range(len(networks.labels)):
        glass, signs = _glass(networks, index, threshold)
        rates = glass.preact_grads @ signs
        after = glass.preacts + radius * torch.stack([rates, -rates])
        crossed = ((after > 0) != (glass.preacts > 0)).double() * glass.loss_grads
        losses.append((crossed * after.abs()).sum(1))
        slopes.append((crossed * rates.abs()).sum(1))
    return torch.stack(losses, dim=1), torch.stack(slopes, dim=1)


def train(
    networks: Networks,
    *,
    steps: int = 600,
    lr: float = 1e-3,
    batch: int | None = None,
    generator: torch.Generator | None = None,
) -> Networks:
    """The same networks after training with torch's Adam, each on its own examples.

    All of them at every step, or ``batch`` of them, drawn anew.
    """
    params = {name: p.clone().requires_grad_() for name, p in networks.params.items()}
    optimizer = torch.optim.Adam(params.values(), lr=lr)
    count = networks.labels.shape[1]
    for _ in range(steps):
        chosen = torch.randperm(count, generator=generator)[:batch] if batch else slice(None)
        values = {name: p.detach() for name, p in params.items()}
        examples = networks.inputs[:, chosen], networks.labels[:, chosen]
        gradients = vmap(networks.gradient)(values, *examples)
        for name, p in params.items():
            p.grad = gradients[name]
        optimizer.step()
    return replace(networks, params={name: p.detach() for name, p in params.items()})
