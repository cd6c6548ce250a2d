"""Compiled functions of flat CPU tensors, called without torch.compile's questions.

Before every call torch.compile asks whether what it compiled still fits, which costs more than a
pass over a hundred thousand elements. Here that is known beforehand. A pass takes numbers, columns
of one length and perhaps words (int32) of another, always of the same dtypes and without gaps in
memory. So the first call goes through torch.compile, which hands what it made to a backend of ours,
and later ones go there directly; or, where `aliceopt.kernels.native` finds the function underneath,
that is called for many tensors at once.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .native import Kernel, Pieces, Rows, kernel_of, loop, recorded

__all__ = ["DirectPass", "examples"]

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
        self._function, self._name = function, name
        self._arguments: tuple[Tensor, ...] = ()
        self._graphs: list[Any] = []
        self._kernel: Kernel | None = None
        self._looked = False
        self._begin()

    def _begin(self, **options: Any) -> None:
        """Have the next call compile."""
        # A code object of its own, since torch keeps and counts what it compiled by it.
        code = self._function.__code__.replace(co_name=self._name)
        names, closure = self._function.__globals__, self._function.__closure__
        own = types.FunctionType(code, names, self._name, None, closure)
        self._compiled = torch.compile(own, dynamic=True, fullgraph=True, backend=self._backend)
        self._direct: tuple[Callable[..., Any], Plan, int] | None = None
        self._options = {**_OPTIONS, **options}

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

    def kernel(self, dtypes: Sequence[torch.dtype], numbers: int | None) -> Kernel | None:
        """The compiled function, for arguments of these dtypes, the first one of ``numbers``.

        None where it is not found, or does not do what the pass does.
        """
        if not self._looked:
            self._kernel = self._found(dtypes, numbers) if loop() is not None else None
            if self._kernel is None:
                self._begin()  # the next call of the pass will say why
            self._looked = True
        return self._kernel

    def _found(self, dtypes: Sequence[torch.dtype], numbers: int | None) -> Kernel | None:
        given = examples(dtypes, numbers)
        # Threads are started by who calls a kernel for every row.
        self._begin(**{"cpp.threads": 1})
        try:
            with torch.no_grad():
                self(*given)  # which compiles
                with recorded(self._graphs) as calls:
                    result = self(*given)
        except Exception:
            return None
        kernel = kernel_of(calls, given, result)
        if kernel is None or not self._agrees(kernel, dtypes, numbers):
            return None
        return kernel

    def _agrees(self, kernel: Kernel, dtypes: Sequence[torch.dtype], numbers: int | None) -> bool:
        """Whether the kernel alone does what the pass does."""
        expected, found = examples(dtypes, numbers), examples(dtypes, numbers)
        with torch.no_grad():
            result = self(*expected)
        whole = Pieces(*(np.asarray([value]) for value in (0, 0, found[1].numel())))
        numbers_at, *addresses = (np.asarray([tensor.data_ptr()]) for tensor in found)
        bits = [8 * tensor.itemsize for tensor in found[1:]]
        rows = Rows(kernel, whole, numbers_at, addresses, bits)
        rows.run()
        same = all(map(torch.equal, expected, found))
        return same and (result is None or int(result) == int(rows.counts.sum()))

    def _backend(self, graph: Any, given: Sequence[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def inner(*args: Any, **kwargs: Any) -> Any:
            self._graphs = [compile_fx_inner(*args, **kwargs)]
            return self._graphs[0]

        with _no_outer_cache():
            function: Any = compile_fx(
                graph, given, inner_compile=inner, config_patches=self._options
            )

        def first(*inputs: Any) -> Any:
            plan = _plan(inputs, self._arguments)
            self._direct = None if plan is None else (function, plan, torch.get_num_threads())
            return function(*inputs)

        return first


def _no_outer_cache() -> contextlib.AbstractContextManager[Any]:
    """Without the cache that would answer without a look at the inner graph, which has its own."""
    import torch._functorch.config as config

    known = hasattr(config, "enable_autograd_cache")
    return config.patch(enable_autograd_cache=False) if known else contextlib.nullcontext()


def examples(dtypes: Sequence[torch.dtype], numbers: int | None) -> list[Tensor]:
    """Arguments of a pass: as many numbers (None: one, 0-dim), columns, and words if any.

    Every value is positive and finite, and those of no two arguments are the same.
    """
    made = []
    for i, dtype in enumerate(dtypes):
        shape = 544 if dtype != torch.int32 or len(dtypes) == 2 else 20
        count = (numbers or 1) if i == 0 else shape
        values = (torch.arange(count, device="cpu") % 7 + 1) / 8 + i
        values = values if dtype.is_floating_point else values * 1000
        made.append(values.to(dtype).view(() if i == 0 and numbers is None else -1))
    return made


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
