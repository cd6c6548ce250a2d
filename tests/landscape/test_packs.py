"""Parameters are worked on together, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from aliceopt.landscape import bound_check, diagonals, ladder, packs
from aliceopt.landscape.excursion import sites_of
from aliceopt.landscape.packs import packs_of
from aliceopt.site import Draw, Site, signs_of


class Mixed(nn.Module):
    """Parameters of two types, some of odd size, one transposed, one empty, one never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 5)
        self.first.weight.data = torch.randn(7, 5).t()
        self.last = nn.Linear(5, 3).double()
        self.scale = nn.Parameter(torch.ones(()))
        self.empty = nn.Parameter(torch.ones(0, 3))
        self.unused = nn.Parameter(torch.ones(33))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = (self.first(x) * self.scale).relu().double()
        return self.last(hidden).square().mean() + self.empty.sum()


def sites(model: nn.Module) -> list[Site]:
    return list(sites_of(dict(model.named_parameters()), model, 0.1, None).values())


def test_a_pack_has_one_type_and_no_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parameter is in one pack; a large one is alone."""
    model = Mixed()

    def names() -> list[list[str]]:
        known = {id(param): name for name, param in model.named_parameters()}
        return [[known[id(s.param)] for s in pack.sites] for pack in packs_of(sites(model))]

    single = ["scale", "empty", "unused", "first.weight", "first.bias"]
    assert names() == [single, ["last.weight", "last.bias"]]
    monkeypatch.setattr(packs, "LARGE", 34)
    parted = [single[:3], ["first.weight"], ["first.bias"], ["last.weight", "last.bias"]]
    assert names() == parted


def test_an_empty_parameter_may_come_first() -> None:
    """It is in a pack like any other, and what is measured of it is zero."""
    model = nn.Sequential(nn.Linear(3, 1))
    model.empty = nn.Parameter(torch.ones(0))
    assert [len(pack.sites) for pack in packs_of(sites(model))] == [3]

    def closure() -> None:
        model(torch.ones(2, 3)).square().sum().backward()

    assert diagonals(model, closure, 0.1, blocks=1).blocks["empty"]["signed"].value == 0


def test_signs_and_parts_are_each_parameters_own() -> None:
    """The same signs as one by one; what is joined can be cut up again."""
    first, _ = packs_of(sites(Mixed()))
    draw = Draw(3, 1 << 40)
    for site, part in zip(first.sites, first.parts(first.signs(draw)), strict=True):
        assert torch.equal(part, signs_of(site, draw))
    assert not torch.equal(first.signs(draw), first.signs(Draw(3, 0)))
    for site, part in zip(first.sites, first.parts(first.position()), strict=True):
        assert torch.equal(part, site.param)


def test_sums_are_each_parameters_own() -> None:
    """In float64, and of all together."""
    pack, _ = packs_of(sites(Mixed()))
    position = pack.position()
    each = [site.param.detach().double().contiguous() for site in pack.sites]
    expected = torch.stack([values.square().sum() for values in each])
    assert torch.equal(pack.squares(position), expected)
    total = pack.totals(position.double().square())
    torch.testing.assert_close(total, expected.sum().reshape(1), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    "look",
    [
        partial(ladder, radii=0.01, count=3, directions=2),
        partial(diagonals, radius=0.01, directions=2),
        partial(bound_check, radius=0.01, probes=1, directions=1),
    ],
)
def test_together_is_one_by_one(look: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, but for sums over all parameters, which add up in another order."""
    model, inputs = Mixed(), torch.randn(9, 7)

    def closure() -> torch.Tensor:
        loss: torch.Tensor = model(inputs)
        loss.backward()
        return loss.detach()

    def numbers(found: Any) -> list[float]:
        if isinstance(found, dict | list):
            each = found.values() if isinstance(found, dict) else found
            return [number for one in each for number in numbers(one)]
        return [found] if isinstance(found, float) else []

    together = look(model, closure).as_dict()
    monkeypatch.setattr(packs, "LARGE", 0)
    apart = look(model, closure).as_dict()
    tolerance = 1e-11 if look.func is bound_check else 0
    assert numbers(together) == pytest.approx(numbers(apart), rel=tolerance, abs=0)
