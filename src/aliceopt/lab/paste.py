"""Lines to paste: a method of a plan as Python that makes its optimizer for ``model``."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from aliceopt.lab.methods import arguments, optimizer_name
from aliceopt.options import has_curvature

__all__ = ["lines_to_paste", "shown_rate"]

_WIDTH = 78
_RATES = ("lr", "adam_lr")
_NOTES = {
    "adahessian": "needs loss.backward(create_graph=True)",
    "schedule-free": "optimizer.train() before training, optimizer.eval() before evaluation",
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
    module, kind = optimizer_name(name)
    usual = _defaults(module, kind)
    told = {k: _literal(v) for k, v in chosen.items() if k not in usual or usual[k] != v}
    notes = [f"# {note}" for note in _notes(name, options, chosen)]
    if name == "muon":  # two optimizers, for matrices and for the rest
        pairs = [f"{json.dumps(k)}: {v}" for k, v in told.items()]
        call = _call("optimizers = muon_and_adamw(model, {", pairs, "})")
        return "\n".join(["from aliceopt.lab.muon import muon_and_adamw", *notes, call])
    given = ["model.parameters()", *(f"{k}={v}" for k, v in told.items())]
    given += ["model=model"] if name == "alice" else []
    torch_own = module == "torch.optim"
    needed = "import torch" if torch_own else f"from {module} import {kind}"
    callee = f"{module}.{kind}" if torch_own else kind
    return "\n".join([needed, *notes, _call(f"optimizer = {callee}(", given, ")")])


def shown_rate(rate: float) -> float:
    """A learning rate with three digits."""
    return float(f"{rate:.3g}")


def _defaults(module: str, kind: str) -> dict[str, Any]:
    """The optimizer's own; none are known where its package is missing."""
    try:
        made = getattr(import_module(module), kind)
    except ModuleNotFoundError:
        return {}
    parameters = inspect.signature(made).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _notes(name: str, options: Mapping[str, Any], chosen: Mapping[str, Any]) -> list[str]:
    notes = [_NOTES[name]] if name in _NOTES else []
    if name == "alice" and has_curvature({"glass": False, "hessian": "none", **chosen}):
        notes.append("curvature needs optimizer.step(closure) or optimizer.evaluations()")
    norm = options.get("max_grad_norm")
    if name != "alice" and norm is not None:
        notes.append(f"clip first: clip_grad_norm_(model.parameters(), {norm})")
    return notes


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _call(opening: str, given: list[str], closing: str) -> str:
    """On one line, or with the arguments below it."""
    inside = ", ".join(given)
    if len(opening + inside + closing) <= _WIDTH:
        return opening + inside + closing
    indent = "    "
    body = textwrap.fill(
        inside,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{opening}\n{body}\n{closing}"
