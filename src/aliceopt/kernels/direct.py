"""Compiled functions of flat CPU tensors, called without torch.compile's questions.

Before every call torch.compile asks whether what it compiled still fits, which costs more than a
pass over a hundred thousand elements. Here that is known beforehand. A pass takes numbers, columns
of one length and perhaps words (int32) of another, always of the same dtypes and without gaps in
memory. So the first call goes through torch.compile, which hands what it made to a backend of ours,
and later ones go there directly.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["DirectPass"]

_OPTIONS: dict[str, Any] = {
    # Indices into the signs are right by construction.
    "assert_indirect_indexing": False,
    # What a pass is first called with may be small, and it will be called with more.
    "cpp.min_chunk_size": 1,
    # Else the count of what was left alone becomes a loop of its own over three gradients.
    "cpp.max_horizontal_fusion_size": 64,
}

Plan = list[tuple[int, bool]]
"""For each input of the compiled graph, which argument it is, or whose length."""


class DirectPass:
    """``function(numbers, *tensors)`` compiled once, for any lengths; returns a tensor or None."""

    def __init__(self, function: Callable[..., Any], name: str):
        # A code object of its own, since torch counts recompilations by it.
        code = function.__code__.replace(co_name=name)
        own = types.FunctionType(code, function.__globals__, name, None, function.__closure__)
        self._compiled = torch.compile(own, dynamic=True, fullgraph=True, backend=self._backend)
        self._arguments: tuple[Tensor, ...] = ()
        self._direct: tuple[Callable[..., Any], Plan, int] | None = None

    def __call__(self, *tensors: Tensor) -> Any:
        """The function's value; without gradients."""
        if self._direct is not None and self._direct[2] == torch.get_num_threads():
            function, plan, _ = self._direct
            out = function(*[len(tensors[i]) if size else tensors[i] for i, size in plan])
            return out[0] if out else None
        self._arguments = tensors
        try:
            return self._compiled(*tensors)
        finally:
            self._arguments = ()

    def _backend(self, graph: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        function: Any = compile_fx(graph, examples, config_patches=_OPTIONS)

        def first(*inputs: Any) -> Any:
            plan = _plan(inputs, self._arguments)
            self._direct = None if plan is None else (function, plan, torch.get_num_threads())
            return function(*inputs)

        return first


def _plan(inputs: Sequence[Any], arguments: Sequence[Tensor]) -> Plan | None:
    """Where the graph's inputs come from; None unless that is beyond doubt."""
    places = {id(argument): i for i, argument in enumerate(arguments)}
    lengths = _lengths(arguments)
    plan = []
    for given in inputs:
        if isinstance(given, Tensor) and id(given) in places:
            plan.append((places[id(given)], False))
        elif isinstance(given, int) and given in lengths:
            plan.append((lengths[given], True))
        else:
            return None
    return plan


def _lengths(arguments: Sequence[Tensor]) -> dict[int, int]:
    """An argument of each length; none at all where numbers, words and columns have not three.

    torch takes lengths that are equal in the first call for equal in all of them.
    """
    special = {i for i, a in enumerate(arguments) if i == 0 or a.dtype == torch.int32}
    columns = {len(a): i for i, a in enumerate(arguments) if i not in special}
    others = {len(arguments[i]): i for i in special if arguments[i].dim()}
    count = sum(arguments[i].dim() for i in special)
    if len(columns) > 1 or len(others) != count or columns.keys() & others.keys():
        return {}
    return {**columns, **others}
