"""Trajectories of Alice are those of the independent float64 reference, step after step.

A small ReLU network is trained on changing batches. Alice gets its gradients from autograd, the
reference from the chain rule written out in numpy; the reference gets the package's signs. After
every step all that either remembers must agree to 1e-10 of each tensor's largest entry.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from aliceopt.signs import block_signs, sign_key
from paper import paper_alice
from reference import Arrays, ReferenceAlice

STEPS = 60
SEED = 5
TOLERANCE = 1e-10

Grads = list[np.ndarray | None]
Tamper = Callable[[int, int, Grads], None]
"""Changes the gradients of evaluation ``call`` (from 0) of step ``step``: (step, call, grads)."""

LIMITS: dict[str, dict[str, Any]] = {
    "adam": {"lr": 0.1},
    "fixed": {"lr": 0.1},
    "sgd": {"lr": 3.0, "probe_radius": 0.05},
}
HESSIANS = ["none", "abs", "rms", "signed"]
CADENCES = [0, 1, 3]
FRACTIONS: list[dict[str, Any]] = [
    {},
    {"step_fraction": 1.0, "lookahead": 1.0},
    {"step_fraction": 0.5, "lookahead": 0.8},
]


def network() -> nn.Sequential:
    """4-6-2 with ReLU: 44 coordinates in four parameters, in float64."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()


@functools.cache
def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of one step: 5 of 20 samples."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((20, 4)), rng.standard_normal((20, 2))
    rows = slice(5 * (step % 4), 5 * (step % 4) + 5)
    return x[rows], y[rows]


def chain_rule(values: Arrays, x: np.ndarray, y: np.ndarray) -> Grads:
    """Gradient of the mean squared error of the network, by hand."""
    w1, b1, w2, b2 = values
    before = x @ w1.T + b1
    hidden = np.maximum(before, 0.0)
    error = hidden @ w2.T + b2 - y
    out = 2.0 * error / error.size
    back = (out @ w2) * (before > 0.0)
    return [back.T @ x, back.sum(0), out.T @ hidden, out.sum(0)]


@functools.cache
def package_signs(step: int, index: int, shape: tuple[int, ...]) -> np.ndarray:
    """The signs the package draws, for the reference to use."""
    key = sign_key(SEED, step, index)
    return block_signs(key, shape, dtype=torch.float64).numpy()


def leave(step: int, call: int, grads: Grads) -> None:
    """Tamper with nothing."""


class Twins:
    """Alice and the reference with the same options, from the same start on the same batches."""

    def __init__(self, *, door: str = "closure", tamper: Tamper = leave, **options: Any) -> None:
        options = {"betas": (0.9, 0.99), **options}
        self.model = network()
        self.params = list(self.model.parameters())
        self.alice = paper_alice(self.params, seed=SEED, **options)
        self.reference = ReferenceAlice([p.detach().numpy() for p in self.params], **options)
        self.door, self.tamper = door, tamper
        self.steps = 0

    def set(self, **options: Any) -> None:
        """Change options such as lr or betas of both."""
        for name, value in options.items():
            setattr(self.reference, name, value)
            for group in self.alice.param_groups:
                group[name] = value

    def step(self) -> None:
        """One step of both, then a comparison of everything."""
        self._step_alice()
        calls = itertools.count()

        def gradient(values: Arrays) -> Grads:
            grads = chain_rule(values, *batch(self.steps))
            self.tamper(self.steps, next(calls), grads)
            return grads

        self.reference.step(gradient, package_signs)
        self.compare()
        self.steps += 1

    def run(self, steps: int = STEPS, lr: Callable[[int], float] | None = None) -> Twins:
        """Many steps, at a learning rate that may depend on the step."""
        for k in range(steps):
            if lr is not None:
                self.set(lr=lr(k))
            self.step()
        return self

    def _step_alice(self) -> None:
        x, y = (torch.tensor(a) for a in batch(self.steps))
        calls = itertools.count()

        def evaluate() -> torch.Tensor:
            loss = (self.model(x) - y).square().mean()
            loss.backward()
            grads: Grads = [p.grad.numpy() for p in self.params]
            self.tamper(self.steps, next(calls), grads)  # arrays share memory with .grad
            for p, grad in zip(self.params, grads, strict=True):
                p.grad = p.grad if grad is not None else None
            return loss

        if self.door == "closure":
            self.alice.step(evaluate)
            return
        for _ in self.alice.evaluations():
            evaluate()
        self.alice.step()

    def compare(self) -> None:
        """Positions, probe centers, averages, weights and counters are the same."""
        ref = self.reference
        for i, p in enumerate(self.params):
            self._compare_tensor("position", i, p, ref.positions[i])
            state = self.alice.state.get(p)
            if not state:
                assert ref.step_counts[i] == 0
                continue
            for name in ("grad_avg", "grad_sq", "glass_density", "hess"):
                assert (name in state) == (name in used_averages(ref))
                if name in state:
                    self._compare_tensor(name, i, state[name], getattr(ref, name)[i])
            self._compare_tensor("probe_center", i, state["probe_center"], ref.probe_centers[i])
            assert state["step"].item() == ref.step_counts[i]
            assert state["topography_weight"].item() == pytest.approx(ref.weights[i], rel=1e-13)
        assert self.alice.gradient_evaluations == ref.evaluations

    def _compare_tensor(self, name: str, i: int, ours: torch.Tensor, theirs: np.ndarray) -> None:
        error = np.abs(ours.detach().numpy() - theirs).max()
        where = f"{name} of parameter {i} after step {self.steps}"
        assert error <= TOLERANCE * np.abs(theirs).max(), f"{where}: off by {error}"  # NaN fails


def used_averages(ref: ReferenceAlice) -> set[str]:
    """Names of the averages that the options call for."""
    terms = {"glass_density": ref.glass, "hess": ref.hessian != "none"}
    return {"grad_avg", "grad_sq", *(name for name, on in terms.items() if on)}


def warm_up_and_decay(peak: float) -> Callable[[int], float]:
    """Three steps at zero, a linear rise to step 6, a cosine to a fifth, zeros at 30 and 31.

    No radius is tiny but positive: a second difference of rounding errors has nothing to agree on.
    """

    def lr(k: int) -> float:
        if k < 3 or k in (30, 31):
            return 0.0
        return peak * min(1.0, (k - 2) / 4) * (0.6 + 0.4 * math.cos(math.pi * k / STEPS))

    return lr


EXTRAS = ["nothing", "schedule and decay", "lr_min", "clipping and decay", "schedule and lr_min"]


def combined_options(limit: str, fractions: dict[str, Any], extra: str) -> dict[str, Any]:
    """Options for a limit, an entry of `FRACTIONS` and a name in `EXTRAS`.

    A position that takes whole steps gets shorter ones with the probes where they were: at the
    full length such runs are chaotic, and rounding errors grow past any tolerance.
    """
    options = {**LIMITS[limit], **fractions}
    if fractions.get("step_fraction") == 1.0:
        options |= {"lr": 0.2 * options["lr"], "probe_radius": 0.05}
    if "decay" in extra:
        options["weight_decay"] = 0.05 / options["lr"]
    if "lr_min" in extra:
        options["lr_min"] = 0.3 * options["lr"]
    if "clipping" in extra:
        options["max_grad_norm"] = 0.4
    return options


@pytest.mark.parametrize("quick_steps", CADENCES)
@pytest.mark.parametrize("glass", [False, True], ids=["", "glass"])
@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize("limit", LIMITS)
def test_trajectory_is_the_reference_s(
    limit: str, hessian: str, glass: bool, quick_steps: int
) -> None:
    """Equal for every limit, Hessian, glass, cadence and (phi, omega).

    Extras and doors are dealt out in turn: five and two of them against axes of 3, 4, 2, 3 and 3
    values, so that each meets every value of every axis.
    """
    place = (list(LIMITS).index(limit) * 4 + HESSIANS.index(hessian)) * 2 + glass
    place = (place * 3 + CADENCES.index(quick_steps)) * 3
    terms = {"hessian": hessian, "glass": glass, "quick_steps": quick_steps}
    for turn, fractions in enumerate(FRACTIONS, start=place):
        extra, door = EXTRAS[turn % 5], ["closure", "evaluations"][turn % 2]
        options = combined_options(limit, fractions, extra)
        lr = warm_up_and_decay(options["lr"]) if "schedule" in extra else None
        Twins(door=door, limit=limit, **terms, **options).run(lr=lr)


def test_the_runs_visit_every_regime() -> None:
    """Steps at the upper bound, at the lower bound and in between all occur in one such run."""
    twins = Twins(lr=0.1, lr_min=0.03, limit="fixed", quick_steps=1)
    shares = []
    for _ in range(STEPS):
        twins.step()
        shares.append(twins.alice.telemetry().groups[0])
    for regime in ("at_upper", "at_lower", "quasi_newton"):
        assert max(getattr(s, regime) for s in shares) > 0.1, regime


@pytest.mark.parametrize("door", ["closure", "evaluations"])
def test_ascent_is_the_reference_s(door: str) -> None:
    """With maximize both climb: the loss grows, and clipping and decay go with it."""
    options = {"lr": 0.05, "weight_decay": 0.1, "max_grad_norm": 1.0}
    twins = Twins(door=door, maximize=True, hessian="signed", quick_steps=1, **options)
    x, y = (torch.tensor(a) for a in batch(0))
    before = (twins.model(x) - y).square().mean().item()
    twins.run()
    assert (twins.model(x) - y).square().mean().item() > 2 * before


def test_one_cycle_moves_lr_and_betas() -> None:
    """Under OneCycleLR, which also moves beta1, corrections use the betas of the moment."""
    twins = Twins(lr=0.1, quick_steps=1, weight_decay=0.1)
    cycle = torch.optim.lr_scheduler.OneCycleLR(twins.alice, max_lr=0.1, total_steps=STEPS + 1)
    group, seen = twins.alice.param_groups[0], set()
    for _ in range(STEPS):
        twins.reference.lr, twins.reference.betas = group["lr"], tuple(group["betas"])
        seen.add(group["betas"][0])
        twins.step()
        cycle.step()
    assert len(seen) > 30


def test_beta2_and_cadence_may_change() -> None:
    """The topography's weight stays right when beta2 or quick_steps change on the way."""
    twins = Twins(lr=0.1, quick_steps=3).run(10)
    twins.set(betas=(0.7, 0.9))
    twins.run(10)
    twins.set(quick_steps=1)
    twins.run(10)
    twins.set(betas=(0.95, 0.999), quick_steps=0)
    twins.run(10)


def test_default_options_agree() -> None:
    """Neither has other defaults than its twin: eps, betas, radius, fractions, cadence, terms."""
    twins = Twins(lr=0.01, betas=(0.9, 0.999))
    plain = paper_alice([nn.Parameter(torch.zeros(2))])
    names = ("lr", "betas", "eps", "limit", "hessian", "glass", "quick_steps", "weight_decay")
    for name in (*names, "lr_min", "probe_radius", "step_fraction", "lookahead", "maximize"):
        assert plain.param_groups[0][name] == getattr(twins.reference, name), name
    twins.run(20)


@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize("limit", LIMITS)
def test_both_doors_give_the_same_bits(limit: str, hessian: str) -> None:
    """A closure and a loop over evaluations() lead to bit-identical positions and state."""
    closure, loop = (
        Twins(door=door, limit=limit, hessian=hessian, quick_steps=1, **LIMITS[limit]).run(12)
        for door in ("closure", "evaluations")
    )
    for p, q in zip(closure.params, loop.params, strict=True):
        assert torch.equal(p, q)
        assert torch.equal(p.grad, q.grad)
        ours, theirs = closure.alice.state[p], loop.alice.state[q]
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


BAD_VALUES: dict[tuple[int, int], list[tuple[int, int, float]]] = {
    # (step, call): (parameter, coordinate, value). Even steps measure, with the center last.
    (0, 2): [(0, 3, math.nan)],
    (2, 0): [(1, 2, math.inf), (2, 5, math.nan)],
    (4, 1): [(0, 3, -math.inf), (3, 1, math.nan)],
    (5, 0): [(0, 7, math.nan), (1, 0, math.inf)],
    (6, 0): [(0, 8, math.inf)],
    (6, 1): [(0, 8, math.inf)],
    (6, 2): [(0, 8, math.nan), (0, 9, -math.inf)],
    (8, 2): [(3, 0, math.nan), (3, 1, math.nan)],
}


def spoil(step: int, call: int, grads: Grads) -> None:
    """Put the `BAD_VALUES` of this evaluation in place."""
    for parameter, coordinate, value in BAD_VALUES.get((step, call), []):
        grad = grads[parameter]
        assert grad is not None
        grad.flat[coordinate] = value


@pytest.mark.parametrize("max_grad_norm", [None, 0.4])
@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize("door", ["closure", "evaluations"])
def test_non_finite_coordinates_stay_as_they_are(
    door: str, hessian: str, max_grad_norm: float | None
) -> None:
    """A coordinate with a NaN or infinite gradient on any side is left alone and counted.

    All others move as if nothing had happened, also under a clip by the global norm.
    """
    options = {"hessian": hessian, "max_grad_norm": max_grad_norm, "weight_decay": 0.2}
    twins = Twins(door=door, tamper=spoil, lr=0.1, quick_steps=1, **options).run(20)
    skipped = twins.alice.telemetry().groups[0].skipped_coordinates
    assert skipped == twins.reference.coordinates_skipped == 11


MISSING: dict[tuple[int, int], list[int]] = {
    # (step, call): parameters without gradient. Even steps measure, with the center last.
    (0, 2): [1],
    (1, 0): [1],
    (2, 0): [0],
    (4, 1): [0, 2],
    (6, 0): [3],
    (6, 1): [3],
    (7, 0): [0, 3],
    (8, 0): [2],
    (8, 2): [2],
    (10, 0): [0, 1, 2, 3],
}


def withhold(step: int, call: int, grads: Grads) -> None:
    """Take away the gradients listed in `MISSING`."""
    for parameter in MISSING.get((step, call), []):
        grads[parameter] = None


@pytest.mark.parametrize("hessian", HESSIANS)
@pytest.mark.parametrize("door", ["closure", "evaluations"])
def test_missing_gradients(door: str, hessian: str) -> None:
    """None at the center skips the parameter, decay and counts too; None in a probe is zero."""
    options = {"lr": 0.1, "weight_decay": 0.2, "max_grad_norm": 0.5}
    twins = Twins(door=door, tamper=withhold, hessian=hessian, quick_steps=1, **options).run(20)
    counts = [twins.alice.state[p]["step"].item() for p in twins.params]
    assert counts == [19, 18, 19, 19]


def test_edited_positions_are_read_again() -> None:
    """Weights loaded between steps become mu; the probe center is stale for that one step."""
    twins = Twins(lr=0.1, quick_steps=1).run(7)
    with torch.no_grad():
        for p, mu in zip(twins.params, twins.reference.positions, strict=True):
            p.mul_(1.5)
            mu *= 1.5
    twins.run(13)
