"""Positive losses of a study are compared by ratio, everything else by difference."""

import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from aliceopt.lab.records import read_runs
from aliceopt.lab.report import write_report
from aliceopt.lab.report.strips import forest, term_strips
from aliceopt.lab.results.comparisons import compare
from aliceopt.lab.results.finding import find
from aliceopt.lab.results.paired import resolution
from aliceopt.lab.results.scale import Scale, scale_of
from aliceopt.lab.spec import Plan
from study_cases import grid_plan, in_memory, invented_results, write_folder

LOSS = Scale("loss", "lower", ratio=True)
PLAIN = Scale("loss", "lower")
POINTS = Scale("accuracy", "higher")


@pytest.mark.parametrize(
    ("metric", "kind", "results", "ratio"),
    [
        ("loss", "study", [0.3, 1e-9], True),
        ("perplexity", "study", [21.0, 30.0], True),
        ("loss", "study", [0.3, 0.0], False),
        ("loss", "study", [0.3, -0.1], False),
        ("loss", "study", [], False),
        ("accuracy", "study", [97.0, 98.0], False),
        ("loss", "experiment", [0.3, 0.2], False),
    ],
)
def test_the_scale_is_a_ratio_for_positive_losses_of_a_study_alone(
    metric: str, kind: str, results: list[float], ratio: bool
) -> None:
    assert scale_of(grid_plan(2, metric=metric, kind=kind), results).ratio is ratio


def test_a_comparison_is_the_t_test_of_logarithms() -> None:
    """Student's, on the logarithms of the losses; its interval is one of ratios."""
    plan = grid_plan(5, metric="loss", terms=(), baselines=("adam", "sgd"))
    first, second = (0.1, 0.02, 0.3, 0.05, 0.004), (0.31, 0.09, 0.5, 0.21, 0.0201)
    results = {("adam", s): v for s, v in enumerate(first)}
    results |= {("sgd", s): v for s, v in enumerate(second)}
    (c,) = compare(plan, in_memory(plan, results))
    logs = [[math.log(v) for v in values] for values in (second, first)]
    test = stats.ttest_rel(*logs)
    low, high = test.confidence_interval(0.95)
    assert (c.first, c.verdict) == ("adam", "better")
    assert c.p == pytest.approx(test.pvalue, rel=1e-9)
    assert (c.low, c.high) == (pytest.approx(low), pytest.approx(high))
    shown = [f"{math.exp(v):.1f}" for v in (c.gain, low, high)]
    said = "{} times lower in loss (95% interval {} to {})".format(*shown)
    assert said in find(plan, in_memory(plan, results)).decision


def test_losses_that_spread_over_powers_of_ten_are_told_apart() -> None:
    """Five times lower at every seed: established by ratios, which the raw differences hide."""
    plan = grid_plan(5, metric="loss", terms=(), baselines=("adam", "sgd", "adamw"))
    draw = random.Random(0)
    results: dict[tuple[str, int], float] = {}
    for s in plan.seeds:
        size = 10 ** draw.uniform(-4, 0)
        for m, times in (("adam", 1), ("sgd", 5), ("adamw", 6)):
            results[m, s] = times * size * math.exp(draw.gauss(0, 0.1))
    verdicts = {}
    for kind in ("study", "experiment"):
        drawn = compare(replace(plan, kind=kind), in_memory(plan, results))
        verdicts[kind] = {c.verdict for c in drawn if c.question == "best"}
    assert verdicts["study"] == {"better"}
    assert "better" not in verdicts["experiment"]


def test_null_studies_of_losses_seldom_claim_a_difference() -> None:
    """Of 200 studies without any effect 5% at most, and three standard deviations."""
    plan = grid_plan(5, metric="loss", terms=("none", "glass", "abs"), baselines=("adam", "sgd"))
    wrong = 0
    for seed in range(200):
        exponents = invented_results(plan, seed=seed, base=0.0, noise=1.0)
        results = {key: math.exp(value) for key, value in exponents.items()}
        verdicts = {c.verdict for c in compare(plan, in_memory(plan, results))}
        wrong += bool(verdicts & {"better", "worse"})
    assert wrong / 200 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


def test_one_wrong_image_more_at_every_seed_is_no_proof_of_a_ratio() -> None:
    """Errors are multiples of one image, so their ratio is as rough as the smaller is small."""
    grain = 100 / 360
    errors = [k * grain for k in (1, 2, 30, 31, 300)]
    step = resolution(errors)
    assert LOSS.grain(step, errors[:2]) == pytest.approx(1)
    assert LOSS.grain(step, errors[2:4]) == pytest.approx(1 / 30)
    assert LOSS.grain(5.0, [1e-12, 1.0]) == 1  # no result is smaller than the grain
    assert PLAIN.grain(step, errors) == step


def test_small_results_beside_large_ones_keep_their_own_gaps() -> None:
    """1e-12 and 2e-12 are two results, though both are dust beside 1; rounding is not."""
    assert resolution([1.0, 1e-12, 2e-12]) == pytest.approx(1e-12)
    assert resolution([1.0, 1.0 + 1e-15]) == 0


@pytest.mark.parametrize(
    ("scale", "gain", "interval", "said"),
    [
        (LOSS, 1.8, (1.2, 2.7), "1.8 times lower in loss (95% interval 1.2 to 2.7)"),
        (LOSS, 1 / 1.8, (1 / 2.7, 1 / 1.2), "1.8 times higher in loss (95% interval 1.2 to 2.7)"),
        (LOSS, 1 / 0.88, (1 / 0.97, 1 / 0.8), "12% lower in loss (95% interval 3% to 20%)"),
        (LOSS, 1 / 1.12, (1 / 1.2, 1 / 1.03), "12% higher in loss (95% interval 3% to 20%)"),
        (LOSS, 1.3, (1.004, 4.2), "1.3 times lower in loss (95% interval 1.004 to 4.2)"),
        (LOSS, 2e4, (1e3, 4e5), "20,000 times lower in loss (95% interval 1,000 to 400,000)"),
    ],
)
def test_ratios_in_words(
    scale: Scale, gain: float, interval: tuple[float, float], said: str
) -> None:
    """Times, or percent of the second where all of it is small; more digits near one."""
    low, high = sorted(map(math.log, interval))
    assert scale.said(math.log(gain), low, high) == said


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1 / 0.88, "12% lower"), (1 / 1.31, "31% higher"), (2.5, "2.5 times lower")],
)
def test_ratios_without_an_interval_in_words(ratio: float, said: str) -> None:
    assert LOSS.said(math.log(ratio)) == f"{said} in loss"


def test_differences_in_words() -> None:
    assert POINTS.said(0.4, 0.1, 0.7) == "better by 0.4 points (95% interval 0.1 to 0.7)"
    assert PLAIN.said(-0.4, -0.7, -0.1) == "worse by 0.4 in loss (95% interval 0.1 to 0.7)"
    assert POINTS.said(-0.4) == "worse by 0.4 points"


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1.12, "12% in loss"), (1.004, "0.4% in loss"), (3.0, "a factor of 3.0 in loss")],
)
def test_what_a_tie_leaves_open_is_a_share_or_a_factor(ratio: float, said: str) -> None:
    """The larger of both sides: 12% higher is more than 11% lower."""
    assert LOSS.size(math.log(ratio)) == LOSS.size(-math.log(ratio)) == said


def test_a_tie_of_losses_says_what_ratio_could_have_been_missed() -> None:
    plan = grid_plan(8, metric="loss")
    results = {k: math.exp(v) for k, v in invented_results(plan, base=-2, noise=0.05).items()}
    finding = find(plan, in_memory(plan, results))
    said = re.search(r"no difference larger than (\d+)% in loss\.", finding.evidence["terms"][-1])
    assert said is not None
    drawn = [c for c in finding.comparisons if c.question == "terms"]
    widest = max(max(abs(c.low or 0), abs(c.high or 0)) for c in drawn)
    assert float(said[1]) == pytest.approx(100 * math.expm1(widest), abs=0.5)


def test_two_seeds_far_apart_end_in_words_and_a_report(tmp_path: Path) -> None:
    """Intervals beyond what a float holds: no overflow, no number that says nothing."""
    plan = grid_plan(2, metric="loss", terms=("none", "glass"), baselines=("adam",))
    results = {(r.method, r.seed): 1e-300 for r in plan.runs}
    results |= {("adam", 0): 1e300, ("adam", 1): 1e-200, ("alice-glass-naq", 1): 1e-290}
    finding = find(plan, in_memory(plan, results))
    assert not re.search(r"\b(nan|inf)\b", finding.text)
    write_folder(tmp_path, plan, results)
    assert "nan" not in forest_of(tmp_path, plan).alt
    assert write_report(tmp_path).exists()


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((1.2, 2.7), "1.20 to 2.70"),
        ((0.002, 900.0), "0.002 to 900"),
        ((1e-13, 9e12), "any"),
        ((1e-304, 1e304), "any"),
        ((2.5, 1e9), "2.50 or more"),
        ((1e-9, 0.4), "0.4 or less"),
        ((), ""),
    ],
)
def test_an_interval_of_ratios_that_could_be_any_says_so(
    ends: tuple[float, ...], said: str
) -> None:
    """Past a factor of 1000 either way: what is known of it, and no number that says nothing."""
    assert LOSS.interval(2, *map(math.log, ends)) == said


def test_differences_are_never_any() -> None:
    assert POINTS.interval(1, -2000.0, 3000.0) == "\u22122000.0 to 3000.0"


def test_an_established_ratio_of_unknown_size_is_at_least_something() -> None:
    low, mean, high = map(math.log, (2.5, 5e4, 1e9))
    assert LOSS.said(mean, low, high) == "50,000 times lower in loss (95% interval 2.5 or more)"
    assert LOSS.said(-mean, -high, -low).endswith("higher in loss (95% interval 2.5 or more)")


def test_no_report_of_two_seeds_prints_huge_ratios_as_intervals(tmp_path: Path) -> None:
    """In the forest, the terms, the table and the evidence; their bars are cut on both sides."""
    plan = grid_plan(2, metric="loss", terms=("none", "glass"), baselines=("adam", "sgd"))
    exponents = invented_results(plan, base=-2.0, noise=1.2)
    write_folder(tmp_path, plan, {key: math.exp(value) for key, value in exponents.items()})
    rows = forest_of(tmp_path, plan).rows
    wide = [row for row in rows if row.text.endswith("(any)")]
    assert wide
    assert all(row.cut == (True, True) for row in wide)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert ">any</td>" in page
    assert not re.search(r"\de-?\d+( to |\)| in loss)", page)


def forest_of(folder: Path, plan: Plan) -> Any:
    finding = find(plan, read_runs(folder))
    return forest(plan, finding.comparisons, finding.choice)


def test_the_forest_of_losses_is_a_ratio_on_a_logarithmic_axis(tmp_path: Path) -> None:
    """Equal ratios are equally far apart, no difference stands at one, and the axis says so."""
    plan = grid_plan(5, metric="loss", terms=("none", "glass"), baselines=("adam", "sgd"))
    exponents = invented_results(plan, {"adam": -2.0, "sgd": 1.0}, base=-1.0, noise=0.05)
    write_folder(tmp_path, plan, {key: math.exp(value) for key, value in exponents.items()})
    drawn = forest_of(tmp_path, plan)
    assert drawn.axis == "loss, times that of Adam (log)"
    finding = find(plan, read_runs(tmp_path))
    gains = {c.second: c.gain for c in finding.comparisons if c.question == "best"}
    scale = [(row.middle - drawn.zero) / gains[row.method] for row in drawn.rows]
    assert scale == pytest.approx([scale[0]] * len(scale), rel=0.01)
    ticks = {text: place for place, text in drawn.ticks}
    assert ticks["1"] == drawn.zero
    assert (ticks["10"] - ticks["1"]) / scale[0] == pytest.approx(math.log(10), rel=0.01)
    furthest = drawn.rows[-1]
    assert furthest.method == "sgd"
    assert furthest.text.split()[0] == f"{math.exp(gains['sgd']):.2g}"
    assert drawn.rows[0].text.split()[0] == f"{math.exp(gains[drawn.rows[0].method]):.2f}"
    terms = term_strips(plan, finding.comparisons)
    assert terms is not None
    assert terms.axis == "loss, times that of no term (log)"
    shown = {c.first: c for c in finding.comparisons if c.question == "terms"}
    for row in terms.rows[:2]:
        assert row.text.startswith(f"{math.exp(-shown[row.method].gain):.2f} (")
        assert row.low is not None
        assert row.high is not None
        assert row.low < row.middle < row.high
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Ratios of loss, the first to the second; below 1 is better." in page
    ends = [f"{math.exp(-(shown['alice-glass-naq'].high or 0)):.2f}"]
    ends += [f"{math.exp(-(shown['alice-glass-naq'].low or 0)):.2f}"]
    assert f">{' to '.join(ends)}</td>" in page
