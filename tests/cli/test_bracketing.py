"""What a comparison lacks: rates until the best lies inside, then the seeds that count."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("rich")

from aliceopt.cli.bracketing import has_run, lacking, rounds
from aliceopt.lab.plans.plan import PlanError, experiment_plan
from aliceopt.lab.plans.study import TUNING_SEED
from aliceopt.lab.results.kept import Kept, add
from aliceopt.lab.results.kept_compare import best_rate, by_rate
from aliceopt.lab.spec import Plan
from experiment_records import kept_run

SEEDS = [0, 1, 2, 3]


def one(method: str, rate: float, seed: int, final: float | None) -> Kept:
    return kept_run("pays-gpt", f"{method}@{rate!r}", seed, final)


def carried_out(loss: Callable[[float], float | None], usual: float, most: int) -> list[Kept]:
    """All that is run of one method whose loss is this function of the rate."""
    lines: list[Kept] = []
    while wanted := lacking(lines, {"adamw": usual}, SEEDS, most):
        lines += [one(method, rate, seed, loss(rate)) for method, rate, seed in wanted]
    return lines


def rates_of(lines: list[Kept]) -> list[float]:
    return sorted({line.config.options["lr"] for line in lines})


@pytest.mark.parametrize("best", [1.25e-4, 5e-4, 1e-3, 2e-3, 8e-3])
def test_rates_are_tried_until_the_best_lies_inside(best: float):
    """Wherever the minimum is, both its neighbours have been tried, nothing beyond them."""
    lines = carried_out(lambda rate: 1 + math.log2(rate / best) ** 2, 1e-3, most=9)
    low, high = min(best, 1e-3) / 2, max(best, 1e-3) * 2
    assert rates_of(lines) == [low * 2**k for k in range(round(math.log2(high / low)) + 1)]
    at_best = {line.seed for line in lines if line.config.options["lr"] == best}
    assert at_best == {TUNING_SEED, *SEEDS}
    others = {line.seed for line in lines if line.config.options["lr"] != best}
    assert others == {TUNING_SEED}


def test_no_more_rates_are_tried_than_are_allowed():
    """The best stays at the edge then, and is run all the same."""
    lines = carried_out(lambda rate: 1 / rate, 1e-3, most=4)
    assert rates_of(lines) == [5e-4, 1e-3, 2e-3, 4e-3]
    assert sum(line.config.options["lr"] == 4e-3 for line in lines) == 5


def test_one_that_diverges_is_tried_at_lower_rates_and_left_at_that():
    """A best rate is found below; where there is none, no seed is spent on the method."""
    found = carried_out(lambda rate: None if rate > 3e-4 else 1 + rate, 1e-3, most=7)
    assert rates_of(found)[0] < 2e-4
    lost = carried_out(lambda rate: None, 1e-3, most=5)
    assert rates_of(lost) == [1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3]
    assert {line.seed for line in lost} == {TUNING_SEED}


def test_every_method_goes_its_own_way():
    """One that is bracketed gets its seeds while another still looks for its rate."""
    adamw = [
        one("adamw", rate, TUNING_SEED, loss) for rate, loss in ((1e-3, 3), (2e-3, 1), (4e-3, 2))
    ]
    muon = [one("muon", rate, TUNING_SEED, loss) for rate, loss in ((1e-3, 3), (2e-3, 2))]
    lines = [*adamw, one("adamw", 2e-3, 1, 1.1), *muon]
    assert lacking(lines, {"adamw": 1e-3, "muon": 1e-3, "ahead-2": 2e-3}, [0, 1], 7) == [
        ("adamw", 2e-3, 0),
        ("muon", 4e-3, TUNING_SEED),
        ("ahead-2", 1e-3, TUNING_SEED),
        ("ahead-2", 2e-3, TUNING_SEED),
        ("ahead-2", 4e-3, TUNING_SEED),
    ]  # fmt: skip


def plan_of(**more: object) -> Plan:
    given = {"methods": ["adamw"], "seeds": [0, 1], "read": False, "check": False}
    return experiment_plan("pays-gpt", **{**given, **more})  # type: ignore[arg-type]


def test_rounds_name_runs_as_a_user_would():
    """The filed rate by the method's name, others behind an @; they end with nothing left to do."""
    plan = plan_of()
    filed, lines = plan.methods["adamw"].lr, []
    assert filed is not None
    told = []
    for part in rounds(plan, lambda: lines, 7, lambda **more: plan_of(**more)):
        told.append([(run.method, run.seed) for run in part.runs])
        for run in part.runs:
            rate = part.methods[run.method].lr
            assert rate is not None
            lines.append(kept_run("pays-gpt", run.method, run.seed, abs(math.log2(rate / filed))))
    around = [f"adamw@{filed / 2!r}", f"adamw@{filed * 2!r}"]
    assert sorted(told[0]) == sorted((name, TUNING_SEED) for name in ["adamw", *around])
    assert told[1:] == [[("adamw", 0), ("adamw", 1)]]


def test_what_ends_without_counting_is_told():
    """Runs in the folder from another device, say: they are not asked for again and again."""
    asked = rounds(plan_of(), list, 7, lambda **more: plan_of(**more))
    assert len(next(asked).runs) == 3
    with pytest.raises(PlanError, match="what has ended does not count"):
        next(asked)


def test_data_of_another_size_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch):
    """Its runs are of other lengths, and would compare with nothing."""
    plan = plan_of()
    longer = replace(plan, runs=[replace(run, steps=run.steps + 7) for run in plan.runs])
    with pytest.raises(PlanError, match=r"would have steps 1007"):
        list(rounds(longer, list, 7, plan_of))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"seeds": [0, TUNING_SEED]}, "seed 1000 chooses rates"),
        ({"methods": ["adamw@1e-3"]}, "leave out 'adamw@1e-3'"),
    ],
)
def test_what_would_not_choose_a_rate_is_refused(more: dict[str, object], told: str):
    """Rates are chosen at a seed that counts for nothing else, and by nobody else."""
    with pytest.raises(PlanError, match=told):
        list(rounds(plan_of(**more), list, 7, plan_of))


def test_only_runs_like_those_that_are_planned_count(tmp_path: Path):
    """Of the plan's experiment, methods, scale, precision and device, as filed."""
    mine = one("adamw", 2e-3, 0, 1.0)
    other = kept_run("pays-gpt", "adamw", 0, 1.0, scale="long")
    add([mine, other, one("muon", 2e-3, 0, 1.0)], tmp_path)
    plan = plan_of(precision=mine.precision)
    assert has_run(plan, tmp_path / "none", tmp_path, device=mine.device) == [mine]
    assert has_run(plan, tmp_path / "none", tmp_path, device=f"{mine.device}, another") == []
    assert has_run(plan, tmp_path / "none", None, device=None) == []
    assert has_run(plan_of(precision="float32"), tmp_path, tmp_path, device=None) == []
    there = tmp_path / "pays-gpt.jsonl"
    there.rename(tmp_path / "pays-vit.jsonl")  # of another experiment, wherever it stands
    assert has_run(replace(plan, name="pays-vit"), tmp_path, tmp_path, device=None) == []


def test_of_equal_rates_the_lowest_is_best():
    """In whatever order the lines stand."""
    ends = {2e-3: 1.0, 1e-3: 1.0, 5e-4: 2.0}
    lines = [one("adamw", rate, TUNING_SEED, final) for rate, final in ends.items()]
    for order in (lines, lines[::-1]):
        assert best_rate(by_rate(order)["adamw"]) == 1e-3


@pytest.mark.parametrize(("experiment", "best"), [("pays-gpt", 1e-3), ("pays-resnet18", 4e-3)])
def test_the_best_is_what_the_metric_calls_better(experiment: str, best: float):
    """The lowest loss, and the highest accuracy."""
    lines = [
        kept_run(experiment, f"adamw@{rate!r}", TUNING_SEED, final)
        for rate, final in ((1e-3, 1.0), (2e-3, 2.0), (4e-3, 3.0))
    ]
    assert best_rate(by_rate(lines)["adamw"]) == best
