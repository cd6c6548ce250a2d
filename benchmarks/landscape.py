"""What ``aliceopt landscape`` costs: seconds, and memory beside a training step's.

    python -m benchmarks.landscape --device cuda --model resnet18 --json landscape.json
    python -m benchmarks.landscape --device cuda --model gpt2
    python -m benchmarks.landscape --device cpu --model tiny-gpt --preset quick

All that the command measures with this preset, on training and held-out batches, in the same code.
"resnet18" is the paper's, on 500 images of 32 x 32 in float32; "gpt2" has 124,439,808 parameters
(12 layers, 768 wide, 50,257 tokens) and takes 8 sequences of 1024 under bfloat16 autocast, with
flash attention and nothing else. Data are random, and so are the weights but for a few steps.

A line says what was measured as soon as it was; the table comes last.

Columns. "gradients" are those taken, "losses" were evaluated without one. "peak GB" is the most
memory that tensors had at once on the device, "x AdamW" that over the peak of a training step of
AdamW on such a batch. The row "start" has the evaluation before and the optimizer's next step;
seconds and memory of an instrument's first gradient are in the row before.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from aliceopt.lab import models
from aliceopt.lab.optimizers.methods import Method, make_method
from aliceopt.lab.problems.problem import Problem
from aliceopt.lab.spec import Run, Training, UserProblem
from aliceopt.lab.training.precision import ChannelsLast, lay_out_, set_products
from aliceopt.trained.landscape.presets import (
    INSTRUMENTS,
    PRECISIONS,
    PRESETS,
    Asked,
    Cost,
    cost_of,
)
from aliceopt.trained.landscape.survey import batches_of, see
from aliceopt.trained.network import Network

from . import report

__all__ = ["MODELS", "main", "measure"]

BASE, START = "AdamW step", "start"
COLUMNS = ("what", "gradients", "losses", "seconds", "peak GB", "x AdamW", "")
WARMUP = 3


@dataclass(frozen=True)
class Setting:
    """A model, the shape of its batches, and how it is computed unless asked otherwise."""

    make: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, ...]
    tokens: int | None
    precision: str


MODELS = {
    "resnet18": Setting(models.resnet18, 500, (3, 32, 32), None, "float32"),
    "gpt2": Setting(
        lambda: models.gpt(50_257, context=1024, layers=12, width=768, heads=12),
        *(8, (1024,), 50_257, "bf16"),
    ),
    "tiny-resnet": Setting(lambda: models.resnet18(width=2), 4, (3, 8, 8), None, "float32"),
    "tiny-gpt": Setting(
        lambda: models.gpt(64, context=16, layers=1, width=32, heads=2), *(4, (16,), 64, "bf16")
    ),
}


@dataclass
class Row:
    """One line of the table."""

    what: str
    gradients: int = 0
    losses: int = 0
    seconds: float = 0.0
    peak: int = 0
    ratio: float | None = None

    def cells(self) -> list[str]:
        """This row of the table; a dash for memory that is not counted."""
        numbers = [str(self.gradients), str(self.losses), report.cell(self.seconds)]
        memory = [report.cell(self.peak or None, 2, 1e-9), report.cell(self.ratio)]
        return [self.what, *numbers, *memory, ""]


# ---- a network as the command would have trained it ---------------------------------------------


def network(setting: Setting, size: int, precision: str, device: torch.device) -> Network:
    """The model after a few steps, with random data of as many batches as presets want."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = setting.make().to(device)
        parts = [_data(setting, size * max(p.batches for p in PRESETS.values())) for _ in range(2)]
    loss: Any = getattr(model, "loss", nn.functional.cross_entropy)
    problem = Problem(model, loss, *parts, batch_size=size)
    train, validation = problem.train.to(device), problem.validation.to(device)
    computed = "float32" if precision == "float64" else precision
    set_products(computed)
    if lay_out_(model, computed):
        train, validation = ChannelsLast(train), ChannelsLast(validation)
    told = UserProblem("benchmarks/landscape.py:network")
    run = Run("adamw", "AdamW", "adamw", {"lr": 1e-4}, 0, told, Training(steps=WARMUP))
    here = Network(problem, model, train, validation, computed, device, run=run)
    method = make_method("adamw", model.train(), run.options, seed=0)
    steps(here, method, size, WARMUP)
    saved = _on_cpu(method.state_dict())  # where a checkpoint is read to
    model.zero_grad()
    return Network(problem, model.eval(), train, validation, computed, device, None, run, saved)


def _data(setting: Setting, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    if setting.tokens is None:
        return torch.randn(count, *setting.shape), torch.randint(10, (count,))
    text = torch.randint(setting.tokens, (count, setting.shape[0] + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _on_cpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _on_cpu(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_on_cpu, value))
    return value.cpu() if isinstance(value, torch.Tensor) else value


def steps(here: Network, method: Method, size: int, count: int) -> None:
    """Train a little."""
    batch = next(batches_of(here.train, size, 1, 0, "training"))
    step = method.bind(lambda x, y: here.loss((x, y)), batch, capture=False)
    for _ in range(count):
        step(*batch)


# ---- what it costs ------------------------------------------------------------------------------


class Meter:
    """Seconds and peak memory from one reading to the next."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        self.begun = 0.0
        self.begin()

    def begin(self) -> None:
        """From here on."""
        if self.cuda:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        self.begun = time.perf_counter()

    def read(self, row: Row) -> None:
        """Add what was used since, say so at once, and begin again."""
        if self.cuda:
            torch.cuda.synchronize(self.device)
            row.peak = max(row.peak, torch.cuda.max_memory_allocated(self.device))
        row.seconds += time.perf_counter() - self.begun
        taken = Cost(row.gradients, row.losses).in_words()
        print(f"{row.what}: {taken}, {row.seconds:.2f} s so far", flush=True)
        self.begin()


def training_step(here: Network, size: int, meter: Meter) -> Row:
    """A step of AdamW at rate 0 and without decay, which moves nothing."""
    method = make_method("adamw", here.model.train(), {"lr": 1e-4, "weight_decay": 0.0}, seed=0)
    method.set_rate(0.0)
    steps(here, method, size, WARMUP)
    row = Row(BASE, gradients=1)
    meter.begin()
    steps(here, method, size, 1)
    meter.read(row)
    here.model.zero_grad()
    return row


def instruments(here: Network, asked: Asked, meter: Meter) -> list[Row]:
    """All that the command measures, a row for every instrument, and all together."""
    rows = {name: Row(name) for name in (START, *INSTRUMENTS)}
    now = START

    def tick(instrument: str, *, gradient: bool) -> None:
        nonlocal now
        rows[instrument].gradients += gradient
        rows[instrument].losses += not gradient
        if instrument != now:  # its first gradient is counted where it was taken
            meter.read(rows[now])
            now = instrument

    meter.begin()
    for _ in see({"as trained": here}, asked, tick):
        pass
    meter.read(rows[now])
    found = list(rows.values())
    whole = Row("all", peak=max(row.peak for row in found))
    whole.gradients = sum(row.gradients for row in found)
    whole.losses = sum(row.losses for row in found)
    whole.seconds = sum(row.seconds for row in found)
    return [*found, whole]


def measure(args: argparse.Namespace) -> tuple[report.Header, list[Row]]:
    """All rows of the table and the lines above it."""
    setting, device = MODELS[args.model], torch.device(args.device)
    size, precision = args.batch or setting.batch, args.precision or setting.precision
    flash = setting.tokens is not None and precision == "bf16"
    only = sdpa_kernel(SDPBackend.FLASH_ATTENTION) if flash else contextlib.nullcontext()
    with only:
        here = network(setting, size, precision, device)
        meter = Meter(device)
        rows = [training_step(here, size, meter)]
        asked = Asked(PRESETS[args.preset], size, precision=precision)
        rows += instruments(here, asked, meter)
    for row in rows:
        row.ratio = report.ratio(row.peak or None, rows[0].peak)
    count = sum(param.numel() for param in here.model.parameters())
    header = {
        **report.environment(device),
        "model": f"{args.model}, {count:,} parameters",
        "batch": f"{size} of shape {setting.shape}",
        "precision": precision,
        "attention": "flash" if flash else "torch's choice" if setting.tokens else "none",
        "preset": f"{args.preset}, at most {cost_of(asked, 1).in_words()}",
    }
    return header, rows


# ---- command line -------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.landscape", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--model", choices=tuple(MODELS), default="resnet18")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="standard")
    parser.add_argument("--batch", type=int, help="examples; default: see above")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: see above")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number here")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    args = _parser().parse_args(argv)
    header, rows = measure(args)
    print(report.text(header, report.table(COLUMNS, [row.cells() for row in rows])))
    if args.json:
        report.write_json(args.json, header, [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
