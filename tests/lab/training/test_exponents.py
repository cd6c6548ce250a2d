"""Exponents that a run measures while it trains: where, how exactly, and of which network."""

import pytest

from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.results.exponents import by_place
from aliceopt.lab.spec import Place, PowerLaw
from aliceopt.lab.training.train import train
from lab_cases import events, small_plan, small_run

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = {"lr": 0.03, "quick_steps": 1}


def laws(folder):
    """What a run of Alice measured, by place."""
    return by_place([e for e in events(folder, "alice", 1) if e["event"] == "power_law"])


def test_the_power_law_is_measured_at_every_evaluation_and_changes_nothing(file, tmp_path):
    """The records of the training are those of a run without it."""
    train(small_run(file, "alice", OPTIONS), tmp_path / "without")
    law = PowerLaw(radius=0.01, directions=2)
    train(small_run(file, "alice", OPTIONS, power_law=law), tmp_path / "with")
    found = events(tmp_path / "with", "alice", 1)
    laws = [e for e in found if e["event"] == "power_law"]
    assert [e["step"] for e in laws] == [0, 2, 4, 6, 8]
    assert all(e["radius"] == 0.01 and e["blocks"] for e in laws)
    rest = [e for e in found if e["event"] not in ("power_law", "start")]
    without = [e for e in events(tmp_path / "without", "alice", 1) if e["event"] != "start"]
    assert rest == without


def test_every_place_is_measured_at_every_evaluation(file, tmp_path):
    """Radii, batch sizes and held-out batches, each with each; the paper's own is as without."""
    more = {"radii": (1e-3,), "batch_sizes": (20,), "held_out": True}
    train(small_run(file, "alice", OPTIONS, power_law=PowerLaw(0.01, 2)), tmp_path / "one")
    train(small_run(file, "alice", OPTIONS, power_law=PowerLaw(0.01, 2, **more)), tmp_path / "all")
    found = laws(tmp_path / "all")
    places = [
        Place(radius, size, held_out)
        for held_out in (False, True)
        for size in (None, 20)
        for radius in (0.01, 1e-3)
    ]
    assert list(found) == places
    assert all([e["step"] for e in series] == [0, 2, 4, 6, 8] for series in found.values())
    assert found[Place(0.01)] == laws(tmp_path / "one")[Place(0.01)]
    variations = {series[-1]["total"]["variation"] for series in found.values()}
    assert len(variations) == len(places)  # no two are of the same examples at the same radius


def test_exponents_are_those_of_float32_whatever_is_trained_in(file, tmp_path):
    """Before the first step weights are the same; under autocast they would be rounded."""
    law = PowerLaw(radius=1e-3, directions=2, held_out=True)
    for precision in ("float32", "bf16"):
        run = small_run(file, "alice", OPTIONS, precision=precision, power_law=law)
        assert train(run, tmp_path / precision) == "finished"
    exact, rounded = (laws(tmp_path / precision) for precision in ("float32", "bf16"))
    for place, series in exact.items():
        before, same = series[0]["total"], rounded[place][0]["total"]  # but for the layout of sums
        assert [same[k] for k in same] == pytest.approx([before[k] for k in same], rel=1e-4)
        after, other = series[-1]["total"], rounded[place][-1]["total"]  # trained otherwise
        assert other["variation"] != pytest.approx(after["variation"], rel=1e-4)


def test_more_examples_than_there_are_is_told(file, tmp_path):
    law = PowerLaw(radius=0.01, directions=1, batch_sizes=(41,))
    assert train(small_run(file, "alice", OPTIONS, power_law=law), tmp_path) == "failed"
    reason = events(tmp_path, "alice", 1)[-1]["reason"]
    assert "there are no 41 examples for a training batch of 41, radius 0.01" in reason


def test_a_method_may_train_a_twin_of_the_network(file, tmp_path):
    """From the same weights, with other activations; the record says what was replaced."""
    methods = {
        "alice": {"optimizer": "alice", "lr": 0.03},
        "gelu": {"optimizer": "alice", "lr": 0.03, "twin": "gelu"},
    }
    plan = small_plan(file, methods)
    for planned in plan.runs[:2]:
        assert train(plan.run(planned), tmp_path) == "finished"
    own, twin = (events(tmp_path, method, 0) for method in methods)
    assert [e["text"] for e in twin if e["event"] == "note"] == [
        "gelu twin: replaced 2 modules and 0 calls of functions"
    ]
    assert not [e for e in own if e["event"] == "note"]
    assert twin[0]["config"]["problem"]["twin"] == "gelu"
    assert "twin" not in own[0]["config"]["problem"]
    assert twin[0]["parameters"] == own[0]["parameters"]
    assert twin[1]["loss"] != own[1]["loss"]


def test_an_activation_that_there_is_not_is_refused(file):
    with pytest.raises(PlanError, match="method alice: no activation 'gelo': did you mean 'gelu'"):
        small_plan(file, {"alice": {"optimizer": "alice", "lr": 0.03, "twin": "gelo"}})
