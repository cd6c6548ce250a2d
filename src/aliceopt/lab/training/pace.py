"""How fast each method's steps are here: for equal seconds, and for what a study will take."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path

import torch

from aliceopt.lab.optimizers.methods import period
from aliceopt.lab.plans.study import Study
from aliceopt.lab.records import Silent, read_plan
from aliceopt.lab.spec import Run
from aliceopt.lab.training.team import Team
from aliceopt.lab.training.train import Loop

__all__ = ["Steps", "measured_paces", "seconds_a_step"]

ROUNDS = 5
"""Rounds that are timed, after one that is not."""


def seconds_a_step(run: Run, device: str) -> float:
    """The fastest of `ROUNDS` of a few steps each, of which as many measure as in the long run."""
    steps = Steps(run, device)
    length = period(run.optimizer, run.options) * -(-4 // period(run.optimizer, run.options))
    rounds = []
    for _ in range(1 + ROUNDS):
        begun = time.perf_counter()
        steps.take(length)
        rounds.append((time.perf_counter() - begun) / length)
    return min(rounds[1:])


class Steps:
    """Steps of a run's training loop, but at a thousandth of its rate, so that none diverges."""

    def __init__(self, run: Run, device: str):
        brief = replace(run.training, validation_batches=1, telemetry=False, power_law=None)
        short, place = replace(run, training=brief), torch.device(device)
        self.loop = Loop(short, place, Silent(), Path(), None, lambda progress: None, Team())
        self._take, self._next, self._seed = self.loop.bind(), 0, run.seed
        self.loop.method.set_rate(1e-3)

    def take(self, count: int) -> None:
        """So many more, until the device has done them."""
        data = self.loop.data
        for step in range(self._next, self._next + count):
            self._take(*data.batch(self._seed, *divmod(step, len(data))))
        self._next += count
        if self.loop.device.type == "cuda":
            torch.cuda.synchronize(self.loop.device)


def measured_paces(study: Study, device: str, threads: int) -> dict[str, float]:
    """Seconds a step of every method, on this machine with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        plan = study.lasting(dict.fromkeys(study.final.methods, 1.0), seconds=4.0).final
        runs = {run.method: plan.run(run) for run in plan.runs}
        return {method: seconds_a_step(run, device) for method, run in runs.items()}
    finally:
        torch.set_num_threads(before)
        if device.startswith("cuda"):  # runs may be trained by other processes
            gc.collect()
            torch.cuda.empty_cache()


def known_paces(folder: Path) -> dict[str, float]:
    """Those that a study in the folder was planned with, so that it can go on as it began."""
    for place in (folder, folder / "tuning"):
        if (place / "plan.json").exists():
            return read_plan(place).paces or {}
    return {}
