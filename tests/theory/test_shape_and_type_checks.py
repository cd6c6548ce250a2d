"""Bad shapes, types, batches and models given to the theory: refused by name, never by accident."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from aliceopt.theory import curvature, glass_bound, kernel, nesterov, relu_glass
from theory_cases import refused

NAN = math.nan
Call = Callable[[], Any]
TWO, THREE = torch.ones(2), torch.ones(3)
GAMMA, SLOPE = torch.ones(2, 3), torch.ones(2)

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


# --- networks ----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("bad", [-1, 0.5, True, NAN])
def test_number_of_updates_must_be_a_whole_number(bad: object):
    """Zero updates are legal, minus one or half of one are not."""
    with pytest.raises(ValueError, match=refused("updates", "a whole number >= 0", repr(bad))):
        nesterov.gradient_error(TWO, 0.9, bad)


def test_python_numbers_are_judged_in_double_precision():
    """Just below one, below the float32 range and above it: all legal where a float is."""
    assert nesterov.exact_step_fraction(1 - 1e-9) == pytest.approx(1e-9, rel=1e-6)
    gamma, slope = GAMMA.double(), SLOPE.double()
    assert relu_glass.glass_density(gamma, slope, 1e-50)[0].item() == pytest.approx(1e50)
    assert relu_glass.glass_density(gamma, slope, 1e50)[0].item() == pytest.approx(1e-50)
    with pytest.raises(ValueError, match="beta1"):
        nesterov.exact_step_fraction(-1e-50)
