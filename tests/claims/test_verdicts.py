"""How three numbers, measured, expected and printed, become a verdict."""

from __future__ import annotations

import math

import pytest
import torch

from aliceopt.claims import Claim, Context, Measurement, Training, Verdict, judge, run, select
from aliceopt.claims.estimate import estimate, exponent, mean, ratio

CLAIM = Claim("some-claim", "Theorem 0", "statement", "paper")


def verdict(**numbers: object) -> str:
    return judge(CLAIM, Measurement(**numbers)).verdict


def test_agreement_of_all_three_is_confirmed():
    assert verdict(measured=1.0, expected=1.0, paper=1.0) == "confirmed"
    assert verdict(measured=1.0, expected=1.0) == "confirmed"


def test_a_paper_that_disagrees_is_corrected():
    assert verdict(measured=1.0, expected=1.0, paper=2.0) == "corrected"
    assert verdict(measured=3.0, expected=3.0, paper=1.0, paper_relation="<=") == "corrected"
    assert verdict(measured=3.0, expected=3.0, paper=4.0, paper_relation="<=") == "confirmed"


def test_theory_and_measurement_that_disagree_fail_even_if_the_paper_agrees():
    assert verdict(measured=1.0, expected=2.0, paper=1.0) == "failed"
    assert verdict(measured=1.0, expected=2.0, relation=">=") == "failed"
    assert verdict(measured=3.0, expected=2.0, relation="<=") == "failed"


def test_four_standard_errors_decide():
    assert verdict(measured=1.39, expected=1.0, error=0.1) == "confirmed"
    assert verdict(measured=1.41, expected=1.0, error=0.1) == "failed"
    assert verdict(measured=1.0, expected=1.0, error=0.1, paper=1.41) == "corrected"
    assert verdict(measured=1.0, expected=1.0, error=0.1, paper=1.39) == "confirmed"


def test_a_printed_number_may_be_off_by_its_rounding():
    rounded = {"measured": 0.31731, "expected": 0.31731, "paper": 0.317}
    assert verdict(**rounded, paper_tolerance=5e-4) == "confirmed"
    assert verdict(**rounded, paper_tolerance=1e-4) == "corrected"


def test_a_single_trial_of_the_paper_is_judged_by_the_range_of_trials():
    trial = {"measured": 90.0, "expected": 90.0, "error": 0.1, "spread": (50.0, 140.0)}
    assert verdict(**trial, paper=83.0) == "confirmed"
    assert verdict(**trial, paper=150.0) == "corrected"


@pytest.mark.parametrize("relation", ["=", "<=", ">="])
def test_a_measurement_that_is_not_a_number_fails(relation):
    assert verdict(measured=math.nan, expected=1.0, relation=relation) == "failed"
    assert verdict(measured=1.0, expected=1.0, error=math.nan, relation=relation) == "failed"


def test_an_experiment_that_raises_fails_and_the_others_still_run():
    def broken(context: Context) -> Measurement:
        raise ArithmeticError("no such number")

    def sound(context: Context) -> Measurement:
        return Measurement(1.0, 1.0)

    claims = [
        Claim("a", "", "", "", experiment=broken),
        Claim("b", "", "", "", experiment=sound),
        Claim("c", "", "", "", training=Training("a-long-run")),
    ]
    first, second, third = run(claims, Context())
    assert (first.verdict, second.verdict, third.verdict) == ("failed", "confirmed", "cannot tell")
    assert "ArithmeticError: no such number" in first.note
    assert "not looked at" in third.note


def test_a_claim_about_training_gets_the_verdict_of_whoever_looks_at_results():
    claims = [Claim("c", "", "", "", training=Training("a-long-run"))]
    (found,) = run(claims, Context(trained=lambda training: ("reproduced", training.experiment)))
    assert (found.verdict, found.note) == ("reproduced", "a-long-run")

    def unreadable(training: Training) -> tuple[Verdict, str]:
        raise ValueError("line 1 is no record")

    with pytest.raises(ValueError, match="line 1 is no record"):
        list(run(claims, Context(trained=unreadable)))


def test_select_takes_ids_and_prefixes_and_names_what_it_does_not_know():
    claims = [Claim(name, "", "", "") for name in ("thm1-a", "thm1-b", "thm2")]
    assert select(claims, []) == claims
    assert [c.id for c in select(claims, ["thm1"])] == ["thm1-a", "thm1-b"]
    assert [c.id for c in select(claims, ["thm2", "thm1-b"])] == ["thm1-b", "thm2"]
    for unknown, said in (
        ("thm9", "did you mean 'thm2' or 'thm1'"),
        ("thm1-c", "did you mean 'thm1-"),
        ("nosuch", "; names begin with thm1, thm2"),
        ("", "; names begin with thm1, thm2"),
    ):
        with pytest.raises(ValueError, match=f"{unknown!r} or begins so.*{said}"):
            select(claims, ["thm1", unknown])


def test_standard_errors_match_repeated_experiments():
    """The linearised error of a ratio is the spread of that ratio over many samples."""
    generator = torch.Generator().manual_seed(0)
    x = 1 + torch.randn(400, 500, generator=generator, dtype=torch.float64)
    y = 2 + 0.5 * x + torch.randn(400, 500, generator=generator, dtype=torch.float64)
    found = [ratio(a, b) for a, b in zip(x, y, strict=True)]
    spread = torch.tensor([f.value for f in found]).std().item()
    typical = torch.tensor([f.error for f in found]).mean().item()
    assert typical == pytest.approx(spread, rel=0.15)


def test_estimates_of_exact_samples_are_exact():
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert mean(x) == pytest.approx((2.0, 1 / math.sqrt(3)))
    assert exponent(x, 4 * x) == pytest.approx((2.0, 0.0), abs=1e-12)
    assert estimate(lambda a, b: a - b, x, x) == pytest.approx((0.0, 0.0), abs=1e-12)
