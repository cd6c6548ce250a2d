"""Train the runs of a plan with processes of this machine.

Workers are told what to do one run at a time through a pipe of their own and answer with progress.
They ignore Ctrl-C, which is the parent's to handle, and end when the parent does, however it ended.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from aliceopt.lab.optimizers.methods import planned
from aliceopt.lab.records import run_folder
from aliceopt.lab.spec import Plan, Run
from aliceopt.lab.training.launch import TIME_IS_UP, Launcher, NoneFits, Setting, cores, train_run
from aliceopt.lab.training.outstanding import outstanding
from aliceopt.lab.training.train import Progress, Watcher, lost

__all__ = ["Local", "execute"]

GRACE = 30.0
"""Seconds that a worker has to end its step and to save, before it is killed."""


def execute(
    plan: Plan,
    folder: Path,
    launcher: Launcher | None = None,
    *,
    resume: bool = False,
    tensorboard: bool = False,
    deadline: float | None = None,
    watch: Watcher = lambda progress: None,
) -> None:
    """Carry out what is left of a plan; ``KeyboardInterrupt`` leaves what is finished.

    It is raised here too, once the runs under way have saved a checkpoint: after SIGTERM, and from
    ``deadline`` on (in seconds of `time.time`) if anything is left to do.
    ``launcher`` trains the runs; by default it is `Local`, one process a core.
    """
    setting = Setting(folder, resume, tensorboard, deadline)
    outstanding(plan, folder, resume=resume).launch(launcher or Local(), setting, watch)


@dataclass(frozen=True)
class Local:
    """Trains runs on this machine, several at once.

    ``workers`` is the number of processes: by default one a GPU, or one a core. One worker, or one
    run, means that it happens in this process. ``whole``: see `_Queue`, to which ``paces`` belong;
    plans that are launched one after the other share them.
    """

    devices: Sequence[str] = ("cpu",)
    workers: int | None = None
    whole: bool = False
    paces: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def on_cpu(self) -> bool:
        """Whether runs are trained on a CPU."""
        return all(device == "cpu" for device in self.devices)

    def threads(self, runs: int) -> int:
        """The cores, divided among the runs that there are at once."""
        return max(1, cores() // self._at_once(runs))

    def launch(self, runs: Sequence[Run], setting: Setting, watch: Watcher) -> None:
        """In worker processes, or one after another in this one."""
        count, queue = self._at_once(len(runs)), _Queue(list(runs), setting, self.whole, self.paces)
        if count > 1:
            devices = [self.devices[i % len(self.devices)] for i in range(count)]
            if not self.on_cpu:  # there every run has cores of its own
                setting = replace(setting, sharing=-(-count // len(self.devices)))
            _Pool(queue, setting, devices, watch).run()
            return
        threads = torch.get_num_threads()
        try:
            while (run := queue.next()) is not None:
                begun = time.time()
                status = train_run(run, setting, self.devices[0], watch)
                if status == "interrupted":
                    raise KeyboardInterrupt(TIME_IS_UP if setting.over else "")
                queue.ended(run, status, time.time() - begun)
            queue.check_empty()
        finally:
            torch.set_num_threads(threads)

    def _at_once(self, runs: int) -> int:
        places = self.workers or (cores() if self.on_cpu else len(self.devices))
        return max(1, min(places, runs))


@dataclass
class _Queue:
    """Runs that are still to be begun, in their order, until the deadline.

    ``whole``: only those that will have ended by then, going by the seconds a gradient of the same
    method's whole runs, or of the slowest method if there is none yet. The first of all is always
    begun.
    """

    runs: list[Run]
    setting: Setting
    whole: bool
    _paces: dict[str, float] = field(default_factory=dict)
    _begun_before: set[tuple[str, int]] = field(default_factory=set)

    def next(self) -> Run | None:
        """The next to be begun; None if there is none, or the time is up."""
        deadline = self.setting.deadline
        left = math.inf if deadline is None else deadline - time.time()
        for i, run in enumerate(self.runs if left > 0 else ()):
            if not self.whole or self._seconds(run) <= left:
                place = run_folder(self.setting.folder, run.method, run.seed)
                if (place / "checkpoint.pt").exists():
                    self._begun_before.add((run.method, run.seed))
                return self.runs.pop(i)
        return None

    def check_empty(self) -> None:
        """Refuse to call it finished, where runs are left."""
        if self.runs:
            raise KeyboardInterrupt(TIME_IS_UP) if self.setting.over else NoneFits

    def ended(self, run: Run, status: str, seconds: float) -> None:
        """Learn from a run; one that was cut short, or failed, says nothing."""
        if status == "finished" and (run.method, run.seed) not in self._begun_before:
            pace = seconds / _gradients(run)
            self._paces[run.method] = max(pace, self._paces.get(run.method, 0.0))

    def _seconds(self, run: Run) -> float:
        slowest = max(self._paces.values(), default=0.0)
        return self._paces.get(run.method, slowest) * _gradients(run)


def _gradients(run: Run) -> int:
    return planned(run.optimizer, run.options, run.training.steps)


@dataclass
class _Worker:
    """A process, the pipe to it, and the run it is at, since when."""

    process: Any
    pipe: Connection
    device: str
    run: Run | None = None
    begun: float = 0.0


class _Pool:
    """Worker processes, each given the next run when it has ended one."""

    def __init__(self, queue: _Queue, setting: Setting, devices: list[str], watch: Watcher):
        self._queue, self._setting, self._devices, self._watch = queue, setting, devices, watch
        self._workers: list[_Worker] = []
        self._cut = False  # whether a run was interrupted

    def run(self) -> None:
        """Until nothing is left to do, or until interrupted."""
        try:
            for device in self._devices:
                self._workers.append(self._start(device))
            for worker in self._workers:
                self._give(worker)
            while any(worker.run for worker in self._workers):
                pipes: list[Any] = [worker.pipe for worker in self._workers if worker.run]
                for ready in wait(pipes):
                    self._hear(next(w for w in self._workers if w.pipe is ready))
            if self._cut:
                raise KeyboardInterrupt(TIME_IS_UP)
            self._queue.check_empty()
        finally:
            self._end()

    def _end(self) -> None:
        """Tell every worker to save and leave; one that does not within `GRACE` is killed."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.pipe.send(None)
            worker.process.terminate()
        until = time.monotonic() + GRACE
        for worker in self._workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()

    def _start(self, device: str) -> _Worker:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self._setting, device), daemon=True)
        with _deaf_children():
            process.start()
        theirs.close()
        return _Worker(process, mine, device)

    def _give(self, worker: _Worker) -> None:
        worker.run, worker.begun = self._queue.next(), time.time()
        if worker.run is not None:
            try:
                worker.pipe.send(worker.run)
            except OSError:
                self._replace(worker)

    def _hear(self, worker: _Worker) -> None:
        try:
            progress: Progress = worker.pipe.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return
        self._watch(progress)
        if progress.status != "running":
            assert worker.run is not None
            self._queue.ended(worker.run, progress.status, time.time() - worker.begun)
            self._cut |= progress.status == "interrupted"
            self._give(worker)

    def _replace(self, worker: _Worker) -> None:
        """A worker died (killed, out of memory): its run counts as failed, the others go on."""
        assert worker.run is not None
        worker.process.join()
        reason = f"its process ended with exit code {worker.process.exitcode}"
        self._watch(lost(worker.run, reason))
        fresh = self._start(worker.device)
        self._workers[self._workers.index(worker)] = fresh
        self._give(fresh)


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that are started within do not hear Ctrl-C, from their first moment on.

    They inherit that the signal is blocked; until they ignore it, it would end them with a
    traceback. Here it is heard at the end.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # a first process would start it, which unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, setting: Setting, device: str) -> None:
    """The life of a worker: runs from the pipe, progress back into it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(progress: Progress) -> None:
        try:
            pipe.send(progress)
        except OSError:
            os._exit(1)  # the parent is gone, which is no failure of the run

    while True:
        try:
            run = pipe.recv()
        except EOFError:
            return
        if run is None:
            return
        train_run(run, setting, device, tell)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
