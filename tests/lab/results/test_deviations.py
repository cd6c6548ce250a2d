"""Deviations from the paper are told wherever a plan can be looked at."""

import sys
from dataclasses import replace

import pytest

from aliceopt.lab.plans.plan import PlanError, experiment_plan
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results import deviations


def test_a_plan_is_looked_at_without_the_packages_of_its_optimizers(monkeypatch):
    """To run the schedule-free AdamW its package is needed; to look at the plan, it is not."""
    monkeypatch.setitem(sys.modules, "schedulefree", None)
    with pytest.raises(PlanError, match="needs the package schedulefree"):
        experiment_plan("pays-gpt", "long", read=False)
    assert experiment_plan("pays-gpt", "long", read=False, check=False).gradients > 0
    deviations._paper.cache_clear()
    plan = experiment_plan("resnet18-methods", "paper", read=False, methods=["adam"])
    assert deviations.differences(plan, []) == []


def test_seeds_are_told_from_to_where_methods_have_other_numbers():
    plan = experiment_plan("resnet18-methods", "paper", read=False, seeds=2)
    adam = [RunRecord("adam", "Adam", seed, "finished", final=93.0) for seed in (0, 1)]
    one = RunRecord("alice", "Alice", 0, "finished", final=93.5)
    assert deviations.setting(plan, [*adam, one]).endswith(", batch size 100, 1 to 2 seeds")
    both = [*adam, one, replace(one, seed=1)]
    assert deviations.setting(plan, both).endswith(", batch size 100, 2 seeds")
