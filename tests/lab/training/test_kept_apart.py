"""Records of different plans, devices and outcomes are kept apart."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.cli.folders import clear
from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.records import read_runs, write_plan
from aliceopt.lab.training.pool import Local, execute
from aliceopt.lab.training.train import train
from lab_cases import events, small_plan, small_run, write_problem

ADAM = {"optimizer": "adam", "lr": 1e-3, "label": "Adam"}
SGD = {"optimizer": "sgd", "lr": 1e-3, "label": "SGD"}

NAN_METRIC = """

def no_number():
    def share(outputs, targets):
        return float("nan")
    return {**problem(), "metric": share, "better": "higher"}
"""


def test_a_run_whose_metric_is_no_number_has_not_finished(tmp_path: Path):
    """Its losses are finite, so only the end can tell."""
    file = Path(write_problem(tmp_path))
    file.write_text(file.read_text() + NAN_METRIC)
    run = small_run(f"{file}:no_number", "adam", {"lr": 1e-3})
    assert train(run, tmp_path / "out") == "diverged"
    last = events(tmp_path / "out", "adam", 1)[-1]
    assert (last["status"], last["metric"]) == ("diverged", None)
    assert last["reason"] == "the metric is not finite"


def test_overwriting_also_forgets_methods_of_earlier_plans(tmp_path: Path):
    """A plan may have shrunk; nothing that is not ours goes."""
    file, out = write_problem(tmp_path), tmp_path / "out"
    both = small_plan(file, {"adam": ADAM, "sgd": SGD})
    execute(both, out, Local(workers=1))
    write_plan(out, small_plan(file, {"adam": ADAM}))
    (out / "sgd" / "mine.txt").write_text("keep")
    clear(out, both)
    assert [str(p.relative_to(out)) for p in out.rglob("*")] == ["sgd", "sgd/mine.txt"]
    execute(both, out, Local(workers=1))
    assert {run.status for run in read_runs(out)} == {"finished"}


def test_a_plan_goes_on_only_where_it_began(tmp_path: Path):
    """Seconds of a GPU and of a CPU would end up in one median."""
    file, out = write_problem(tmp_path), tmp_path / "out"
    plan = small_plan(file, {"adam": ADAM})
    execute(plan, out, Local(workers=1))
    records = out / "adam" / "seed-0" / "records.jsonl"
    records.write_text(records.read_text().replace('"device": "cpu', '"device": "Some GPU'))
    with pytest.raises(PlanError, match="Some GPU"):
        execute(plan, out, Local(workers=1), resume=True)


def test_an_unreadable_checkpoint_ends_its_own_run_only(tmp_path: Path):
    """It is told, and the records are left as they are."""
    file, out = write_problem(tmp_path), tmp_path / "out"
    plan = small_plan(file, {"adam": ADAM, "sgd": SGD})
    place = out / "adam" / "seed-0"
    place.mkdir(parents=True)
    (place / "checkpoint.pt").write_bytes(b"no checkpoint")
    seen = []
    execute(plan, out, Local(workers=1), resume=True, watch=seen.append)
    failed = [p for p in seen if p.status == "failed"]
    assert [(p.method, p.seed) for p in failed] == [("adam", 0)]
    assert "checkpoint.pt" in failed[0].reason
    assert sum(run.status == "finished" for run in read_runs(out)) == 3


def test_an_edited_problem_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its file is part of the settings: the same name may mean another problem by now."""
    monkeypatch.chdir(tmp_path)
    file = Path(write_problem(tmp_path))
    arguments = ["study", "--problem", f"{file.name}:problem", "--terms", "none", "--steps", "naq"]
    arguments += ["--baselines", "", "--seeds", "1", "--epochs", "1", "--tune", "1"]
    arguments += ["--workers", "1", "--out", "out"]
    runner = CliRunner()
    assert runner.invoke(build(), arguments).exit_code == 0
    assert runner.invoke(build(), [*arguments, "--resume"]).exit_code == 0
    file.write_text(file.read_text().replace("nn.Linear(64, 12)", "nn.Linear(64, 12, bias=False)"))
    refused = runner.invoke(build(), [*arguments, "--resume"])
    assert refused.exit_code == 2
    assert "other settings (problem)" in refused.stderr
    both = runner.invoke(build(), [*arguments, "--resume", "--overwrite"])
    assert both.exit_code == 2
    assert "choose one" in both.stderr
    assert (tmp_path / "out" / "plan.json").exists()


MOVED = """

def moved():
    made = problem()
    weights = [(p, p.detach().clone()) for p in made["model"].parameters()]
    def loss(outputs, targets):
        there = all(torch.equal(p, start) for p, start in weights)
        return outputs.square().mean() * (1.0 if there else float("nan"))
    return {**made, "loss": loss}
"""


def test_a_study_in_which_all_diverge_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    file = Path(write_problem(tmp_path))
    file.write_text(file.read_text() + MOVED)
    arguments = ["study", "--problem", f"{file.name}:moved", "--terms", "none", "--steps"]
    arguments += ["naq", "--baselines", "", "--seeds", "1", "--epochs", "1", "--tune", "1"]
    result = CliRunner().invoke(build(), [*arguments, "--workers", "1", "--out", "out"])
    assert result.exit_code == 1
    assert "every run diverged" in result.output
