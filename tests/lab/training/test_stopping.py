"""A run that is told to stop saves at once, and goes on from there as if nothing had been."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from aliceopt.lab.records import load_checkpoint, read_found, read_runs, run_folder
from aliceopt.lab.training.launch import TIME_IS_UP, NoneFits, Setting
from aliceopt.lab.training.pool import GRACE, Local, _Queue, execute
from aliceopt.lab.training.stopping import stopped_by_signal, terms_as_interrupts
from aliceopt.lab.training.train import train
from lab_cases import all_events, events, small_plan, small_run

pytestmark = pytest.mark.usefixtures("one_thread")

ADAM = {"label": "Adam", "optimizer": "adam", "lr": 1e-2}
ALICE = {"optimizer": "alice", "lr": 1e-2, "terms": "glass", "step": "naq"}


def terminate_at(step):
    """A report that sends SIGTERM to this process once."""
    sent = []

    def report(progress):
        if progress.step >= step and not sent:
            sent.append(progress)
            os.kill(os.getpid(), signal.SIGTERM)

    return report


@pytest.mark.parametrize("name", ["adam", "alice"])
def test_sigterm_saves_between_two_steps_and_the_run_goes_on_to_the_bit(name, file, tmp_path):
    """At step 3, where no checkpoint is due, and with few of them: nothing is done twice."""
    run = small_run(file, name, {"lr": 1e-2}, checkpoints=1)
    out, heard = tmp_path / "cut", []
    terminate = terminate_at(3)

    def report(progress):
        heard.append(progress)
        terminate(progress)

    assert train(run, out, report=report) == "interrupted"
    assert heard[-1].status == "interrupted"
    assert heard[-1].reason == "saved after step 3 of 8"
    assert load_checkpoint(run_folder(out, name, 1) / "checkpoint.pt")["step"] == 3
    assert events(out, name, 1)[-1]["event"] != "end"
    assert train(run, out, resume=True) == "finished"
    train(run, tmp_path / "whole")
    assert events(out, name, 1) == events(tmp_path / "whole", name, 1)


def test_checkpoints_are_written_as_often_as_asked(file, tmp_path):
    """Two in eight steps, at 4 and 8, though there are four evaluations."""
    run = small_run(file, "adam", {"lr": 1e-2}, checkpoints=2)
    path, found = run_folder(tmp_path, "adam", 1) / "checkpoint.pt", {}

    def report(progress):
        if path.exists():
            found[progress.step] = load_checkpoint(path)["step"]

    train(run, tmp_path, report=report)
    assert 3 not in found
    assert found[6] == 4


@pytest.mark.parametrize("workers", [1, 2])
def test_when_the_time_is_up_nothing_new_begins(workers, file, tmp_path):
    """Whoever waits is told; afterwards the rest can be resumed."""
    plan, out = small_plan(file, {"adam": ADAM}), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt, match=TIME_IS_UP):
        execute(plan, out, Local(workers=workers), deadline=time.time() - 1)
    assert {run.status for run in read_runs(out)} == {"missing"}
    execute(plan, out, Local(workers=1), resume=True, deadline=time.time() + 3600)
    execute(plan, tmp_path / "whole", Local(workers=1))
    assert all_events(out) == all_events(tmp_path / "whole")


def test_a_run_under_way_stops_at_its_deadline(file, tmp_path):
    """It has saved what it had."""
    run = small_run(file, "adam", {"lr": 1e-2})
    assert train(run, tmp_path, deadline=time.time() - 1) == "interrupted"
    assert load_checkpoint(run_folder(tmp_path, "adam", 1) / "checkpoint.pt")["step"] == 0
    assert train(run, tmp_path, resume=True) == "finished"


def test_sigterm_in_one_process_ends_the_plan(file, tmp_path):
    """The run under way is saved, the next one not begun."""
    plan, out = small_plan(file, {"adam": ADAM}), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        execute(plan, out, Local(workers=1), watch=terminate_at(2))
    assert [run.status for run in read_runs(out)] == ["interrupted", "missing"]


def test_an_interrupt_lets_workers_save_and_waits_no_longer(file, tmp_path):
    """Not the whole time that they would be given: 30 seconds."""
    long = {"steps": 10**6, "evaluations": 1, "logs": 10**5}
    plan, out, since = small_plan(file, {"adam": ADAM}, train=long), tmp_path / "out", []

    def interrupt(progress):
        if progress.step > 0:
            since.append(time.monotonic())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(plan, out, Local(workers=2), watch=interrupt)
    assert time.monotonic() - since[0] < GRACE / 2
    steps = [load_checkpoint(path)["step"] for path in out.glob("adam/*/checkpoint.pt")]
    assert max(steps) > 0


def test_signals_mean_what_they_meant_afterwards():
    """And a thread, which may not ask for them, is left in peace."""
    before = signal.getsignal(signal.SIGTERM)
    with stopped_by_signal() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
    with pytest.raises(KeyboardInterrupt), terms_as_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    found = []

    def elsewhere():
        with stopped_by_signal() as stop:
            found.append(bool(stop))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [False]
    assert signal.getsignal(signal.SIGTERM) is before


def test_no_run_begins_that_would_not_end_in_time(file, tmp_path, monkeypatch):
    """By the seconds a gradient of its method, else of the slowest; a shorter one may still fit."""
    clock = [1000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    plan = small_plan(file, {"adam": ADAM, "alice": ALICE}, seeds=3)
    runs = [plan.run(run) for run in plan.runs]
    assert [run.method for run in runs] == ["adam", "alice"] * 3
    seconds = {"adam": 10.0, "alice": 30.0}
    begun, queue = [], _Queue(list(runs), Setting(tmp_path, deadline=1065.0), whole=True)
    while (run := queue.next()) is not None:
        begun.append((run.method, run.seed))
        clock[0] += seconds[run.method]
        queue.ended(run, "finished", seconds[run.method])
    # After 40 seconds 25 are left: too few for Alice, enough for Adam twice.
    assert begun == [("adam", 0), ("alice", 0), ("adam", 1), ("adam", 2)]
    assert [run.method for run in queue.runs] == ["alice", "alice"]
    soon = Setting(tmp_path, deadline=clock[0] + 1)
    failed = _Queue(list(runs), soon, whole=True)
    failed.ended(runs[0], "failed", 100.0)
    assert failed.next() is runs[0]
    assert _Queue(list(runs), Setting(tmp_path), whole=True).next() is runs[0]
    resumed = _Queue(list(runs), soon, whole=True)
    place = run_folder(tmp_path, "adam", 0)
    place.mkdir(parents=True)
    (place / "checkpoint.pt").touch()
    resumed.ended(resumed.next(), "finished", 0.001)  # what was left of it says nothing
    resumed.ended(runs[2], "finished", 10.0)
    assert resumed.next() is None
    with pytest.raises(NoneFits):
        resumed.check_empty()
    clock[0] += 2
    with pytest.raises(KeyboardInterrupt, match=TIME_IS_UP):
        resumed.check_empty()


@pytest.mark.parametrize("workers", [1, 2])
def test_runs_that_would_be_cut_are_left_to_the_next_time(workers, file, tmp_path, monkeypatch):
    """They leave nothing behind, and whoever waits is told, but not that the time is up."""
    monkeypatch.setattr(_Queue, "_seconds", lambda self, run: 0.0 if run.seed == 0 else 1e9)
    plan, out = small_plan(file, {"adam": ADAM, "alice": ALICE}, seeds=2), tmp_path / "out"
    soon = time.time() + 3600
    with pytest.raises(NoneFits, match="no run that is left would end in time"):
        execute(plan, out, Local(workers=workers, whole=True), deadline=soon)
    found = {(run.method, run.seed): run.status for run in read_runs(out)}
    assert {found[m, 0] for m in ("adam", "alice")} == {"finished"}
    assert {found[m, 1] for m in ("adam", "alice")} == {"missing"}


def test_plans_one_after_the_other_share_how_long_runs_take(file, tmp_path):
    """Rounds of one command: not even the first run of the second is begun to be cut."""
    plan, here = small_plan(file, {"adam": ADAM}, seeds=2), Local(workers=1, whole=True)
    first, second = (replace(plan, runs=[run]) for run in plan.runs)
    execute(first, tmp_path / "first", here, deadline=time.time() + 3600)
    assert here.paces.keys() == {"adam"}
    here.paces["adam"] = 1e9
    with pytest.raises(NoneFits):
        execute(second, tmp_path / "second", here, deadline=time.time() + 3600)
    assert not read_found(tmp_path / "second")
