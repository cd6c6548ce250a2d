"""A noisy parabola is what the settings page says, and rules do what they are told."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("rich")

from benchmarks.adapting import RULES, Reversal, Seen, reversal, rule_of

from aliceopt import Alice
from benchmarks import adapting

BETA, RATE = 0.9, 0.1


def noisy_parabola(sharpness: float, lookahead: float, noise: float) -> tuple[float, float]:
    """Mean reversal and variance of x once both are steady, from many coordinates of Alice."""
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.Parameter(torch.zeros(20_000, dtype=torch.float64))
    options = {"lr": RATE, "lr_min": RATE, "limit": "sgd", "betas": (BETA, 0.999)}
    alice = Alice([x], **options, weight_decay=0.0, lookahead=lookahead, implementation="eager")
    turned, spread, move = [], [], torch.zeros_like(x)
    for step in range(200):

        def closure(step: int = step, move: torch.Tensor = move) -> None:
            pull = noise * torch.randn(x.shape, generator=generator, dtype=x.dtype)
            x.grad = sharpness / RATE * x.detach() + pull
            if step >= 100:
                turned.append(reversal(alice, [move]))

        home = x.detach().clone()
        alice.step(closure)
        move = x.detach() - home
        spread.append(x.var().item())
    return sum(turned) / len(turned), sum(spread[100:]) / 100


@pytest.mark.parametrize("noise", [0.1, 10.0])
@pytest.mark.parametrize(("sharpness", "lookahead"), [(0.5, 1.0), (0.5, 4.0), (4.0, 1.5)])
def test_a_noisy_parabola_is_what_the_settings_page_says(
    sharpness: float, lookahead: float, noise: float
) -> None:
    """Reversal ``lr h (omega - 1/2)``, whatever the noise; variance as for an AR(2) process."""
    turned, spread = noisy_parabola(sharpness, lookahead, noise)
    assert turned == pytest.approx(sharpness * (lookahead - 0.5), rel=0.03)
    k = (1 - BETA) * sharpness
    p = 1 + BETA - k * (lookahead - 1)
    shock = ((1 - BETA) * RATE * noise) ** 2
    assert spread == pytest.approx(shock * p / ((2 - p) * k * (2 * p - k)), rel=0.03)


def test_noise_has_a_best_look_ahead() -> None:
    """``c = (1 + beta1 - sqrt(k)) / k``, ``k = (1 - beta1) lr h``: others spread x more."""
    k = (1 - BETA) * 10.0
    best = 1 + (1 + BETA - k**0.5) / k
    less, there, more = (noisy_parabola(10.0, best + d, 1.0)[1] for d in (-0.2, 0.0, 0.2))
    assert there < 0.99 * less
    assert there < 0.99 * more


def test_a_rule_by_reversal_finds_its_target() -> None:
    """Where curvature is constant, omega ends where the reversal is the target, within bounds."""
    for curvature, expected in ((0.5, 2.5), (0.01, 4.0), (10.0, 1.0)):
        rule, omega = Reversal(target=1.0, memory=0.9), 1.5
        for _ in range(300):
            omega = rule(Seen(1.0, curvature * (omega - 0.5), omega))
        assert omega == pytest.approx(expected, rel=1e-3)


def test_rules_are_names_or_constants() -> None:
    """A rule has no state of another run, and all stay within what is stable anywhere."""
    seen = Seen(0.01, None, 1.5)
    assert rule_of("2.5")(seen) == 2.5
    assert all(1 <= rule_of(name)(seen) <= 4 for name in RULES)
    assert rule_of("reversal") is not rule_of("reversal")


def test_it_runs_from_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A row a rule, with a difference for all but the first."""
    assert adapting.main(["--steps", "3", "--seeds", "0-1", "--rules", "1.5,4,reversal"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "digits" in line]
    assert [row[1] for row in rows] == ["1.5", "4", "reversal"]
    assert [len(row) for row in rows] == [4, 6, 6]


def test_one_seed_has_no_interval(capsys: pytest.CaptureFixture[str]) -> None:
    """Refused in a sentence with the value."""
    with pytest.raises(SystemExit):
        adapting.main(["--seeds", "3-3"])
    assert "--seeds must be FIRST-LAST" in capsys.readouterr().err
