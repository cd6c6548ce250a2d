"""An independent, naive, float64 transcription of the Alice optimizer, for tests only.

Everything is done one coordinate at a time in plain Python floats. Nothing is fused, cached or
shared with the package, so agreement with it means that two separate readings of the algorithm
agree. Symbols: mu position, nu probe center, lambda probe radius, t signs (+1 or -1), g and s the
averages of the gradient and its square, h and rho those of the Hessian diagonal and the glass
density, k steps and w topography weight of a parameter. One step, with L = lr, l = min(lr_min, lr):

    full:  g+ = grad(nu + lambda t), g- = grad(nu - lambda t);  always: g0 = grad(nu)
    g <- b1 g + (1-b1) g0             s <- b2 s + (1-b2) g0^2
    full, with bt = b2^(quick_steps+1) and y = (g+ - g-)/(2 lambda):
        h   <- bt h + (1-bt) x        x = |y| (abs), y^2 (rms), t y (signed)
        rho <- bt rho + (1-bt) (2/lambda) ((g+ + g-)/2 - g0)^2
        w   <- bt w + (1-bt)
    corrected: G = g/(1-b1^(k+1)), S = s/(1-b2^(k+1)), R = rho/w, H = h/w, sqrt(h/w) or |h/w|
    hg = 3/(4 pi) R/(|G| + eps)       hbar = hg + H + sqrt(hg (hg + 2 H)) + eps
    unit = 1 (fixed), |g| (sgd), |G|/(sqrt(S) + eps) (adam)
    d = |G|/hbar clamped to [l unit, L unit];  d = L unit where w = 0 or no curvature term is on
    u = -sign(G) d - L wd mu          nu <- mu + omega u          mu <- mu + phi u
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Arrays = list[np.ndarray]
Gradient = Callable[[Arrays], "list[np.ndarray | None]"]
Signs = Callable[[int, int, tuple[int, ...]], np.ndarray]


class Coordinate(NamedTuple):
    """Everything the optimizer remembers about one scalar parameter."""

    position: float
    probe_center: float
    grad_avg: float
    grad_sq: float
    hess: float
    glass_density: float


class Probe(NamedTuple):
    """The two displaced gradients of one coordinate and the sign of its displacement."""

    plus: float
    minus: float
    sign: float


class Evaluation(NamedTuple):
    """The gradients of one step for all parameters; `probes` is None on a quick step."""

    center: list[np.ndarray | None]
    probes: tuple[list[np.ndarray | None], list[np.ndarray | None], Arrays] | None


@dataclass(frozen=True)
class Rates:
    """What is the same for every coordinate of one parameter during one step.

    `correction1`, `correction2` and `weight` are the weights that the averages of g, s and of
    (h, rho) carry once this step is counted: dividing by them removes the start from zero.
    """

    lr: float
    lr_min: float
    radius: float
    beta1: float
    beta2: float
    beta_topography: float
    correction1: float
    correction2: float
    weight: float
    eps: float
    step_fraction: float
    lookahead: float
    limit: str
    hessian: str
    glass: bool
    weight_decay: float


def running(average: float, beta: float, sample: float) -> float:
    """Exponential running average that starts from zero and is not corrected for it."""
    return beta * average + (1.0 - beta) * sample


def hessian_sample(probe: Probe, rates: Rates) -> float:
    """One observation of the Hessian diagonal, in the form the chosen kind averages."""
    slope = (probe.plus - probe.minus) / (2.0 * rates.radius)
    if rates.hessian == "abs":
        return abs(slope)
    if rates.hessian == "rms":
        return slope * slope
    return probe.sign * slope


def glass_sample(center: float, probe: Probe, rates: Rates) -> float:
    """One observation of the glass density: it vanishes where the gradient is linear."""
    jump = 0.5 * (probe.plus + probe.minus) - center
    return (2.0 / rates.radius) * jump * jump


def averaged(c: Coordinate, center: float, probe: Probe | None, rates: Rates) -> Coordinate:
    """Running averages after this step's gradients; an absent term keeps its zero average."""
    hess, glass_density = c.hess, c.glass_density
    if probe is not None and rates.hessian != "none":
        hess = running(hess, rates.beta_topography, hessian_sample(probe, rates))
    if probe is not None and rates.glass:
        sample = glass_sample(center, probe, rates)
        glass_density = running(glass_density, rates.beta_topography, sample)
    return c._replace(
        grad_avg=running(c.grad_avg, rates.beta1, center),
        grad_sq=running(c.grad_sq, rates.beta2, center * center),
        hess=hess,
        glass_density=glass_density,
    )


def corrected_hess(c: Coordinate, rates: Rates) -> float:
    """Nonnegative Hessian diagonal from its running average, whatever the kind."""
    mean = c.hess / rates.weight
    return math.sqrt(mean) if rates.hessian == "rms" else abs(mean)


def total_curvature(grad: float, c: Coordinate, rates: Rates) -> float:
    """Modified Hessian of Theorem 5 at the corrected gradient size `grad` >= 0, plus eps."""
    h = corrected_hess(c, rates)
    density = c.glass_density / rates.weight
    hg = 3.0 / (4.0 * math.pi) * density / (grad + rates.eps)
    return hg + h + math.sqrt(hg * (hg + 2.0 * h)) + rates.eps


def step_unit(grad: float, c: Coordinate, rates: Rates) -> float:
    """The length that lr and lr_min multiply; "sgd" takes the uncorrected gradient average."""
    if rates.limit == "fixed":
        return 1.0
    if rates.limit == "sgd":
        return abs(c.grad_avg)
    return grad / (math.sqrt(c.grad_sq / rates.correction2) + rates.eps)


def step_length(c: Coordinate, rates: Rates) -> float:
    """Quasi-Newton length between its bounds, or the upper bound where nothing was measured."""
    grad = abs(c.grad_avg) / rates.correction1
    unit = step_unit(grad, c, rates)
    lower, upper = min(rates.lr_min, rates.lr) * unit, rates.lr * unit
    term_on = rates.glass or rates.hessian != "none"
    if not term_on or rates.weight == 0.0:
        return upper
    return max(lower, min(upper, grad / total_curvature(grad, c, rates)))


def sign(x: float) -> float:
    """-1, 0 or 1; zero, of either sign, gives 0."""
    return 0.0 if x == 0.0 else math.copysign(1.0, x)


def moved(c: Coordinate, rates: Rates) -> Coordinate:
    """Position and probe center after the step, both measured from the old position."""
    descent = -sign(c.grad_avg) * step_length(c, rates)
    update = descent - rates.lr * rates.weight_decay * c.position
    return c._replace(
        position=c.position + rates.step_fraction * update,
        probe_center=c.position + rates.lookahead * update,
    )


def coordinate_step(
    c: Coordinate, center: float, probe: Probe | None, rates: Rates
) -> Coordinate | None:
    """State of one coordinate after one step; None if one of its gradients is not finite."""
    seen = (center,) if probe is None else (center, probe.plus, probe.minus)
    if not all(math.isfinite(x) for x in seen):
        return None
    return moved(averaged(c, center, probe, rates), rates)


def clip_factor(center: list[np.ndarray | None], max_grad_norm: float | None) -> float:
    """min(1, max_grad_norm/(norm + 1e-6)), norm over the finite entries of all parameters."""
    if max_grad_norm is None:
        return 1.0
    total = 0.0
    for grad in center:
        for x in [] if grad is None else grad.ravel().tolist():
            total += x * x if math.isfinite(x) else 0.0
    return min(1.0, max_grad_norm / (math.sqrt(total) + 1e-6))


def scaled(gradients: list[np.ndarray | None], factor: float) -> list[np.ndarray | None]:
    """Gradients times a factor, as new float64 arrays; missing ones stay missing."""
    return [None if g is None else np.array(factor * np.asarray(g, np.float64)) for g in gradients]


class ReferenceAlice:
    """Alice for one parameter group, all arrays float64. `eps` must be positive.

    Readings of the algorithm that a caller has to know:

    - `lr`, `lr_min`, `betas` and every other option are attributes that may be set between steps;
      `step(..., lr=x)` is `self.lr = x` followed by `step`. The radius None, meaning lr/2, and the
      step fraction None, meaning (1-b1) lookahead, are resolved at every step.
    - Cadence: a measuring step is due when `cadence % (quick_steps + 1) == 0` and a term is on.
      Every step advances `cadence` by one, except that a due step with lambda = 0 is quick and
      leaves it, so that the first later step with lambda > 0 measures and the usual quick steps
      follow it. Quick steps that are not due advance it at lambda = 0 too.
    - `signs(step_index, parameter_index, shape)` gets `steps_taken`: how many calls of `step`
      ended before this one, 0 at the first, quick steps and those at lambda = 0 included. It is
      asked at measuring steps only, for every parameter, with or without gradient.
    - The gradient is evaluated at nu + lambda t, nu - lambda t, nu, in this order, all parameters
      displaced together. `maximize` negates, the clip factor of the center scales all three.
    - Per parameter: no center gradient leaves everything as it was, `step_counts` and `weights`
      too; no gradient in a probe counts as zero there.
    - Per coordinate: a gradient of this step that is not finite leaves position, probe center and
      averages as they were and adds one to `coordinates_skipped`. `step_counts` and `weights`
      belong to the parameter and advance all the same.
    - `positions` may be edited between steps; `probe_centers` is then stale for one step.
    - If `gradient` raises, nothing but `lr` has changed.
    """

    def __init__(
        self,
        values: list[np.ndarray],
        *,
        lr: float,
        lr_min: float = 0.0,
        probe_radius: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        step_fraction: float | None = None,
        lookahead: float = 1.0,
        limit: str = "adam",
        hessian: str = "abs",
        glass: bool = True,
        quick_steps: int = 3,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        maximize: bool = False,
    ) -> None:
        if limit not in ("fixed", "sgd", "adam") or hessian not in ("none", "abs", "rms", "signed"):
            raise ValueError(f"unknown limit {limit!r} or hessian {hessian!r}")
        self.lr, self.lr_min, self.probe_radius = lr, lr_min, probe_radius
        self.betas, self.eps = betas, eps
        self.step_fraction, self.lookahead = step_fraction, lookahead
        self.limit, self.hessian, self.glass = limit, hessian, glass
        self.quick_steps, self.weight_decay = quick_steps, weight_decay
        self.max_grad_norm, self.maximize = max_grad_norm, maximize
        self.radius()  # refuses "sgd" with a term and no radius
        self._start(values)

    def _start(self, values: list[np.ndarray]) -> None:
        """State before the first step: nu = mu, every average and counter zero."""
        self.positions = [np.array(v, np.float64) for v in values]
        self.probe_centers = [v.copy() for v in self.positions]
        self.grad_avg = [np.zeros_like(v) for v in self.positions]
        self.grad_sq = [np.zeros_like(v) for v in self.positions]
        self.hess = [np.zeros_like(v) for v in self.positions]
        self.glass_density = [np.zeros_like(v) for v in self.positions]
        self.step_counts = [0] * len(values)
        self.weights = [0.0] * len(values)
        self.steps_taken = self.cadence = self.evaluations = self.coordinates_skipped = 0
        self.last_full = False

    def term_on(self) -> bool:
        """Whether any curvature term is used at all."""
        return self.glass or self.hessian != "none"

    def radius(self) -> float:
        """lambda: the given number, else lr/2, which needs a limit in which lr is a length."""
        if not self.term_on():
            return 0.0
        if self.probe_radius is not None:
            return self.probe_radius
        if self.limit == "sgd":
            raise ValueError('limit "sgd" with a curvature term needs a probe_radius, got None')
        return 0.5 * self.lr

    def step(self, gradient: Gradient, signs: Signs, lr: float | None = None) -> None:
        """One optimizer step, full or quick as the cadence says."""
        if lr is not None:
            self.lr = lr
        due = self.term_on() and self.cadence % (self.quick_steps + 1) == 0
        full = due and self.radius() > 0.0
        evaluation = self._evaluate(gradient, signs if full else None)
        for index in range(len(self.positions)):
            self._step_parameter(index, evaluation)
        self.evaluations += 3 if full else 1
        self.steps_taken += 1
        if full or not due:
            self.cadence += 1
        self.last_full = full

    def _evaluate(self, gradient: Gradient, signs: Signs | None) -> Evaluation:
        """Gradients to descend, clipped, at nu and, given signs, at nu +- lambda t before it."""
        if signs is None:
            center = self._gradient_at(gradient, self.probe_centers)
            return Evaluation(scaled(center, clip_factor(center, self.max_grad_norm)), None)
        centers, radius = self.probe_centers, self.radius()
        asked = [signs(self.steps_taken, i, v.shape) for i, v in enumerate(centers)]
        t = [np.asarray(x, np.float64) for x in asked]
        plus = self._gradient_at(
            gradient, [v + radius * x for v, x in zip(centers, t, strict=True)]
        )
        minus = self._gradient_at(
            gradient, [v - radius * x for v, x in zip(centers, t, strict=True)]
        )
        center = self._gradient_at(gradient, centers)
        factor = clip_factor(center, self.max_grad_norm)
        return Evaluation(scaled(center, factor), (scaled(plus, factor), scaled(minus, factor), t))

    def _gradient_at(self, gradient: Gradient, points: Arrays) -> list[np.ndarray | None]:
        """Gradient of what is to be minimised at copies of the points: negated by `maximize`."""
        return scaled(gradient([np.array(v) for v in points]), -1.0 if self.maximize else 1.0)

    def _step_parameter(self, index: int, evaluation: Evaluation) -> None:
        """One step of one parameter, coordinate by coordinate."""
        center = evaluation.center[index]
        if center is None:
            return
        full = evaluation.probes is not None
        rates = self._rates(index, full)
        probes = self._probes(index, evaluation)
        arrays = self._state(index)
        rows = zip(*(a.ravel().tolist() for a in arrays), strict=True)
        for j, (row, g0) in enumerate(zip(rows, center.ravel().tolist(), strict=True)):
            after = coordinate_step(Coordinate(*row), g0, probes[j] if probes else None, rates)
            if after is None:
                self.coordinates_skipped += 1
                continue
            for array, value in zip(arrays, after, strict=True):
                array.flat[j] = value
        self.step_counts[index] += 1
        self.weights[index] = rates.weight

    def _state(self, index: int) -> tuple[np.ndarray, ...]:
        """The arrays of one parameter, in the order of the fields of `Coordinate`."""
        return (
            self.positions[index],
            self.probe_centers[index],
            self.grad_avg[index],
            self.grad_sq[index],
            self.hess[index],
            self.glass_density[index],
        )

    def _probes(self, index: int, evaluation: Evaluation) -> list[Probe] | None:
        """Displaced gradients of one parameter per coordinate; a missing one is zero."""
        if evaluation.probes is None:
            return None
        plus, minus, t = evaluation.probes
        found = (plus[index], minus[index], t[index])
        zero = np.zeros_like(self.positions[index])
        sides = [zero if side is None else side for side in found]
        return [Probe(*row) for row in zip(*(s.ravel().tolist() for s in sides), strict=True)]

    def _rates(self, index: int, full: bool) -> Rates:
        """Constants of this step for one parameter, corrections with the betas of now."""
        beta1, beta2 = self.betas
        count = self.step_counts[index] + 1
        beta_topography = beta2 ** (self.quick_steps + 1)
        weight, fraction = self.weights[index], self.step_fraction
        return Rates(
            lr=self.lr,
            lr_min=self.lr_min,
            radius=self.radius(),
            beta1=beta1,
            beta2=beta2,
            beta_topography=beta_topography,
            correction1=1.0 - beta1**count,
            correction2=1.0 - beta2**count,
            weight=running(weight, beta_topography, 1.0) if full else weight,
            eps=self.eps,
            step_fraction=(1.0 - beta1) * self.lookahead if fraction is None else fraction,
            lookahead=self.lookahead,
            limit=self.limit,
            hessian=self.hessian,
            glass=self.glass,
            weight_decay=self.weight_decay,
        )
