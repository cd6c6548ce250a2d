"""Kill it, interrupt it: what was recorded stays right, and --resume makes it whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab_cases import all_events

pytest.importorskip("typer")
pytest.importorskip("matplotlib")

from typer.testing import CliRunner

from aliceopt.cli import build, lock
from aliceopt.lab.data import generate
from aliceopt.lab.records import read_runs

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc"),
    pytest.mark.usefixtures("one_thread"),
]

PATIENCE = 120  # seconds until a wait is given up; nothing is measured


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return generate.write("cifar10", tmp_path_factory.mktemp("sets"), size=200)


def arguments(data, out, *more):
    """Two seeds of Adam and Alice, with many checkpoints."""
    sets = ("train.steps=16", "train.evaluations=8", "train.validation_batches=1")
    changes = [part for change in sets for part in ("--set", change)]
    usual = ["run", "resnet18-methods", "--scale", "smoke", "--seeds", "2", "--device", "cpu"]
    given = ["--methods", "adam,alice", "--data", str(data), "--out", str(out)]
    return [*usual, *given, *changes, *more]


def hear_interrupts():
    """In the background of a script SIGINT is inherited as ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def started(command):
    """The command in a session of its own, of which nothing is left at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "aliceopt.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def wait_for(condition, process=None):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, process.stdout.read()
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_killed_plan_resumes_to_the_records_of_an_uninterrupted_one(data, tmp_path):
    """`kill -9` of the parent in the middle: its workers end too, and --resume does the rest.

    Until then the folder is its own. What is left of its lock keeps nobody out.
    The records equal those of a plan that ran undisturbed, in another number of processes, but
    for times and dates.
    """
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    with started(arguments(data, cut, "--workers", "2")) as process:
        wait_for(lambda: list(cut.glob("alice/seed-0/checkpoint.pt")), process)
        workers = children(process.pid)
        assert len(workers) >= 2
        result = CliRunner().invoke(build(), arguments(data, cut, "--overwrite"))
        assert result.exit_code == 2
        assert f"'{cut}' is in use by process {process.pid}" in result.stderr
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not any(alive(worker) for worker in workers))
    assert (cut / lock.NAME).exists()
    left = [run.status for run in read_runs(cut)]
    assert "interrupted" in left
    assert "failed" not in left

    result = CliRunner().invoke(build(), arguments(data, cut, "--workers", "1"))
    assert result.exit_code == 2
    assert "--resume" in result.output
    result = CliRunner().invoke(build(), arguments(data, cut, "--workers", "1", "--resume"))
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(build(), arguments(data, whole, "--workers", "1"))
    assert result.exit_code == 0, result.output
    assert not (cut / lock.NAME).exists()
    assert {run.status for run in read_runs(cut)} == {"finished"}
    assert all_events(cut) == all_events(whole)


SLEEPS = """
import multiprocessing, pathlib, time, torch

def loss(outputs, targets):
    if multiprocessing.parent_process() is not None:
        pathlib.Path(f"at-work-{multiprocessing.current_process().pid}").touch()
        time.sleep(3600)
    return torch.nn.functional.cross_entropy(outputs, targets)

def problem():
    points = torch.randn(8, 2, generator=torch.Generator().manual_seed(1))
    data = points, torch.zeros(8, dtype=torch.long)
    return torch.nn.Linear(2, 2), loss, data, data
"""


def test_workers_in_the_middle_of_a_long_step_end_with_their_parent(tmp_path, monkeypatch):
    """Though they have nothing to tell it, by which they would notice."""
    monkeypatch.chdir(tmp_path)
    Path("sleeps.py").write_text(SLEEPS)
    grid = ["--terms", "", "--baselines", "adam,sgd-m", "--seeds", "1", "--tune", "1"]
    command = ["study", "--problem", "sleeps.py:problem", *grid, "--workers", "2"]
    with started([*command, "--device", "cpu"]) as process:
        wait_for(lambda: len(list(tmp_path.glob("at-work-*"))) == 2, process)
        workers = [int(path.name.removeprefix("at-work-")) for path in tmp_path.glob("at-work-*")]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not any(alive(worker) for worker in workers))


def test_ctrl_c_keeps_what_is_finished_and_says_what_is_missing(data, tmp_path):
    """The signal reaches parent and workers alike, as from a terminal: exit 130, no traceback."""
    out = tmp_path / "out"
    first = out / "adam/seed-0/records.jsonl"
    with started(arguments(data, out, "--workers", "2")) as process:
        wait_for(lambda: first.exists() and '"event": "end"' in first.read_text(), process)
        kept = first.read_text()
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "interrupted: what is finished is kept" in output
    assert "not finished:" in output
    assert "seed 1" in output
    runs = {(run.method, run.seed): run.status for run in read_runs(out)}
    assert runs["adam", 0] == "finished"
    assert set(runs.values()) <= {"finished", "interrupted", "missing"}
    assert first.read_text() == kept
    page = (out / "report.html").read_text()
    assert "interrupted" in page or "missing" in page


def starting(pid):
    """Workers that there are so far."""
    found = []
    for child in children(pid):
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def test_workers_that_are_starting_do_not_hear_ctrl_c(data, tmp_path):
    """It is their parent's to handle; they spend seconds on imports before they can ignore it."""
    command = arguments(data, tmp_path / "out", "--workers", "2", "--seeds", "1")
    with started(command) as process:
        wait_for(lambda: len(starting(process.pid)) == 2, process)
        for worker in starting(process.pid):
            os.kill(worker, signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in output
    assert process.returncode == 0, output


def test_sigterm_saves_the_runs_under_way_and_resume_makes_them_whole(data, tmp_path):
    """As a time limit sends it, to the parent alone: its workers save before they end."""
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    few = ("--set", "train.checkpoints=1")
    with started(arguments(data, cut, "--workers", "2", *few)) as process:
        journal = cut / "alice/seed-0/records.jsonl"
        wait_for(lambda: journal.exists() and '"event": "train"' in journal.read_text(), process)
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, output
    assert "interrupted: what is finished is kept" in output
    assert list(cut.glob("*/seed-*/checkpoint.pt"))
    for folder, more in ((cut, ["--resume"]), (whole, [])):
        command = arguments(data, folder, "--workers", "1", *few, *more)
        result = CliRunner().invoke(build(), command)
        assert result.exit_code == 0, result.output
    assert all_events(cut) == all_events(whole)
