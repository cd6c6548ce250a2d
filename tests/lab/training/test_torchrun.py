"""The lab under torchrun: a run by several ranks is the run of one process, up to rounding."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("typer")

from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.plans.study import study_plan
from aliceopt.lab.records import load_checkpoint, read_runs, run_folder
from aliceopt.lab.training.launch import TIME_IS_UP
from aliceopt.lab.training.pool import Local, execute
from aliceopt.lab.training.ranks import RankLost, Ranks, examples_in, part_of, together
from lab_cases import all_events, small_plan
from spawned import environment, running

needs_gloo = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs torch.distributed with gloo",
)

PROBLEM = '''
import os, pathlib, signal, torch
from torch import nn

RANK = os.environ.get("RANK")
HERE = pathlib.Path(__file__).parent

def once(name):
    mark = HERE / f"{name}-{RANK}"
    there = mark.exists()
    mark.touch()
    return not there

def problem():
    """Every rank raises in its fifth gradient ever; later rank 1 is killed. Each only once."""
    print(f"[rank {RANK}]")
    random = torch.Generator().manual_seed(5)
    rows, labels = torch.randn(36, 6, generator=random), torch.arange(36) % 3
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    gradients = []
    def loss(outputs, targets):
        if outputs.requires_grad and len(outputs) < 9:  # a rank's part of a batch
            gradients.append(len(outputs))
            if len(gradients) == 5 and once("raised"):
                raise RuntimeError(f"never mind, on {len(outputs)} rows")
            if len(gradients) == 7 and RANK == "1" and once("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(outputs, targets)
    return {"model": model, "loss": loss, "train": (rows, labels),
            "validation": (rows, labels), "metric": "accuracy", "batch_size": 9}
'''
STOPPED = """
import sys, time
from pathlib import Path
from aliceopt.lab.training import stopping
from aliceopt.lab.training.pool import execute
from aliceopt.lab.training.ranks import lead, together
from lab_cases import small_plan

ADAM, SIX = eval(sys.argv[3])
heard = []
stopping.Stop.__bool__ = lambda stop: bool(heard)  # on rank 1 never true

def command():
    plan = small_plan(sys.argv[1], {"adam": ADAM}, train=SIX)
    watch = lambda progress: heard.append(progress) if progress.step == 3 else None
    ranks = together("local", "cpu", None)
    try:
        execute(plan, Path(sys.argv[2]), ranks, deadline=time.time() + 3600, watch=watch)
    except KeyboardInterrupt as why:
        print(f"[{why}]")

lead(command)
"""
CHOSEN: dict[str, Any] = {"terms": ["glass+abs"], "steps": ["naq"], "baselines": ["adam"]}
LIMIT_S = 240


def torchrun(folder: Path, *more: str) -> tuple[int, str]:
    """The study by two ranks: exit status, and all that was printed."""
    words = [part for name, (value,) in CHOSEN.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += [
        "-m",
        "aliceopt.cli",
        "study",
        "--problem",
        str(folder / "split_problem.py:problem"),
    ]
    command += [*words, "--seeds", "1", "--epochs", "3", "--tune", "1", "--device", "cpu"]
    log = folder / "log"
    with running([*command, "--out", str(folder / "two"), *more], environment(), log) as process:
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = None
    return status, log.read_text(errors="replace")


def assert_close(a: Any, b: Any) -> None:
    """Equal, but for the last digits of numbers."""
    if isinstance(a, float):
        assert math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6), (a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_close(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_close(x, y)
    else:
        assert a == b


@needs_gloo
def test_a_killed_rank_ends_the_job_and_resuming_gives_the_records_of_one_process(
    tmp_path, monkeypatch
):
    """Nine examples a batch, so that ranks have four and five: their means are weighted.

    A run that fails on all ranks is told, and the next one begins. A rank that is killed ends the
    job with an error and fails no run. Afterwards --resume makes all whole: the records are those
    of one process, but for rounding, times, and the number of ranks. Only rank 0 prints.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "split_problem.py").write_text(PROBLEM)
    status, output = torchrun(tmp_path)
    assert status not in (0, None), output
    told = " ".join(output.split())  # lines are broken where the terminal ends
    assert "failed: RuntimeError: never mind, on 4 rows" in told
    assert "Signal 9 (SIGKILL)" in output
    assert (tmp_path / "killed-1").exists()
    states = [run.status for run in read_runs(tmp_path / "two")]
    assert states == ["failed", "interrupted"], output

    status, output = torchrun(tmp_path, "--resume")
    assert status == 0, output
    assert "[rank 0]" in output
    assert "[rank 1]" not in output
    plan = study_plan(
        f"{tmp_path / 'split_problem.py'}:problem", **CHOSEN, seeds=1, epochs=3, tune=1
    )
    execute(plan.final, tmp_path / "one", Local(workers=1))
    two = all_events(tmp_path / "two")
    assert [events[0].pop("ranks") for events in two.values()] == [2, 2]
    assert_close(two, all_events(tmp_path / "one"))


@needs_gloo
def test_rank_0_tells_all_ranks_that_the_time_is_up(tmp_path, monkeypatch):
    """They stop between the same two steps and save; the next run is not begun, and nobody waits.

    One process goes on from there, and it is as if it had been alone, but for rounding.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "stopped.py").write_text(STOPPED)
    (tmp_path / "split_problem.py").write_text(PROBLEM)
    for mark in ("raised-0", "raised-1", "killed-1"):
        (tmp_path / mark).touch()  # all that has been
    file, two = str(tmp_path / "split_problem.py"), tmp_path / "two"
    adam = {"label": "Adam", "optimizer": "adam", "lr": 1e-2}
    six = {"steps": 6, "evaluations": 1, "logs": 6}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += [str(tmp_path / "stopped.py"), file, str(two), repr((adam, six))]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    with running(command, environment(PYTHONPATH=path), tmp_path / "log") as process:
        status = process.wait(LIMIT_S)
    output = (tmp_path / "log").read_text(errors="replace")
    assert status == 0, output
    assert f"[{TIME_IS_UP}]" in output
    assert [run.status for run in read_runs(two)] == ["interrupted", "missing"]
    assert load_checkpoint(run_folder(two, "adam", 0) / "checkpoint.pt")["step"] == 3
    plan = small_plan(file, {"adam": adam}, train=six)
    execute(plan, two, Local(workers=1), resume=True)
    execute(plan, tmp_path / "one", Local(workers=1))
    found = all_events(two)
    assert [events[0].pop("ranks", 1) for events in found.values()] == [2, 1]
    assert_close(found, all_events(tmp_path / "one"))


class Two(Ranks):
    """One of two ranks, without any other."""

    def __init__(self, rank: int):
        self.rank, self.size, self.local_rank, self.local_size = rank, 2, rank, 2
        self.kind, self._begun, self._store = "cpu", 1, STORE


STORE = torch.distributed.HashStore() if torch.distributed.is_available() else None


@needs_gloo
def test_a_rank_that_fails_alone_ends_the_job(monkeypatch):
    """The others cannot be asked, for they wait for its gradient. When it has left, and they fail
    for want of it, that is no failure of the run. One is if all fail by themselves.
    """
    monkeypatch.setattr("aliceopt.lab.training.ranks.GRACE", 0.1)
    first, second = Two(0), Two(1)
    with pytest.raises(RankLost, match=r"rank 0 of 2 failed and others did not.*ValueError: why"):
        first.agree(ValueError("why"))
    with pytest.raises(RankLost, match="rank 1 of 2"):
        second.agree(RuntimeError("connection closed"))
    first._begun = second._begun = 2
    monkeypatch.setattr("aliceopt.lab.training.ranks.GRACE", 60.0)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(second.agree, ValueError("in the next run"))
        first.agree(ValueError("in the next run"))
        other.result()


def test_the_weighted_parts_of_a_batch_add_up_to_it():
    """Every example is on one rank, and the mean of the ranks' losses is that of the batch."""
    inputs, targets = {"x": torch.randn(7, 3), "of": "the batch"}, torch.randn(7)
    parts = [Two(rank).part(inputs, targets) for rank in range(2)]
    assert torch.equal(torch.cat([part[0]["x"] for part in parts]), inputs["x"])
    assert {part[0]["of"] for part in parts} == {"the batch"}
    mean = sum(part[1].mean() * part[2] for part in parts) / 2
    torch.testing.assert_close(mean, targets.mean())
    with pytest.raises(ValueError, match="a batch of 1 example cannot be split over 2 ranks"):
        Two(0).part(torch.ones(1, 3), torch.ones(1))
    with pytest.raises(ValueError, match="one tensor has 7 rows, another 6"):
        part_of((torch.ones(7), torch.ones(6)), 0, 3, 7)
    with pytest.raises(ValueError, match="it holds a str"):
        examples_in(["words"])


def test_what_ranks_cannot_do_is_refused(tmp_path, monkeypatch):
    """Other launchers, several runs at once, one device for all, and double backward."""
    with pytest.raises(PlanError, match=r"torchrun \.\.\. -m aliceopt\.cli"):
        together("local", "auto", None)
    monkeypatch.setattr("aliceopt.lab.training.ranks._joined", [Two(0)])
    for options, words in (
        (("ray", "auto", None), "--launcher ray: under torchrun"),
        (("local", "auto", 3), "--workers 3: under torchrun"),
        (("local", "cuda:1", None), "--device must be auto, cpu or cuda under torchrun"),
    ):
        with pytest.raises(PlanError, match=words):
            together(*options)
    if not torch.cuda.is_available():
        with pytest.raises(PlanError, match="2 ranks need as many GPUs, there are 0 here"):
            together("local", "cuda", None)
    assert together("local", "cpu", 1).on_cpu
    file = tmp_path / "split_problem.py"
    file.write_text(PROBLEM)
    chosen = {**CHOSEN, "baselines": ["adahessian"]}
    plan = study_plan(f"{file}:problem", **chosen, seeds=1, epochs=1, tune=1).final
    with pytest.raises(PlanError, match="adahessian differentiates twice"):
        execute(plan, tmp_path / "out", Two(0))
