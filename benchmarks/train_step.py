"""Whole training steps, forward and backward included: Alice beside fused AdamW.

    python -m benchmarks.train_step --device cuda --model resnet18 --amp bf16 --json train.json
    python -m benchmarks.train_step --device cuda --model gpt --amp bf16 --vocab 50304
    python -m benchmarks.train_step --device cpu --model mlp

Columns. "gradients": evaluations a step, (quick_steps + 3) / (quick_steps + 1). "eager" is a plain
loop, "captured" (CUDA only) the whole step as CUDA graphs: AdamW's, and a quick and a measuring
for Alice (`aliceopt.capture`), with the batch copied in each time. Both are wall time a step,
averaged over a whole cycle of quick_steps + 1 steps. "x AdamW" is the ratio to AdamW in the same
mode, and "per gradient" that ratio divided by the gradients: 1 means that Alice costs nothing
beside its evaluations.

Data are random; learning rates are small, so that the numbers stay ordinary while it runs.
"""

from __future__ import annotations

import argparse
import gc
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

import aliceopt
from aliceopt import PAPER, Alice
from aliceopt.kernels import IMPLEMENTATIONS

from . import report
from .models import BATCH, Problem, problem
from .timing import Task, Timing, captured, interleaved, median, synchronize

__all__ = ["main", "measure"]

MODES = ("eager", "captured")
COLUMNS = (
    "optimizer",
    "gradients",
    "eager ms",
    "x AdamW",
    "per gradient",
    "captured ms",
    "x AdamW",
    "per gradient",
    "note",
)
BASE = "adamw"


@dataclass
class Row:
    """One optimizer; ``quick_steps`` is None for AdamW. Ratios are to AdamW in the same mode."""

    name: str
    label: str
    quick_steps: int | None
    gradients_per_step: float
    eager: Timing | None = None
    eager_ratio: float | None = None
    captured: Timing | None = None
    captured_ratio: float | None = None
    note: str = ""
    failed: bool = False

    @property
    def cycle(self) -> int:
        """Steps until the work repeats."""
        return 1 if self.quick_steps is None else self.quick_steps + 1

    def cells(self) -> list[str]:
        """This row of the table."""
        cells = [self.label, f"{self.gradients_per_step:.4g}"]
        for mode in MODES:
            timing, ratio = getattr(self, mode), getattr(self, f"{mode}_ratio")
            cells.append(report.cell(median(timing), 3, 1e3))
            cells.append(report.cell(ratio, 3))
            cells.append(report.cell(report.ratio(ratio, self.gradients_per_step), 3))
        return [*cells, self.note]


def rows_for(quick_steps: Sequence[int]) -> list[Row]:
    """AdamW, then Alice with each of these."""
    rows = [Row(BASE, "AdamW fused", None, 1.0)]
    for q in quick_steps:
        rows.append(Row(f"alice_{q}", f"Alice, quick_steps={q}", q, (q + 3) / (q + 1)))
    return rows


# ---- one training step --------------------------------------------------------------------------


def stepper(row: Row, setting: Problem, mode: str, implementation: str) -> Callable[[], object]:
    """A call that takes one training step."""
    if row.quick_steps is None:
        return _adamw(setting, mode)
    optimizer = Alice(
        setting.model.parameters(),
        **{**PAPER, "lr": 1e-3, "quick_steps": row.quick_steps},
        model=setting.model,
        implementation=implementation,
    )
    if mode == "eager":
        return lambda: optimizer.step(setting.closure)
    step = aliceopt.capture(optimizer, setting.closure, (setting.inputs, setting.targets))
    return partial(step, setting.inputs.clone(), setting.targets.clone())


def _adamw(setting: Problem, mode: str) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(
        setting.model.parameters(), lr=1e-4, fused=True, capturable=mode == "captured"
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        setting.closure()
        optimizer.step()

    if mode == "eager":
        return step
    replay = captured(step)
    inputs, targets = setting.inputs.clone(), setting.targets.clone()

    def whole() -> None:
        setting.inputs.copy_(inputs, non_blocking=True)
        setting.targets.copy_(targets, non_blocking=True)
        replay()

    return whole


def cycle_of(step: Callable[[], object], length: int) -> Callable[[], None]:
    """That many steps in one call."""

    def cycle() -> None:
        for _ in range(length):
            step()

    return cycle


# ---- the table ----------------------------------------------------------------------------------


def make_problem(args: argparse.Namespace) -> Problem:
    """Model and batch as asked for on the command line."""
    return problem(
        args.model,
        args.batch or BATCH[args.model],
        torch.device(args.device),
        amp=args.amp == "bf16",
        channels_last=args.channels_last,
        vocab=args.vocab,
        context=args.context,
    )


def time_mode(rows: Sequence[Row], mode: str, args: argparse.Namespace) -> None:
    """Set up every row in this mode, each with a model of its own, and time them in turns."""
    tasks, device = {}, torch.device(args.device)
    for row in rows:
        try:
            step = stepper(row, make_problem(args), mode, args.implementation)
            step()
            synchronize(device)
            tasks[row.name] = Task(cycle_of(step, row.cycle), row.cycle)
        except Exception as error:
            traceback.print_exc()
            first = (str(error).splitlines() or [""])[0]
            row.note = f"{mode} failed: {type(error).__name__}: {first}"[:100]
            row.failed = True
    seconds = args.seconds / (2 if device.type == "cuda" else 1)
    timings = interleaved(tasks, device=device, repeats=args.repeats, seconds=seconds)
    base = timings[BASE].median_s if BASE in timings else None
    for row in rows:
        timing = timings.get(row.name)
        if timing is not None:
            setattr(row, mode, timing)
            setattr(row, f"{mode}_ratio", report.ratio(timing.median_s, base))


def measure(args: argparse.Namespace) -> tuple[report.Header, list[Row]]:
    """All rows of the table and the lines above it."""
    device = torch.device(args.device)
    _set_tf32(args.tf32)
    torch.backends.cudnn.benchmark = device.type == "cuda"
    header = {
        **report.environment(device),
        "model": f"{args.model}, {_size(make_problem(args).model):,} parameters",
        "batch": args.batch or BATCH[args.model],
        "amp": args.amp,
        "channels_last": args.channels_last,
        "implementation": args.implementation,
    }
    if device.type == "cuda":
        matmul = torch.get_float32_matmul_precision() != "highest"
        cudnn = torch.backends.cudnn.allow_tf32
        header["tf32"] = f"matmul {_on(matmul)}, cudnn {_on(cudnn)}"
    rows = rows_for(args.quick_steps)
    for mode in MODES if device.type == "cuda" else MODES[:1]:
        gc.collect()  # what an earlier mode held
        time_mode(rows, mode, args)
    return header, rows


def _size(model: nn.Module) -> int:
    return sum(param.numel() for param in model.parameters())


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _set_tf32(choice: str) -> None:
    """TF32 in matrix products and in convolutions alike, or as torch has it."""
    if choice != "default":
        torch.set_float32_matmul_precision("high" if choice == "on" else "highest")
        torch.backends.cudnn.allow_tf32 = choice == "on"


# ---- command line -------------------------------------------------------------------------------


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [-1]
    if min(counts) < 0:
        raise argparse.ArgumentTypeError(f"want whole numbers >= 0, as in 0,3,15, got {text!r}")
    return counts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_step", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--model", choices=tuple(BATCH), help="default: resnet18, on a CPU mlp")
    parser.add_argument("--batch", type=int, help=f"examples; default: {BATCH}")
    parser.add_argument("--amp", choices=("bf16", "none"), default="none")
    parser.add_argument("--quick-steps", type=_counts, default=[0, 3, 15], metavar="0,3,15")
    parser.add_argument("--repeats", type=int, default=20, help="rounds that medians are over")
    parser.add_argument("--seconds", type=float, default=120.0, help="stop timing early after them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number here")
    parser.add_argument("--channels-last", action="store_true", help="memory format, resnet18")
    parser.add_argument("--tf32", choices=("default", "on", "off"), default="default")
    parser.add_argument("--vocab", type=int, default=65, help="tokens, gpt")
    parser.add_argument("--context", type=int, default=256, help="tokens a sequence, gpt")
    parser.add_argument("--implementation", choices=IMPLEMENTATIONS, default="auto")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a row failed."""
    args = _parser().parse_args(argv)
    args.model = args.model or ("resnet18" if args.device == "cuda" else "mlp")
    header, rows = measure(args)
    header["rounds"] = sorted({t.rounds for r in rows for t in (r.eager, r.captured) if t})
    print(report.text(header, report.table(COLUMNS, [row.cells() for row in rows])))
    if args.json:
        report.write_json(args.json, header, [asdict(row) for row in rows])
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
