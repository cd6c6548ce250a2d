"""Runs under ``torchrun``: every rank trains its part of each batch, rank 0 does all the rest.

Rank 0 is the command itself: it plans, locks, evaluates, records and prints. The other ranks wait
for a run, train it along, and wait for the next, so they need neither the folder nor the terminal.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.randomness import seed_all
from aliceopt.lab.records import Silent
from aliceopt.lab.spec import Run
from aliceopt.lab.training.launch import TIME_IS_UP, Setting, cores, train_run
from aliceopt.lab.training.stopping import Stop, on_sigterm
from aliceopt.lab.training.team import Team
from aliceopt.lab.training.train import Loop, Watcher
from aliceopt.lab.words import counted

__all__ = ["RankLost", "Ranks", "lead", "together"]

PATIENCE = timedelta(days=1)
"""Ranks wait while rank 0 evaluates or draws; torchrun notices by itself when one has died."""

GRACE = 120.0
"""Seconds that a rank that failed waits for the others to fail alike."""


class RankLost(ValueError):
    """A rank of torchrun is gone, or does something else than the others."""


class Ranks(Team):
    """All processes that torchrun started, joined in one group; and the launcher that uses them."""

    def __init__(self) -> None:
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        self._store, self.rank, self.size = next(dist.rendezvous("env://", timeout=PATIENCE))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=dist.PrefixStore("ranks", self._store),
            rank=self.rank,
            world_size=self.size,
            timeout=PATIENCE,
        )
        self._orders = dist.new_group(backend="gloo", timeout=PATIENCE)
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.local_size = int(os.environ["LOCAL_WORLD_SIZE"])
        self.kind = "cpu"
        self._begun = 0
        self.idle = True
        """False while a run is under way: then nobody listens to orders."""

    @property
    def device(self) -> str:
        """Where this rank trains."""
        return "cpu" if self.on_cpu else f"cuda:{self.local_rank}"

    def begin(self, run: Run, saved: dict[str, Any] | None, deadline: float | None) -> None:
        """Tell the others to train this run from this checkpoint, until this time."""
        self.idle = False
        self._begun += 1
        self.ordered((self.kind, run, saved, deadline))

    def ordered(self, order: Any) -> Any:
        """What rank 0 orders, on every rank; None: there is no more to do."""
        orders = [order]
        dist.broadcast_object_list(orders, src=0, group=self._orders)
        return orders[0]

    def follow(self) -> None:
        """The life of every other rank: train along with rank 0, and record nothing."""
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        warnings.simplefilter("ignore")  # rank 0 has the same to say
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        while (order := self.ordered(None)) is not None:
            self.kind, run, saved, deadline = order
            self._begun += 1
            if self.on_cpu:
                torch.set_num_threads(run.training.threads)
            try:
                where, nobody = torch.device(self.device), lambda progress: None
                Loop(run, where, Silent(), Path(), saved, nobody, self).go(Stop(deadline))
            except Exception as error:
                self.agree(error)
        dist.destroy_process_group()

    def stopping(self, deadline: float | None) -> AbstractContextManager[Stop]:
        """The deadline alone: by SIGTERM torchrun ends all ranks, of which some may be gone."""
        return nullcontext(Stop(deadline))

    def stops(self, stop: Stop) -> bool:
        """Whether rank 0 is to stop. Ranks with clocks of their own would part between two steps.

        Where there is no deadline, nobody asks.
        """
        if stop.deadline is None:
            return False
        told = torch.tensor(bool(stop))
        dist.broadcast(told, src=0, group=self._orders)
        return bool(told)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model under DDP, which averages gradients over ranks."""
        if self.on_cpu:
            return DistributedDataParallel(model)
        torch.cuda.set_device(self.local_rank)
        return DistributedDataParallel(model, device_ids=[self.local_rank])

    def part(self, inputs: Any, targets: Any) -> tuple[Any, Any, float]:
        """This rank's rows, and their share of the batch times the number of ranks.

        Weighted so, the mean over ranks of a mean over rows is the mean over the whole batch, also
        where it does not divide evenly.
        """
        size = examples_in(inputs)
        if size < self.size:
            raise ValueError(
                f"a batch of {counted(size, 'example')} cannot be split over {self.size} ranks: "
                "choose a larger batch_size, or a smaller --nproc_per_node"
            )
        start, stop = (size * rank // self.size for rank in (self.rank, self.rank + 1))
        mine = [part_of(value, start, stop, size) for value in (inputs, targets)]
        return mine[0], mine[1], (stop - start) * self.size / size

    def mean_(self, value: Tensor) -> None:
        """Replace a number by its mean over ranks."""
        dist.all_reduce(value)
        value /= self.size

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on rank 0."""
        values = [None] * self.size if self.leads else None
        dist.gather_object(value, values, dst=0, group=self._orders)
        return values or []

    def seed(self, seed: int) -> None:
        """Rank 0 goes on with the numbers of a single process, the others draw their own."""
        if not self.leads:
            seed_all(int(np.random.SeedSequence([seed, self.rank]).generate_state(1)[0]))

    def agree(self, error: Exception) -> None:
        """Return if every rank failed: then the run did. If some did not, the job cannot go on.

        Those wait for gradients and cannot be asked, so they are counted in torchrun's store.
        """
        key, until = f"failed in run {self._begun}", time.monotonic() + GRACE
        try:
            count = self._store.add(key, 1)
            while count < self.size and time.monotonic() < until:
                time.sleep(0.05)
                count = self._store.add(key, 0)
            if count < self.size:
                self._store.add(key, -self.size)  # those who fail because this rank leaves
        except RuntimeError:  # whoever kept it is gone
            count = 0
        if count < self.size:
            raise RankLost(
                f"rank {self.rank} of {self.size} failed and others did not, or are gone "
                f"({type(error).__name__}: {error}): the same command with --resume goes on"
            ) from error

    # ---- the launcher of rank 0 ----------------------------------------------------------------

    @property
    def on_cpu(self) -> bool:
        """Whether runs are trained on a CPU."""
        return self.kind == "cpu"

    def threads(self, runs: int) -> int:
        """The cores of this machine, divided among its ranks."""
        return max(1, cores() // self.local_size)

    def launch(self, runs: Sequence[Run], setting: Setting, watch: Watcher) -> None:
        """Train one after another; a run that fails on every rank does not stop the others."""
        refused = sorted({run.method for run in runs if run.optimizer == "adahessian"})
        if refused:
            raise PlanError(
                f"{', '.join(refused)} differentiates twice, which DDP cannot: leave it out "
                "(--methods, --baselines), or run it without torchrun"
            )
        try:
            with on_sigterm(signal.SIG_DFL):  # torchrun waits for whoever does not end by it
                for run in runs:
                    if setting.over:
                        break
                    status = train_run(run, setting, self.device, watch, self)
                    self.idle = True
                    if status == "interrupted":
                        break
                else:
                    return
        except KeyboardInterrupt:
            # torchrun passes on the Ctrl-C that this process has had from the terminal.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise
        raise KeyboardInterrupt(TIME_IS_UP)


def examples_in(value: Any) -> int:
    """Rows of the first tensor in a batch; ValueError where there is none."""
    if isinstance(value, Tensor) and value.dim() > 0:
        return len(value)
    parts = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(parts, tuple | list) and parts:
        return examples_in(parts[0])
    raise ValueError(
        f"a batch cannot be split over ranks: it holds a {type(value).__name__} where a tensor "
        "with one row an example is needed"
    )


def part_of(value: Any, start: int, stop: int, size: int) -> Any:
    """Rows ``start`` to ``stop`` of every tensor in a batch of ``size`` examples."""
    if isinstance(value, Tensor) and value.dim() > 0:
        if len(value) != size:
            raise ValueError(
                f"a batch cannot be split over ranks: one tensor has {size} rows, another "
                f"{len(value)}"
            )
        return value[start:stop]
    if isinstance(value, Mapping):
        return {key: part_of(item, start, stop, size) for key, item in value.items()}
    if isinstance(value, tuple | list):
        parts = [part_of(item, start, stop, size) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value  # a number or a name that goes for the whole batch


_joined: list[Ranks] = []


def together(launcher: str, device: str, workers: int | None) -> Ranks:
    """The launcher that the options of a command mean under torchrun, on its rank 0."""
    if not _joined:
        raise PlanError("under torchrun the command is: torchrun ... -m aliceopt.cli run NAME ...")
    if launcher != "local" or workers not in (None, 1):
        option = f"--launcher {launcher}" if launcher != "local" else f"--workers {workers}"
        raise PlanError(
            f"{option}: under torchrun all ranks train one run after another; leave it out, or "
            "do without torchrun"
        )
    if device not in ("auto", "cpu", "cuda"):
        raise PlanError(f"--device must be auto, cpu or cuda under torchrun; got {device!r}")
    ranks, count = _joined[0], torch.cuda.device_count()
    ranks.kind = "cpu" if device == "cpu" or (device == "auto" and not count) else "cuda"
    if ranks.kind == "cuda" and count < ranks.local_size:
        raise PlanError(
            f"--device {device}: {ranks.local_size} ranks need as many GPUs, there are {count} "
            f"here: --nproc_per_node {max(1, count)}, or --device cpu"
        )
    return ranks


def lead(command: Callable[[], object]) -> None:
    """Run a command on rank 0, with the other ranks at its disposal, who print nothing."""
    ranks = Ranks()
    if not ranks.leads:
        ranks.follow()
        return
    _joined.append(ranks)
    try:
        command()
    finally:
        _joined.clear()
        if ranks.idle:  # else torchrun ends the others: they are in the middle of a run
            ranks.ordered(None)  # they may go
            dist.destroy_process_group()
