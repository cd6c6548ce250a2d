"""Claims exercise the package: a slip in its own lines turns a verdict to failed.

Each mutation edits the text of one function, as a slip of the pen would, and puts the result
wherever the package uses the function.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

from aliceopt import claims, options, step, topography
from aliceopt.theory import relu_glass

MUTATIONS: dict[str, tuple[Callable[..., Any], str, str, set[str]]] = {
    "2/lambda to 1/(2 lambda)": (
        topography.glass_sample,
        "(2 / grads.radius)",
        "(0.5 / grads.radius)",
        {"alg1-glass", "rho-diagonal"},
    ),
    "h doubled": (
        topography.hess_sample,
        "0.5 / grads.radius",
        "1 / grads.radius",
        {"abs-bias-1", "abs-leak", "rms-leak", "signed-diagonal", "fig3-fit"},
    ),
    "signed without its sign": (
        topography.hess_sample,
        ".mul_(grads.signs)",
        "",
        {"signed-unbiased", "signed-diagonal"},
    ),
    "phi = 1 - beta1^2": (
        options.step_fraction,
        '(1 - group["betas"][0])',
        '(1 - group["betas"][0] ** 2)',
        {"thm6-alice"},
    ),
    "mu and nu swapped": (
        step.moved,
        "phi, omega = rates.step_fraction, rates.lookahead",
        "omega, phi = rates.step_fraction, rates.lookahead",
        {"thm6-alice"},
    ),
    "rho uncorrected": (
        topography.corrected,
        "averages.glass_density * (1 / rates.topo_weight)",
        "averages.glass_density",
        {"zero-glass"},
    ),
    "h uncorrected": (
        topography.corrected,
        "averages.hess * (1 / rates.topo_weight)",
        "averages.hess",
        {"zero-hessian"},
    ),
    "s uncorrected": (
        topography.corrected,
        "averages.grad_sq * (1 / rates.sq_weight)",
        "averages.grad_sq",
        {"replicates-adam"},
    ),
    "beta2 at every measuring step": (
        options.rates,
        'beta2 ** (group["quick_steps"] + 1)',
        "beta2",
        {"quick-memory"},
    ),
    "SGD-M bounds from the corrected gradient": (
        step._unit,
        "return averages.grad_avg.abs()",
        "return size",
        {"replicates-sgdm"},
    ),
    "eps inside the glass term": (
        step.anatomy,
        "glass_curvature.unchecked(est.glass_density, size, rates.eps)",
        "glass_curvature.unchecked(est.glass_density, size, rates.eps / 12.6)",
        {"thm5-eps"},
    ),
    "R transposed": (
        relu_glass.glass_density_matrix,
        "(preact_grads.square() * weights[:, None]).T @ preact_grads.abs()",
        "(preact_grads.abs() * weights[:, None]).T @ preact_grads.square()",
        {"thm1-matrix"},
    ),
    "R transposed in the bound": (
        relu_glass.variation_bound,
        "(weights * (preact_grads.abs() @ displacement.abs())) @ preact_grads.square()",
        "(weights * (preact_grads.square() @ displacement.abs())) @ preact_grads.abs()",
        {"thm1-reached"},
    ),
}


def rewritten(function: Callable[..., Any], old: str, new: str) -> Callable[..., Any]:
    """The function with one piece of its text replaced."""
    text = inspect.getsource(function)
    assert text.count(old) == 1, f"{function.__name__} no longer says {old!r}"
    namespace = dict(function.__globals__)
    exec(compile(text.replace(old, new), "<mutation>", "exec"), namespace)
    mutant: Callable[..., Any] = namespace[function.__name__]
    return mutant


def install(monkeypatch: pytest.MonkeyPatch, function: Any, mutant: Any) -> None:
    """Wherever a module of the package has the function under some name."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "aliceopt":
            for name, value in list(vars(module).items()):
                if value is function:
                    monkeypatch.setattr(module, name, mutant)


@pytest.mark.parametrize("slip", MUTATIONS)
def test_a_slip_in_the_package_fails_a_claim(slip, monkeypatch):
    """Every row named turns to failed, and did not fail before."""
    function, old, new, doomed = MUTATIONS[slip]
    chosen = [claim for claim in claims.CLAIMS if claim.id in doomed]
    assert len(chosen) == len(doomed)
    before = {r.claim.id: r.verdict for r in claims.run(chosen, claims.Context())}
    assert "failed" not in before.values()
    install(monkeypatch, function, rewritten(function, old, new))
    after = {r.claim.id: r.verdict for r in claims.run(chosen, claims.Context())}
    assert after == dict.fromkeys(doomed, "failed")
