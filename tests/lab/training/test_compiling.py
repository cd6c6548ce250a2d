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
    "adamw": ("adamw", {"lr": 1e-2}),
    "alice": ("alice", {"lr": 1e-2}),
    "alice-measures": ("alice", {"lr": 1e-2, "terms": "glass+abs", "quick_steps": 1}),
    "adahessian": ("adahessian", {"lr": 0.1, "eps": 0.01}),
}

MORE = """
import torch
from small_problem import problem as with_dropout


def problem():
    made = with_dropout()
    made["model"].body[4].p = 0.0  # AdaHessian, compiled, draws its signs before such masks
    return made


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0].cos() * grad


class Wave(torch.nn.Module):
    def forward(self, x):
        return Sine.apply(x)


def wave():
    made = problem()
    made["model"].body[6] = Wave()
    return made
"""


@pytest.fixture
def counter(monkeypatch):
    """Without torch's own code generation: it takes long, and is torch's to test."""
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    torch._dynamo.reset()
    return counter


@pytest.fixture
def more(file, tmp_path):
    """The small problem without dropout, and with a backward in Python."""
    path = tmp_path / "more_problems.py"
    path.write_text(MORE)
    return str(path)


def both_ways(file, method, folder):
    """Events of a run as it is, and of one with ``train.compile``."""
    for compile_ in (None, True):
        run, place = small_run(file, *method, compile=compile_), folder / f"{compile_}"
        assert train(run, place) == "finished"
        yield events(place, run.method, run.seed)


def losses(told):
    return [event["loss"] for event in told if event["event"] == "train"]


@pytest.mark.parametrize("name", METHODS)
def test_a_compiled_run_is_the_plain_one(name, file, more, tmp_path, counter):
    """Losses to rounding; one graph for all steps."""
    problem = more if name == "adahessian" else file
    plain, told = both_ways(problem, METHODS[name], tmp_path)
    assert "compiled" not in plain[0]
    assert told[0]["compiled"]
    assert not [event for event in told if event["event"] == "note"]
    assert losses(told) == pytest.approx(losses(plain), rel=1e-4)
    assert counter.frame_count == 1


def test_what_cannot_be_compiled_is_trained_as_it_is(more, tmp_path, counter):
    """The record says why, from its start on; the run is the same to the bit."""
    plain, told = both_ways(f"{more}:wave", METHODS["adahessian"], tmp_path)
    assert "compiled" not in told[0]
    (note,) = [event["text"] for event in told if event["event"] == "note"]
    assert note == (
        "the network is not compiled: RuntimeError: SineBackward is of an autograd.Function"
    )
    assert losses(told) == losses(plain)
    assert counter.frame_count == 0


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
