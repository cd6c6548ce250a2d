"""Steps with kappa^2 rho are Alice's but for kappa, and kappa is the theory's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("rich")

from benchmarks.coherence import SETTINGS_OF, Glass

from aliceopt import Alice
from aliceopt.site import Draw, signs_of
from aliceopt.theory.glass_bound import directional_density, glass_coherence
from benchmarks import coherence


def problem() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 3))
    x, y = torch.randn(32, 5), torch.randint(3, (32,))
    return model, lambda model: nn.functional.cross_entropy(model(x), y)


def gradient_of(method: Glass, model: nn.Module, loss: Any) -> list[Tensor]:
    with torch.enable_grad():
        return list(torch.autograd.grad(loss(model), method.params))


@pytest.mark.parametrize("settings", SETTINGS_OF)
@pytest.mark.parametrize("form", ["limit", "glass"])
def test_without_kappa_it_is_alice(settings: str, form: str) -> None:
    """Over measuring and quick steps, to rounding."""
    model, loss = problem()
    other = copy.deepcopy(model)
    options = SETTINGS_OF[settings] | {"lr": 0.02, "hessian": "none", "glass": form == "glass"}
    alice = Alice(model.parameters(), **options, seed=7, model=model)
    method = Glass(other, form, SETTINGS_OF[settings], 0.02, 7)

    def closure() -> Tensor:
        value: Tensor = loss(model)
        value.backward()
        return value

    for _ in range(6):
        alice.step(closure)
        method.step(lambda: gradient_of(method, other, loss), 1.0)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", ["tensor", "whole"])
def test_kappa_is_the_theorys(form: str) -> None:
    """After one measurement, from the gradients at the three points."""
    model, loss = problem()
    method = Glass(model, form, SETTINGS_OF["fixed"], 0.02, 7)
    taken: list[list[Tensor]] = []

    def gradient() -> list[Tensor]:
        taken.append(gradient_of(method, model, loss))
        return taken[-1]

    signs = [signs_of(site, Draw(7, 0)).flatten() for site in method.sites]
    method.step(gradient, 1.0)
    bent = [((p + m) / 2 - c).flatten() for p, m, c in zip(*taken, strict=True)]
    parts = list(zip(bent, signs, strict=True))
    if form == "whole":
        parts = [(torch.cat(bent), torch.cat(signs))] * len(parts)
    expected = [
        glass_coherence(directional_density(d, t, 0.01), 2 / 0.01 * d.square()) ** 2
        for d, t in parts
    ]
    torch.testing.assert_close(method.kappas, torch.stack(expected), rtol=1e-4, atol=0)
    assert method.kappas.max() < 1


@pytest.mark.parametrize("name", ["--seeds", "--steps"])
def test_counts_below_one_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a sentence with the value."""
    with pytest.raises(SystemExit):
        coherence.main([name, "0"])
    assert f"{name} must be a whole number >= 1, got 0" in capsys.readouterr().err


def test_it_runs_from_end_to_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for every setting and form; without a term every step is the upper bound."""
    monkeypatch.setattr(coherence, "RATES", {"digits": {"fixed": (0.01,)}})
    assert coherence.main(["--steps", "2", "--seeds", "1"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "digits" in line]
    assert [row[2] for row in rows] == list(coherence.FORMS)
    assert rows[0][7] == "100%"
