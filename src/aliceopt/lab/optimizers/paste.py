"""Lines to paste: a method of a plan as Python that makes its optimizer, and its scheduler."""

from __future__ import annotations

import contextlib
import inspect
import json
import textwrap
from collections.abc import Mapping
from typing import Any

from aliceopt.lab.optimizers.methods import OPTIMIZERS, arguments, optimizer_class
from aliceopt.lab.spec import Schedule
from aliceopt.options import has_curvature

__all__ = ["lines_to_paste", "scheduler_lines"]

_WIDTH = 78
_RATES = ("lr", "adam_lr")
_NOTES = {
    "adahessian": "optimizer.backward(loss) in the place of loss.backward()",
    "schedule-free": "optimizer.train() before training, optimizer.eval() before evaluation",
    "muon": "optimizers is a list, mostly of two: zero_grad() and step() of each",
}


def lines_to_paste(name: str, options: Mapping[str, Any]) -> str:
    """The import and the constructor of a method, with every option that is not its default.

    ``name`` and ``options`` are those of a plan. Learning rates have three digits. What the
    training loop has to do beside ``backward`` and ``step`` is a comment.

    >>> print(lines_to_paste("adamw", {"lr": 0.015811}))
    import torch
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0158, fused=True)
    """
    chosen = {k: shown_rate(v) if k in _RATES else v for k, v in arguments(name, options).items()}
    told = {k: json.dumps(v) if isinstance(v, str) else repr(v) for k, v in chosen.items()}
    with contextlib.suppress(ModuleNotFoundError):  # its package may be missing here
        usual = inspect.signature(optimizer_class(name)).parameters
        told = {k: v for k, v in told.items() if k not in usual or usual[k].default != chosen[k]}
    notes = [f"# {_NOTES[name]}"] if name in _NOTES else []
    if name == "alice" and has_curvature({"glass": False, "hessian": "none", **chosen}):
        notes.append("# curvature needs optimizer.step(closure) or optimizer.evaluations()")
    norm = options.get("max_grad_norm")
    if name != "alice" and norm is not None:
        notes.append(f"# clip first: clip_grad_norm_(model.parameters(), {norm})")
    if name == "muon":  # two optimizers, for matrices and for the rest
        pairs = [f"{json.dumps(k)}: {v}" for k, v in told.items()]
        call = _call("optimizers = muon_and_adamw(model, {", pairs, "})")
        return "\n".join(["from aliceopt.lab.optimizers.muon import muon_and_adamw", *notes, call])
    given = ["model.parameters()", *(f"{k}={v}" for k, v in told.items())]
    given += ["model=model"] if name == "alice" else []
    module, kind = OPTIMIZERS[name]
    needed, callee = f"from {module} import {kind}", kind
    if module == "torch.optim":
        needed, callee = "import torch", f"torch.optim.{kind}"
    return "\n".join([needed, *notes, _call(f"optimizer = {callee}(", given, ")")])


def scheduler_lines(name: str, schedule: Schedule, steps: int) -> str:
    """A scheduler for what `lines_to_paste` made, over so many steps; nothing for a constant rate.

    >>> print(scheduler_lines("adamw", Schedule("linear", warmup=0.05), 200))
    steps = 200  # of your training; scheduler.step() behind every one
    from torch.optim.lr_scheduler import LambdaLR
    scheduler = LambdaLR(
        optimizer,
        lambda k: min(1, (k + 1) / (0.05 * steps))
        * max(0, 1 - k / steps)
    )
    """
    drops = ", ".join(f"{drop!r}" for drop in schedule.drops)
    course = {
        "cosine": "cos(pi / 2 * min(1, k / steps)) ** 2",
        "linear": "max(0, 1 - k / steps)",
        "drops": f"{schedule.gamma!r} ** sum(k / steps >= drop for drop in ({drops},))",
        "constant": "",
    }[schedule.shape if schedule.drops or schedule.shape != "drops" else "constant"]
    rise = f"min(1, (k + 1) / ({schedule.warmup!r} * steps))" if schedule.warmup else ""
    factor = "\n    * ".join(filter(None, (rise, course)))
    if not factor:
        return ""
    turn, opening, of, closing = "scheduler.step()", "scheduler = LambdaLR(", "optimizer", ")"
    if name == "muon":
        turn, opening = "step() of all schedulers", "schedulers = [LambdaLR("
        of, closing = "o", ") for o in optimizers]"
    lines = [f"steps = {steps}  # of your training; {turn} behind every one"]
    lines += ["from math import cos, pi"] if "cos(" in factor else []
    lines += ["from torch.optim.lr_scheduler import LambdaLR", opening]
    return "\n".join([*lines, f"    {of},", f"    lambda k: {factor}", closing])


def shown_rate(rate: float) -> float:
    """A learning rate with three digits."""
    return float(f"{rate:.3g}")


def _call(opening: str, given: list[str], closing: str) -> str:
    """On one line, or with the arguments below it."""
    inside = ", ".join(given)
    if len(opening + inside + closing) <= _WIDTH:
        return opening + inside + closing
    body = textwrap.fill(inside, _WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    body = textwrap.indent(body, "    ")
    return f"{opening}\n{body}\n{closing}"
