"""Slips that would otherwise pass unseen: each is answered, naming what was found."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from paper import paper_alice


def evaluated(**options: float) -> tuple[nn.Linear, Alice]:
    """A measuring step's evaluations, the step not yet taken."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = paper_alice(model.parameters(), quick_steps=0, **options)
    for _ in optimizer.evaluations():
        model(torch.ones(2, 4)).square().sum().backward()
    return model, optimizer


def test_clipping_between_loop_and_step_is_warned_of() -> None:
    """Only the center would be clipped, and the sides would differ from it by more than they do."""
    model, optimizer = evaluated()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with pytest.warns(UserWarning, match=r"\.grad was changed .* max_grad_norm"):
        optimizer.step()


def test_an_untouched_loop_is_not_warned_of() -> None:
    """Neither with max_grad_norm, which clips all three, nor after zeroing some gradients."""
    for options in ({}, {"max_grad_norm": 0.1}):
        model, optimizer = evaluated(**options)
        model.bias.grad = None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.step()


def test_clipping_after_unscaling_is_warned_of_too() -> None:
    """A GradScaler's own unscaling is not taken for it."""
    for clip in (None, float("inf"), 0.1):
        model = nn.Linear(4, 3)
        optimizer, scaler = paper_alice(model.parameters()), torch.amp.GradScaler("cpu")
        for _ in optimizer.evaluations(scaler=scaler):
            scaler.scale(model(torch.ones(2, 4)).square().sum()).backward()
        scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if clip == 0.1:
            with pytest.warns(UserWarning, match="was changed"):
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)


def test_another_optimizers_checkpoint_is_refused_and_nothing_changes() -> None:
    """Adam's has none of Alice's options; the error says which are missing."""
    params = [nn.Parameter(torch.ones(3))]
    adam = torch.optim.Adam(params)
    params[0].sum().backward()
    adam.step()
    optimizer = paper_alice(params, lr=0.25)
    with pytest.raises(ValueError, match=r"not Alice's: its group 0 has no limit, hessian"):
        optimizer.load_state_dict(adam.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert "amsgrad" not in optimizer.param_groups[0]


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("weightdecay", "weight_decay"),
        ("quicksteps", "quick_steps"),
        ("probe_radus", "probe_radius"),
    ],
)
def test_a_misspelt_option_of_a_group_is_refused(slip: str, meant: str) -> None:
    """The error names the slip and what was probably meant."""
    group = {"params": [nn.Parameter(torch.ones(3))], slip: 1.0}
    with pytest.raises(ValueError, match=f"'{slip}' is no option .* did you mean '{meant}'"):
        paper_alice([group])


def test_keys_of_others_in_a_group_pass() -> None:
    """Frameworks leave notes in groups; torch lets them, and so does Alice."""
    group = {"params": [nn.Parameter(torch.ones(3))], "name": "head", "lr_scale": 0.5}
    assert paper_alice([group]).param_groups[0]["lr_scale"] == 0.5


def test_a_model_that_holds_none_of_the_parameters_is_refused() -> None:
    """Guarding the buffers of the wrong module would guard nothing."""
    with pytest.raises(ValueError, match=r"model \(BatchNorm1d\) must be the module"):
        paper_alice(nn.Linear(2, 2).parameters(), model=nn.BatchNorm1d(2))


def norm_only(params: Any) -> None:
    nn.utils.clip_grad_norm_(params, float("inf"))


def rest_unused(model: nn.Module) -> None:
    model.unused = nn.Parameter(torch.ones(3))  # gets no gradient


def freeze(model: nn.Module) -> None:
    model.first.bias.requires_grad_(False)


def low_precision(model: nn.Module) -> None:
    model.bfloat16()


HARMLESS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[nn.Module], Any]]] = {
    "all": (lambda m: None, lambda m: norm_only(m.parameters())),
    "a part": (lambda m: None, lambda m: norm_only(m.last.parameters())),
    "one": (lambda m: None, lambda m: norm_only([m.last.bias])),
    "beside an unused parameter": (rest_unused, lambda m: norm_only(m.parameters())),
    "beside a frozen parameter": (freeze, lambda m: norm_only(m.parameters())),
    "in bfloat16": (low_precision, lambda m: norm_only(m.parameters())),
    "at a large norm": (lambda m: None, lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1e6)),
    "a copy": (lambda m: None, lambda m: setattr(m.last.bias, "grad", m.last.bias.grad.clone())),
}
HARMFUL: dict[str, Callable[[nn.Module], Any]] = {
    "a part clipped": lambda m: nn.utils.clip_grad_norm_(m.last.parameters(), 0.1),
    "negated": lambda m: [p.grad.neg_() for p in m.parameters()],
    "one set anew": lambda m: setattr(m.last.bias, "grad", torch.zeros(3)),
    "clamped": lambda m: nn.utils.clip_grad_value_(m.parameters(), 1e-3),
}


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


def looped(prepare: Callable[[nn.Module], Any], inside: Callable[[nn.Module], Any]) -> Any:
    torch.manual_seed(0)
    model = TwoLayers()
    prepare(model)
    optimizer = paper_alice(model.parameters(), quick_steps=0)
    inputs = torch.ones(2, 4, dtype=model.last.weight.dtype)
    for _ in optimizer.evaluations():
        model(inputs).square().sum().backward()
        inside(model)
    return model, optimizer


@pytest.mark.parametrize("how", HARMLESS)
@pytest.mark.parametrize("inside", [False, True], ids=["after", "inside"])
def test_gradients_that_are_written_to_without_a_change_are_not_warned_of(
    how: str, inside: bool
) -> None:
    """As by clipping at infinity, which tells the norm."""
    prepare, touch = HARMLESS[how]
    model, optimizer = looped(prepare, touch if inside else lambda m: None)
    touch(model)
    optimizer.step()


@pytest.mark.parametrize("how", HARMFUL)
def test_gradients_that_change_after_the_loop_are_warned_of(how: str) -> None:
    """Of a part of the parameters, or in sign alone, too."""
    model, optimizer = looped(lambda m: None, lambda m: None)
    HARMFUL[how](model)
    with pytest.warns(UserWarning, match=r"\.grad was changed"):
        optimizer.step()
