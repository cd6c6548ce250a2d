"""Every bad option is refused where it is given, and the message says what would be right."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from aliceopt import Alice
from paper import paper_alice

NUMBERS = ("lr", "lr_min", "weight_decay", "eps")
POSITIVE = ("probe_radius", "step_fraction", "lookahead", "max_grad_norm")
NOT_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, -1.0, "0.1", True, [0.1], 1j]

BAD: list[tuple[str, Any, str]] = [
    *((name, value, r"\[0, inf\)") for name in NUMBERS for value in [*NOT_NUMBERS, None]),
    *((name, value, r"\(0, inf\)") for name in POSITIVE for value in [*NOT_NUMBERS, 0.0]),
    ("lookahead", None, r"\(0, inf\)"),
    *(
        ("betas", value, r"\[0, 1\)")
        for value in [
            (0.9, 1.0),
            (1.0, 0.9),
            (-0.1, 0.9),
            (0.9, -0.1),
            (0.9, math.nan),
            (0.9,),
            (0.9, 0.9, 0.9),
            0.9,
            None,
            ("0.9", 0.9),
            (True, 0.9),
        ]
    ),
    *(("limit", value, "'adam', 'fixed', 'sgd'") for value in ["Adam", "", None, 3]),
    *(("hessian", value, "'none', 'abs', 'rms', 'signed'") for value in ["ABS", None, True]),
    *(("glass", value, "True or False") for value in [1, None, "yes"]),
    *(("maximize", value, "True or False") for value in [0, None, "no"]),
    *(("quick_steps", value, ">= 0") for value in [-1, 1.0, 2.5, None, True, "3"]),
    *(("seed", value, f">= 0 and < {2**63}") for value in [-1, 2**63, 0.0, None, False]),
    *(("implementation", value, "'auto'") for value in ["fast", None]),
    ("model", "resnet18", "torch.nn.Module"),
]
SHARED = ("quick_steps", "seed", "max_grad_norm")
CONSTRUCTOR_ONLY = ("implementation", "model")


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(("name", "value", "range_"), BAD, ids=lambda x: str(x)[:24])
def test_bad_option_is_refused_at_construction(name, value, range_):
    """The message names the option, the range and the value given."""
    given = type(value).__name__ if name == "model" else repr(value)
    with pytest.raises(ValueError, match=f"{name} must be .*{range_}.*got {re.escape(given)}"):
        paper_alice([parameter()], **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "range_"),
    [row for row in BAD if row[0] not in SHARED + CONSTRUCTOR_ONLY],
    ids=lambda x: str(x)[:24],
)
def test_bad_option_of_a_group_is_refused_and_leaves_the_optimizer_alone(name, value, range_):
    """At construction and in add_param_group; the optimizer goes on with the groups it had."""
    message = f"{name} must be .*{range_}.*got {re.escape(repr(value))}"
    with pytest.raises(ValueError, match=message):
        paper_alice([{"params": [parameter()]}, {"params": [parameter()], name: value}])
    p = parameter()
    optimizer = paper_alice([p])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [parameter()], name: value})
    assert len(optimizer.param_groups) == 1
    optimizer.step(lambda: p.sum().backward())
    assert not torch.equal(p, torch.ones(3))


@pytest.mark.parametrize("name", ["lr", "lr_min"])
@pytest.mark.parametrize(
    "value", [torch.tensor(-0.1), torch.tensor(math.nan), torch.ones(2), torch.tensor(1j)], ids=str
)
def test_bad_tensor_option_is_refused(name, value):
    """A tensor must hold one real number in range."""
    with pytest.raises(ValueError, match=rf"{name} must be a number in \[0, inf\), got tensor"):
        paper_alice([parameter()], **{name: value})


@pytest.mark.parametrize("implementation", ["eager", "auto"])
@pytest.mark.parametrize("kind", [np.float32, np.int64, torch.tensor, lambda x: torch.tensor([x])])
@pytest.mark.parametrize("name", NUMBERS + POSITIVE)
def test_a_number_of_numpy_or_torch_is_a_number(
    name: str, kind: Callable[[float], Any], implementation: str
) -> None:
    """Schedules are made with numpy, too; one element is a number, as torch has it."""

    def trained(value: Any) -> torch.Tensor:
        p = parameter()
        optimizer = paper_alice([p], implementation=implementation, **{name: value})
        for _ in range(3):
            optimizer.step(lambda: p.pow(3).sum().backward())
        return p.detach()

    assert torch.equal(trained(kind(1)), trained(1.0))


def test_a_scripted_model_is_refused() -> None:
    """TorchScript has no hooks; without a model it is trained, ahead by hand."""
    model = nn.Sequential(torch.jit.script(nn.Linear(3, 2)), nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"model \(Sequential\) is scripted.*look_ahead\(\)"):
        Alice(model.parameters(), model=model)
    optimizer = Alice(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.look_ahead()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(("name", "value"), [("quick_steps", 1), ("seed", 9), ("max_grad_norm", 2)])
def test_per_optimizer_options_cannot_differ_by_group(name, value):
    """One cadence, one seed, one norm; the same value again is no offence."""
    message = f"{name} is one for the whole optimizer.*got {value}"
    with pytest.raises(ValueError, match=message):
        paper_alice([{"params": [parameter()]}, {"params": [parameter()], name: value}])
    with pytest.raises(ValueError, match=message):
        paper_alice([{"params": [parameter()], name: value}])
    same_again = [{"params": [parameter()]}, {"params": [parameter()], name: value}]
    optimizer = paper_alice(same_again, **{name: value})
    assert [group[name] for group in optimizer.param_groups] == [value, value]


@pytest.mark.parametrize("options", [{}, {"glass": False}, {"hessian": "none"}], ids=str)
def test_limit_sgd_with_a_curvature_term_needs_a_radius(options):
    """There lr is a rate, not a length; without a term no radius is needed."""
    with pytest.raises(ValueError, match=r"probe_radius must be given when .*sgd.*None"):
        paper_alice([parameter()], limit="sgd", **options)
    paper_alice([parameter()], limit="sgd", probe_radius=0.1, **options)
    paper_alice([parameter()], limit="sgd", hessian="none", glass=False)


def test_a_groups_limit_sgd_needs_a_radius_too():
    """The same rule for a group that overrides the limit."""
    optimizer = paper_alice([parameter()])
    with pytest.raises(ValueError, match="probe_radius must be given"):
        optimizer.add_param_group({"params": [parameter()], "limit": "sgd"})
    assert len(optimizer.param_groups) == 1


LEGAL: list[dict[str, Any]] = [
    {"lr": 0},
    {"lr": 0.1, "lr_min": 0.5},
    {"betas": (0, 0)},
    {"betas": [0.9, 0.999]},
    {"eps": 0.0},
    {"quick_steps": 0},
    {"quick_steps": 10**6},
    {"seed": 2**63 - 1},
    {"step_fraction": 2.0, "lookahead": 0.5},
    {"max_grad_norm": 1},
]


@pytest.mark.parametrize("options", LEGAL, ids=str)
def test_the_ends_of_every_range_are_legal_and_run(options):
    """The bounds the messages call closed are accepted, and steps stay finite."""
    p = parameter()
    optimizer = paper_alice([p], **options)
    for _ in range(3):
        optimizer.step(lambda: p.square().sum().backward())
    assert torch.isfinite(p).all()


def test_unknown_options_are_refused_by_name():
    """A misspelt keyword does not pass silently."""
    with pytest.raises(TypeError, match="learning_rate"):
        paper_alice([parameter()], learning_rate=0.1)


def test_options_after_lr_are_keywords_only():
    """So that no position can be mistaken for another."""
    with pytest.raises(TypeError, match="positional"):
        paper_alice([parameter()], 0.1, 0.01)
