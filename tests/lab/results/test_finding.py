"""The finding says what is true of the numbers, no more, and in plain English."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from aliceopt.lab.results.finding import Finding, find
from aliceopt.lab.study import study_plan, tuned
from lab_cases import write_tuning
from study_cases import grid_plan, in_memory, invented_results


def found(plan: dict[str, Any], results: dict[tuple[str, int], Any]) -> Finding:
    return find(plan, in_memory(plan, results))


def test_a_strong_effect_is_found_named_and_measured() -> None:
    """Two points more with glass+abs and NAQ steps, three less with signed and full ones."""
    plan = grid_plan(6)
    effects = {"alice-glass-abs-naq": 2.0, "alice-signed-full": -3.0}
    finding = found(plan, invented_results(plan, effects, noise=0.1))
    claimed = {
        c.first: c
        for c in finding.comparisons
        if c.question == "terms" and c.verdict in ("better", "worse")
    }
    assert set(claimed) == set(effects)
    for method, effect in effects.items():
        c = claimed[method]
        assert c.low is not None
        assert c.high is not None
        assert c.low <= effect <= c.high
    text = finding.paragraph
    assert "a curvature term helps, compared to none" in text
    assert re.search(r"glass\+abs with NAQ steps is better by [12]\.\d points of accuracy", text)
    assert re.search(r"; but signed with full steps is worse by [23]\.\d points \(", text)
    assert "For the other 8 combinations of term and step no difference was seen" in text


@pytest.mark.parametrize("rates", [3, 1])
def test_a_claim_between_different_tuned_rates_names_both(rates: int, tmp_path: Path) -> None:
    """Which rate tuning picked may be luck, the same at all seeds; equal rates are not named.

    The plan is the planner's own, after a tuning in which one term's best rate was the highest.
    """
    pytest.importorskip("sklearn")
    study = study_plan(terms=["none", "glass"], steps=["naq"], baselines=[], seeds=8, tune=rates)
    best = {"naq-none": 1, "naq-glass": 2}
    if study.tuning is not None:
        ends = {
            f"{key}-rate-{i}": ((0.1, 0.1) if i == at else (0.2, 0.2))
            for key, at in best.items()
            for i in range(rates)
        }
        write_tuning(study, tmp_path, ends)
    plan = tuned(study, tmp_path).document
    usual = study.methods["naq-none"]["lr"]
    text = found(plan, invented_results(plan, {"naq-glass": -0.1}, noise=0.005)).paragraph
    assert "glass with NAQ steps is better by" in text
    said = f"at learning rate {usual * 10**0.5:.2g} against {usual:.2g}"
    assert text.count("at learning rate") == text.count(said) == (rates > 1)


def test_intervals_of_claims_are_told_as_positive_numbers() -> None:
    """A loss of 3 points reads "worse by 3.0 (2.6 to 3.4)", not with minus signs."""
    plan = grid_plan(6)
    finding = found(plan, invented_results(plan, {"alice-signed-full": -3.0}, noise=0.1))
    match = re.search(
        r"worse by [\d.]+ points of accuracy \(95% interval ([^)]+)\)", finding.paragraph
    )
    assert match is not None
    low, high = (float(end) for end in match[1].split(" to "))
    assert 0 < low < 3 < high


def test_no_difference_is_a_finding_with_what_could_have_been_missed() -> None:
    """A null study says so, and how large a difference it cannot exclude."""
    plan = grid_plan(8)
    finding = found(plan, invented_results(plan, seed=1))
    assert {c.verdict for c in finding.comparisons} == {"no difference seen"}
    text = finding.paragraph
    assert "no difference was seen between training with a curvature term and without" in text
    missed = re.search(r"a difference of up to ([\d.]+) points could have been missed", text)
    assert missed is not None
    ends = [
        max(abs(c.low or 0), abs(c.high or 0)) for c in finding.comparisons if c.question == "terms"
    ]
    assert float(missed[1]) == pytest.approx(max(ends), rel=0.05)


def test_lower_is_better_turns_gains_round() -> None:
    """A smaller loss is a gain, and its unit is that of the metric."""
    plan = grid_plan(6, metric="loss")
    results = invented_results(plan, {"alice-glass-abs-naq": -0.1}, noise=0.005)
    finding = found(plan, results)
    c = next(c for c in finding.comparisons if c.first == "alice-glass-abs-naq")
    assert c.verdict == "better"
    assert c.gain == pytest.approx(0.1, abs=0.02)
    assert re.search(
        r"glass\+abs with NAQ steps is better by 0\.(09|1)\d* in loss", finding.paragraph
    )
    assert "points" not in finding.paragraph


def test_accelerated_against_full_steps_is_the_mean_over_terms() -> None:
    """Every NAQ method one point better: the difference of steps is one point."""
    plan = grid_plan(5)
    effects = {m: 1.0 for m in plan["methods"] if m.endswith("naq")}
    finding = found(plan, invented_results(plan, effects, noise=0.1))
    c = next(c for c in finding.comparisons if c.question == "steps")
    assert c.verdict == "better"
    assert c.gain == pytest.approx(1.0, abs=0.2)
    assert "NAQ steps compared to full steps are better by" in finding.paragraph


@pytest.mark.parametrize(("effect", "word"), [(4.0, "better"), (-4.0, "worse")])
def test_best_alice_against_best_baseline_goes_both_ways(effect: float, word: str) -> None:
    """The paragraph names both, and says that they were picked."""
    plan = grid_plan(8)
    effects = {m: effect for m in plan["methods"] if m.startswith("alice")}
    finding = found(plan, invented_results(plan, effects, noise=0.1))
    c = next(c for c in finding.comparisons if c.question == "best")
    assert c.verdict == word
    assert c.choices == 84
    assert "picking them from 84 pairs after the fact" in finding.paragraph
    assert f"is {word} by" in finding.parts["best"]


def test_one_seed_gives_no_uncertainty_and_claims_nothing() -> None:
    """However large the difference."""
    plan = grid_plan(1)
    finding = found(plan, invented_results(plan, {"alice-glass-naq": 50.0}))
    assert {c.verdict for c in finding.comparisons} == {"too few seeds"}
    assert all(c.low is c.high is c.p is None for c in finding.comparisons)
    assert "with one seed no uncertainty can be given" in finding.paragraph
    assert "interval" not in finding.paragraph
    assert "by glass with NAQ steps" in finding.paragraph


def test_hopelessly_wide_intervals_are_not_printed_as_numbers() -> None:
    """Two seeds leave one degree of freedom: "up to 214 points" would be no information."""
    plan = grid_plan(2)
    finding = found(plan, invented_results(plan, seed=3))
    assert "too few to exclude" in finding.paragraph
    numbers = [float(n) for n in re.findall(r"([\d.]+) points", finding.paragraph)]
    assert max(numbers) < 5


def test_ties_are_equal_and_not_a_claim() -> None:
    """Every result the same: no spread, no difference, no division by zero."""
    plan = grid_plan(3)
    finding = found(plan, {(r["method"], r["seed"]): 97.5 for r in plan["runs"]})
    assert {c.verdict for c in finding.comparisons} == {"no difference seen"}
    assert "the results are the same on average" in finding.paragraph
    assert "they are equal on average" in finding.paragraph


def test_diverged_and_failed_runs_are_named_and_said_to_flatter() -> None:
    """Comparisons over surviving seeds are not silently made."""
    plan = grid_plan(4)
    results = invented_results(plan)
    results |= {("alice-none-full", 0): "diverged", ("alice-none-full", 2): "diverged"}
    results["muon", 1] = "failed"
    finding = found(plan, results)
    text = finding.paragraph
    assert "2 of 76 runs diverged: Alice, none, full (2 of 4 seeds)." in text
    assert "1 of 76 runs failed: Muon (1 of 4 seeds)." in text
    assert "which flatters them" in text
    c = next(c for c in finding.comparisons if c.first == "alice-glass-full")
    assert c.seeds == 2


def test_missing_runs_are_counted_and_the_rest_is_compared() -> None:
    """After Ctrl-C in the second seed: only what both methods finished is paired."""
    plan = grid_plan(3)
    results = {k: v for k, v in invented_results(plan).items() if k[1] < 2 and k != ("muon", 1)}
    finding = found(plan, results)
    assert "20 of 57 runs have no result yet, so this may change." in finding.paragraph
    assert {c.seeds for c in finding.comparisons if c.question == "terms"} == {2}


def test_a_single_finished_seed_of_many_gives_no_uncertainty_either() -> None:
    """After Ctrl-C in the first seed: what there is is told, and nothing is claimed."""
    plan = grid_plan(3)
    results = {k: v for k, v in invented_results(plan).items() if k[1] == 0}
    finding = found(plan, results)
    assert {c.verdict for c in finding.comparisons} == {"too few seeds"}
    assert "only one finished seed to compare no uncertainty can be given" in finding.paragraph


def test_nothing_finished_is_said_in_one_sentence() -> None:
    """No comparisons, no numbers."""
    finding = found(grid_plan(2), {})
    assert finding.comparisons == []
    assert finding.paragraph.startswith("No run has finished yet")


def test_null_metrics_are_named_and_never_break_the_finding() -> None:
    """One method whose metric was never finite; then all of them, with nothing left to find."""
    plan = grid_plan(2, terms=("none", "glass"), baselines=("adam", "sgd"))
    results = invented_results(plan) | {("adam", s): math.nan for s in range(2)}
    text = found(plan, results).paragraph
    assert "2 of 12 runs diverged: Adam (2 of 2 seeds)." in text
    nothing = found(plan, dict.fromkeys(results, math.nan))
    assert nothing.comparisons == []
    assert nothing.paragraph.startswith("No run ended with a result, so there is nothing to find.")
    assert "12 of 12 runs diverged" in nothing.paragraph


def test_costs_are_told_with_units() -> None:
    """Equal steps are not equal cost: 300 gradient evaluations against 200."""
    plan = grid_plan(3)
    results = invented_results(plan, {"alice-glass-naq": 3.0, "adamw": 2.0}, noise=0.05)
    text = found(plan, results).paragraph
    assert (
        "a run took 300 gradient evaluations and 3.0 s with this Alice, 200 and 2.0 s with" in text
    )
    assert re.search(r"To reach 9\d\.\d\d% \(the middle one of the baselines' median", text)


def test_a_target_met_at_the_first_evaluation_costs_nothing_but_is_met() -> None:
    """Zero gradients are a number, not an absence."""
    plan = {**grid_plan(3), "target": 5.0}
    text = found(plan, invented_results(plan)).paragraph
    assert "took 0 gradient evaluations" in text
    assert "got there" not in text


@pytest.mark.parametrize(
    ("tuned", "sentence"),
    [
        (False, "Learning rates are the usual ones, not tuned here"),
        (
            {"seed": 9, "rates": 3, "chosen": {"adam": {"edge": False}}},
            "Learning rates are the best of 3 tried for every method at one other seed; intervals "
            "take them as given and do not count the luck of that choice.",
        ),
        (
            {"seed": 9, "rates": 3, "chosen": {"adam": {"edge": True}}},
            "For 1 method the lowest or highest was best: a better one may lie beyond.",
        ),
    ],
)
def test_where_learning_rates_come_from_is_said(tuned: Any, sentence: str) -> None:
    """An untuned comparison is one of settings."""
    plan = grid_plan(3, tuned=tuned)
    assert sentence in found(plan, invented_results(plan)).paragraph


def test_an_experiment_without_a_grid_names_its_best() -> None:
    """Two methods in the same place of the grid are not taken for one."""
    plan = grid_plan(2, terms=("none", "glass"), baselines=(), kind="experiment")
    for about in plan["methods"].values():
        about["step"] = "naq"
    finding = found(plan, invented_results(plan))
    assert finding.comparisons == []
    assert "the best median is" in finding.paragraph
    assert "Learning rates are the paper's" in finding.paragraph


def test_the_paragraph_is_clean_english() -> None:
    """One paragraph, whole sentences, units and the interval's name at first mention only."""
    plan = grid_plan(5)
    for results in (
        invented_results(plan),
        invented_results(plan, {"alice-glass-naq": 3.0, "alice-abs-full": -2.0}, noise=0.1),
    ):
        text = found(plan, results).paragraph
        assert "\n" not in text
        assert "  " not in text
        assert text.endswith(".")
        assert not re.search(r"nan|inf\b|None|\{|\}", text)
        assert text.count("95% interval") == 1
        assert text.count("points of accuracy") == 1
        assert all(s[0].isupper() or s[0].isdigit() for s in re.split(r"(?<=[a-z)]\.) ", text))


@pytest.mark.parametrize(("share", "hardly"), [(0.5, False), (0.97, True)])
def test_it_says_how_often_the_bound_decided_instead_of_curvature(share, hardly) -> None:
    """Means over training of each combination; where all are above nine tenths, what to do."""
    plan = grid_plan(2)
    runs = in_memory(plan, invented_results(plan))
    for run in runs:
        own = 1.0 if run.method == "alice-glass-naq" else share
        run.telemetry = [
            {"groups": [{"at_upper": own, "step_norm": 1.0}]},
            {"groups": [{"at_upper": 1.0, "step_norm": 0.0}]},  # the end of a schedule
        ]
    text = find(plan, runs).parts["bound"]
    assert f"from {share:.0%} (" in text
    assert "to 100% (glass with NAQ steps)" in text
    assert ("could hardly act" in text) == hardly


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (("none", "abs"), "were on average 85% (abs with NAQ steps) of the coordinates."),
        (("none", "abs", "glass"), "were on average 85% of the coordinates."),
    ],
)
def test_one_share_of_bounds_is_said_once(terms, said) -> None:
    """Not "from 85% (abs) to 85% (abs)"."""
    plan = grid_plan(2, terms=terms)
    runs = in_memory(plan, invented_results(plan))
    for run in runs:
        if run.method.endswith("naq"):
            run.telemetry = [{"groups": [{"at_upper": 0.85, "step_norm": 1.0}]}]
    assert find(plan, runs).parts["bound"].endswith(said)


def test_without_telemetry_nothing_is_said_of_bounds() -> None:
    plan = grid_plan(2)
    assert "bound" not in found(plan, invented_results(plan)).parts


def test_that_no_term_helps_is_said_before_that_one_hurts() -> None:
    plan = grid_plan(6)
    text = found(plan, invented_results(plan, {"alice-signed-full": -3.0}, noise=0.1)).paragraph
    assert "no curvature term was seen to help; compared to none, signed with full steps" in text
    assert "helps, compared" not in text
