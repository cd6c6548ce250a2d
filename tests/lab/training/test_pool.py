"""Many runs: in one process or several, with what is left of them after trouble."""

import json
import os
from dataclasses import replace

import pytest
import torch

from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.records import read_runs, run_folder
from aliceopt.lab.spec import UserProblem
from aliceopt.lab.training import pool
from aliceopt.lab.training.launch import Setting, train_run
from aliceopt.lab.training.outstanding import outstanding
from aliceopt.lab.training.pool import Local, execute
from lab_cases import all_events, small_plan

pytestmark = pytest.mark.usefixtures("one_thread")

ADAM = {"label": "Adam", "optimizer": "adam", "lr": 1e-2}
ALICE = {"optimizer": "alice", "lr": 1e-2, "terms": "glass", "step": "naq"}


def statuses(folder, plan):
    return [(r.method, r.seed, r.status) for r in read_runs(folder, plan)]


def test_runs_that_share_a_gpu_say_so(file, tmp_path, monkeypatch):
    """Four workers on one GPU are four at once, on two GPUs two; on a CPU each has its cores."""
    told = []

    class Pool:
        def __init__(self, runs, setting, devices, watch):
            told.append((setting.sharing, len(devices)))

        def run(self):
            pass

    monkeypatch.setattr(pool, "_Pool", Pool)
    plan = small_plan(file, {"adam": ADAM, "alice": ALICE})
    runs = [plan.run(run) for run in plan.runs]
    for devices in (("cuda:0",), ("cuda:0", "cuda:1"), ("cpu",)):
        Local(devices, workers=4).launch(runs, Setting(tmp_path), print)
    assert told == [(4, 4), (2, 4), (1, 4)]
    for sharing in (1, 3):
        train_run(runs[0], Setting(tmp_path / str(sharing), sharing=sharing), "cpu", lambda p: None)
        start = all_events(tmp_path / str(sharing))["adam/seed-0"][0]
        assert start.get("sharing", 1) == sharing


def test_two_workers_leave_the_records_of_one(file, tmp_path):
    """Also of a run that raises, and of one whose process dies, for which a new one is started.

    The watcher hears of every end, the pool does not wait for the dead, and what others do is not
    touched.
    """
    plan = small_plan(file, {"adam": ADAM, "alice": ALICE})
    execute(plan, tmp_path / "one", Local(workers=1))
    methods = {
        "adamw": {"label": "raises", "optimizer": "adamw"},
        "sgd": {"label": "dies", "optimizer": "sgd", "lr": 0.1},
    }
    more = small_plan(file, {**methods, "adam": ADAM, "alice": ALICE})
    heard = []
    left = outstanding(more, tmp_path / "two", resume=False)
    broken = {m: UserProblem(f"{file}:{methods[m]['label']}") for m in methods}
    runs = [replace(r, problem=broken.get(r.method, r.problem)) for r in left.runs]
    runs = [run for run in runs if run.method not in broken or run.seed == 0]
    setting = Setting(tmp_path / "two")
    replace(left, runs=runs).launch(Local(workers=2), setting, heard.append)
    ends = {(p.method, p.seed): (p.status, p.reason) for p in heard if p.status != "running"}
    assert ends["sgd", 0] == ("failed", "its process ended with exit code 7")
    assert ends["adamw", 0][1].startswith("RuntimeError: a loss with")
    assert len(ends) == 6
    found = all_events(tmp_path / "two")
    assert found.pop("adamw/seed-0")[-1]["status"] == "failed"
    assert [e["event"] for e in found.pop("sgd/seed-0")] in ([], ["start"])
    assert found == all_events(tmp_path / "one")
    assert torch.get_num_threads() >= 1


def test_a_run_that_diverges_or_fails_does_not_stop_the_others(file, tmp_path):
    """Four runs: one diverges in both seeds, the other finishes both."""
    plan = small_plan(file, {"sgd": {"label": "S", "optimizer": "sgd", "lr": 1e30}, "adam": ADAM})
    execute(plan, tmp_path / "out", Local(workers=1))
    assert statuses(tmp_path / "out", plan) == [
        (method, seed, status)
        for seed in (0, 1)
        for method, status in (("sgd", "diverged"), ("adam", "finished"))
    ]
    assert outstanding(plan, tmp_path / "out", resume=True).runs == []


def test_resuming_does_only_what_is_left(file, tmp_path):
    """A finished run is not touched, a failed one is tried again, a missing one is made."""
    plan, out = small_plan(file, {"adam": ADAM}), tmp_path / "out"
    execute(plan, out, Local(workers=1))
    wanted = all_events(out)
    first, second = (run_folder(out, "adam", seed) / "records.jsonl" for seed in (0, 1))
    lines = second.read_text().splitlines(keepends=True)
    second.write_text(lines[0] + '{"event": "end", "status": "failed", "reason": "?"}\n')
    before = first.stat().st_mtime_ns
    assert [run.seed for run in outstanding(plan, out, resume=True).runs] == [1]
    execute(plan, out, Local(workers=1), resume=True)
    assert first.stat().st_mtime_ns == before
    assert all_events(out) == wanted


def test_more_seeds_may_be_added_later(file, tmp_path):
    """The old seeds stay as they are."""
    out = tmp_path / "out"
    execute(small_plan(file, {"adam": ADAM}, seeds=1), out, Local(workers=1))
    more = small_plan(file, {"adam": ADAM, "alice": ALICE}, seeds=2)
    assert len(outstanding(more, out, resume=True).runs) == 3


def test_records_are_not_mixed(file, tmp_path):
    """Without --resume a folder with records is refused; with it, other settings are, by name."""
    plan, out = small_plan(file, {"adam": ADAM}), tmp_path / "out"
    execute(plan, out, Local(workers=1))
    with pytest.raises(PlanError, match="already holds records of 2 runs: --resume"):
        execute(plan, out)
    for other, named in (
        (small_plan(file, {"adam": {**ADAM, "lr": 2e-2}}), r"lr 0\.01, now 0\.02"),
        (small_plan(file, {"adam": {**ADAM, "optimizer": "adamw"}}), "optimizer"),
        (small_plan(f"{file}:raises", {"adam": ADAM}), "problem"),
        (
            small_plan(file, {"adam": ADAM}, train={"steps": 9}),
            r"train\.steps \d+, now 9; train\.evaluations .*; train\.logs .*",
        ),
    ):
        with pytest.raises(PlanError, match=rf"adam, seed 0, .* other settings \({named}\)"):
            outstanding(other, out, resume=True)
    renamed = small_plan(file, {"adam": {**ADAM, "label": "Adam again"}})
    assert outstanding(renamed, out, resume=True).runs == []


def test_the_folder_of_another_plan_is_refused(file, tmp_path):
    """Even where no method has the same name: its plan would be lost."""
    out = tmp_path / "out"
    execute(small_plan(file, {"adam": ADAM}), out, Local(workers=1))
    other = replace(small_plan(file, {"alice": ALICE}), name="another")
    for resume in (False, True):
        with pytest.raises(PlanError, match="holds the records of 'small'"):
            outstanding(other, out, resume=resume)


def test_records_of_another_version_are_refused(file, tmp_path):
    """A setting that this version does not know cannot be gone on with."""
    plan, out = small_plan(file, {"adam": ADAM}), tmp_path / "out"
    execute(plan, out, Local(workers=1))
    path = run_folder(out, "adam", 0) / "records.jsonl"
    first, rest = path.read_text().split("\n", 1)
    start = json.loads(first)
    start["config"]["training"]["spell"] = "abracadabra"
    path.write_text(json.dumps(start) + "\n" + rest)
    with pytest.raises(PlanError, match="other settings"):
        outstanding(plan, out, resume=True)


def test_a_plan_goes_on_with_the_threads_it_began_with(file, tmp_path, monkeypatch):
    """Whatever is left of it, and on however many cores."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(pool, "cores", lambda: 2)
    plan, out = small_plan(file, {"adam": ADAM}), tmp_path / "out"
    execute(replace(plan, runs=plan.runs[:1]), out, Local(workers=1))
    assert read_runs(out)[0].ran.training.threads == 2
    monkeypatch.setattr(pool, "cores", lambda: 1)
    execute(plan, out, Local(workers=1), resume=True)
    assert [r.ran.training.threads for r in read_runs(out)] == [2, 2]


def test_threads_share_the_cores(file, tmp_path, monkeypatch):
    """By the plan's runs, not by what is left of them; never more than OMP_NUM_THREADS says."""
    plan, empty = small_plan(file, {"adam": ADAM}), tmp_path / "out"
    monkeypatch.setattr(pool, "cores", lambda: 8)

    class Asked(Local):
        def launch(self, runs, setting, watch):
            asked.extend(run.training.threads for run in runs)

    def threads():
        asked.clear()
        execute(plan, empty, Asked(workers=2))
        return asked[0]

    asked = []
    assert threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads() == 4
    assert Local(workers=100).threads(100) == 1
    assert Local().threads(2) == 4


def test_cores_are_those_this_process_may_use():
    """Not those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        assert pool.cores() == len(os.sched_getaffinity(0))


def test_an_interrupt_in_this_process_keeps_what_is_finished(file, tmp_path):
    """It is raised to the caller; the plan is there, and the rest can be resumed."""
    plan, out = small_plan(file, {"adam": ADAM}), tmp_path / "out"

    def watch(progress):
        if progress.seed == 1 and progress.step >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(plan, out, Local(workers=1), watch=watch)
    assert [s for _, _, s in statuses(out, plan)] == ["finished", "interrupted"]
    execute(plan, out, Local(workers=1), resume=True)
    execute(plan, tmp_path / "whole", Local(workers=1))
    assert all_events(out) == all_events(tmp_path / "whole")
