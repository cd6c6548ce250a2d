"""Bad values to every public function of the theory: the error names argument, rule and value."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt.theory import _checks, curvature, glass_bound, kernel, nesterov, relu_glass
from aliceopt.theory.kernel import GAUSSIAN, RADEMACHER
from theory_cases import refused

NAN, INF = math.nan, math.inf
FINITE, NONNEGATIVE, POSITIVE = "finite", "finite and >= 0", "finite and > 0"
BELOW_ONE, CURVATURE = "in [0, 1)", ">= 0 and not NaN"
Call = Callable[[], Any]


def vec(*values: float) -> Tensor:
    return torch.tensor(values)


def with_bad(function: Callable[..., Any], good: dict[str, Any], name: str, bad: float) -> Call:
    """The call with one argument spoiled: the second entry of a tensor, or the number itself."""
    value = vec(1.0, bad) if isinstance(good[name], Tensor) else bad
    return lambda: function(**{**good, name: value})


ONES = vec(1.0, 1.0)
GAMMA, SLOPE = torch.ones(2, 3), torch.ones(2)

# function, sound arguments, and for each argument its rule and values that break it
RULES: list[tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[str, list[float]]]]] = [
    (
        curvature.glass_curvature,
        {"glass_density": ONES, "grad": ONES, "eps": 0.0},
        {
            "glass_density": (NONNEGATIVE, [-1.5, NAN, INF]),
            "grad": (FINITE, [NAN, INF, -INF]),
            "eps": (NONNEGATIVE, [-0.5, NAN]),
        },
    ),
    (
        curvature.total_curvature,
        {"glass_curvature": ONES, "hess": ONES, "eps": 0.0},
        {
            "glass_curvature": (CURVATURE, [-1.5, NAN]),
            "hess": (CURVATURE, [-1.5, NAN]),
            "eps": (NONNEGATIVE, [-0.5, NAN]),
        },
    ),
    (
        curvature.optimal_step,
        {"grad": ONES, "glass_density": ONES, "hess": ONES, "eps": 0.0},
        {
            "grad": (FINITE, [NAN, -INF]),
            "glass_density": (NONNEGATIVE, [-1.5, NAN]),
            "hess": (NONNEGATIVE, [-1.5, NAN, INF]),
            "eps": (NONNEGATIVE, [-0.5, NAN]),
        },
    ),
    (
        glass_bound.loss_variance,
        {"glass_density": ONES, "displacement": ONES},
        {
            "glass_density": (NONNEGATIVE, [-1.5, NAN]),
            "displacement": (FINITE, [NAN, INF]),
        },
    ),
    (
        glass_bound.glass_loss_bound,
        {"glass_density": ONES, "displacement": ONES},
        {
            "glass_density": (NONNEGATIVE, [-1.5, NAN]),
            "displacement": (FINITE, [NAN, INF]),
        },
    ),
    (
        glass_bound.directional_density,
        {"second_difference": ONES, "signs": ONES, "probe_radius": 0.1},
        {
            "second_difference": (FINITE, [NAN, INF]),
            "signs": (FINITE, [NAN, -INF]),
            "probe_radius": (POSITIVE, [0.0, -0.5, NAN]),
        },
    ),
    (
        glass_bound.glass_coherence,
        {"directional_density": ONES, "glass_density": ONES},
        {
            "directional_density": (NONNEGATIVE, [-1.5, NAN]),
            "glass_density": (NONNEGATIVE, [-1.5, NAN]),
        },
    ),
    (
        glass_bound.loss_bound,
        {"displacement": ONES, "grad": ONES, "glass_density": ONES, "hess": ONES},
        {
            "displacement": (FINITE, [NAN, INF]),
            "grad": (FINITE, [NAN, -INF]),
            "glass_density": (NONNEGATIVE, [-1.5, NAN]),
            "hess": (NONNEGATIVE, [-1.5, NAN]),
        },
    ),
    (
        kernel.update_probability,
        {"density": GAUSSIAN, "min_perturbation": 0.5},
        {"min_perturbation": (NONNEGATIVE, [-0.5, NAN, INF])},
    ),
    (
        kernel.kernel_norm,
        {"density": GAUSSIAN, "offdiag_ratio": 1.0, "min_perturbation": 0.5},
        {
            "offdiag_ratio": (NONNEGATIVE, [-0.5, NAN, INF]),
            "min_perturbation": (NONNEGATIVE, [-0.5, NAN]),
        },
    ),
    (
        kernel.optimal_kernel,
        {"perturbation": ONES, "offdiag_ratio": 1.0, "kernel_norm": 0.5},
        {
            "perturbation": (FINITE, [NAN, INF]),
            "offdiag_ratio": (NONNEGATIVE, [-0.5, NAN]),
            "kernel_norm": (POSITIVE, [0.0, -0.5, NAN]),
        },
    ),
    (
        kernel.estimator_variance,
        {"density": GAUSSIAN, "offdiag_ratio": 1.0, "min_perturbation": 0.0},
        {
            "offdiag_ratio": (NONNEGATIVE, [-0.5, NAN]),
            "min_perturbation": (NONNEGATIVE, [-0.5, NAN]),
        },
    ),
    (
        kernel.estimator_variance,
        {"density": RADEMACHER, "offdiag_ratio": 1.0, "kernel": lambda x: x},
        {"offdiag_ratio": (NONNEGATIVE, [-0.5, NAN])},
    ),
    (
        kernel.estimate_diagonal,
        {
            "matvec": lambda x: x,
            "shape": (2,),
            "num_samples": 1,
            "min_perturbation": 0.0,
            "offdiag_ratio": 1.0,
        },
        {
            "min_perturbation": (NONNEGATIVE, [-0.5, NAN]),
            "offdiag_ratio": (NONNEGATIVE, [-0.5, NAN]),
        },
    ),
    (kernel.two_sided, {"inner": 0.5}, {"inner": (BELOW_ONE, [1.0, -0.5, NAN, INF])}),
    (
        nesterov.exact_step_fraction,
        {"beta1": 0.5, "lookahead": 1.0},
        {
            "beta1": (BELOW_ONE, [1.0, -0.5, NAN]),
            "lookahead": (POSITIVE, [0.0, -1.0, NAN, INF]),
        },
    ),
    (
        nesterov.look_ahead,
        {"position": ONES, "step": ONES, "step_fraction": 0.5, "lookahead": 1.0},
        {
            "position": (FINITE, [NAN, INF]),
            "step": (FINITE, [NAN, -INF]),
            "step_fraction": (NONNEGATIVE, [-0.5, NAN]),
            "lookahead": (NONNEGATIVE, [-0.5, NAN]),
        },
    ),
    (
        nesterov.average,
        {"grad_avg": ONES, "grad": ONES, "beta1": 0.5},
        {
            "grad_avg": (FINITE, [NAN]),
            "grad": (FINITE, [INF]),
            "beta1": (BELOW_ONE, [1.0, -0.5, NAN]),
        },
    ),
    (
        nesterov.next_error,
        {"error": ONES, "hess_step": ONES, "beta1": 0.5, "step_fraction": 0.5, "lookahead": 1.0},
        {
            "error": (FINITE, [NAN]),
            "hess_step": (FINITE, [INF]),
            "beta1": (BELOW_ONE, [1.0, -0.5, NAN]),
            "step_fraction": (NONNEGATIVE, [-0.5, NAN]),
            "lookahead": (NONNEGATIVE, [-0.5, NAN]),
        },
    ),
    (
        nesterov.gradient_error,
        {"first_grad": ONES, "beta1": 0.5, "updates": 1},
        {"first_grad": (FINITE, [NAN]), "beta1": (BELOW_ONE, [1.0, -0.5, NAN])},
    ),
    *(
        (
            function,
            {"preact_grads": GAMMA, "loss_grads": SLOPE, "threshold": 1.0, **more},
            {"threshold": (POSITIVE, [0.0, -1.0, NAN, INF])},
        )
        for function, more in [
            (relu_glass.glass_density_matrix, {}),
            (relu_glass.glass_density, {}),
            (relu_glass.variation_bound, {"displacement": torch.ones(3)}),
            (relu_glass.expected_variation, {"displacement": torch.ones(3)}),
        ]
    ),
    (
        relu_glass.from_module,
        {
            "model": nn.Linear(1, 1),
            "loss": lambda output, _: output.sum(),
            "batch": (torch.ones(1, 1), None),
            "threshold": 1.0,
        },
        {"threshold": (POSITIVE, [0.0, -1.0, NAN, INF])},
    ),
]
BROKEN = [
    pytest.param(
        with_bad(function, good, name, bad),
        refused(name, rule, repr(bad)),
        id=f"{function.__name__}-{name}={bad}",
    )
    for function, good, rules in RULES
    for name, (rule, values) in rules.items()
    for bad in values
]


@pytest.mark.parametrize(("call", "message"), BROKEN)
def test_value_outside_the_rule_is_refused(call: Call, message: str):
    """One offending entry among sound ones is enough, and is the one named."""
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("function", "good"), [(f, g) for f, g, _ in RULES], ids=[f.__name__ for f, _, _ in RULES]
)
def test_sound_arguments_are_accepted(function: Callable[..., Any], good: dict[str, Any]):
    """The table above spoils one argument of a call that works."""
    function(**good)


def test_every_public_function_is_in_some_table():
    """A new function must come with its bad inputs."""
    modules = [curvature, glass_bound, kernel, nesterov, relu_glass]
    public = {
        name
        for module in modules
        for name in module.__all__
        if callable(getattr(module, name)) and not inspect.isclass(getattr(module, name))
    }
    covered = {f.__name__ for f, _, _ in RULES} | {"offdiag_ratio", "from_pdf"}
    assert public == covered


@pytest.mark.parametrize("bad", [NAN, INF])
def test_units_must_be_finite(bad: float):
    """In either array of units, in the displacement and in the matrix of a ratio."""
    gamma, slope, d = GAMMA.clone(), SLOPE.clone(), torch.ones(3)
    gamma[1, 2], slope[1], d[1] = bad, bad, bad
    for name, call in {
        "preact_grads": lambda: relu_glass.glass_density(gamma, SLOPE, 1.0),
        "loss_grads": lambda: relu_glass.glass_density_matrix(GAMMA, slope, 1.0),
        "displacement": lambda: relu_glass.variation_bound(GAMMA, SLOPE, 1.0, d),
        "matrix": lambda: kernel.offdiag_ratio(torch.full((2, 2), bad)),
    }.items():
        with pytest.raises(ValueError, match=refused(name, FINITE, repr(bad))):
            call()
    with pytest.raises(ValueError, match=refused("displacement", FINITE, repr(bad))):
        relu_glass.expected_variation(GAMMA, SLOPE, 1.0, d)


def test_offending_number_is_shown_as_it_was_given():
    """1.1 is 1.1 in the message, not its float32 neighbour."""
    with pytest.raises(ValueError, match=refused("beta1", BELOW_ONE, "1.1")):
        nesterov.exact_step_fraction(1.1)


# --- the decorator -----------------------------------------------------------------------------


def test_unchecked_function_skips_the_rules_and_nothing_else():
    """The bare function takes what the rules forbid, and agrees where they allow."""
    assert curvature.total_curvature.unchecked(vec(2.0), vec(NAN)).isnan().all()
    good = vec(2.0), vec(4.0)
    assert torch.equal(curvature.total_curvature.unchecked(*good), curvature.total_curvature(*good))


def test_rule_for_an_argument_that_does_not_exist_is_refused():
    """A renamed argument cannot silently lose its rule."""
    with pytest.raises(TypeError, match=r"rules for unknown arguments \['y'\]"):
        _checks.checked(y=_checks.FINITE)(lambda x: x)


def test_checked_function_keeps_its_name_and_docstring():
    """For `help` and for the API pages."""
    assert curvature.optimal_step.__name__ == "optimal_step"
    assert "Theorem 5" in (curvature.optimal_step.__doc__ or "")
    assert next(iter(inspect.signature(curvature.optimal_step).parameters)) == "grad"
