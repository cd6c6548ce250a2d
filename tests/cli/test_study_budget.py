"""How long a study's runs are: equal steps, gradients or seconds, and how those are timed."""

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

import torch

from aliceopt.cli.carry_out import paces
from aliceopt.lab.optimizers.methods import period
from aliceopt.lab.plans.study import TUNING_SEEDS, study_plan
from aliceopt.lab.records import read_runs
from aliceopt.lab.training.pace import measured_paces
from lab_cases import TINY, aliceopt

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize("quick_steps", [0, 1, 3])
@pytest.mark.parametrize("epochs", [1, 3, 8])
def test_an_equal_budget_is_equal_within_one_step(quick_steps, epochs):
    """Totals differ by less than the gradients of one measuring step, three."""
    study = study_plan(
        terms=["none", "glass"],
        steps=["naq", "full"],
        baselines=["adam", "adahessian"],
        quick_steps=quick_steps,
        epochs=epochs,
        budget="gradients",
    )
    totals = {run.method: run.gradients for run in study.final.runs}
    assert len(totals) == 6
    assert all(abs(total - totals["adam"]) <= 3 for total in totals.values())
    assert totals["adam"] == epochs * study.final.training.batches


def test_an_equal_number_of_steps_is_the_default():
    """Whatever they cost."""
    steps = {run.steps for run in study_plan(epochs=2).final.runs}
    assert len(steps) == 1


PACES = {"naq-none": 0.01, "naq-glass": 0.02, "adam": 0.004}


def test_equal_seconds_are_as_many_steps_as_fit():
    """At the pace of each method, also while rates are tuned; the schedule goes to its end."""
    study = study_plan(**{**TINY, "epochs": None}, budget="6s").lasting(PACES, 6.0)
    steps = {"naq-none": 600, "naq-glass": 300, "adam": 1500}
    assert {run.method: run.steps for run in study.final.runs} == steps
    plan = study.tuning([("adam", 1, TUNING_SEEDS[0])])
    tuning = plan.run(*plan.runs)
    assert tuning.training.steps == 1500
    assert tuning.training.schedule.factor(1499, 1500) < 1e-5
    assert study.final.paces == PACES
    one = study_plan(**{**TINY, "epochs": None}, budget="6s").lasting(PACES, 1e-9).final.runs[0]
    assert one.steps == 1


def test_a_study_of_equal_seconds_goes_on_at_the_paces_it_began_with(tmp_path, monkeypatch):
    """Steps are timed once; the plan and the report say how fast they were."""
    timed = []

    def timing(study, *where):
        timed.append(set(study.final.methods))
        return {method: 0.1 * len(timed) for method in study.final.methods}

    monkeypatch.setattr("aliceopt.cli.carry_out.paces", timing)
    grid = ("--terms", "", "--baselines", "adam", "--seeds", 1, "--tune", 1, "--workers", 1)
    command = ("study", *grid, "--budget", "0.5s", "--device", "cpu")
    assert aliceopt(*command).exit_code == 0
    result = aliceopt(*command, "--resume")
    assert result.exit_code == 0, result.output
    assert timed == [{"adam"}]
    (run,) = read_runs(tmp_path / "runs/study-digits")
    assert run.evaluations[-1]["step"] == 5
    page = (tmp_path / "runs/study-digits/report.html").read_text()
    assert "5 steps a run, as many as fit into 0.5s, by timing a few first (100 to 100 ms" in page


def test_steps_are_timed_with_the_threads_of_the_studys_runs(monkeypatch):
    """One method over four seeds on eight cores: two threads each, not all eight."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("aliceopt.lab.training.pool.cores", lambda: 8)
    monkeypatch.setattr(
        "aliceopt.cli.carry_out.measured_paces", lambda study, device, threads: threads
    )
    study = study_plan(**{**TINY, "terms": [], "baselines": ["adam"], "seeds": 4})
    assert paces(study, "cpu", None) == 2
    assert paces(study, "cpu", 1) == 8


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(
    ("device", "baselines"),
    [
        ("cpu", ["adam", "adahessian"]),
        pytest.param("cuda", ["adam"], marks=[pytest.mark.gpu, CUDA]),  # of torch alone
    ],
)
def test_a_few_steps_are_timed_of_every_method_with_as_many_that_measure(device, baselines):
    """Whole periods: Alice with quick steps is neither flattered nor blamed."""
    study = study_plan(**{**TINY, "baselines": baselines})
    paces = measured_paces(study, device, 1)
    assert set(paces) == set(study.final.methods)
    assert all(pace > 0 for pace in paces.values())
    options = study.final.methods["naq-glass"].options
    assert [period("alice", options), period("adam", {}), period("adahessian", {})] == [4, 1, 1]
