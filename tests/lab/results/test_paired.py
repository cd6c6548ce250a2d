"""Student's t and Holm's correction are right, and zero spread claims nothing by itself."""

import itertools
import math

import pytest
from scipy import stats

from aliceopt.lab.results.comparisons import compare, complete_block
from aliceopt.lab.results.paired import ALPHA, Paired, holm, resolution
from study_cases import grid_plan, in_memory, invented_results


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("level", [0.05, 0.05 / 12, 0.05 / 1000])
def test_p_and_interval_are_those_of_the_t_test(seeds: int, level: float) -> None:
    """Student's, on one sample of differences."""
    differences = tuple(0.3 + math.sin(3 * seed) for seed in range(seeds))
    test = stats.ttest_1samp(differences, 0.0)
    pair = Paired(differences)
    assert pair.p == pytest.approx(test.pvalue, rel=1e-9)
    low, high = test.confidence_interval(1 - level)
    assert pair.half_width(level) == pytest.approx((high - low) / 2, rel=1e-6)


def test_holm_by_hand() -> None:
    """0.01 x 3, then 0.03 x 2, then the running maximum; levels stay where the first one fails."""
    corrected, levels = holm([0.01, 0.04, 0.03])
    assert corrected == pytest.approx([0.03, 0.06, 0.06])
    assert levels == pytest.approx([0.05 / 3, 0.05 / 2, 0.05 / 2])


def test_an_interval_leaves_out_zero_exactly_where_a_difference_is_claimed() -> None:
    """Interval and verdict never contradict each other, in any of many studies."""
    seen = set()
    plan = grid_plan(4)
    for seed in range(25):
        effects = {m: 0.4 * (seed % 5) for m in plan.methods if "glass" in m}
        for c in compare(plan, in_memory(plan, invented_results(plan, effects, seed=seed))):
            assert c.low is not None
            assert c.high is not None
            claimed = c.verdict in ("better", "worse")
            assert claimed == (c.low > 0 or c.high < 0)
            assert c.low <= c.gain <= c.high
            seen.add(c.verdict)
    assert seen >= {"better", "no difference seen"}


def test_equal_differences_of_one_grain_are_no_proof() -> None:
    """Three times one image more can be rounding; three times ten images more cannot."""
    grain = 100 / 360
    once, tenfold = Paired((grain,) * 3, grain), Paired((10 * grain,) * 3, grain)
    assert once.p > 0.05
    assert tenfold.p < 0.001
    assert math.isfinite(tenfold.half_width(0.05))


def test_no_spread_and_no_difference_is_certain_equality() -> None:
    """All results equal: no grain, no spread, p = 1 and an interval of zero width."""
    same = Paired((0.0, 0.0, 0.0))
    assert same.p == 1.0
    assert same.half_width(0.05) == 0.0


def test_resolution_is_the_grain_of_rounded_results_and_ignores_dust() -> None:
    """Accuracies on 360 images differ by multiples of 1/360, up to floating-point dust."""
    values = [100 * k / 360 for k in (340, 341, 350)] + [100 * 341 / 360 * (1 + 1e-15)]
    assert resolution(values) == pytest.approx(100 / 360)
    assert resolution([]) == resolution([3.0, 3.0]) == 0.0


def test_complete_block_prefers_two_seeds_to_one() -> None:
    """One seed of everything leaves no uncertainty, so two seeds of less are taken."""
    values = {"a": {0: 1.0, 1: 1.0}, "b": {0: 1.0, 1: 1.0}, "c": {0: 1.0}, "d": {0: 1.0}}
    assert complete_block(values) == (["a", "b"], [0, 1])
    assert complete_block({"c": {0: 1.0}, "d": {0: 1.0}}) == (["c", "d"], [0])
    assert complete_block({}) == ([], [])


@pytest.mark.parametrize(("seeds", "grain"), [(3, 0.0), (5, 0.0), (5, 100 / 360)])
def test_studies_without_any_effect_seldom_claim_one(seeds: int, grain: float) -> None:
    """The family-wise error rate: of 400 null studies about 5% at most claim anything.

    By chance alone the share exceeds 8.3%, three standard deviations more, once in 700 times.
    """
    plan = grid_plan(seeds)
    studies = 400
    wrong = 0
    for seed in range(studies):
        results = invented_results(plan, seed=seed, grain=grain)
        verdicts = {c.verdict for c in compare(plan, in_memory(plan, results))}
        wrong += bool(verdicts & {"better", "worse"})
    assert wrong / studies <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / studies)


def test_the_best_pays_for_being_picked() -> None:
    """Of 14 methods its p-values count 7 times before Holm's correction over the other 13."""
    plan = grid_plan(6, baselines=("adam", "sgd"))
    effects = {"alice-glass-naq": 1.5}
    drawn = compare(plan, in_memory(plan, invented_results(plan, effects, seed=4)))
    best = sorted((c for c in drawn if c.question == "best"), key=lambda c: c.p or 0)
    assert {c.first for c in best} == {"alice-glass-naq"}
    assert {c.second for c in best} == set(plan.methods) - {"alice-glass-naq"}
    for rank, c in enumerate(best[:2]):
        alone = Paired(c.differences)
        assert c.p == pytest.approx(alone.p, rel=1e-3)
        assert c.corrected_p == pytest.approx(7 * (13 - rank) * alone.p, rel=1e-3)
        assert c.low is not None
        assert c.high is not None
        assert c.high - c.low > 4 * alone.half_width(ALPHA)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((1.0, 1.2, 1.4), (0.2, 0.9, 0.3), "not established"),  # all of one below all of the other
        ((1.0, 1.2, 1.4), (0.1, 1.1, 1.3), "no difference seen"),
        ((10.0, 20.0, 30.0), (8.9, 19.0, 28.9), "better"),
        ((1.0, 2.0, 3.0), (0.8, 1.9, 2.8), "not established"),  # p is 0.038 before correction
    ],
)
def test_a_difference_seen_and_not_established_is_told_from_none(first, second, verdict) -> None:
    """Separate results, or a test that would claim a difference were it the only one."""
    plan = grid_plan(3, terms=("none", "glass"), baselines=())
    values = {"alice-glass-naq": first, "alice-none-naq": second}
    rest = dict.fromkeys(plan.methods, (0.1, 0.4, 0.2))
    results = {(m, s): v for m, vs in (rest | values).items() for s, v in enumerate(vs)}
    drawn = compare(plan, in_memory(plan, results))
    c = next(c for c in drawn if c.question == "terms" and c.first == "alice-glass-naq")
    assert c.verdict == verdict
    assert c.apart == (min(first) > max(second))


def test_every_term_is_compared_to_none_at_the_same_step() -> None:
    """Ten comparisons of terms, one of steps, and the best of 19 with each of the other 18."""
    plan = grid_plan(2)
    drawn = compare(plan, in_memory(plan, invented_results(plan)))
    assert [c.question for c in drawn] == ["terms"] * 10 + ["steps"] + ["best"] * 18
    methods = plan.methods
    for c in itertools.islice(drawn, 10):
        assert methods[c.second].terms == "none"
        assert methods[c.first].step == methods[c.second].step == c.step
