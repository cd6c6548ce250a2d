"""``aliceopt run --tune``: rates first, then seeds, in one command that may be given again."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("rich")

from typer.testing import CliRunner, Result

from aliceopt.cli import build
from aliceopt.lab.plans.study import TUNING_SEED
from aliceopt.lab.records import Journal, read_events, read_found, read_plan, run_folder
from aliceopt.lab.training import pool
from aliceopt.lab.training.train import lost

COMMAND = "--scale smoke --methods adamw --seeds 2 --workers 1 --tune 4"


def given(out: Path, *more: str, experiment: str = "pays-small-gpt") -> Result:
    asked = ["run", experiment, *COMMAND.split(), "--out", str(out), *more]
    return CliRunner().invoke(build(), asked)


def test_rates_are_found_and_run_with_all_seeds(own_folder, tmp_path: Path):
    """What was run is gone on with: the same command once more runs nothing and prints the same."""
    done = given(tmp_path / "out")
    assert done.exit_code == 0, done.output
    found = read_found(tmp_path / "out")
    rates = {run.ran.options["lr"] for run in found if run.ran and run.seed == TUNING_SEED}
    assert 3 <= len(rates) <= 4
    assert {run.seed for run in found} == {0, 1, TUNING_SEED}
    assert len({run.method for run in found if run.seed != TUNING_SEED}) == 1
    again = given(tmp_path / "out")
    assert again.exit_code == 0
    assert again.output == done.output[-len(again.output) :]
    assert given(tmp_path / "out", "--dry-run").output == "nothing is lacking\n"
    assert "Differences to adamw" in again.output
    assert "Does it pay? A GPT of 2 layers" in again.output
    assert "smoke scale" in again.output  # and so no number of the experiment
    assert (tmp_path / "out" / "report.html").exists()
    assert {run.seed for run in read_plan(tmp_path / "out").runs} == {0, 1}  # what a table shows


def test_all_rounds_have_as_many_threads(own_folder, tmp_path: Path, monkeypatch):
    """However many runs a round has, or their results would not compare."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(pool, "cores", lambda: 3)
    done = given(tmp_path / "out", "--workers", "3", "--seeds", "1")
    assert done.exit_code == 0, done.output
    found = read_found(tmp_path / "out")
    assert {run.ran.training.threads for run in found if run.ran} == {1}
    monkeypatch.setattr(pool, "cores", lambda: 8)  # goes on as it began
    assert given(tmp_path / "out", "--workers", "3").exit_code == 0
    assert {run.ran.training.threads for run in read_found(tmp_path / "out") if run.ran} == {1}


def test_another_experiments_folder_is_refused(own_folder, tmp_path: Path):
    """Its runs are not taken for this one's."""
    assert given(tmp_path / "out", "--seeds", "1").exit_code == 0
    refused = given(tmp_path / "out", "--seeds", "1", experiment="pays-gpt")
    assert refused.exit_code == 2
    assert "holds the records of 'pays-small-gpt'" in refused.output


def test_time_that_is_up_ends_it_well(own_folder, tmp_path: Path, monkeypatch):
    """With what there is, and 130, be it between two rounds."""
    real, ends = pool.Local.launch, []

    def launch(self, runs, setting, watch):
        ends.append(setting.deadline)
        real(self, runs, replace(setting, deadline=0.0 if len(ends) > 1 else None), watch)

    monkeypatch.setattr(pool.Local, "launch", launch)
    stopped = given(tmp_path / "out", "--minutes", "5")
    assert stopped.exit_code == 130, stopped.output
    assert len(set(ends)) == 1  # one end for all rounds
    assert "the time is up" in stopped.output
    assert "Differences to adamw" in stopped.output
    refused = given(tmp_path / "out", "--minutes", "-1")
    assert "--minutes must be" in refused.output


def test_a_method_that_diverges_fails_no_other(own_folder, tmp_path: Path, monkeypatch):
    """Though the last rounds are its alone, at lower and lower rates."""
    real = pool.train_run

    def diverge(run, setting, device, watch):
        status = real(run, setting, device, watch)
        if run.optimizer != "muon":
            return status
        path = run_folder(setting.folder, run.method, run.seed) / "records.jsonl"
        journal = Journal(path, path.stat().st_size)
        end = read_events(path, "end")[-1]
        journal.write(**{**end, "status": "diverged", "metric": None, "reason": "too far"})
        journal.close()
        return "diverged"

    monkeypatch.setattr(pool, "train_run", diverge)
    told = given(tmp_path / "out", "--methods", "adamw,muon", "--tune", "9")
    assert told.exit_code == 0, told.output
    assert "every run diverged" not in told.output
    lost = {run.method for run in read_found(tmp_path / "out") if run.status == "diverged"}
    assert len(lost) == 9
    (row,) = (line for line in told.output.splitlines() if line.startswith(" Muon + AdamW"))
    assert "(tuning)  diverged" in row


def test_on_a_cluster_all_rounds_have_as_many_threads(own_folder, tmp_path: Path, monkeypatch):
    """Where it is not known beforehand what trains: as the first round would have them."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("aliceopt.cli.carry_out.place_here", lambda *asked: (None, None))
    monkeypatch.setattr(pool, "cores", lambda: 3)
    done = given(tmp_path / "out", "--workers", "3", "--seeds", "1")
    assert done.exit_code == 0, done.output
    assert {run.ran.training.threads for run in read_found(tmp_path / "out") if run.ran} == {1}


def test_runs_that_fail_are_told(own_folder, tmp_path: Path, monkeypatch):
    """With an exit code, and beside what there is of the others."""
    real = pool.train_run

    def fail(run, setting, device, watch):
        if run.optimizer == "muon":
            return real(run, setting, device, watch)
        watch(lost(run, "no luck"))
        return "failed"

    monkeypatch.setattr(pool, "train_run", fail)
    told = given(tmp_path / "out", "--methods", "adamw,muon")
    assert told.exit_code == 1
    assert "AdamW, lr 0.008 seed 1000 (missing)" in told.output
    assert "Differences to muon" in told.output


def test_a_dry_run_shows_the_first_round(own_folder, tmp_path: Path):
    """And says that more follows; nothing is left behind."""
    shown = given(tmp_path / "out", "--dry-run")
    assert "in all 3 runs" in shown.output
    assert "and what follows from these" in shown.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [["--overwrite"], ["--set", "train.steps=3"], ["--tune", "2"]])
def test_what_does_not_go_with_it_is_refused(own_folder, tmp_path: Path, more: list[str]):
    """Records that are deleted, or of other settings, would never count."""
    refused = given(tmp_path / "out", *more)
    assert refused.exit_code == 2
    assert "at least 3, and goes on with what there is, with settings as filed" in refused.output
