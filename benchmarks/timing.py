"""Medians of interleaved timings, on the CPU and on CUDA, and capture of a step in a graph.

Two clocks. "wall" is what a user waits for: a run of calls, from an idle device to an idle device,
host work included. "device" is the device's share of it (CUDA only): the calls are queued behind a
kernel that only waits, long enough for the host to finish queueing, so that the device never waits
for the host; work that has the host wait for the device still counts in full.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from aliceopt.capture.graphs import no_collection

__all__ = ["Task", "Timing", "captured", "interleaved", "median", "synchronize"]

Clock = Literal["wall", "device"]

MIN_ROUNDS = 3
MAX_CALLS = 100
LEAST_SECONDS = {"cpu": 0.01, "cuda": 0.005}
"""A run of calls lasts at least this long, so that the clock's own cost does not show."""

LEAST_CALLS = {"cpu": 1, "cuda": 4}
"""And is a loop: the host runs ahead of the device, as it does in training. After a single call the
device's last kernels would count in full."""

CYCLES_PER_SECOND = 2e9
"""At least a GPU's clock rate: waits come out too long rather than too short."""


@dataclass(frozen=True)
class Task:
    """Something to time: a call that takes ``steps`` steps, by one of the two clocks.

    At most ``most_calls`` are made in a run; 1 for a step of so many launches that a second one
    would not fit in the device's queue. ``prepare`` is told how many calls come next, and its own
    time does not count.
    """

    call: Callable[[], object]
    steps: int = 1
    clock: Clock = "wall"
    most_calls: int = MAX_CALLS
    prepare: Callable[[int], object] | None = None

    def get_ready(self, calls: int) -> None:
        """Prepare for this many calls."""
        if self.prepare is not None:
            self.prepare(calls)


@dataclass(frozen=True)
class Timing:
    """Seconds a step: median, first and ninth decile over rounds of ``calls`` calls each."""

    median_s: float
    low_s: float
    high_s: float
    rounds: int
    calls: int

    @classmethod
    def of(cls, samples: list[float], calls: int) -> Timing:
        """Summary of one sample a round."""
        ordered, last = sorted(samples), len(samples) - 1
        low, high = ordered[round(0.1 * last)], ordered[round(0.9 * last)]
        return cls(statistics.median(ordered), low, high, len(ordered), calls)


def median(timing: Timing | None) -> float | None:
    """Its median, if there is one."""
    return None if timing is None else timing.median_s


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleaved(
    tasks: Mapping[str, Task],
    *,
    device: torch.device,
    repeats: int,
    seconds: float | None = None,
) -> dict[str, Timing]:
    """Time every task ``repeats`` times, taking turns, each round from another one on.

    By the wall clock every run has as many calls as the slowest one's, so that the first of them,
    whose code has left the caches, weigh alike. Stops earlier once ``seconds`` are over, but not
    before the third round.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be a whole number >= 1, got {repeats!r}")
    begin = time.perf_counter()
    plans = {name: _plan(task, device) for name, task in tasks.items()}
    walls = [name for name, task in tasks.items() if task.clock == "wall"]
    fewest = min((plans[name][0] for name in walls), default=1)
    plans.update({name: (fewest, plans[name][1]) for name in walls})
    samples: dict[str, list[float]] = {name: [] for name in tasks}
    names = list(tasks)
    with no_collection():
        for i in range(repeats):
            late = seconds is not None and time.perf_counter() - begin > seconds
            if late and i >= MIN_ROUNDS:
                break
            turn = i % max(1, len(names))
            for name in names[turn:] + names[:turn]:
                samples[name].append(_seconds_a_step(tasks[name], *plans[name], device))
    return {name: Timing.of(samples[name], plans[name][0]) for name in names}


def _plan(task: Task, device: torch.device) -> tuple[int, float]:
    """After a warm-up: how many calls make a run, and how long the host may take over one."""
    task.get_ready(4)
    for _ in range(2):
        task.call()
    wall = min(_wall_seconds(task.call, 1, device) for _ in range(2))
    calls = math.ceil(LEAST_SECONDS[device.type] / max(wall, 1e-7))
    return min(max(calls, LEAST_CALLS[device.type]), task.most_calls), wall


def _seconds_a_step(task: Task, calls: int, wall: float, device: torch.device) -> float:
    task.get_ready(calls)
    if task.clock == "device":
        return _device_seconds(task.call, calls, wall, device) / task.steps
    return _wall_seconds(task.call, calls, device) / task.steps


def _wall_seconds(call: Callable[[], object], calls: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return _between_events(call, calls)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def _device_seconds(
    call: Callable[[], object], calls: int, wall: float, device: torch.device
) -> float:
    if device.type != "cuda":
        raise ValueError(f"only a CUDA device has a clock of its own, got {device}")
    torch.cuda.synchronize(device)
    torch.cuda._sleep(int((1.2 * wall * calls + 5e-4) * CYCLES_PER_SECOND))
    return _between_events(call, calls)


def _between_events(call: Callable[[], object], calls: int) -> float:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in itertools.repeat(None, calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / calls


def captured(step: Callable[[], object], warmup: int = 3) -> Callable[[], None]:
    """One CUDA graph of ``step``, warmed up on a side stream; the result replays it.

    The result also keeps ``step`` alive: a graph does not own the memory that it works on.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    torch.cuda.synchronize()

    def replay(owner: Callable[[], object] = step) -> None:
        graph.replay()

    return replay
