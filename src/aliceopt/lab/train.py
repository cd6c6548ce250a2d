"""The training loop, to be read from top to bottom.

Everything a run does depends on its `Run` alone: the weights and the order of the data follow from
the seed, batches are asked for by number, and the learning rate is a function of the step. So a
checkpoint needs only the model, the optimizer, the random state and three counters, and a resumed
run repeats an uninterrupted one, on a CPU to the bit.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aliceopt.lab.blocks import blocks_of
from aliceopt.lab.evaluation import evaluate
from aliceopt.lab.methods import Method, Step, make_method
from aliceopt.lab.mirror import mirrored
from aliceopt.lab.precision import ChannelsLast, autocast, lay_out_, set_products
from aliceopt.lab.problems import build_problem
from aliceopt.lab.randomness import host_states, restore_host_states
from aliceopt.lab.records import (
    Journal,
    RecordError,
    load_checkpoint,
    run_folder,
    save_checkpoint,
    versions,
)
from aliceopt.lab.spec import Run
from aliceopt.lab.stopping import Stop, stopped_by_signal
from aliceopt.lab.words import counted
from aliceopt.landscape import power_law
from aliceopt.probe import BufferGuard, RandomState

__all__ = ["Progress", "train"]

STATISTICS_BATCHES = 50
"""Batches from which BatchNorm statistics of averaged weights are taken."""


@dataclass(frozen=True)
class Progress:
    """How far a run is: for a progress bar."""

    method: str
    seed: int
    step: int
    steps: int
    gradients: int
    metric: float | None
    status: str = "running"
    reason: str = ""


Report = Callable[[Progress], None]


def train(
    run: Run,
    folder: Path,
    *,
    device: str = "cpu",
    resume: bool = False,
    report: Report = lambda progress: None,
    tensorboard: bool = False,
    deadline: float | None = None,
) -> str:
    """Train one run to its end, with everything recorded under ``folder``; returns its status.

    After SIGTERM, and from ``deadline`` on (in seconds of `time.time`), it saves a checkpoint
    between two steps and returns "interrupted".
    An exception of the model, the data or the optimizer ends this run only: its text is recorded.
    """
    place = run_folder(folder, run.method, run.seed)
    try:
        saved = _checkpoint(place) if resume else None
    except RecordError as error:
        report(Progress(run.method, run.seed, 0, run.training.steps, 0, None, "failed", str(error)))
        return "failed"
    if saved is None:  # none that is left from another run may be taken for this one's
        (place / "checkpoint.pt").unlink(missing_ok=True)
    journal = Journal(place / "records.jsonl", saved["journal"] if saved else 0)
    first = saved["step"] + 1 if saved else 0
    with contextlib.closing(journal), mirrored(journal, place, first, tensorboard):
        try:
            training = _Training(run, torch.device(device), journal, place, saved, report)
            with stopped_by_signal(deadline) as stop:
                return training.go(stop)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            journal.write("end", status="failed", reason=reason, trace=traceback.format_exc())
            report(Progress(run.method, run.seed, 0, run.training.steps, 0, None, "failed", reason))
            return "failed"


def _checkpoint(place: Path) -> dict[str, Any] | None:
    """The checkpoint to go on from; None also where the records it belongs to are gone."""
    saved, path = load_checkpoint(place / "checkpoint.pt"), place / "records.jsonl"
    if saved is None or not path.exists() or path.stat().st_size < saved["journal"]:
        return None
    return saved


class _Training:
    """The state of a run between two steps: counters, clock, and the sum of recent losses."""

    def __init__(
        self,
        run: Run,
        device: torch.device,
        journal: Journal,
        place: Path,
        saved: dict[str, Any] | None,
        report: Report,
    ):
        self.run, self.plan, self.device, self.place = run, run.training, device, place
        self.journal, self.report = journal, report
        set_products(self.plan.precision)
        problem = build_problem(run.problem, run.seed)
        self.problem = problem
        self.model: nn.Module = problem.model.to(device).train()
        if isinstance(problem.loss, nn.Module):
            problem.loss.to(device)  # it may hold the weights of classes
        self.data, self.validation = problem.train.to(device), problem.validation.to(device)
        if lay_out_(self.model, self.plan.precision):
            self.data, self.validation = ChannelsLast(self.data), ChannelsLast(self.validation)
        self.method: Method = make_method(run.optimizer, self.model, run.options, seed=run.seed)
        self.step = 0
        self.metric: float | None = None
        self.best: float | None = None
        self.losses, self.clock = torch.zeros((), device=device), Clock(device)
        self.since = 0
        if saved is None:
            self._write_start()
            self._evaluate()
        else:
            self._restore(saved)

    def go(self, stop: Stop) -> str:
        """Step until the end, until the loss is not finite, or until told to stop."""
        run, plan, data = self.run, self.plan, self.data
        take = self._bind()
        self.clock.start()
        while self.step < plan.steps:
            if stop:
                return self._leave()
            epoch, index = divmod(self.step, len(data))
            self.method.set_rate(plan.schedule.factor(self.step, plan.steps))
            self.losses += take(*data.batch(run.seed, epoch, index))
            self.step += 1
            self.since += 1
            if plan.due(self.step, plan.logs) or self.step == plan.steps:
                self.clock.pause()
                if not self._log():
                    return self._end("diverged", "the training loss is not finite")
                self.clock.start()
            if plan.due(self.step, plan.evaluations):
                self.clock.pause()
                self._evaluate()
                self.clock.start()
            if plan.due(self.step, plan.checkpoints or plan.evaluations):
                self.clock.pause()
                self._save()
                self.clock.start()
        self.clock.pause()
        if self.metric is None or not math.isfinite(self.metric):
            return self._end("diverged", "the metric is not finite")
        return self._end("finished", "")

    def _bind(self) -> Step:
        """The function that takes a step on a batch, from CUDA graphs where that can be done."""
        batch = self.data.batch(self.run.seed, 0, 0)
        tensors = all(isinstance(part, Tensor) for part in batch)
        if self.plan.capture and self.device.type == "cuda" and tensors:
            try:
                return self._captured(batch)
            except (RuntimeError, ValueError) as error:
                reason = f"steps are not captured: {type(error).__name__}: {error}"
                if self.step == 0:
                    self.journal.write("note", text=reason)
        return self.method.bind(self._loss, batch, capture=False)

    def _captured(self, batch: tuple[Tensor, Tensor]) -> Step:
        """Steps from graphs for batches shaped like this one; others are taken without."""
        shapes = [part.shape for part in batch]
        replayed = self.method.bind(self._loss, batch, capture=True)
        plain = self.method.bind(self._loss, batch, capture=False)

        def take(inputs: Tensor, targets: Tensor) -> Tensor:
            fits = [inputs.shape, targets.shape] == shapes
            return (replayed if fits else plain)(inputs, targets)

        return take

    # ---- one gradient -------------------------------------------------------------------------

    def _loss(self, inputs: Any, targets: Any) -> Tensor:
        with autocast(self.plan.precision, self.device):
            return self.problem.loss(self.model(inputs), targets).reshape(())

    # ---- records ------------------------------------------------------------------------------

    def _where(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": self.step / len(self.data),
            "gradients": self.method.gradients,
            "seconds": self.clock.seconds,
        }

    def _write_start(self) -> None:
        run = self.run
        self.journal.write(
            "start",
            run={"method": run.method, "label": run.label, "seed": run.seed},
            config=run.as_dict(),
            versions=versions(),
            device=_device_name(self.device),
            parameters=sum(p.numel() for p in self.model.parameters()),
            batches=len(self.data),
            data=self.problem.note,
            time=_now(),
        )

    def _log(self) -> bool:
        """Record the mean training loss since the last time; False if it is not finite."""
        loss = self.losses.item() / self.since
        self.losses.zero_()
        self.since = 0
        self.journal.write("train", **self._where(), loss=loss, lr=self.method.rate)
        self._report()
        return math.isfinite(loss)

    def _evaluate(self) -> None:
        with self._as_evaluated():
            most = self.plan.validation_batches
            found = evaluate(self.problem, self.model, self.validation, most)
        self.metric = metric = found["metric"]
        if math.isfinite(metric):
            better = max if self.problem.measure.better == "higher" else min
            self.best = metric if self.best is None else better(self.best, metric)
        self.journal.write("evaluation", **self._where(), **found)
        measured = self.method.telemetry() if self.plan.telemetry and self.step else None
        if measured is not None:
            where = {"step": self.step, "gradients": self.method.gradients}
            self.journal.write("telemetry", **where, **measured)
        if self.plan.power_law is not None:
            self._measure_power_law(**self.plan.power_law)
        self._report()

    @contextlib.contextmanager
    def _as_evaluated(self) -> Iterator[None]:
        """The parameters to be evaluated, their statistics, in the run's own precision."""
        cast = autocast(self.plan.precision, self.device)
        with self.method.at_rest(), cast, self._fresh_statistics():
            yield

    @contextlib.contextmanager
    def _fresh_statistics(self) -> Iterator[None]:
        """For a method that evaluates averaged weights: BatchNorm statistics of those weights.

        The running statistics belong to the weights that are trained. The mean over a few training
        batches gives those of the average; afterwards all is as before.
        """
        kind = nn.modules.batchnorm._BatchNorm
        norms = [m for m in self.model.modules() if isinstance(m, kind) and m.track_running_stats]
        if not (self.method.averages and norms and self.step):
            yield
            return
        guard, random = BufferGuard(self.model), RandomState([self.device])
        momenta = [norm.momentum for norm in norms]
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain mean, in which nothing of before is left
            with torch.no_grad():
                for index in range(min(STATISTICS_BATCHES, len(self.data))):
                    self.model(self.data.batch(self.run.seed, 0, index)[0])
            yield
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
            guard.restore()
            random.restore()

    def _measure_power_law(self, radius: float, directions: int = 4) -> None:
        inputs, targets = self.data.batch(self.run.seed, self.step // len(self.data), 0)

        def closure() -> Tensor:
            loss = self._loss(inputs, targets)
            loss.backward()
            return loss

        law = power_law(
            self.model,
            closure,
            radius,
            directions=directions,
            blocks=blocks_of(self.model),
            seed=self.run.seed,
            step=self.step,
        )
        where = {"step": self.step, "epoch": self.step / len(self.data)}
        self.journal.write("power_law", **where, **law.as_dict())

    def _report(self, status: str = "running", reason: str = "") -> None:
        run, gradients = self.run, self.method.gradients
        where = (run.method, run.seed, self.step, self.plan.steps, gradients)
        self.report(Progress(*where, self.metric, status, reason))

    def _end(self, status: str, reason: str) -> str:
        metric = self.metric if status == "finished" else None
        self.journal.write(
            "end", **self._where(), status=status, reason=reason, metric=metric, best=self.best
        )
        self.journal.synced()
        if not self.plan.keep_checkpoint:
            (self.place / "checkpoint.pt").unlink(missing_ok=True)
        self._report(status, reason)
        return status

    # ---- checkpoints --------------------------------------------------------------------------

    def _leave(self) -> str:
        """Save, so that the run can go on from this very step; its records have no end yet."""
        self.clock.pause()
        self._save()
        self._report("interrupted", f"saved after step {self.step:,} of {self.plan.steps:,}")
        return "interrupted"

    def _save(self) -> None:
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        content = {
            "model": self.model.state_dict(),
            "method": self.method.state_dict(),
            "random": host_states(),
            "cuda": cuda,
            "step": self.step,
            "seconds": self.clock.seconds,
            "losses": self.losses,
            "since": self.since,
            "metric": self.metric,
            "best": self.best,
            "journal": self.journal.synced(),
        }
        save_checkpoint(self.place / "checkpoint.pt", content)

    def _restore(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.method.load_state_dict(saved["method"])
        self.step, self.metric, self.best = saved["step"], saved["metric"], saved["best"]
        self.clock.seconds, self.since = saved["seconds"], saved["since"]
        self.losses.copy_(saved["losses"])
        restore_host_states(saved["random"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(saved["cuda"][0].cpu(), self.device)


class Clock:
    """Seconds spent in steps; evaluation, records and checkpoints do not count."""

    def __init__(self, device: torch.device):
        self.seconds = 0.0
        self._device, self._since = device, 0.0

    def start(self) -> None:
        """Go on counting."""
        self._since = time.perf_counter()

    def pause(self) -> None:
        """Wait for the device, and stop counting."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds += time.perf_counter() - self._since


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {counted(torch.get_num_threads(), 'thread')})"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
