"""Bad input to every public function of the theory: the error names argument, rule and value."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aliceopt.theory import _checks, curvature, glass_bound, kernel, nesterov, relu_glass
from aliceopt.theory.density import Density
from aliceopt.theory.kernel import GAUSSIAN, RADEMACHER, UNIFORM

NAN, INF = math.nan, math.inf
FINITE, NONNEGATIVE, POSITIVE = "finite", "finite and >= 0", "finite and > 0"
BELOW_ONE, CURVATURE = "in [0, 1)", ">= 0 and not NaN"
Call = Callable[[], Any]


def vec(*values: float) -> Tensor:
    return torch.tensor(values)


def refused(name: str, rule: str, value: str) -> str:
    """The one sentence of the package, as a pattern for the whole message."""
    return f"^{re.escape(f'{name} must be {rule}, got {value}')}$"


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


# --- shapes ------------------------------------------------------------------------------------

TWO, THREE = torch.ones(2), torch.ones(3)
SHAPES: list[tuple[str, Call, str]] = [
    (
        "glass_curvature",
        lambda: curvature.glass_curvature(TWO, THREE),
        r"shapes must agree or broadcast, got glass_density \(2,\), grad \(3,\)",
    ),
    (
        "total_curvature",
        lambda: curvature.total_curvature(TWO, THREE),
        r"shapes must agree or broadcast, got glass_curvature \(2,\), hess \(3,\)",
    ),
    (
        "optimal_step",
        lambda: curvature.optimal_step(TWO, THREE, TWO),
        r"broadcast, got grad \(2,\), glass_density \(3,\), hess \(2,\)",
    ),
    (
        "loss_variance",
        lambda: glass_bound.loss_variance(TWO, THREE),
        r"broadcast, got glass_density \(2,\), displacement \(3,\)",
    ),
    (
        "glass_loss_bound",
        lambda: glass_bound.glass_loss_bound(TWO, THREE),
        r"broadcast, got glass_density \(2,\), displacement \(3,\)",
    ),
    (
        "loss_bound",
        lambda: glass_bound.loss_bound(TWO, TWO, TWO, THREE),
        r"displacement \(2,\), grad \(2,\), glass_density \(2,\), hess \(3,\)",
    ),
    (
        "look_ahead",
        lambda: nesterov.look_ahead(TWO, THREE, 0.1, 1.0),
        r"broadcast, got position \(2,\), step \(3,\)",
    ),
    (
        "average",
        lambda: nesterov.average(TWO, THREE, 0.9),
        r"broadcast, got grad_avg \(2,\), grad \(3,\)",
    ),
    (
        "next_error",
        lambda: nesterov.next_error(TWO, THREE, 0.9, 0.1, 1.0),
        r"broadcast, got error \(2,\), hess_step \(3,\)",
    ),
    (
        "offdiag_ratio oblong",
        lambda: kernel.offdiag_ratio(torch.ones(2, 3)),
        r"matrix must be square, got shape \(2, 3\)",
    ),
    (
        "offdiag_ratio vector",
        lambda: kernel.offdiag_ratio(TWO),
        r"matrix must be square, got shape \(2,\)",
    ),
    (
        "estimate_diagonal",
        lambda: kernel.estimate_diagonal(lambda x: x[:1], (2,), 1),
        r"matvec must return shape \(2,\), as it was given, got \(1,\)",
    ),
    (
        "estimate_diagonal broadcast",
        lambda: kernel.estimate_diagonal(lambda x: x[:, None], (2,), 1),
        r"matvec must return shape \(2,\), as it was given, got \(2, 1\)",
    ),
    (
        "preact_grads",
        lambda: relu_glass.glass_density(TWO, TWO, 1.0),
        r"preact_grads must have shape \(any, any\), got \(2,\)",
    ),
    (
        "loss_grads",
        lambda: relu_glass.glass_density_matrix(GAMMA, THREE, 1.0),
        r"loss_grads must have shape \(2\), got \(3,\)",
    ),
    (
        "loss_grads column",
        lambda: relu_glass.glass_density(GAMMA, torch.ones(2, 1), 1.0),
        r"loss_grads must have shape \(2\), got \(2, 1\)",
    ),
    (
        "displacement of the bound",
        lambda: relu_glass.variation_bound(GAMMA, SLOPE, 1.0, TWO),
        r"displacement must have shape \(3\), got \(2,\)",
    ),
    (
        "displacement of the expectation",
        lambda: relu_glass.expected_variation(GAMMA, SLOPE, 1.0, TWO),
        r"displacement must have shape \(3\), got \(2,\)",
    ),
]


@pytest.mark.parametrize(("call", "message"), [pytest.param(c, m, id=i) for i, c, m in SHAPES])
def test_disagreeing_shapes_are_refused(call: Call, message: str):
    """Every shape involved is listed, by name."""
    with pytest.raises(ValueError, match=message):
        call()


# --- values inside matrices and networks -------------------------------------------------------


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


@pytest.mark.parametrize("batch", [torch.ones(2, 1), (torch.ones(2, 1),), "ab", None])
def test_batch_must_be_a_pair(batch: object):
    """Inputs and targets, nothing else; a tensor of two rows is no pair."""
    with pytest.raises(ValueError, match=r"batch must be a pair \(inputs, targets\), got \w+"):
        relu_glass.from_module(nn.Linear(1, 1), nn.functional.mse_loss, batch, 1.0)


def test_model_must_have_parameters():
    """Nothing to take a Jacobian with respect to."""
    with pytest.raises(ValueError, match="model must have parameters, got none"):
        relu_glass.from_module(nn.ReLU(), nn.functional.mse_loss, (TWO, TWO), 1.0)


def test_network_that_is_not_a_number_is_refused():
    """A NaN pre-activation is inside no threshold: it must not pass for an absence of glass."""
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU())
    batch = (torch.full((1, 1), NAN), torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"must be .*, got nan"):
        relu_glass.from_module(model, nn.functional.mse_loss, batch, 1.0)


# --- densities and kernels ---------------------------------------------------------------------


def no_sampler(*_: object) -> Tensor:
    raise AssertionError("nothing is sampled here")


@pytest.mark.parametrize(
    ("atoms", "message"),
    [
        (((-1.0, 0.5), (1.0, 0.4)), "total probability 1, got 0.9$"),
        (((-1.0, 0.4), (1.0, 0.6)), "mean 0, got 0.2$"),
        (((-2.0, 0.5), (2.0, 0.5)), "unit variance, i.e. second moment 1, got 4$"),
        ((), "total probability 1, got 0$"),
        (((NAN, 0.5), (1.0, 0.5)), "total probability 1, got (0.5|nan)$"),
        (((-1.0, NAN), (1.0, 0.5)), "total probability 1, got nan$"),
    ],
)
def test_density_without_the_moments_is_refused(atoms: tuple[Any, ...], message: str):
    """Total probability one, mean zero, variance one: the message says which is not."""
    with pytest.raises(ValueError, match=f"density 'mine' must have {message}"):
        Density("mine", no_sampler, atoms=atoms)


def test_density_with_negative_probability_is_refused():
    """Right moments, but -1 at zero: it would beat Rademacher, which no density can."""
    root = math.sqrt(0.5)
    with pytest.raises(ValueError, match=r"mine.*-1"):
        Density("mine", no_sampler, atoms=((-root, 1.0), (root, 1.0), (0.0, -1.0)))


def test_piece_with_negative_density_is_refused():
    """``b x^2 - a`` on [-1.2, 1.2] can have all three moments right and be negative at zero."""
    mass, second, fourth = (2 * 1.2**n / n for n in (1, 3, 5))
    a, b = np.linalg.solve([[-mass, second], [-second, fourth]], [1.0, 1.0])
    assert a > 0
    with pytest.raises(ValueError, match=r"mine.*-0\."):
        Density("mine", no_sampler, pieces=((lambda x: b * x * x - a, -1.2, 1.2),))


@pytest.mark.parametrize(
    ("pdf", "support", "message"),
    [
        (
            lambda x: np.full_like(x, 0.25),
            (-2.0, 2.0),
            "unit variance, i.e. second moment 1, got 1.3",
        ),
        (lambda x: np.full_like(x, 0.5), (-2.0, 2.0), "total probability 1, got 2"),
        (lambda x: np.full_like(x, 0.5), (0.0, 2.0), "mean 0, got 1"),
        (
            lambda x: np.full_like(x, -0.25),
            (-2.0, 2.0),
            r"pdf must be finite and >= 0, got .*-0.25",
        ),
        (lambda x: np.full_like(x, NAN), (-2.0, 2.0), r"pdf must be finite and >= 0, got .*nan"),
        (lambda x: np.full_like(x, INF), (-2.0, 2.0), r"pdf must be finite and >= 0, got .*inf"),
        (lambda x: np.full(3, 0.25), (-2.0, 2.0), r"pdf must return shape \(\d+,\), got \(3,\)"),
        (np.ones_like, (2.0, -2.0), r"lower < upper, got \(2.0, -2.0\)"),
        (np.ones_like, (1.0, 1.0), r"lower < upper, got \(1.0, 1.0\)"),
        (np.ones_like, (-INF, INF), r"two finite numbers, lower < upper, got \(-inf, inf\)"),
        (np.ones_like, (NAN, 1.0), r"two finite numbers, lower < upper, got \(nan, 1.0\)"),
    ],
)
def test_user_density_is_refused_with_the_reason(
    pdf: Callable[[np.ndarray], np.ndarray], support: tuple[float, float], message: str
):
    """Negative, not finite, not normalised, off center, not of unit variance, no interval."""
    with pytest.raises(ValueError, match=message):
        kernel.from_pdf(pdf, support)


@pytest.mark.parametrize(
    ("density", "threshold"), [(RADEMACHER, 1.5), (UNIFORM, 2.0), (GAUSSIAN, 50.0)]
)
def test_threshold_that_keeps_nothing_is_refused(density: Density, threshold: float):
    """By every function that takes one."""
    message = f"min_perturbation must leave some of density '{density.name}', got {threshold}"
    for call in (
        lambda: kernel.update_probability(density, threshold),
        lambda: kernel.kernel_norm(density, 1.0, threshold),
        lambda: kernel.estimator_variance(density, 1.0, threshold),
        lambda: kernel.estimate_diagonal(lambda x: x, (2,), 1, density, min_perturbation=threshold),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


@pytest.mark.parametrize(
    ("biased", "threshold", "value"),
    [
        (lambda x: 2 * x / (x * x + 1), 0.0, "0.68864"),
        (lambda x: x, 1.0, "2.5251"),
        (lambda x: x + 1 / x.square(), 1.0, "2.5251"),
        (torch.zeros_like, 0.0, "0$"),
    ],
)
def test_biased_kernel_is_refused(biased: Callable[[Tensor], Tensor], threshold: float, value: str):
    """``E[k(x) x]`` over the kept part must be 1; the paper's constant 2 makes it 0.689.

    ``k(x) = x`` restricted at 1 has ``E[x^2 | |x| >= 1] = 1 + 2 phi(1) / erfc(1/sqrt 2) = 2.525``.
    """
    with pytest.raises(ValueError, match=rf"kernel must have E\[kernel\(x\) x\] = 1, got {value}"):
        kernel.estimator_variance(GAUSSIAN, 1.0, threshold, kernel=biased)


@pytest.mark.parametrize("bad", [0, -3, 1.5, 2.0, True, NAN, "2"])
def test_number_of_samples_must_be_a_whole_positive_number(bad: object):
    """Named, with the value."""
    message = refused("num_samples", "a whole number >= 1", repr(bad))
    with pytest.raises(ValueError, match=message):
        kernel.estimate_diagonal(lambda x: x, (2,), bad)


@pytest.mark.parametrize("bad", [-1, 0.5, True, NAN])
def test_number_of_updates_must_be_a_whole_number(bad: object):
    """Zero updates are legal, minus one or half of one are not."""
    with pytest.raises(ValueError, match=refused("updates", "a whole number >= 0", repr(bad))):
        nesterov.gradient_error(TWO, 0.9, bad)


# --- what a number is --------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["1", None, [1.0], True])
def test_argument_that_is_no_number_is_refused_by_name(bad: object):
    """The type is named, for tensors and for plain numbers alike."""
    message = f"must be a tensor or a number, got {type(bad).__name__}"
    with pytest.raises(TypeError, match=f"grad {message}"):
        curvature.glass_curvature(TWO, bad)
    with pytest.raises(TypeError, match=f"beta1 {message}"):
        nesterov.exact_step_fraction(bad)
    with pytest.raises(TypeError, match=f"threshold {message}"):
        relu_glass.glass_density(GAMMA, SLOPE, bad)


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
def test_tensor_of_the_wrong_kind_is_refused(dtype: torch.dtype):
    """Truth values and complex numbers have no sign."""
    with pytest.raises(ValueError, match=f"hess must be real numbers, got dtype {dtype}"):
        curvature.total_curvature(TWO, torch.ones(2, dtype=dtype))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("grad", lambda: curvature.optimal_step(1.0, TWO, TWO)),
        ("glass_density", lambda: curvature.glass_curvature(1.0, TWO)),
        ("hess", lambda: curvature.total_curvature(1.0, 1.0)),
        ("displacement", lambda: glass_bound.glass_loss_bound(TWO, 1.0)),
        ("preact_grads", lambda: relu_glass.glass_density([[1.0]], TWO, 1.0)),
        ("matrix", lambda: kernel.offdiag_ratio(2.0)),
    ],
)
def test_number_or_list_for_a_tensor_works_or_is_refused_by_name(name: str, call: Call):
    """No AttributeError from inside: either it is taken, or the argument and rule are named."""
    message = f"{name} must be accepted"
    try:
        call()
    except (TypeError, ValueError) as error:
        message = str(error)
    assert " must be " in message


def test_python_numbers_are_judged_in_double_precision():
    """Just below one, below the float32 range and above it: all legal where a float is."""
    assert nesterov.exact_step_fraction(1 - 1e-9) == pytest.approx(1e-9, rel=1e-6)
    gamma, slope = GAMMA.double(), SLOPE.double()
    assert relu_glass.glass_density(gamma, slope, 1e-50)[0].item() == pytest.approx(1e50)
    assert relu_glass.glass_density(gamma, slope, 1e50)[0].item() == pytest.approx(1e-50)
    with pytest.raises(ValueError, match="beta1"):
        nesterov.exact_step_fraction(-1e-50)


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
