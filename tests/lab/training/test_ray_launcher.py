"""Runs on a Ray cluster: the records are those of the local launcher, whatever happens to workers.

One small cluster of this machine serves all tests, since it takes seconds to start.
"""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.integrations.ray import Cluster, _runs_here, connected
from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.plans.study import study_plan
from aliceopt.lab.records import load_checkpoint, read_runs, run_folder
from aliceopt.lab.spec import UserProblem
from aliceopt.lab.training.launch import TIME_IS_UP, Setting
from aliceopt.lab.training.outstanding import outstanding
from aliceopt.lab.training.pool import Local, execute
from lab_cases import all_events, small_plan, write_problem

KILLED_ONCE = '''

def killed_once():
    """The third batch of the first worker to get there is its last."""
    import os, pathlib, signal
    made, seen = problem(), []
    def loss(outputs, targets):
        seen.append(outputs.requires_grad)
        mark = pathlib.Path(__file__).with_name("was-killed")
        if sum(seen) == 3 and "TRIES_PROBLEMS" not in os.environ and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(outputs, targets)
    return {**made, "loss": loss}


def slow():
    """A tenth of a second a gradient."""
    import time
    made = problem()
    def loss(outputs, targets):
        time.sleep(0.1 * outputs.requires_grad)
        return nn.functional.cross_entropy(outputs, targets)
    return {**made, "loss": loss}
'''


@pytest.fixture(scope="module")
def cluster():
    """A new one on this machine, whatever else there is."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("RAY_ADDRESS", "local")
        with connected("cpu"):
            yield ray


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    path = Path(write_problem(tmp_path))
    path.write_text(path.read_text() + KILLED_ONCE)
    return path.name


def test_a_killed_worker_leaves_the_records_of_the_local_launcher(
    cluster, file, tmp_path, monkeypatch
):
    """Six runs, one of whose workers is killed in the middle: it is started again, and all finish.

    Without words of Ray's own in between.
    """
    grid = ["--terms", "none,glass", "--steps", "naq", "--baselines", "adam", "--seeds", "2"]
    command = ["study", "--problem", f"{file}:killed_once", *grid, "--epochs", "1", "--tune", "1"]
    monkeypatch.setattr("aliceopt.cli.carry_out.print_study", lambda *_: None)  # takes seconds
    monkeypatch.setenv("TRIES_PROBLEMS", "1")  # here alone: the workers are there already
    result = CliRunner().invoke(build(), [*command, "--launcher", "ray", "--out", "ray"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "was-killed").exists()
    assert "6 of 6" in result.output
    assert "failed" not in result.output
    assert {run.status for run in read_runs(tmp_path / "ray")} == {"finished"}
    chosen = {"terms": ["none", "glass"], "steps": ["naq"], "baselines": ["adam"]}
    plan = study_plan(f"{file}:killed_once", **chosen, seeds=2, epochs=1, tune=1)
    execute(plan.final, tmp_path / "local", Local(workers=1))
    assert len(all_events(tmp_path / "local")) == 6
    assert all_events(tmp_path / "ray") == all_events(tmp_path / "local")


def test_failures_and_interrupts_are_told_as_they_are_locally(cluster, file, tmp_path, monkeypatch):
    """A run that raises; one whose worker dies every time; and Ctrl-C, after which it goes on."""
    adam = {"label": "Adam", "optimizer": "adam", "lr": 1e-2}
    left = outstanding(small_plan(file, {"adam": adam}, seeds=3), tmp_path / "out", resume=False)
    for seed, name in enumerate(("raises", "dies")):
        left.runs[seed] = replace(left.runs[seed], problem=UserProblem(f"{file}:{name}"))
    monkeypatch.setattr("aliceopt.integrations.ray.RETRIES", 0)
    heard = []
    left.launch(Cluster(cluster), Setting(tmp_path / "out"), heard.append)
    ends = {p.seed: (p.status, p.reason) for p in heard if p.status != "running"}
    assert ends[0][1].startswith("RuntimeError: a loss with")
    assert ends[1] == ("failed", "its worker died: WorkerCrashedError")
    assert ends[2] == ("finished", "")

    def interrupt(progress):
        if progress.step >= 2:
            raise KeyboardInterrupt

    plan, out = small_plan(file, {"adam": adam}), Path("cut")
    with pytest.raises(KeyboardInterrupt):
        execute(plan, out, Cluster(cluster, workers=1), watch=interrupt)
    assert not list(out.glob("adam/seed-1"))
    execute(plan, out, Cluster(cluster), resume=True)
    execute(plan, Path("whole"), Local(workers=1))
    assert all_events(out) == all_events(Path("whole"))


def test_when_the_time_is_up_runs_save_and_nothing_new_begins(cluster, file, tmp_path):
    """A run under way stops at the deadline; one that waits for it does not begin."""
    adam = {"label": "Adam", "optimizer": "adam", "lr": 1e-2}
    plan, out = small_plan(f"{file}:slow", {"adam": adam}, train={"steps": 10**6}), Path("late")
    with pytest.raises(KeyboardInterrupt, match=TIME_IS_UP):
        execute(plan, out, Cluster(cluster), deadline=time.time() - 1)
    assert {run.status for run in read_runs(out)} == {"missing"}
    heard, until = [], time.time() + 20
    one = Cluster(cluster, workers=1)
    with pytest.raises(KeyboardInterrupt, match=TIME_IS_UP):
        execute(plan, out, one, deadline=until, watch=heard.append)
    assert [run.status for run in read_runs(out)] == ["interrupted", "missing"]
    assert heard[-1].status == "interrupted"
    step = load_checkpoint(run_folder(out, "adam", 0) / "checkpoint.pt")["step"]
    assert heard[-1].reason == f"saved after step {step:,} of 1,000,000"


def test_threads_share_the_cores_of_the_cluster(cluster):
    """As locally, where the cluster is this machine."""
    cores = int(cluster.cluster_resources()["CPU"])
    assert Cluster(cluster).threads(100) == 1
    assert Cluster(cluster, workers=1).threads(100) == cores
    assert Cluster(cluster).threads(1) == cores


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "cuda"], "no node of the Ray cluster has a GPU"),
        (["--device", "cuda:1"], "--device must be auto, cpu or cuda with --launcher ray"),
        (["--launcher", "slurm"], "--launcher must be one of local, ray; got 'slurm'"),
    ],
)
def test_what_cannot_be_is_refused(cluster, file, options, words):
    """Before anything runs."""
    command = ["study", "--problem", f"{file}:problem", "--launcher", "ray", *options]
    result = CliRunner().invoke(build(), command)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:9", "nobody answers at RAY_ADDRESS='127.0.0.1:9'"),
        ("ray://head:10001", "RAY_ADDRESS must be that of a cluster's head, HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_told_at_once(monkeypatch, address, words):
    """Not after the minutes for which Ray itself would try."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(PlanError, match=words), connected():
        pass


def test_an_address_left_behind_by_a_dead_cluster_is_not_tried(tmp_path, monkeypatch):
    """`ray start` leaves one where it was killed; then a new cluster is started."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert not _runs_here()
    (tmp_path / "ray").mkdir()
    left = tmp_path / "ray" / "ray_current_cluster"
    left.write_text("127.0.0.1:9")
    assert not _runs_here()
    with socket.create_server(("127.0.0.1", 0)) as server:
        left.write_text(f"127.0.0.1:{server.getsockname()[1]}\n")
        assert _runs_here()


def test_ray_that_is_not_there_is_told(file, monkeypatch):
    """With what to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(build(), ["study", "--launcher", "ray"])
    assert result.exit_code == 2
    assert "pip install 'aliceopt[ray]'" in result.stderr
