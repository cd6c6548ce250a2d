"""Runs on a Ray cluster: the launcher behind ``--launcher ray``.

Every run is a Ray task that writes its records itself, so the folder must be one that all nodes
see. Its progress comes back as a stream. A task whose worker or node dies is started again from its
last checkpoint: afterwards the records are those of a run that nothing happened to, but for times.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import queue
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.spec import Run
from aliceopt.lab.training.launch import TIME_IS_UP, Setting, cores, train_run
from aliceopt.lab.training.train import Progress, Watcher, lost

__all__ = ["RETRIES", "Cluster", "connected"]

RETRIES = 3
"""How often a run is started again after its worker has died, before it counts as failed."""


@contextlib.contextmanager
def connected(device: str = "auto", workers: int | None = None) -> Iterator[Cluster]:
    """The cluster of $RAY_ADDRESS, or one that runs on this machine, or else one started here.

    One that was connected to before is used and left as it is.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise PlanError(f"--device must be auto, cpu or cuda with --launcher ray; got {device!r}")
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise PlanError(
            f"--launcher ray needs {error.name}, which is not installed: "
            "pip install 'aliceopt[ray]'"
        ) from error
    mine = not ray.is_initialized()
    if mine:
        _connect(ray)
    try:
        there = ray.cluster_resources().get("GPU", 0) >= 1
        if device == "cuda" and not there:
            raise PlanError("--device cuda: no node of the Ray cluster has a GPU")
        yield Cluster(ray, int(there and device != "cpu"), workers)
    finally:
        if mine:
            ray.shutdown()


def _connect(ray: Any) -> None:
    """To the cluster of $RAY_ADDRESS, else to this machine's, else to a new one.

    Ray would try an address for minutes where nobody listens: that is found out before.
    """
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    address = os.environ.get("RAY_ADDRESS", "auto")
    if address == "local" or (address == "auto" and not _runs_here()):
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", num_cpus=cores(), include_dashboard=False, **quiet)
        return
    if address != "auto":
        host, _, port = address.rpartition(":")
        if "://" in address or not host or not port.isdecimal():
            raise PlanError(
                f"RAY_ADDRESS must be that of a cluster's head, HOST:PORT; got {address!r}"
            )
        if not _answers(address):
            raise PlanError(
                f"nobody answers at RAY_ADDRESS={address!r}: start a cluster there (ray start "
                "--head), or unset it"
            )
    try:
        ray.init(address=address, **quiet)
    except ConnectionError as error:
        raise PlanError(
            f"the Ray cluster (RAY_ADDRESS={address!r}) does not let us in: if it wants a token, "
            "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH; RAY_ADDRESS=local starts a cluster "
            f"here ({error})"
        ) from error


def _runs_here() -> bool:
    """Whether ``ray start`` left an address on this machine at which somebody still listens."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    file = Path(folder) / "ray" / "ray_current_cluster"
    return file.exists() and _answers(file.read_text().strip())


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError):
        return False
    return True


@dataclass
class _Task:
    """A run that was handed to the cluster, and the stream of its progress."""

    run: Run
    stream: Any
    tries: int = 1
    ended: bool = False
    """Whether its run has come to an end, which it has not if the time was up before."""


@dataclass
class Cluster:
    """Trains runs on a cluster, each with one GPU where there are any.

    ``ray`` is the package, connected; ``workers`` the most runs at once, None: as many as the
    cluster takes.
    """

    ray: Any
    gpus: int = 0
    workers: int | None = None
    _tasks: list[_Task] = field(default_factory=list)
    _left_out: bool = False  # whether the time was up before all was done

    @property
    def on_cpu(self) -> bool:
        """Whether runs are trained on a CPU."""
        return self.gpus == 0

    def threads(self, runs: int) -> int:
        """The cluster's cores, divided among the runs there are at once; at most one node's."""
        there = self.ray.cluster_resources()
        total = int(there.get("CPU", 1))
        places = self.workers or (total if self.on_cpu else int(there["GPU"]))
        largest = max(node["Resources"].get("CPU", 0) for node in self.ray.nodes() if node["Alive"])
        return max(1, min(total // max(1, min(places, runs)), int(largest)))

    def launch(self, runs: Sequence[Run], setting: Setting, watch: Watcher) -> None:
        """As tasks of the cluster; those whose workers die are started again."""
        setting = replace(setting, folder=setting.folder.resolve())
        todo = list(runs)
        self._left_out = False
        try:
            while self._tasks or (todo and not setting.over):
                places = 0 if setting.over else self.workers or len(runs)
                while todo and len(self._tasks) < places:
                    self._tasks.append(self._start(todo.pop(0), setting))
                streams = {id(task.stream): task for task in self._tasks}
                ready, _ = self.ray.wait([task.stream for task in self._tasks], num_returns=1)
                for stream in ready:
                    self._hear(streams[id(stream)], setting, watch)
        finally:
            self._stop()
        if todo or self._left_out:
            raise KeyboardInterrupt(TIME_IS_UP)

    def _start(self, run: Run, setting: Setting) -> _Task:
        cpus = run.training.threads if self.on_cpu else 1
        remote = self.ray.remote(num_cpus=cpus, num_gpus=self.gpus, max_retries=0)(_train)
        device = "cpu" if self.on_cpu else "cuda:0"  # Ray shows a task its own GPU only
        return _Task(run, remote.remote(run, setting, device, str(Path.cwd()), sys.path))

    def _hear(self, task: _Task, setting: Setting, watch: Watcher) -> None:
        """What a task told; one whose worker died goes on from its last checkpoint."""
        try:
            progress: Progress = self.ray.get(next(task.stream))
        except StopIteration:
            self._tasks.remove(task)
            self._left_out |= not task.ended
        except self.ray.exceptions.RayError as error:
            self._tasks.remove(task)
            cause = getattr(error, "cause", None)  # what the task itself raised
            if cause is None and task.tries <= RETRIES:
                again = self._start(task.run, replace(setting, resume=True))
                self._tasks.append(replace(again, tries=task.tries + 1))
                return
            times = f" {task.tries} times" if task.tries > 1 else ""
            reason = str(cause or f"its worker died{times}: {type(error).__name__}")
            watch(lost(task.run, reason))
        else:
            task.ended = progress.status not in ("running", "interrupted")
            watch(progress)

    def _stop(self) -> None:
        """End what is still under way, and wait until it has ended: the folder may get another."""
        ends = [task.stream.completed() for task in self._tasks]
        for task in self._tasks:
            self.ray.cancel(task.stream, force=True)
        if ends:
            self.ray.wait(ends, num_returns=len(ends), timeout=30)
        self._tasks.clear()


def _train(
    run: Run, setting: Setting, device: str, folder: str, path: list[str]
) -> Iterator[Progress]:
    """The task: train a run and hand on its progress, in the folder the command was given in.

    It may have waited for a place until the time was up: then nothing begins.
    """
    if setting.over:
        return
    if not (setting.folder / "plan.json").exists():
        raise FileNotFoundError(
            f"node {platform.node()} does not see {str(setting.folder)!r}: choose an --out that "
            "all nodes of the cluster share"
        )
    if Path(folder).is_dir():
        os.chdir(folder)  # problems and data may be named relative to it
    sys.path += [place for place in path if place not in sys.path]
    told: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
    with ThreadPoolExecutor(1) as pool:
        trained = pool.submit(train_run, run, setting, device, told.put)
        trained.add_done_callback(lambda _: told.put(None))
        while (progress := told.get()) is not None:
            yield progress
        trained.result()
