"""Every claim of the paper has the verdict we publish, and no verdict is a stored answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from aliceopt import claims
from aliceopt.theory import curvature, glass_bound, kernel, nesterov, relu_glass

CORRECTED = {
    "gvd-equation",
    "thm1-coordinate",
    "thm1-radius",
    "thm1-trained",
    "appB-constant",
    "appB-bias",
    "appB-variance",
    "appB-kept-constant",
    "appB-kept-variance",
    "appB-drawn-variance",
    "fig1-cubic",
    "thm3-proof",
    "thm1-remark",
    "rho-diagonal",
    "abs-bias-1",
    "abs-bias-10",
    "abs-leak",
    "rms-leak",
    "jumps-trained",
    "jumps-power",
    "jumps-minibatch",
    "signed-trained",
    "thm5-display",
    "thm5-root",
    "thm5-eps",
    "alg2-glass",
    "alg2-error",
    "eq11-center",
    "greedy-least",
    "quick-memory",
    "zero-bound",
}
TRAINED = {
    "fig1-power-law": "resnet18-powerlaw",
    "fig4-resnet-naq": "resnet18-naq",
    "fig4-resnet-distance": "resnet18-naq",
    "fig4-vit-naq": "vit-naq",
    "fig5-limit": "tt-limit",
    "fig6-resnet": "resnet18-methods",
    "fig6-transformer": "tt-methods",
    "cost-accuracy": "resnet18-methods",
}


@pytest.fixture(scope="module")
def results() -> dict[str, claims.Result]:
    """All claims with the default seed and sizes."""
    return {result.claim.id: result for result in claims.run(claims.CLAIMS, claims.Context())}


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.id)
def test_every_claim_has_its_published_verdict(claim, results):
    wanted = "corrected" if claim.id in CORRECTED else "confirmed"
    if claim.id in TRAINED:
        wanted = "cannot tell"  # unless kept results are looked at
    result = results[claim.id]
    assert result.verdict == wanted, result


def test_ids_are_unique_and_rows_are_complete():
    ids = [claim.id for claim in claims.CLAIMS]
    assert len(set(ids)) == len(ids)
    assert CORRECTED | TRAINED.keys() <= set(ids)
    for claim in claims.CLAIMS:
        assert claim.place, claim
        assert claim.statement, claim
        assert claim.paper, claim
        assert (claim.experiment is None) == (claim.training is not None), claim


def test_claims_about_training_name_the_experiment_that_decides_them():
    decided = {c.id: c.training.experiment for c in claims.CLAIMS if c.training is not None}
    assert decided == TRAINED


def test_corrected_claims_say_why():
    for claim in claims.CLAIMS:
        assert bool(claim.correction) == (claim.id in CORRECTED), claim.id


def test_errors_are_known_where_draws_are_random(results):
    """A measured value that changes with the seed states its error or its tolerance."""
    for result in results.values():
        m = result.measurement
        if m is not None and m.relation == "=" and m.measured != m.expected:
            assert m.slack > 0, result


def test_a_claim_does_not_depend_on_which_others_are_run(results):
    chosen = claims.select(claims.CLAIMS, ["thm4-mean", "rho-diagonal", "greedy-full"])
    for result in claims.run(chosen, claims.Context()):
        assert result == results[result.claim.id]


def test_the_seed_reproduces_a_result_and_another_seed_does_not():
    chosen = claims.select(claims.CLAIMS, ["thm4-mean"])
    first, again, other = (
        next(claims.run(chosen, claims.Context(seed, samples=2_000))) for seed in (5, 5, 6)
    )
    assert first == again
    assert first.measurement.measured != other.measurement.measured


def test_samples_scale_the_standard_error():
    chosen = claims.select(claims.CLAIMS, ["thm4-mean"])
    few, many = (
        next(claims.run(chosen, claims.Context(samples=n))).measurement for n in (2_000, 32_000)
    )
    assert few.error / many.error == pytest.approx(4, rel=0.15)


class Scaled:
    """A theory function whose result is wrong by a factor, also where checks are skipped."""

    def __init__(self, function: Callable[..., Any], factor: float):
        self.function, self.factor = function, factor
        if hasattr(function, "unchecked"):
            self.unchecked = Scaled(function.unchecked, factor)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.function(*args, **kwargs)
        if isinstance(result, tuple):
            return tuple(self.factor * x for x in result)
        return self.factor * result


class Bent(Scaled):
    """A loss bound with a little too much curvature, which moves its minimum."""

    def __call__(self, displacement: Any, *args: Any, **kwargs: Any) -> Any:
        bend = self.factor * displacement.square().sum(-1)
        return self.function(displacement, *args, **kwargs) + bend


class Brighter(Scaled):
    """`from_module` with loss gradients wrong by a factor."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        glass = self.function(*args, **kwargs)
        return replace(glass, loss_grads=self.factor * glass.loss_grads)


def by(factor: float) -> Callable[[Any], Scaled]:
    return lambda function: Scaled(function, factor)


MUTATIONS: list[tuple[Any, str, Callable[[Any], Any], set[str]]] = [
    (relu_glass, "_jump_weights", by(1.1), {"thm1-matrix", "alg1-glass"}),
    (
        relu_glass,
        "expected_variation",
        by(1.1),
        {"thm1-variation", "rho-diagonal"},
    ),
    (relu_glass, "variation_bound", by(1.1), {"thm1-reached"}),
    (relu_glass, "variation_bound", by(0.1), {"thm1-bound", "thm1-net-bound"}),
    (relu_glass, "glass_density_matrix", by(1.1), {"thm1-matrix"}),
    (relu_glass, "glass_density", by(1.1), {"thm1-diagonal", "abs-leak"}),
    (relu_glass, "from_module", lambda f: Brighter(f, 1.2), {"thm1-net-value"}),
    (
        kernel,
        "kernel_norm",
        by(1.1),
        {"thm2-gaussian", "thm2-unbiased", "thm2-kernel", "thm2-perturbed", "appB-constant"},
    ),
    (kernel, "kernel_norm", by(0.9), {"thm3-jensen"}),
    (kernel, "optimal_kernel", by(1.1), {"thm2-kernel", "thm2-unbiased"}),
    (
        kernel,
        "estimator_variance",
        by(1.1),
        {"thm2-uniform", "thm2-two-sided", "thm2-optimum", "thm3-variance", "appB-threshold"},
    ),
    (kernel, "estimate_diagonal", by(1.1), {"thm2-unbiased", "thm3-variance"}),
    (
        kernel,
        "offdiag_ratio",
        by(1.1),
        {"thm2-dominance", "signed-settles", "abs-bias-1", "abs-bias-10"},
    ),
    (kernel, "update_probability", by(1.1), {"appB-probability"}),
    (
        glass_bound,
        "GLASS_LOSS_FACTOR",
        lambda x: 1.1 * x,
        {"thm4-mean", "thm4-elastic", "thm5-minimiser"},
    ),
    (glass_bound, "GLASS_LOSS_FACTOR", lambda x: 0.7 * x, {"thm4-reflection"}),
    (glass_bound, "loss_variance", by(1.1), {"thm4-variance"}),
    (glass_bound, "glass_loss_bound", by(1.1), {"thm4-mean", "thm5-minimiser"}),
    (glass_bound, "directional_density", by(2.0), {"thm4-net"}),
    (glass_bound, "glass_coherence", by(1.5), {"thm4-net-separable"}),
    (glass_bound, "loss_bound", lambda f: Bent(f, 0.1), {"thm5-minimiser", "thm5-display"}),
    (
        curvature,
        "GLASS_CURVATURE_FACTOR",
        lambda x: 1.1 * x,
        {"thm5-minimiser", "thm5-no-hessian", "thm5-eps"},
    ),
    (curvature, "glass_curvature", by(1.1), {"thm5-minimiser", "thm5-no-hessian"}),
    (
        curvature,
        "total_curvature",
        by(1.1),
        {"thm5-minimiser", "thm5-no-glass", "greedy-full"},
    ),
    (curvature, "optimal_step", by(1.1), {"thm5-minimiser", "greedy-length"}),
    (nesterov, "exact_step_fraction", by(1.1), {"thm6-exact", "thm6-clamped"}),
    (nesterov, "look_ahead", by(1.1), {"thm6-exact", "thm6-recursion"}),
    (nesterov, "average", by(1.1), {"thm6-exact", "thm6-recursion"}),
    (nesterov, "next_error", by(1.1), {"thm6-recursion", "thm6-full-steps"}),
    (nesterov, "gradient_error", by(1.1), {"thm6-exact", "thm6-clamped"}),
]


@pytest.mark.parametrize(
    ("module", "name", "mutate", "doomed"),
    MUTATIONS,
    ids=[f"{module.__name__.rpartition('.')[2]}.{name}" for module, name, *_ in MUTATIONS],
)
def test_a_wrong_formula_fails_the_claims_that_rest_on_it(
    module, name, mutate, doomed, monkeypatch
):
    """No verdict is stored: change a formula of the theory and the claims notice."""
    monkeypatch.setattr(module, name, mutate(getattr(module, name)))
    chosen = [claim for claim in claims.CLAIMS if claim.id in doomed]
    assert len(chosen) == len(doomed)
    verdicts = {r.claim.id: r.verdict for r in claims.run(chosen, claims.Context())}
    assert verdicts == dict.fromkeys(doomed, "failed")


def test_every_formula_of_the_theory_has_a_mutation():
    mutated = {(module.__name__, name) for module, name, *_ in MUTATIONS}
    for module in (relu_glass, kernel, glass_bound, curvature, nesterov):
        for name in module.__all__:
            member = getattr(module, name)
            made = isinstance(member, (type, kernel.Density)) or name in {"from_pdf", "two_sided"}
            assert made or (module.__name__, name) in mutated, f"{module.__name__}.{name}"


def test_a_wrong_constant_of_the_paper_would_be_noticed():
    """The other direction: the same measurement with another printed number changes verdict."""
    (claim,) = claims.select(claims.CLAIMS, ["appB-probability"])
    measurement = claim.experiment(claims.Context())
    assert claims.judge(claim, measurement).verdict == "confirmed"
    assert claims.judge(claim, replace(measurement, paper=0.33)).verdict == "corrected"


def test_claims_leave_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    chosen = claims.select(claims.CLAIMS, ["thm1-exponent", "thm1-radius", "thm2-", "greedy"])
    list(claims.run(chosen, claims.Context(samples=1_000)))
    assert torch.equal(before, torch.random.get_rng_state())


def test_claims_give_the_threads_back():
    threads = torch.get_num_threads()
    list(claims.run(claims.select(claims.CLAIMS, ["thm6-exact"]), claims.Context()))
    assert torch.get_num_threads() == threads
