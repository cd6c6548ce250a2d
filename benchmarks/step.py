"""The optimizer's work alone: time, traffic and memory of one step on ready gradients.

    python -m benchmarks.step --device cuda --model gpt2 --json step.json
    python -m benchmarks.step --device cuda --model resnet18 --dtype bfloat16
    python -m benchmarks.step --device cpu --model mlp20m --seconds 60

Columns. "device": the step replayed from a CUDA graph, host work hidden; where a step cannot be
captured its launches are queued ahead instead and the note says so. "eager": a loop over plain
steps, host work included. Each with its ratio to fused AdamW. "B/param": bytes that one pass must
read and write, and "TB/s" what that makes of the device time (the eager one on a CPU). "state" is
kept between steps, "extra" only during an uncaptured one, beside one set of gradients: measured on
CUDA, counted by design elsewhere. "peak": parameters, one set of gradients, state and extra.
"first use": from the constructor to the end of the first step of that kind, compilation included;
``--cold-cache`` keeps kernels compiled by earlier processes out of it. The header has the same for
Alice's first four steps: a measuring, a quick, a measuring and a quick one.

Gradients are new tensors each time, as autograd's are; making them and giving their memory back is
not part of a step's time.

Alice runs with its defaults: glass and the "abs" Hessian, limit "adam". Schedule-free AdamW has
its host-side numbers frozen in the graph, which does not change its time. In bfloat16 AdamW keeps
bfloat16 state and no master weights; Alice keeps float32 for both.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from aliceopt import PAPER, Alice
from aliceopt.kernels import IMPLEMENTATIONS

from . import report
from .contenders import Contender, Running, Unavailable, Workload, contenders
from .shapes import MODELS, count
from .timing import Task, Timing, interleaved, median, synchronize

__all__ = ["main", "measure"]

BASE = "adamw_fused"


@dataclass
class Row:
    """What was found about one contender; None where it does not apply."""

    name: str
    label: str
    bytes_per_param: int
    device: Timing | None = None
    device_ratio: float | None = None
    eager: Timing | None = None
    eager_ratio: float | None = None
    tb_per_s: float | None = None
    state_bytes_per_param: float | None = None
    extra_bytes_per_param: float | None = None
    extra_measured: bool = False
    peak_bytes: float | None = None
    first_use_s: float | None = None
    note: str = ""
    failed: bool = False

    def cells(self) -> list[str]:
        """This row of the table."""
        return [
            self.label,
            report.cell(median(self.device), 4, 1e3),
            report.cell(self.device_ratio),
            report.cell(median(self.eager), 4, 1e3),
            report.cell(self.eager_ratio),
            str(self.bytes_per_param),
            report.cell(self.tb_per_s, 3),
            report.cell(self.state_bytes_per_param, 1),
            report.cell(self.extra_bytes_per_param, 1),
            report.cell(self.peak_bytes, 1, 2**-20),
            report.cell(self.first_use_s, 3),
            self.note,
        ]


COLUMNS = (
    "step",
    "device ms",
    "x fused",
    "eager ms",
    "x fused",
    "B/param",
    "TB/s",
    "state B/param",
    "extra B/param",
    "peak MiB",
    "first use s",
    "note",
)


def attempt(row: Row, what: str, work: Callable[[], Any]) -> Any:
    """The result of ``work``, or None with the reason in the row's note."""
    try:
        return work()
    except Unavailable as reason:
        row.note = str(reason)
    except Exception as error:
        traceback.print_exc()
        row.note = f"{what} failed: {_brief(error)}"
    row.failed = True
    return None


def _brief(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:100]


# ---- memory and first use -----------------------------------------------------------------------


def first_steps(workload: Workload, implementation: str) -> list[float]:
    """Seconds from Alice's constructor to the end of four steps, of which two measure, by turns."""
    closure, ends = workload.closure(sides=True), []
    _warm_up(workload.device)
    begin = time.perf_counter()
    optimizer = Alice(workload.params, **{**PAPER, "quick_steps": 1}, implementation=implementation)
    for _ in range(4):
        optimizer.step(closure)
        synchronize(workload.device)
        ends.append(time.perf_counter() - begin)
    workload.clear()
    return ends


def _warm_up(device: torch.device) -> None:
    """Have torch load what any first optimizer makes it load."""
    param = torch.zeros(8, device=device, requires_grad=True)
    param.grad = torch.ones_like(param)
    torch.optim.SGD([param]).step()
    synchronize(device)


def inspect(row: Row, contender: Contender, workload: Workload) -> None:
    """Fill in state, extra and peak memory, and the first use unless `first_steps` has."""
    device, numel = workload.device, workload.numel
    cuda = device.type == "cuda"
    before = _allocated(device) if cuda else 0
    begin = time.perf_counter()
    running = contender.make(workload, False)
    running.step()
    synchronize(device)
    if running.optimizer is None:
        return
    if row.first_use_s is None:
        row.first_use_s = time.perf_counter() - begin
    row.state_bytes_per_param = running.state_bytes / numel
    row.extra_bytes_per_param = contender.held if isinstance(running.optimizer, Alice) else None
    if cuda:
        gradients = numel * workload.dtype.itemsize
        extra = _peak_of(running, device) - before - running.state_bytes - gradients
        row.extra_bytes_per_param, row.extra_measured = extra / numel, True
        row.peak_bytes = 2 * gradients + running.state_bytes + extra
    workload.clear()


def _allocated(device: torch.device) -> int:
    gc.collect()
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device)


def _peak_of(running: Running, device: torch.device) -> int:
    """Of a step whose gradients come one set after another, as autograd's do."""
    assert running.optimizer is not None
    for _ in range(2):
        running.step()
    running.optimizer.zero_grad()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    running.step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


# ---- times --------------------------------------------------------------------------------------


def eager_task(row: Row, contender: Contender, workload: Workload) -> Task | None:
    """Plain steps, host work included."""
    running = attempt(row, "setup", lambda: contender.make(workload, False))
    return None if running is None else Task(running.step, prepare=running.prepare)


def device_task(row: Row, contender: Contender, workload: Workload) -> Task | None:
    """The step in a CUDA graph; where that fails, its launches queued ahead."""
    try:
        running = contender.make(workload, True)
        if running.optimizer is None:  # in a graph a copy is slower than by itself
            return Task(running.step, clock="device")
        replay = running.capture()
        replay()
        torch.cuda.synchronize(workload.device)
        return Task(replay, clock="device")
    except Exception as error:
        traceback.print_exc()
        row.note = f"queued, not captured: {_brief(error)}"
    running = attempt(row, "setup", lambda: contender.make(workload, False))
    if running is None:
        return None
    return Task(running.step, clock="device", most_calls=1, prepare=running.prepare)


def time_rows(
    rows: Sequence[Row],
    tasks: dict[str, Task],
    field: str,
    args: argparse.Namespace,
) -> None:
    """Time one column and its ratios; ``tasks`` are dropped after it."""
    device = torch.device(args.device)
    seconds = args.seconds / (2 if device.type == "cuda" else 1)
    timings = interleaved(tasks, device=device, repeats=args.repeats, seconds=seconds)
    base = timings[BASE].median_s if BASE in timings else None
    for row in rows:
        timing = timings.get(row.name)
        if timing is not None:
            setattr(row, field, timing)
            setattr(row, f"{field}_ratio", report.ratio(timing.median_s, base))


def measure(args: argparse.Namespace) -> tuple[report.Header, list[Row]]:
    """All rows of the table and the lines above it."""
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    shapes = MODELS[args.model]()
    workload = Workload(shapes, dtype, device)
    entries = contenders(dtype, args.implementation, device)
    rows = {c.name: Row(c.name, c.label, c.traffic) for c in entries}
    header = {
        **report.environment(device),
        "model": f"{args.model}, {count(shapes):,} parameters in {len(shapes)} tensors",
        "dtype": args.dtype,
        "implementation": args.implementation,
    }
    starts = attempt(rows["alice_measuring"], "first steps", lambda: _starts(rows, workload, args))
    if starts:
        header["alice_first_steps_s"] = [round(seconds, 3) for seconds in starts]
    for entry in entries:
        row = rows[entry.name]
        attempt(row, "setup", partial(inspect, row, entry, workload))
    live = [entry for entry in entries if not rows[entry.name].failed]
    makers = {"device": device_task} if device.type == "cuda" else {}
    for field, maker in {**makers, "eager": eager_task}.items():
        gc.collect()  # what an earlier column held
        made = {entry.name: maker(rows[entry.name], entry, workload) for entry in live}
        tasks = {name: task for name, task in made.items() if task is not None}
        time_rows(list(rows.values()), tasks, field, args)
        del made, tasks
    for row in rows.values():
        seconds = median(row.device or row.eager)
        row.tb_per_s = report.ratio(row.bytes_per_param * workload.numel / 1e12, seconds)
    return header, list(rows.values())


def _starts(rows: dict[str, Row], workload: Workload, args: argparse.Namespace) -> list[float]:
    ends = first_steps(workload, args.implementation)
    rows["alice_measuring"].first_use_s, rows["alice_quick"].first_use_s = ends[:2]
    return ends


# ---- command line -------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--model", choices=tuple(MODELS), help="default: gpt2, on a CPU mlp20m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=30, help="rounds that medians are over")
    parser.add_argument("--seconds", type=float, default=120.0, help="stop timing early after them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number here")
    parser.add_argument("--implementation", choices=IMPLEMENTATIONS, default="auto")
    parser.add_argument("--cold-cache", action="store_true", help="compile every kernel anew")
    return parser


@contextlib.contextmanager
def fresh_caches(wanted: bool) -> Iterator[None]:
    """Point the compilers' on-disk caches at an empty folder."""
    names = ("TRITON_CACHE_DIR", "ALICEOPT_CACHE")
    before = {name: os.environ.get(name) for name in names}
    if not wanted:
        yield
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ.update({name: str(Path(folder) / name.lower()) for name in names})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                os.environ.update({} if value is None else {name: value})


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a row failed for another reason than a package that is missing."""
    args = _parser().parse_args(argv)
    args.model = args.model or ("gpt2" if args.device == "cuda" else "mlp20m")
    with fresh_caches(args.cold_cache):
        header, rows = measure(args)
    rounds = {t.rounds for row in rows for t in (row.device, row.eager) if t is not None}
    header["rounds"] = sorted(rounds)
    print(report.text(header, report.table(COLUMNS, [row.cells() for row in rows])))
    if args.json:
        report.write_json(args.json, header, [asdict(row) for row in rows])
    return int(any(row.failed and row.note != "not installed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
