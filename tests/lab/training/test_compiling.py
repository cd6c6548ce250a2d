"""``train.compile``: the network through torch.compile, and the run is as it was, to rounding."""

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from aliceopt.lab.plans.plan import experiment_plan
from aliceopt.lab.records import RunRecord
from aliceopt.lab.results.deviations import precision_note
from aliceopt.lab.results.kept_compare import changed
from aliceopt.lab.training.train import train
from lab_cases import events, small_run

pytestmark = pytest.mark.usefixtures("one_thread")

METHODS = {
    "adamw": ("adamw", {"lr": 1e-2}, True),
    "alice": ("alice", {"lr": 1e-2}, True),
    "alice-measures": ("alice", {"lr": 1e-2, "terms": "glass+abs", "quick_steps": 1}, True),
    "adahessian": ("adahessian", {"lr": 0.1}, False),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_compiled_run_is_the_plain_one(name, file, tmp_path, monkeypatch):
    """Losses to rounding; one graph for all steps. AdaHessian differentiates twice: as it was.

    Torch's own code generation is left out here: it takes long, and is torch's to test.
    """
    optimizer, options, compiles = METHODS[name]
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    torch._dynamo.reset()
    found = []
    for compile_ in (None, True):
        run, folder = (
            small_run(file, optimizer, options, compile=compile_),
            tmp_path / f"{compile_}",
        )
        assert train(run, folder) == "finished"
        told = events(folder, run.method, run.seed)
        assert told[0].get("compiled", False) == bool(compile_ and compiles)
        found.append([event["loss"] for event in told if event["event"] == "train"])
        notes = [event["text"] for event in told if event["event"] == "note"]
        refused = compile_ and not compiles
        assert notes == (
            ["the network is not compiled: it differentiates twice"] if refused else []
        )
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert counter.frame_count == (1 if compiles else 0)


def test_tables_say_so():
    """It is part of how precisely a run computes: of the runs that were compiled, not of all."""
    plan = experiment_plan("pays-gpt", "smoke", sets=["train.compile=true"], read=False)
    assert precision_note(plan, []) == "Precision: float32, compiled."
    ran = plan.run(plan.runs[0])
    runs = [RunRecord(ran.method, ran.label, seed, ran=ran) for seed in range(2)]
    assert precision_note(plan, runs) == "Precision: float32."
    runs[1].start["compiled"] = True
    assert precision_note(plan, runs) == "Precision: float32; float32, compiled."


def test_compiled_runs_are_kept_apart():
    """Their seconds and last digits are others: no results as filed, and no row of those."""
    plan = experiment_plan("pays-gpt", "smoke", sets=["train.compile=true"], read=False)
    assert changed("pays-gpt", "smoke", plan.run(plan.runs[0])) == ["compile True"]
    off = experiment_plan("pays-gpt", "smoke", sets=["train.compile=false"], read=False)
    assert changed("pays-gpt", "smoke", off.run(off.runs[0])) == []
