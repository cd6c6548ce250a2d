"""The training loop, to be read from top to bottom.

Everything a run does depends on its `Run` alone: weights and the order of the data follow from the
seed, batches are asked for by number, the learning rate is a function of the step. A checkpoint
needs only the model, the optimizer, random states and counters; on a CPU it goes on to the bit.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aliceopt.compress.recalibration import norms_of
from aliceopt.lab import provenance, records
from aliceopt.lab.models.blocks import blocks_in_words
from aliceopt.lab.optimizers.methods import Method, NotCompilable, Step, make_method
from aliceopt.lab.problems.problem import build_problem
from aliceopt.lab.randomness import host_states, restore_host_states
from aliceopt.lab.records import Journal, RecordError, fitting, load_checkpoint, run_folder
from aliceopt.lab.spec import Run
from aliceopt.lab.training.clock import Clock, now
from aliceopt.lab.training.evaluation import evaluate, fresh_statistics
from aliceopt.lab.training.precision import ChannelsLast, autocast, lay_out_, set_products
from aliceopt.lab.training.stopping import Stop
from aliceopt.lab.training.team import Team
from aliceopt.lab.training.watch import Watch, measured_power_laws, mirrored
from aliceopt.lab.typed import to_json
from aliceopt.lab.writing import WriteError
from aliceopt.landscape.twins import check_swapped

__all__ = ["Loop", "Progress", "Watcher", "lost", "train"]


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


Watcher = Callable[[Progress], None]
"""Somebody who is told how far a run has come, or that it has ended."""

_SAVED = (
    "model", "method", "random", "cuda", "step", "seconds", "losses", "since", "metric", "best",
    "journal",
)  # fmt: skip
"""What a run needs to go on; ``others`` only where ranks train it."""


def lost(run: Run, reason: str) -> Progress:
    """What a watcher is told of a run that cannot tell by itself: its process is gone, say."""
    return Progress(run.method, run.seed, 0, run.training.steps, 0, None, "failed", reason)


def train(
    run: Run,
    folder: Path,
    *,
    device: str = "cpu",
    resume: bool = False,
    report: Watcher = lambda progress: None,
    tensorboard: bool = False,
    team: Team | None = None,
    deadline: float | None = None,
    sharing: int = 1,
    watch: Watch | None = None,
) -> str:
    """Train one run to its end, with everything recorded under ``folder``; returns its status.

    After SIGTERM, and from ``deadline`` on (in seconds of `time.time`), it saves a checkpoint
    between two steps and returns "interrupted". A team minds the deadline alone.
    An exception of the model, the data or the optimizer ends this run only: its text is recorded.
    ``team``: the processes that share the work, of which this one leads; None: it is alone.
    ``sharing``: how many runs the device trains at once, which is recorded. ``watch`` looks on.
    """
    team = team or Team()
    place = run_folder(folder, run.method, run.seed)
    path, checkpoint = place / "records.jsonl", place / "checkpoint.pt"
    try:
        saved = load_checkpoint(checkpoint, _SAVED) if resume else None
        if saved and (not path.exists() or path.stat().st_size < saved["journal"]):
            saved = None  # the records that it belongs to are gone
        if saved is None:  # none that is left from another run may be taken for this one's
            checkpoint.unlink(missing_ok=True)
        journal = Journal(path, saved["journal"] if saved else 0)
    except (RecordError, WriteError) as error:
        report(lost(run, str(error)))
        return "failed"
    first = saved["step"] + 1 if saved else 0
    with contextlib.closing(journal), mirrored(journal, place, first, tensorboard):
        team.begin(run, saved, deadline)
        try:
            where = torch.device(device)
            training = Loop(run, where, journal, place, saved, report, team, sharing, watch)
            with team.stopping(deadline) as stop:
                return training.go(stop)
        except Exception as error:
            team.agree(error)
            reason = f"{type(error).__name__}: {error}"
            with contextlib.suppress(WriteError):  # which may be what failed
                journal.write("end", status="failed", reason=reason, trace=traceback.format_exc())
            report(lost(run, reason))
            return "failed"


class Loop:
    """The state of a run between two steps: counters, clock, and the sum of recent losses."""

    def __init__(
        self,
        run: Run,
        device: torch.device,
        journal: Journal,
        place: Path,
        saved: dict[str, Any] | None,
        report: Watcher,
        team: Team,
        sharing: int = 1,
        watch: Watch | None = None,
    ):
        self.run, self.plan, self.device, self.place = run, run.training, device, place
        self.journal, self.report, self.team, self.watch = journal, report, team, watch
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
        self.called: Callable[[Any], Any] = team.wrap(self.model)
        team.seed(run.seed)
        self.refusal = self._compile() if self.plan.compile else ""
        self.compiles = bool(self.plan.compile) and not self.refusal
        self.step = 0
        self.metric: float | None = None
        self.best: float | None = None
        self.losses, self.clock = torch.zeros((), device=device), Clock(device)
        self.since = 0
        if saved is None:
            self._write_start(sharing)
            self._evaluate()
            if run.problem.twin is not None and team.leads:  # who has computed something
                text = f"{run.problem.twin} twin: {check_swapped(self.model)}"
                self.journal.write("note", text=text)
            self._let_look()
        else:
            self._restore(saved)

    def go(self, stop: Stop) -> str:
        """Step until the end, until the loss is not finite, or until told to stop."""
        run, plan, data = self.run, self.plan, self.data
        take = self.bind()
        self.clock.start()
        while self.step < plan.steps:
            if self.team.stops(stop):
                self.clock.pause()
                self._save()
                self._report("interrupted", f"saved after step {self.step:,} of {plan.steps:,}")
                return "interrupted"  # its records have no end yet
            epoch, index = divmod(self.step, len(data))
            self.method.set_rate(plan.schedule.factor(self.step, plan.steps))
            self.losses += take(*data.batch(run.seed, epoch, index))
            self.step += 1
            self.since += 1
            logs = plan.due(self.step, plan.logs) or self.step == plan.steps
            evaluates = plan.due(self.step, plan.evaluations)
            looks = self.watch is not None and self.watch.due(self.step)
            saves = plan.due(self.step, plan.checkpoints or plan.evaluations)
            if not (logs or evaluates or looks or saves):
                continue
            self.clock.pause()
            if logs and not self._log():
                return self._end("diverged", "the training loss is not finite")
            if evaluates:
                self._evaluate()
            if looks:
                self._let_look()
            if saves or looks:
                self._save()
            self.clock.start()
        self.clock.pause()
        if self.metric is None or not math.isfinite(self.metric):
            return self._end("diverged", "the metric is not finite")
        return self._end("finished", "")

    def bind(self) -> Step:
        """The function that takes a step on a batch.

        From CUDA graphs where that can be done, for batches shaped like the first one.
        """
        batch = self.data.batch(self.run.seed, 0, 0)
        plain = self.method.bind(self.loss, batch, capture=False)
        tensors = all(isinstance(part, Tensor) for part in batch)
        alone = self.team.size == 1  # ranks exchange gradients within a step
        if not (self.plan.capture and self.device.type == "cuda" and tensors and alone):
            return plain
        try:
            replayed = self.method.bind(self.loss, batch, capture=True)
        except (RuntimeError, ValueError) as error:
            if self.step == 0:
                reason = f"steps are not captured: {type(error).__name__}: {error}"
                self.journal.write("note", text=reason)
            return plain
        shapes = [part.shape for part in batch]

        def take(inputs: Tensor, targets: Tensor) -> Tensor:
            fits = [inputs.shape, targets.shape] == shapes
            return (replayed if fits else plain)(inputs, targets)

        return take

    def loss(self, inputs: Any, targets: Any, *, exact: bool = False) -> Tensor:
        """Of this process' part of a batch, so that the mean over the team is the batch's.

        With ``exact`` as torch's own operations have it in float32.
        """
        inputs, targets, weight = self.team.part(inputs, targets)
        called = self.model if exact and self.compiles else self.called
        with autocast("float32" if exact else self.plan.precision, self.device):
            loss = self.problem.loss(called(inputs), targets).reshape(())
        return loss if weight == 1 else loss * weight

    def _compile(self) -> str:
        """Put what a step computes through torch.compile; why not, or nothing."""
        if self.team.size > 1:
            return "several ranks train it"
        torch.compiler.reset()  # of one function it keeps a few forms, and models are others
        try:
            batch = self.data.batch(self.run.seed, 0, 0)
            self.called = self.method.compiled(self.loss, batch)
        except NotCompilable as error:
            return str(error)
        return ""

    # ---- records ------------------------------------------------------------------------------

    def _where(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": self.step / len(self.data),
            "gradients": self.method.gradients,
            "seconds": self.clock.seconds,
        }

    def _write_start(self, sharing: int) -> None:
        run = self.run
        self.journal.write(
            "start",
            run={"method": run.method, "label": run.label, "seed": run.seed},
            config=to_json(run),
            versions=provenance.versions(),
            device=provenance.device_name(self.device),
            parameters=sum(p.numel() for p in self.model.parameters()),
            blocks=blocks_in_words(self.model),
            batches=len(self.data),
            data=self.problem.note,
            time=now(),
            **({"ranks": self.team.size} if self.team.size > 1 else {}),
            **({"sharing": sharing} if sharing > 1 else {}),
            **({"compiled": True} if self.compiles else {}),
        )
        if self.team.size > 1 and norms_of(self.model):
            self.journal.write("note", text="BatchNorm: means and variances of each rank's part")
        if self.refusal:
            self.journal.write("note", text=f"the network is not compiled: {self.refusal}")

    def _log(self) -> bool:
        """Record the mean training loss since the last time; False if it is not finite."""
        self.team.mean_(self.losses)
        loss = self.losses.item() / self.since
        self.losses, self.since = self.losses.zero_(), 0
        self.journal.write("train", **self._where(), loss=loss, lr=self.method.rate)
        self._report()
        return math.isfinite(loss)

    def _evaluate(self) -> None:
        found = {"metric": math.nan}
        most, averaged = self.plan.validation_batches, self.method.averages and self.step > 0
        batches = (self.data.batch(self.run.seed, 0, i)[0] for i in range(len(self.data)))
        fresh = fresh_statistics(self.model, batches) if averaged else contextlib.nullcontext()
        with self.method.at_rest(), autocast(self.plan.precision, self.device):
            if self.team.leads:
                with fresh:
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
            for law in measured_power_laws(self, self.plan.power_law):
                self.journal.write("power_law", **law)
        self._report()

    def _let_look(self) -> None:
        """Who looks on may draw random numbers, of which the run notices nothing."""
        if self.watch is None:
            return
        states = self._random_states()
        try:
            with self.method.at_rest():
                self.watch.look(self)
        finally:
            self._restore_random_states(*states)

    def _report(self, status: str = "running", reason: str = "") -> None:
        where = self.run.method, self.run.seed, self.step, self.plan.steps, self.method.gradients
        self.report(Progress(*where, self.metric, status, reason))

    def _end(self, status: str, reason: str) -> str:
        metric = self.metric if status == "finished" else None
        self.journal.write(
            "end", **self._where(), status=status, reason=reason, metric=metric, best=self.best
        )
        self.journal.synced()
        if self.team.leads and not self.plan.keep_checkpoint:
            (self.place / "checkpoint.pt").unlink(missing_ok=True)
        self._report(status, reason)
        return status

    # ---- checkpoints --------------------------------------------------------------------------

    def _save(self) -> None:
        self.team.mean_(self.losses)
        states = self.team.gather(self._random_states())
        if not self.team.leads:
            return
        content = {
            "model": self.model.state_dict(),
            "method": self.method.state_dict(),
            "random": states[0][0],
            "cuda": states[0][1],
            "others": states[1:],
            "step": self.step,
            "seconds": self.clock.seconds,
            "losses": self.losses,
            "since": self.since,
            "metric": self.metric,
            "best": self.best,
            "journal": self.journal.synced(),
        }
        records.save_checkpoint(self.place / "checkpoint.pt", content)

    def _restore(self, saved: dict[str, Any]) -> None:
        with fitting(self.place / "checkpoint.pt"):
            self.model.load_state_dict(saved["model"])
            self.method.load_state_dict(saved["method"])
        self.step, self.metric, self.best = saved["step"], saved["metric"], saved["best"]
        self.clock.seconds, self.since = saved["seconds"], saved["since"]
        self.losses.copy_(saved["losses"])
        states = [(saved["random"], saved["cuda"]), *saved.get("others", [])]
        if self.team.rank < len(states):  # else there were fewer ranks before: as at the start
            self._restore_random_states(*states[self.team.rank])

    def _random_states(self) -> tuple[dict[str, Any], list[Tensor]]:
        """Those that this process draws from, on the host and on its device."""
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        return host_states(), cuda

    def _restore_random_states(self, host: dict[str, Any], cuda: list[Tensor]) -> None:
        restore_host_states(host)
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(cuda[0].cpu(), self.device)
