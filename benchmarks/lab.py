"""The lab's own training steps: each precision, compiled or not, alone or several runs at once.

    python -m benchmarks.lab --device cuda --json lab.json
    python -m benchmarks.lab --device cuda --methods alice --together 1,4,8
    python -m benchmarks.lab --device cpu --scale smoke --precisions float32

Steps are those of `aliceopt run resnet18-methods`, captured where that can be done, batch
preparation included; on made-up images, at a thousandth of the rate. "alice" measures at every
fourth step, "alice@0" at every one. "ms a step" is the fastest of a few rounds on an idle device,
whose clock the machine's other work moves: compare rows of one table. With ``--together`` as many
processes take steps at once, on a GPU under NVIDIA's multi-process service if it is there, and
"gradients a second" are those of all together.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from aliceopt.lab.data import generate
from aliceopt.lab.optimizers.methods import mean_gradients
from aliceopt.lab.plans.plan import experiment_plan
from aliceopt.lab.spec import PRECISIONS, Run
from aliceopt.lab.training.pace import Steps, seconds_a_step

from . import report

__all__ = ["main", "measure"]

COLUMNS = (
    "method",
    "precision",
    "compiled",
    "at once",
    "gradients a step",
    "ms a step",
    "gradients a second",
    "note",
)
FORMS = ("plain", "compiled")
PATIENCE = 600.0
"""Seconds that processes wait for each other; compiling takes some."""


@dataclass
class Row:
    """A method in one form; ``gradients_a_second`` are those of all that run at once."""

    method: str
    precision: str
    compiled: bool
    together: int
    gradients: float
    step_s: float | None = None
    gradients_a_second: float | None = None
    note: str = ""

    def cells(self) -> list[str]:
        """This row of the table."""
        return [
            self.method,
            self.precision,
            "yes" if self.compiled else "no",
            str(self.together),
            f"{self.gradients:.4g}",
            report.cell(self.step_s, 2, 1e3),
            report.cell(self.gradients_a_second, 0),
            self.note,
        ]


def run_of(row: Row, scale: str, root: Path) -> Run:
    """What is run: one seed of the experiment's method."""
    method, _, quick = row.method.partition("@")
    sets = [f"methods.{method}.quick_steps={quick}"] if quick else []
    sets += ["train.compile=true"] if row.compiled else []
    plan = experiment_plan(
        "resnet18-methods", scale, methods=[method], precision=row.precision, sets=sets, root=root
    )
    return plan.run(plan.runs[0])


def measure_row(row: Row, args: argparse.Namespace, root: Path) -> None:
    """Fill in what it takes, or why that cannot be said."""
    try:
        run = run_of(row, args.scale, root)
        row.gradients = mean_gradients(run.optimizer, run.options)
        if row.together == 1:
            row.step_s = seconds_a_step(run, args.device)
            row.gradients_a_second = row.gradients / row.step_s
        else:
            row.gradients_a_second = rate_together(run, row.together, args)
    except Exception as error:
        traceback.print_exc()
        first = (str(error).splitlines() or [""])[0]
        row.note = f"failed: {type(error).__name__}: {first}"[:100]


def rate_together(run: Run, count: int, args: argparse.Namespace) -> float:
    """Gradients a second of so many processes that all take steps of this run."""
    context = multiprocessing.get_context("spawn")
    start, counts = context.Barrier(count), context.Queue()
    told = (run, args.device, args.seconds, start, counts)
    workers = [context.Process(target=take_turns, args=told) for _ in range(count)]
    try:
        for worker in workers:
            worker.start()
        return sum(counts.get(timeout=PATIENCE) for _ in workers)
    finally:
        for worker in workers:
            worker.join(5)
            worker.kill()


def take_turns(run: Run, device: str, seconds: float, start: Any, counts: Any) -> None:
    """One of several processes: its gradients a second while all are at work."""
    steps = Steps(run, device)
    steps.take(8)
    start.wait(PATIENCE)
    before, begun = steps.loop.method.gradients, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        steps.take(4)
    counts.put((steps.loop.method.gradients - before) / (time.perf_counter() - begun))


def measure(args: argparse.Namespace) -> tuple[report.Header, list[Row]]:
    """All rows of the table and the lines above it."""
    forms = [(p, form == "compiled") for p in args.precisions for form in args.forms]
    rows = [Row(m, p, c, n, 0) for m in args.methods for p, c in forms for n in args.together]
    with TemporaryDirectory() as folder:
        root = generate.write("cifar10", folder, size=args.images)
        for row in rows:
            measure_row(row, args, root)
            print("so far:", " ".join(row.cells()), flush=True)
    return {**report.environment(torch.device(args.device)), "scale": args.scale}, rows


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _counts(text: str) -> list[int]:
    if not text.replace(",", "").isdecimal() or 0 in map(int, text.split(",")):
        raise argparse.ArgumentTypeError(f"want whole numbers >= 1, as in 1,4, got {text!r}")
    return [int(part) for part in text.split(",")]


def _some_of(known: Sequence[str], text: str) -> list[str]:
    if unknown := set(_names(text)) - set(known):
        raise argparse.ArgumentTypeError(f"want some of {', '.join(known)}, got {unknown}")
    return _names(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lab", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    default = "cuda" if torch.cuda.is_available() else "cpu"
    methods, precisions = ["adam", "alice", "alice@0", "adahessian"], ["bf16", "tf32"]
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--methods", type=_names, default=methods, metavar=",".join(methods))
    some_precisions, some_forms = partial(_some_of, PRECISIONS), partial(_some_of, FORMS)
    parser.add_argument("--precisions", type=some_precisions, default=precisions)
    parser.add_argument("--forms", type=some_forms, default=FORMS, metavar=",".join(FORMS))
    parser.add_argument("--together", type=_counts, default=[1], metavar="1,4")
    parser.add_argument("--seconds", type=float, default=5.0, help="of several at once")
    parser.add_argument("--scale", default="lab", help="of resnet18-methods")
    parser.add_argument("--images", type=int, default=2000, help="made-up ones, for training")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number here")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a row failed."""
    args = _parser().parse_args(argv)
    header, rows = measure(args)
    print(report.text(header, report.table(COLUMNS, [row.cells() for row in rows])))
    if args.json:
        report.write_json(args.json, header, [asdict(row) for row in rows])
    return int(any(row.note for row in rows))


if __name__ == "__main__":
    sys.exit(main())
