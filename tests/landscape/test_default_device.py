"""Where torch makes tensors by default is no business of the instruments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from aliceopt.compress import sensitivity
from aliceopt.landscape import (
    bound_check,
    choose_radii,
    diagonals,
    exact_diagonals,
    ladder,
    power_law,
    slices,
)
from landscape_cases import network


def scores(model: nn.Module, closure: Callable[[], Any]) -> dict[str, torch.Tensor]:
    return sensitivity(model, lambda batch: closure(), [0, 1], 0.01).mean("rms")


def exact(model: nn.Module, closure: Callable[[], Any]) -> Any:
    x = torch.ones(4, next(model.parameters()).shape[1], dtype=torch.float64, device="cpu")
    return exact_diagonals(model.double(), lambda: model(x).square().mean())


@pytest.mark.parametrize(
    "look",
    [
        partial(ladder, radii=0.01, count=3, directions=2),
        partial(diagonals, radius=0.01, directions=2),
        partial(power_law, radius=0.01, directions=2),
        partial(bound_check, radius=0.01, probes=1, directions=2),
        partial(slices, directions="gradient", reach=0.1, points=3),
        choose_radii,
        scores,
        exact,
    ],
    ids=lambda look: getattr(look, "func", look).__name__,
)
def test_what_is_measured_does_not_depend_on_it(look: Callable[..., Any]) -> None:
    """The meta device stands for any: a tensor that is made there by mistake has no numbers."""
    model, closure = network()
    expected = look(model, closure)
    torch.set_default_device("meta")
    try:
        found = look(model, closure)
    finally:
        torch.set_default_device(None)
    assert repr(found) == repr(expected)
