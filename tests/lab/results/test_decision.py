"""The decision is right where the truth was planted, and careful where there is none."""

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from aliceopt.lab.results.decision import times_the_seconds
from aliceopt.lab.results.finding import find
from aliceopt.lab.results.summary import summarize
from aliceopt.lab.spec import Plan
from study_cases import grid_plan, in_memory, invented_results

CHEAP = 2.0
"""Seconds of a run that never probes, in invented studies; one that does takes half more."""


def decided(plan: Plan, results: dict[tuple[str, int], Any]) -> str:
    return find(plan, in_memory(plan, results)).decision


def constant(plan: Plan, values: dict[str, tuple[float, ...]]) -> dict[Any, Any]:
    """Every method's results by seed; those not named end at 50 and a little."""
    rest = {m: tuple(50 + 0.3 * s for s in plan.seeds) for m in plan.methods}
    return {(m, s): v for m, vs in (rest | values).items() for s, v in enumerate(vs)}


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
@pytest.mark.parametrize("winner", ["alice-glass-abs-naq", "sgd", "alice-none-full"])
def test_a_planted_winner_is_chosen_every_time(metric: str, winner: str) -> None:
    """Dear or cheap, of either family, in 20 of 20 studies of 19 methods and 5 seeds."""
    plan = grid_plan(5, metric=metric)
    size, noise = (3.0, 0.1) if metric == "accuracy" else (-0.1, 0.003)
    label = plan.methods[winner].label
    for seed in range(20):
        results = invented_results(plan, {winner: size}, seed=seed, noise=noise)
        text = decided(plan, results)
        assert text.startswith(f"Use {label}, lr=")
        how = "better by [\\d.]+ points" if metric == "accuracy" else "[\\d.]+ times lower in loss"
        assert re.search(rf"it ended {how} \(95% interval [\d.]+ to [\d.]+\)", text)


def test_without_a_difference_the_cheap_are_chosen_and_nothing_is_claimed() -> None:
    """A tie in at least 18 of 20 studies without any effect."""
    plan = grid_plan(5)
    cheap = [a.label for a in plan.methods.values() if a.terms in (None, "none")]
    ties = 0
    for seed in range(20):
        text = decided(plan, invented_results(plan, seed=seed))
        assert text.startswith(tuple(f"Use {label}, lr=" for label in cheap))
        ties += "95% interval" not in text
    assert ties >= 18


def test_a_claim_names_the_rival_the_interval_and_the_cost() -> None:
    """By value: differences 3.9, 4.0 and 4.1, and 3 seconds against 2."""
    plan = grid_plan(3, terms=("none", "glass"), baselines=("adamw",))
    values = {"alice-glass-full": (93.9, 94.0, 94.1), "adamw": (90.0, 90.0, 90.0)}
    text = decided(plan, constant(plan, values))
    assert re.fullmatch(
        r"Use Alice, glass, full, lr=0\.01\. Compared to the best baseline \(AdamW\) it ended "
        r"better by 4\.0 points \(95% interval 3\.\d to 4\.\d\), at 1\.5 times the seconds\.",
        text,
    )


def test_an_unproved_lead_does_not_buy_dearer_steps_and_the_way_on_is_named() -> None:
    """All of one above all of the other: seen, not established, and how to establish it."""
    plan = grid_plan(3, terms=("none", "glass"), baselines=("adamw",))
    values = {"alice-glass-full": (91.0, 95.0, 99.0), "adamw": (90.2, 90.4, 90.6)}
    assert decided(plan, constant(plan, values)) == (
        "Use AdamW, lr=0.001. The best median was that of Alice, glass, full (1.5 times the "
        "seconds): better by 4.6 points, which 3 seeds cannot establish. `--seeds 6 --resume` "
        "may tell."
    )


def test_at_equal_seconds_the_best_is_chosen_however_busy_the_machine_was() -> None:
    """Seconds that were measured differ by luck, and decide nothing."""
    plan = grid_plan(3, terms=("none", "glass"), baselines=("adamw",), budget="9s")
    plan = replace(plan, paces=dict.fromkeys(plan.methods, 0.01))
    values = {"alice-glass-full": (91.0, 95.0, 99.0), "adamw": (90.2, 90.4, 90.6)}
    assert decided(plan, constant(plan, values)) == (
        "Use Alice, glass, full, lr=0.01. Nothing better was seen. Compared to the best baseline "
        "(AdamW, the same seconds): better by 4.6 points, which 3 seeds cannot establish. "
        "`--seeds 6 --resume` may tell."
    )


def test_the_way_on_is_the_whole_command() -> None:
    """With its folder, or it would begin another study, and with as many seeds as it takes."""
    plan = grid_plan(3, terms=("none", "glass"), baselines=("adamw",))
    values = {"alice-glass-full": (91.0, 95.0, 99.0), "adamw": (90.2, 90.4, 90.6)}
    for seeds in (" --seeds 3", " --seeds=3", ""):
        rest = "--out 'o --seeds b' --terms ''"
        plan = replace(plan, command=f"aliceopt study x.py:p{seeds} {rest}")
        way_on = f"`aliceopt study x.py:p {rest} --seeds 6 --resume` may tell."
        assert decided(plan, constant(plan, values)).endswith(way_on)
    several = replace(plan, kind="experiment", command="aliceopt run pays --out all")
    assert decided(several, constant(plan, values)).endswith("`--seeds 6 --resume` may tell.")


def test_where_no_difference_was_seen_its_bound_is_named() -> None:
    """Results that overlap: no more than the interval leaves possible, and no hint."""
    plan = grid_plan(8, terms=("none", "glass"), baselines=("adamw",))
    noise = (0.3, -0.2, 0.1, -0.3, 0.2, -0.1, 0.25, -0.25)
    lead = {"alice-glass-full": tuple(90.1 + e for e in noise)}
    values = lead | {"adamw": tuple(90.0 - e for e in noise)}
    finding = find(plan, in_memory(plan, constant(plan, values)))
    c = next(c for c in finding.comparisons if c.question == "best" and c.second == "adamw")
    assert c.verdict == "no difference seen"
    said = re.search(r"no difference larger than ([\d.]+) points\.$", finding.decision)
    assert said is not None
    assert float(said[1]) == pytest.approx(max(abs(c.low or 0), abs(c.high or 0)), abs=0.06)
    assert finding.decision.startswith("Use AdamW, lr=0.001. The best median was that of Alice,")


def test_the_best_that_is_also_cheap_needs_no_proof() -> None:
    """Nothing better was seen; the other family's best is named with its cost."""
    plan = grid_plan(3, terms=("none", "glass"), baselines=("adamw",))
    values = {"adamw": (91.0, 95.0, 99.0), "alice-glass-full": (90.2, 90.4, 90.6)}
    assert decided(plan, constant(plan, values)) == (
        "Use AdamW, lr=0.001. Nothing better was seen. Compared to the best Alice (Alice, glass, "
        "full, 1.5 times the seconds): better by 4.6 points, which 3 seeds cannot establish. "
        "`--seeds 6 --resume` may tell."
    )


def test_seconds_within_a_third_are_equal() -> None:
    """A method a little cheaper and much worse is not chosen for its few seconds."""
    plan = grid_plan(2, terms=("none", "glass"), baselines=("adamw", "sgd"))
    values = {"adamw": (95.0, 95.5), "sgd": (60.0, 61.0), "alice-glass-full": (95.2, 95.6)}
    runs = in_memory(plan, constant(plan, values))
    for run in runs:
        run.seconds = {"sgd": CHEAP, "adamw": 1.15 * CHEAP}.get(run.method, 2 * CHEAP)
    assert find(plan, runs).decision.startswith("Use AdamW, lr=0.001. The best median was")


def test_one_method_that_is_cheap_by_luck_does_not_set_the_price() -> None:
    """A wild one that cannot be told apart, and a worse one that is nearly as cheap as it.

    However noisy seconds are, the choice is one of those that ended well; also where, at equal
    gradients, the wild one has one less, as its steps are rounded.
    """
    plan = grid_plan(5, terms=("none",), baselines=("adamw", "sgd", "muon"), metric="loss")
    results = {
        "alice-none-naq": (0.059, 0.061, 0.052, 0.049, 0.050),
        "alice-none-full": (0.060, 0.062, 0.054, 0.053, 0.055),
        "adamw": (0.068, 0.054, 0.055, 0.054, 0.060),
        "sgd": (0.044, 0.162, 0.092, 0.110, 0.070),
        "muon": (0.081, 0.075, 0.091, 0.082, 0.092),
    }
    usual = {"sgd": 0.87, "muon": 1.05, "adamw": 1.07}
    for seed in range(20):
        noise = random.Random(seed)
        runs = in_memory(plan, constant(plan, results))
        slow = {m: usual.get(m, 1.19) * noise.lognormvariate(0, 0.1) for m in plan.methods}
        for run in runs:
            run.seconds = slow[run.method]
            run.gradients = 219 if run.method == "sgd" else 220
        assert find(plan, runs).choice not in ("sgd", "muon")


def test_milliseconds_are_no_cost() -> None:
    """Runs of milliseconds: the cheapest of them is cheapest by luck."""
    plan = grid_plan(2, terms=("none", "glass"), baselines=("adamw", "sgd"))
    values = {"adamw": (95.0, 95.5), "sgd": (60.0, 99.0), "alice-glass-full": (95.2, 95.6)}
    runs = in_memory(plan, constant(plan, values))
    for run in runs:
        run.seconds = {"sgd": 0.01, "adamw": 0.02}.get(run.method, 0.03)
    assert find(plan, runs).decision.startswith("Use Alice, glass, full, lr=")


def test_a_tie_that_hides_a_large_difference_says_how_to_go_on() -> None:
    """Losses that may differ by more than a fifth, and losses that may not."""
    for spread, hinted in ((0.5, True), (0.01, False)):
        plan = grid_plan(5, terms=("none", "glass"), baselines=("adamw",), metric="loss")
        noise = (0.3, -0.2, 0.1, -0.3, 0.1)
        mine = tuple(0.5 * (1 + spread * e) for e in noise)
        other = tuple(0.501 * (1 - spread * e) for e in noise)
        values = {"adamw": mine, "alice-glass-full": other}
        text = decided(plan, constant(plan, values))
        assert ("not told apart, up to" if hinted else "no difference larger than") in text
        assert text.endswith("`--seeds 10 --resume` may tell.") == hinted


def test_a_method_that_diverged_is_never_the_cheaper_choice() -> None:
    """It is named among the evidence instead."""
    plan = grid_plan(3, terms=("glass",), baselines=("adamw",))
    values = {"alice-glass-full": (91.0, 92.0, 93.0), "adamw": (90.9, 92.1, 93.0)}
    results = constant(plan, values) | {("adamw", 2): "diverged"}
    finding = find(plan, in_memory(plan, results))
    assert finding.decision.startswith("Use Alice, glass, full, lr=0.01.")
    assert "1 of 9 runs diverged: AdamW (1 of 3 seeds)." in finding.text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (123.0, "120 times the seconds"),
        (2.14, "2.1 times the seconds"),
        (0.123, "0.12 times the seconds"),
        (1.02, "the same seconds"),
        (None, "unknown seconds"),
    ],
)
def test_seconds_are_told_in_plain_digits(seconds: float | None, said: str) -> None:
    """Two of them, whatever the size: no powers of ten."""
    plan = grid_plan(1)
    first, second, *_ = summarize(plan, in_memory(plan, invented_results(plan))).methods
    pair = replace(first, seconds=seconds), replace(second, seconds=1.0)
    assert times_the_seconds(*pair) == said


@pytest.mark.parametrize(("seconds", "said"), [(0.06, "0.04 s more"), (0.021, "the same seconds")])
def test_of_next_to_no_seconds_no_ratio_is_told(seconds: float, said: str) -> None:
    """Three times a fiftieth of a second is not three times the cost."""
    plan = grid_plan(1)
    first, second, *_ = summarize(plan, in_memory(plan, invented_results(plan))).methods
    assert times_the_seconds(replace(first, seconds=seconds), replace(second, seconds=0.02)) == said


def test_a_method_alone_is_said_to_be_alone() -> None:
    plan = grid_plan(2, terms=(), baselines=("adamw",))
    text = decided(plan, constant(plan, {}))
    assert text == "Use AdamW, lr=0.001. It was compared to nothing else."
