"""The finding says what is true of the numbers, no more, and in plain English."""

import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from aliceopt.lab.plans.study import study_plan
from aliceopt.lab.results.finding import Finding, find
from aliceopt.lab.results.table import print_summary
from aliceopt.lab.spec import Plan
from lab_cases import write_tuning
from study_cases import grid_plan, in_memory, invented_results, tuned_as


def found(plan: Plan, results: dict[tuple[str, int], Any]) -> Finding:
    return find(plan, in_memory(plan, results))


def claims(finding: Finding, question: str) -> dict[str, Any]:
    """Claimed differences by their first method."""
    drawn = [c for c in finding.comparisons if c.question == question]
    return {c.first: c for c in drawn if c.verdict in ("better", "worse")}


def test_a_strong_effect_is_found_named_and_measured() -> None:
    """Two points more with glass+abs and NAQ steps, three less with signed and full ones.

    One bullet each, the larger first, intervals as positive numbers; then what is left.
    """
    plan = grid_plan(6)
    effects = {"alice-signed-full": -3.0, "alice-glass-abs-naq": 2.0}
    finding = found(plan, invented_results(plan, effects, noise=0.1))
    claimed = claims(finding, "terms")
    assert set(claimed) == set(effects)
    words = ("signed with full steps against no term: worse", "glass+abs with NAQ steps against")
    for (method, effect), said, word in zip(
        effects.items(), finding.evidence["terms"], words, strict=False
    ):
        assert claimed[method].low <= effect <= claimed[method].high
        assert said.startswith(word)
        match = re.search(r"by ([\d.]+) points \(95% interval ([\d.]+) to ([\d.]+)\)\.$", said)
        assert match is not None
        mean, low, high = map(float, match.groups())
        assert 0 < low < abs(effect) < high
        assert mean == pytest.approx(abs(claimed[method].gain), abs=0.06)
    rest = re.compile(r"8 other combinations of term and step against no term: no difference")
    assert rest.match(finding.evidence["terms"][-1])


@pytest.mark.parametrize("rates", [3, 1])
def test_a_claim_between_different_tuned_rates_names_both(rates: int, tmp_path: Path) -> None:
    """Which rate tuning picked may be luck, the same at all seeds; equal rates are not named.

    The plan is the planner's own, after a tuning in which one term's best rate was the highest.
    """
    pytest.importorskip("sklearn")
    study = study_plan(terms=["none", "glass"], steps=["naq"], baselines=[], seeds=8, tune=rates)
    best = {"naq-none": 0, "naq-glass": 1}
    end = lambda key, place, seed: (abs(place - best[key]), 0.1)  # noqa: E731
    _, plan = write_tuning(study, tmp_path, end)
    usual = study.final.methods["naq-none"].lr
    text = found(plan, invented_results(plan, {"naq-glass": -0.1}, noise=0.005)).text
    assert re.search(r"glass with NAQ steps against no term: [\d.]+ times lower in loss", text)
    said = f"at learning rate {usual * 10**0.5:.2g} against {usual:.2g}"
    assert text.count("at learning rate") == text.count(said) == (rates > 1)


def own_plan(seeds: int, **choices: Any) -> Plan:
    """The planner's own, of Alice as it comes, without look-ahead, with curvature, and AdamW."""
    pytest.importorskip("sklearn")
    names = ["alice", "alice-plain", "alice-curvature", "adamw"]
    plan = study_plan(terms=[], baselines=names, seeds=seeds, tune=1, **choices).final
    dear = {"alice-curvature": 300}  # seconds of an invented run follow its gradients
    return replace(plan, runs=[replace(r, gradients=dear.get(r.method, 200)) for r in plan.runs])


def test_what_look_ahead_and_curvature_are_worth_is_said_below_the_decision() -> None:
    """Each against Alice that lacks it alone: 1.6 times lower, and nothing; with its seconds."""
    plan = own_plan(8)
    halves = {"alice": -0.5, "alice-curvature": -0.5}
    exponents = invented_results(plan, halves, base=-2.0, noise=0.02)
    finding = found(plan, {key: math.exp(value) for key, value in exponents.items()})
    pairs = {c.question: (c.first, c.second) for c in finding.comparisons if c.question != "best"}
    assert pairs == {
        "ahead": ("alice", "alice-plain"),
        "curvature": ("alice-curvature", "alice"),
    }
    assert re.fullmatch(
        r"Look-ahead: (39|4\d)% lower in loss \(95% interval 3\d% to 4\d%\), at the same seconds\. "
        r"Curvature \(glass\+abs\): no difference larger than [\d.]+% in loss, at 1\.5 times the "
        r"seconds\. Look-ahead and Curvature are also among the comparisons with the best of 4 "
        r"methods, where the interval is another\.",
        finding.worth,
    )
    assert finding.text.startswith(f"{finding.decision}\n\n{finding.worth}\n\n")
    stream = io.StringIO()
    runs = in_memory(plan, {key: math.exp(value) for key, value in exponents.items()})
    print_summary(plan, runs, Console(file=stream, width=100))
    printed = " ".join(stream.getvalue().split())
    assert f"{finding.decision} {finding.worth} # use this" in printed


@pytest.mark.parametrize(
    ("changes", "second"),
    [({}, "adamw"), ({"weight_decay": 0.1}, None), ({"amsgrad": True}, None)],
)
def test_adamw_is_alice_without_look_ahead(changes: dict[str, Any], second: str | None) -> None:
    """Where no other is: what the look-ahead is worth is said against it, by name."""
    plan = own_plan(4)
    methods = {key: m for key, m in plan.methods.items() if key != "alice-plain"}
    adamw = methods["adamw"]
    methods["adamw"] = replace(adamw, options={**adamw.options, **changes})
    runs = [run for run in plan.runs if run.method in methods]
    plan = replace(plan, methods=methods, runs=runs)
    finding = found(plan, invented_results(plan, base=1.0, noise=0.05))
    ahead = [(c.first, c.second) for c in finding.comparisons if c.question == "ahead"]
    assert ahead == ([] if second is None else [("alice", second)])
    said = "Look-ahead (against AdamW, Alice without it): "
    assert finding.worth.startswith(said if second else "Curvature (glass+abs): ")


def test_two_tests_of_alices_parts_are_corrected_by_themselves() -> None:
    """By two, whatever else is compared; at equal seconds no seconds are told."""
    plan = replace(own_plan(4), paces={"alice": 0.1})
    drawn = found(plan, invented_results(plan, seed=3, base=1.0, noise=0.05))
    parts = [c for c in drawn.comparisons if c.question in ("ahead", "curvature")]
    smaller, larger = sorted(parts, key=lambda c: c.p or 0)
    assert smaller.corrected_p == pytest.approx(min(1, 2 * (smaller.p or 0)))
    assert larger.corrected_p == pytest.approx(max(smaller.corrected_p or 0, larger.p or 0))
    assert "seconds" not in drawn.worth


def test_without_the_methods_nothing_is_said_of_their_worth() -> None:
    """Nor in experiments, whose Alices differ in more ways."""
    plan = grid_plan(3)
    assert found(plan, invented_results(plan)).worth == ""
    plan = replace(own_plan(3), kind="experiment", reference="")
    assert found(plan, invented_results(plan)).worth == ""


def test_no_difference_is_a_finding_with_what_could_have_been_missed() -> None:
    """A null study says so, and how large a difference it cannot exclude."""
    plan = grid_plan(8)
    finding = found(plan, invented_results(plan, seed=1))
    assert not any(c.verdict in ("better", "worse") for c in finding.comparisons)
    assert finding.evidence["terms"][0] == "No curvature term is established to help."
    missed = re.search(r"no difference larger than ([\d.]+) points", finding.evidence["terms"][-1])
    assert missed is not None
    ends = [
        max(abs(c.low or 0), abs(c.high or 0))
        for c in finding.comparisons
        if c.question == "terms" and c.verdict == "no difference seen"
    ]
    assert float(missed[1]) == pytest.approx(max(ends), rel=0.05)


def test_what_was_seen_is_told_from_what_was_not() -> None:
    """All three NAQ runs of every term below all full ones: seen, though not established."""
    plan = grid_plan(3, terms=("none", "glass"), baselines=())
    values = {"naq": (96.0, 95.0, 91.0), "full": (98.0, 96.5, 97.5)}
    results = {
        (m, s): values[about.step][s] + (about.terms == "none") * 0.2 * s
        for m, about in plan.methods.items()
        for s in range(3)
    }
    finding = found(plan, results)
    steps = next(c for c in finding.comparisons if c.question == "steps")
    assert steps.verdict == "not established"
    assert finding.evidence["steps"] == [
        "NAQ steps against full steps, mean over the terms: worse by 3.3 points, which 3 seeds "
        "cannot establish."
    ]


def test_lower_is_better_turns_gains_round() -> None:
    """A smaller loss is a gain; positive losses are told by their ratio, here of 0.2 to 0.1."""
    plan = grid_plan(6, metric="loss")
    results = invented_results(plan, {"alice-glass-abs-naq": -0.1}, noise=0.005)
    finding = found(plan, results)
    c = claims(finding, "terms")["alice-glass-abs-naq"]
    assert c.verdict == "better"
    assert math.exp(c.gain) == pytest.approx(2, abs=0.2)
    said = (
        r"glass\+abs with NAQ steps against no term: (1\.9|2\.\d) times lower in loss "
        r"\(95% interval (1\.\d+) to (2\.\d+)\)\."
    )
    assert re.search(said, finding.text)
    assert "points" not in finding.text
    assert any(line.startswith("Ratios are paired") for line in finding.evidence["limits"])


def test_accelerated_against_full_steps_is_the_mean_over_terms() -> None:
    """Every NAQ method one point better: the difference of steps is one point."""
    plan = grid_plan(5)
    effects = {m: 1.0 for m in plan.methods if m.endswith("naq")}
    finding = found(plan, invented_results(plan, effects, noise=0.1))
    c = claims(finding, "steps")["naq"]
    assert c.verdict == "better"
    assert c.gain == pytest.approx(1.0, abs=0.2)
    (said,) = finding.evidence["steps"]
    assert said.startswith("NAQ steps against full steps, mean over the terms: better by")


def test_one_seed_gives_no_uncertainty_and_claims_nothing() -> None:
    """However large the difference."""
    plan = grid_plan(1)
    finding = found(plan, invented_results(plan, {"alice-glass-naq": 50.0}))
    assert {c.verdict for c in finding.comparisons} == {"too few seeds"}
    assert all(c.low is c.high is c.p is None for c in finding.comparisons)
    assert "interval" not in finding.decision
    seen = finding.evidence["terms"][1]
    assert re.match(r"Seen, but 1 seed cannot establish it: glass with NAQ steps, better by", seen)
    assert seen.endswith("; and 6 more.")


def test_hopelessly_wide_intervals_are_not_printed_as_numbers() -> None:
    """Two seeds leave one degree of freedom: "up to 214 points" would be no information."""
    plan = grid_plan(2)
    finding = found(plan, invented_results(plan, seed=3))
    assert "2 seeds are too few to tell" in finding.evidence["terms"][-1]
    numbers = [float(n) for n in re.findall(r"([\d.]+) points", finding.text)]
    assert max(numbers, default=0) < 5


def test_ties_are_equal_and_not_a_claim() -> None:
    """Every result the same: no spread, no difference, no division by zero."""
    plan = grid_plan(3)
    finding = found(plan, {(r.method, r.seed): 97.5 for r in plan.runs})
    assert {c.verdict for c in finding.comparisons} == {"no difference seen"}
    assert finding.evidence["terms"][-1].endswith("against no term: equal.")
    assert finding.evidence["steps"][0].endswith("mean over the terms: equal.")


def test_diverged_and_failed_runs_are_named_and_said_to_flatter() -> None:
    """Comparisons over surviving seeds are not silently made."""
    plan = grid_plan(4)
    results = invented_results(plan)
    results |= {("alice-none-full", 0): "diverged", ("alice-none-full", 2): "diverged"}
    results["muon", 1] = "failed"
    finding = found(plan, results)
    assert finding.evidence["trouble"] == [
        "2 of 76 runs diverged: Alice, none, full (2 of 4 seeds).",
        "1 of 76 runs failed: Muon (1 of 4 seeds).",
        "Such methods are compared on the seeds that finished, which flatters them.",
    ]
    c = next(c for c in finding.comparisons if c.first == "alice-glass-full")
    assert c.seeds == 2


def test_missing_runs_are_counted_and_the_rest_is_compared() -> None:
    """After Ctrl-C in the second seed: only what both methods finished is paired."""
    plan = grid_plan(3)
    results = {k: v for k, v in invented_results(plan).items() if k[1] < 2 and k != ("muon", 1)}
    finding = found(plan, results)
    said = ["20 of 57 runs without a result yet: this may change."]
    assert finding.evidence["trouble"] == said
    assert finding.decision.startswith("So far, 20 of 57 runs missing: Use ")
    assert finding.lines.startswith("# the choice so far")
    assert {c.seeds for c in finding.comparisons if c.question == "terms"} == {2}


def test_a_single_finished_seed_of_many_gives_no_uncertainty_either() -> None:
    """After Ctrl-C in the first seed: what there is is told, and nothing is claimed."""
    plan = grid_plan(3)
    results = {k: v for k, v in invented_results(plan).items() if k[1] == 0}
    finding = found(plan, results)
    assert {c.verdict for c in finding.comparisons} == {"too few seeds"}
    assert "1 seed cannot establish it" in finding.text


def test_nothing_finished_is_said_in_one_sentence() -> None:
    """No comparisons, no lines, no numbers."""
    finding = found(grid_plan(2), {})
    assert (finding.comparisons, finding.lines) == ([], "")
    assert finding.decision == "No run has finished yet, so there is nothing to find."


def test_null_metrics_are_named_and_never_break_the_finding() -> None:
    """One method whose metric was never finite; then all of them, with nothing left to find."""
    plan = grid_plan(2, terms=("none", "glass"), baselines=("adam", "sgd"))
    results = invented_results(plan) | {("adam", s): math.nan for s in range(2)}
    assert "2 of 12 runs diverged: Adam (2 of 2 seeds)." in found(plan, results).text
    nothing = found(plan, dict.fromkeys(results, math.nan))
    assert nothing.comparisons == []
    assert nothing.decision == "No run ended with a result, so there is nothing to find."
    assert "12 of 12 runs diverged" in nothing.text


def test_costs_are_told_with_units() -> None:
    """Equal steps are not equal cost: 300 gradients against 200."""
    plan = grid_plan(3)
    results = invented_results(plan, {"alice-glass-naq": 3.0, "adamw": 2.0}, noise=0.05)
    alice, baseline, target = found(plan, results).evidence["cost"]
    number = r"\d+\.\d\d%"
    said = rf"Best Alice: Alice, glass, NAQ, median {number}, 300 gradients and 3.0 s a run\."
    assert re.fullmatch(said, alice)
    said = rf"Best baseline: AdamW, median {number}, 200 gradients and 2.0 s a run\."
    assert re.fullmatch(said, baseline)
    assert re.match(
        rf"To {number} \(the median of .*, the middle one of 7 baselines\): Alice, .* took", target
    )


def test_a_target_met_at_the_first_evaluation_costs_nothing_but_is_met() -> None:
    """Zero gradients are a number, not an absence."""
    plan = grid_plan(3, target=5.0)
    target = found(plan, invented_results(plan)).evidence["cost"][-1]
    assert target.count("took 0 gradients and 0.00 s") == 2
    assert "got there" not in target


TRIED = [(0.01, [90.0])]


@pytest.mark.parametrize(
    ("tuned", "said"),
    [
        (
            False,
            "Learning rates are the usual ones, not tuned here: this compares settings, not "
            "methods.",
        ),
        (
            tuned_as(adam=TRIED),
            "Learning rates are the best at 2 other seeds (14 runs, 3.13 min); no interval counts "
            "the luck of that choice.",
        ),
        (
            tuned_as(edge=["adam", "sgd"], adam=TRIED, sgd=TRIED),
            "Best at the lowest or highest of 7 rates, so a better one may lie beyond (--tune 11 "
            "--resume): Adam; SGD with momentum.",
        ),
        (
            tuned_as(edge=["adam"], most=15, adam=TRIED),
            "Best at the lowest or highest of 15 rates, so a better one may lie beyond: Adam.",
        ),
    ],
)
def test_where_learning_rates_come_from_is_said(tuned: Any, said: str) -> None:
    """An untuned comparison is one of settings; those at an edge are named."""
    plan = grid_plan(3, tuned=tuned)
    limits = found(plan, invented_results(plan)).evidence["limits"]
    assert said in limits
    assert any("at the lowest" in line for line in limits) == ("at the lowest" in said)


def test_an_experiment_without_a_grid_still_decides() -> None:
    """Two methods in the same place of the grid are not taken for one."""
    plan = grid_plan(2, terms=("none", "glass"), baselines=(), kind="experiment")
    for key, about in plan.methods.items():
        plan.methods[key] = replace(about, step="naq")
    finding = found(plan, invented_results(plan))
    assert {c.question for c in finding.comparisons} == {"best"}
    assert finding.decision.startswith("Use Alice")
    assert "Learning rates are the paper's" in finding.text


def test_it_is_clean_english() -> None:
    """Short bullets, whole sentences, no leftovers of formatting."""
    plan = grid_plan(5)
    for results in (
        invented_results(plan),
        invented_results(plan, {"alice-glass-naq": 3.0, "alice-abs-full": -2.0}, noise=0.1),
    ):
        finding = found(plan, results)
        for text in (finding.decision, *finding.bullets):
            assert "\n" not in text
            assert "  " not in text
            assert text.endswith(".")
            assert len(text) < 250
            assert not re.search(r"nan|inf\b|None|\{|\}", text)


def test_the_lines_to_paste_are_of_the_choice_the_best_alice_and_the_best_baseline() -> None:
    """Each once, with all that it is, its schedule, and nothing that does not run."""
    from torch import nn

    plan = grid_plan(3)
    finding = found(plan, invented_results(plan, {"alice-glass-naq": 9.0, "adamw": 4.0}, noise=0.1))
    first, second = finding.lines.split("\n\n")
    course = "# lr rising over the first 5% of the run, then falling to zero along a cosine"
    heads = ("# use this, the best result, the best Alice: Alice, glass, NAQ", course)
    assert tuple(first.splitlines()[:2]) == heads
    assert second.splitlines()[:2] == ["# the best baseline: AdamW", course]
    for block, name in ((first, "Alice"), (second, "AdamW")):
        room: dict[str, Any] = {"model": nn.Linear(2, 2)}
        exec(block, room)
        assert type(room["optimizer"]).__name__ == name
    assert "scheduler = LambdaLR(" in first  # of the choice alone
    assert "LambdaLR" not in second
