"""Which files of ours one quick step goes through, and how deep.

    python -m benchmarks.trace --device cpu
    python -m benchmarks.trace --device cuda

Follows a step of a small model, after a measuring and a quick one, by function, but not into
the closure. A line for
every file, in the order in which the step comes to them, with the functions it calls there; the
source of the kernels counts as one more. Functions of torch, numpy and Triton are passed over.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, FunctionType

import torch
from torch import nn

import aliceopt
from aliceopt import PAPER, Alice
from aliceopt.kernels import IMPLEMENTATIONS

__all__ = ["Trace", "main", "quick_step"]

PACKAGE = Path(aliceopt.__file__).parent
SOURCES = {"compiled": "kernels/cpu.cpp", "triton": "kernels/triton_kernels.py"}


@dataclass
class Trace:
    """Functions by file, in order of their first call, and the most frames of ours at a time."""

    functions: dict[str, list[str]] = field(default_factory=dict)
    depth: int = 0

    def follow(self, work: Callable[[], object], closure: FunctionType) -> None:
        """Run this and note what is called; what the closure calls is its own business."""

        def profile(frame: FrameType, event: str, arg: object) -> None:
            path = Path(frame.f_code.co_filename)
            if event == "call" and path.is_relative_to(PACKAGE) and not _is_below(frame, closure):
                names = self.functions.setdefault(str(path.relative_to(PACKAGE)), [])
                name = frame.f_code.co_name
                if name not in names and not name.startswith("<"):
                    names.append(name)
                self.depth = max(self.depth, _depth(frame))

        sys.setprofile(profile)
        try:
            work()
        finally:
            sys.setprofile(None)


def _is_below(frame: FrameType | None, function: FunctionType) -> bool:
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def _depth(frame: FrameType | None) -> int:
    """Functions of ours among a frame and its callers; comprehensions belong to theirs."""
    depth = 0
    while frame is not None:
        code = frame.f_code
        depth += Path(code.co_filename).is_relative_to(PACKAGE) and not code.co_name.startswith("<")
        frame = frame.f_back
    return depth


def quick_step(device: str, implementation: str) -> Trace:
    """The trace of a quick step with the default options."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    model.to(device)
    x = torch.randn(32, 16, device=device)
    optimizer = Alice(model.parameters(), model=model, **PAPER, implementation=implementation)

    def closure() -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    trace = Trace()
    trace.follow(lambda: optimizer.step(closure), closure)  # type: ignore[arg-type]
    for name, source in SOURCES.items():
        if f"# {name} on" in repr(optimizer):
            trace.functions.setdefault(source, [])
    return trace


def main(argv: Sequence[str] | None = None) -> int:
    """Print the trace; 1 if it goes through more than eight files or is more than eight deep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--implementation", choices=IMPLEMENTATIONS, default="auto")
    args = parser.parse_args(argv)
    trace = quick_step(args.device, args.implementation)
    for i, (file, names) in enumerate(trace.functions.items(), 1):
        print(f"{i}  {file:27s} {', '.join(names) or 'the kernels'}")
    print(f"{len(trace.functions)} files, {trace.depth} frames deep")
    return int(len(trace.functions) > 8 or trace.depth > 8)


if __name__ == "__main__":
    sys.exit(main())
