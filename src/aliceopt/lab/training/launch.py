"""Who trains the runs of a plan: what every launcher has in common.

`pool.Local` trains them in processes of this machine, `aliceopt.integrations.ray` on a Ray cluster,
`ranks.Ranks` one after another with all ranks of ``torchrun``. Records do not tell which it was,
but for times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from aliceopt.lab.spec import Run
from aliceopt.lab.training.team import Team
from aliceopt.lab.training.train import Watcher, train

__all__ = ["TIME_IS_UP", "Launcher", "NoneFits", "Setting", "cores", "train_run"]

TIME_IS_UP = "the time is up"


class NoneFits(KeyboardInterrupt):
    """Time is left, but no run that is left would end in it."""

    def __init__(self) -> None:
        super().__init__("no run that is left would end in time")


@dataclass(frozen=True)
class Setting:
    """What all runs of a plan share: where their records go, what is written besides, until when.

    ``deadline`` is in seconds of `time.time`, or None. ``threads`` are those of each run on a CPU,
    where none of its plan has begun; None: a share of the cores. ``sharing`` is how many runs a GPU
    trains at once: with more than one, their seconds are not those of a run alone.
    """

    folder: Path
    resume: bool = False
    tensorboard: bool = False
    deadline: float | None = None
    threads: int | None = None
    sharing: int = 1

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.time() >= self.deadline


class Launcher(Protocol):
    """Whoever can train a list of runs."""

    @property
    def on_cpu(self) -> bool:
        """Whether runs are trained on a CPU."""
        ...

    def threads(self, runs: int) -> int:
        """Threads that each of so many runs gets on a CPU."""
        ...

    def launch(self, runs: Sequence[Run], setting: Setting, watch: Watcher) -> None:
        """Train all of them; ``watch`` hears of every end, also of runs that fail.

        ``KeyboardInterrupt`` leaves what is finished, and nobody at work in the folder. It is
        raised here, as `TIME_IS_UP`, if the time is up before all is done: runs under way save.
        """
        ...


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train_run(
    run: Run, setting: Setting, device: str, watch: Watcher, team: Team | None = None
) -> str:
    """Train one run in this process, with the threads that it is to have; returns its status."""
    if device == "cpu":
        torch.set_num_threads(run.training.threads)
    return train(
        run,
        setting.folder,
        device=device,
        resume=setting.resume,
        report=watch,
        tensorboard=setting.tensorboard,
        team=team,
        deadline=setting.deadline,
        sharing=setting.sharing,
    )
