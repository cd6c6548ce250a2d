"""The summary's numbers are those of the records, whatever is better and whatever is missing."""

import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.finding import find
from aliceopt.lab.results.summary import best_method, choose_target, summarize
from aliceopt.lab.results.table import print_summary
from aliceopt.lab.spec import Plan
from study_cases import grid_plan, in_memory, invented_results

Results = dict[tuple[str, int], Any]


def small_plan(seeds: int = 3, metric: str = "accuracy") -> dict[str, Any]:
    return grid_plan(seeds, metric=metric, terms=("none", "glass"), baselines=("adam", "sgd"))


def constant(plan: Plan, **values: float) -> Results:
    """The same result at every seed: 90, unless the method is named."""
    return {(r.method, r.seed): values.get(r.method.replace("-", "_"), 90.0) for r in plan.runs}


def test_min_median_max_are_over_finished_runs() -> None:
    """A diverged seed has no result and does not count as a bad one."""
    plan = small_plan(4)
    results = constant(plan)
    results |= {("adam", 0): 91.0, ("adam", 1): 95.0, ("adam", 2): 92.0, ("adam", 3): "diverged"}
    adam = summarize(plan, in_memory(plan, results))["adam"]
    assert (adam.low, adam.median, adam.high) == (91.0, 92.0, 95.0)
    assert (adam.finished, adam.unstable) == (3, 1)


def test_a_run_that_finished_without_a_result_counts_as_diverged() -> None:
    """Early records call it finished, with null for a metric that is not finite."""
    plan = small_plan(2)
    results = constant(plan) | {("adam", s): math.nan for s in range(2)}
    runs = in_memory(plan, results)
    summary = summarize(plan, runs, target=90.0)
    assert (summary["adam"].finished, summary["adam"].unstable) == (0, 2)
    assert (summary["adam"].reached, summary["adam"].judged) == (0, 2)
    assert summary["adam"].median is None
    assert {state: n for state, n in summary.counts.items() if n} == {"finished": 10, "diverged": 2}
    stream = io.StringIO()
    print_summary(plan, runs, Console(file=stream, width=111))
    assert "Adam (0 of 2)" in stream.getvalue()


def test_every_state_is_counted_and_the_total_is_the_plan() -> None:
    """Finished, diverged, failed, interrupted, missing: together all planned runs."""
    plan = small_plan(5)
    results = constant(plan)
    for seed, state in enumerate(("diverged", "failed", "interrupted")):
        results["sgd", seed] = state
    del results["sgd", 3]
    summary = summarize(plan, in_memory(plan, results))
    assert dict(summary["sgd"].counts) == dict.fromkeys(
        ("finished", "diverged", "failed", "interrupted", "missing"), 1
    )
    assert sum(summary.counts.values()) == len(plan.runs)


@pytest.mark.parametrize(("better", "expected"), [("higher", 100), ("lower", 150)])
def test_cost_to_target_is_the_first_evaluation_at_or_beyond_it(better: str, expected: int) -> None:
    """No interpolation, and reaching it exactly counts."""
    plan = replace(small_plan(1), better=better)
    run = RunRecord("adam", "Adam", 0, "finished", final=70.0, gradients=200, seconds=2.0)
    run.evaluations = [
        {"gradients": 50 * i, "seconds": 0.5 * i, "metric": value}
        for i, value in enumerate((95.0, 80.0, 90.0, 70.0))
    ]
    if better == "higher":
        run.evaluations[0]["metric"] = 10.0
    found = summarize(plan, [run], target=90.0 if better == "higher" else 70.0)["adam"]
    assert found.to_target_gradients == expected
    assert found.to_target_seconds == expected / 100
    assert (found.reached, found.judged) == (1, 1)


def test_a_seed_that_never_arrives_counts_as_infinitely_slow() -> None:
    """A median over the lucky seeds alone would flatter: with half missing there is none."""
    plan = small_plan(4)
    results = constant(plan)
    results |= {("adam", 0): 50.0, ("adam", 1): "diverged"}
    found = summarize(plan, in_memory(plan, results), target=90.0)["adam"]
    assert (found.reached, found.judged) == (2, 4)
    assert found.to_target_gradients is None
    results["adam", 1] = 90.0
    found = summarize(plan, in_memory(plan, results), target=90.0)["adam"]
    assert (found.reached, found.judged) == (3, 4)
    assert found.to_target_gradients == 200


def test_runs_that_were_stopped_are_not_held_against_a_method() -> None:
    """An interrupted or missing run says nothing about reaching the target."""
    plan = small_plan(3)
    results = constant(plan)
    results["adam", 0] = "interrupted"
    del results["adam", 1]
    found = summarize(plan, in_memory(plan, results), target=90.0)["adam"]
    assert (found.reached, found.judged) == (1, 1)


def test_target_is_the_middle_baseline_and_one_failure_does_not_move_it_far() -> None:
    """Of Adam 95, AdamW 94 and a broken SGD at 10 the middle one is 94."""
    plan = grid_plan(3, terms=("none",), baselines=("adam", "adamw", "sgd"))
    results = constant(plan, adam=95.0, adamw=94.0, sgd=10.0)
    target = choose_target(plan, in_memory(plan, results))
    assert target is not None
    assert target.value == 94.0
    assert target.rule == "the median of AdamW, the middle one of 3 baselines"


@pytest.mark.parametrize(("metric", "expected"), [("accuracy", 80.0), ("loss", 90.0)])
def test_of_two_middle_baselines_the_worse_is_the_target(metric: str, expected: float) -> None:
    """So that at least two of two reach it."""
    plan = small_plan(metric=metric)
    results = constant(plan, adam=90.0, sgd=80.0)
    target = choose_target(plan, in_memory(plan, results))
    assert target is not None
    assert target.value == expected


@pytest.mark.parametrize("metric", ["accuracy", "perplexity"])
@pytest.mark.parametrize("seeds", [1, 2, 3, 4, 6])
def test_the_baseline_that_sets_the_target_reaches_it(seeds: int, metric: str) -> None:
    """Of two middle seeds the worse: the mean of both would be reached by half, which is never."""
    plan = grid_plan(seeds, metric=metric, terms=("none",), baselines=("adam",))
    results = constant(plan) | {("adam", s): 80.0 + s for s in range(seeds)}
    found = summarize(plan, in_memory(plan, results))
    assert found.target is not None
    assert found.target.value in [80.0 + s for s in range(seeds)]
    which = "the median" if seeds % 2 else "the worse of two middle results"
    assert found.target.rule == f"{which} of Adam, the only baseline"
    assert found["adam"].reached == seeds // 2 + 1
    assert found["adam"].to_target_gradients == 200


def test_without_baselines_all_methods_set_the_target_and_without_results_nobody() -> None:
    """A study of terms alone still has a target; an empty folder has none."""
    plan = grid_plan(2, terms=("none", "glass"), baselines=())
    target = choose_target(plan, in_memory(plan, constant(plan)))
    assert target is not None
    assert target.rule.endswith(" results of Alice, none, NAQ, the middle one of 4 methods")
    assert choose_target(plan, in_memory(plan, {})) is None
    assert summarize(plan, in_memory(plan, {})).target is None


def test_the_plans_target_counts_and_an_argument_overrides_it() -> None:
    """``--target`` is kept in the plan; a report may be asked for another."""
    plan = replace(small_plan(), target=12.5)
    runs = in_memory(plan, constant(plan))
    first, second = summarize(plan, runs).target, summarize(plan, runs, 20.0).target
    assert first is not None
    assert second is not None
    assert (first.value, second.value) == (12.5, 20.0)


@pytest.mark.parametrize(("metric", "best"), [("accuracy", "sgd"), ("loss", "adam")])
def test_best_method_follows_what_is_better(metric: str, best: str) -> None:
    """Higher accuracy, lower loss."""
    plan = small_plan(metric=metric)
    summary = summarize(plan, in_memory(plan, constant(plan, adam=1.0, sgd=2.0)))
    found = best_method(plan, summary, "baseline")
    assert found is not None
    assert found.method == best


def test_a_method_that_diverged_is_not_the_best_while_another_did_not() -> None:
    """Surviving seeds alone do not make a method good."""
    plan = small_plan()
    results = constant(plan, adam=99.0)
    results["adam", 0] = "diverged"
    found = best_method(plan, summarize(plan, in_memory(plan, results)), "baseline")
    assert found is not None
    assert found.method == "sgd"


def test_terminal_shows_every_method_the_target_and_the_finding() -> None:
    """What a user reads when the study is done, without colours and markup; labels are literal."""
    plan = grid_plan(3)
    plan.methods["adam"] = replace(plan.methods["adam"], label="Adam [bold]x[/bold]")
    results = invented_results(plan)
    results["sgd", 1] = "diverged"
    stream = io.StringIO()
    print_summary(plan, in_memory(plan, results), Console(file=stream, width=120))
    text = stream.getvalue()
    for about in plan.methods.values():
        assert about.label in text
    assert "Final validation accuracy over 3 seeds (higher is better); costs are medians" in text
    assert re.search(r"gradients +time *\n.* to target +to target", text)
    assert re.search(r"method +rate +min ", text)
    assert "Target: accuracy 9" in text
    assert "2 of 3, 1 diverged" in text
    finding = find(plan, in_memory(plan, results))
    assert " ".join(finding.decision.split()) in " ".join(text.split())
    assert finding.lines in text
    for said in finding.bullets:
        assert said in " ".join(text.split())


def test_a_narrow_terminal_keeps_every_number() -> None:
    """In 80 columns the numbers stay whole; only labels wrap."""
    plan = grid_plan(3, metric="loss")
    results: Results = {**invented_results(plan, noise=0.01), ("sgd", 1): "diverged"}
    stream = io.StringIO()
    runs = in_memory(plan, results)
    print_summary(plan, runs, Console(file=stream, width=80))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for s in summarize(plan, runs).methods:
        assert f"{s.median:.4g}" in text
    assert "(2 of" in text
    assert re.search(r"rate +min +median +max +grads +time +target *\n", text)
    assert re.search(r"Adam +0.001 ", text)


def test_terminal_survives_a_study_without_results() -> None:
    """Ctrl-C before the first run ended."""
    plan = grid_plan(2)
    stream = io.StringIO()
    print_summary(plan, in_memory(plan, {}), Console(file=stream, width=80))
    assert "nothing to find" in stream.getvalue()
