"""One call into compiled code for any number of tensors.

What inductor makes of a pass is a C function of addresses and a length. The Python around it costs
as much as a pass over a hundred thousand elements, and threads have to be started and awaited for
every tensor. Here the function itself is looked up, by watching its first call, and a few lines of
C++ call it for every row of a table of arguments. A row is a piece of a tensor, and threads take
rows as they come, so that it does not matter how large the tensors are, or whether a thread is
held up.

The names of torch that this relies on are private. Where one is missing, or the function does not
do what the pass does, there is no kernel, and passes are called as `DirectPass` calls them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Kernel", "Pieces", "Rows", "copy_kernel", "kernel_of", "loop", "pieces", "recorded"]

PIECE = 1 << 15
"""Elements in a row, at most; a multiple of 32, so that it begins with a word of signs."""
RUN = 4
"""Rows that a thread takes at a time: memory is read ahead only where it is read in order."""
STREAM = 1 << 25
"""Bytes from which on copies go past the caches, which as a rule are smaller than that."""
LENGTH, COUNT = -1, -2
MOST_ARGUMENTS = 40

_SOURCE = """
#include <cstdint>
#include <cstring>
#include <utility>
#include <omp.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

using Call = void (*)(void*, const int64_t*);

template <int64_t, class T> using Same = T;

template <class I, I... i>
Call call_with(std::integer_sequence<I, i...>) {
    return [](void* kernel, const int64_t* row) {
        reinterpret_cast<void (*)(Same<i, int64_t>...)>(kernel)(row[i]...);
    };
}

template <class I, I... n>
Call call_of(int64_t arguments, std::integer_sequence<I, n...>) {
    const Call calls[] = {call_with(std::make_integer_sequence<I, n>())...};
    return calls[arguments];
}

extern "C" void copy_row(void* to, const void* from, int64_t bytes) {
    std::memcpy(to, from, bytes);
}

// Copies past the caches: a plain store would first read what it overwrites.
extern "C" void stream_row(char* to, const char* from, int64_t bytes) {
    int64_t i = 0;
#if defined(__x86_64__)
    if (reinterpret_cast<uintptr_t>(to) % 16 == 0) {
        for (; i + 64 <= bytes; i += 64) {
            for (int j = 0; j < 64; j += 16) {
                const __m128i* source = reinterpret_cast<const __m128i*>(from + i + j);
                _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + j), _mm_loadu_si128(source));
            }
        }
        _mm_sfence();
    }
#endif
    std::memcpy(to + i, from + i, bytes - i);
}

// Calls a kernel for every row of its arguments. Addresses and lengths are passed alike.
extern "C" void over_rows(void* kernel, const int64_t* table, int64_t rows, int64_t arguments,
                          int64_t threads, int64_t* done) {
    const Call call = call_of(arguments, std::make_integer_sequence<int64_t, MOST + 1>());
    #pragma omp parallel for schedule(dynamic, RUN) num_threads(threads)
    for (int64_t i = 0; i < rows; ++i) {
        call(kernel, table + i * arguments);
    }
    *done = 1;
}
"""


class Kernel(NamedTuple):
    """A compiled function, and for each of its arguments the pass's argument it is the address of.

    Or else it is `LENGTH`, the number of elements, or `COUNT`, where a number of them is put.
    """

    address: int
    plan: tuple[int, ...]


class Pieces(NamedTuple):
    """Tensors in pieces: which tensor, and which of its elements."""

    owner: np.ndarray
    start: np.ndarray
    length: np.ndarray


@functools.lru_cache(maxsize=64)
def pieces(lengths: tuple[int, ...], most: int = PIECE) -> Pieces:
    """Tensors of these lengths in pieces of ``most`` elements or fewer."""
    sizes = np.asarray(lengths, dtype=np.int64)
    counts = -(-sizes // most)
    owner = np.repeat(np.arange(len(sizes)), counts)
    first = np.cumsum(counts) - counts
    start = (np.arange(len(owner)) - first[owner]) * most
    return Pieces(owner, start, np.minimum(sizes[owner] - start, most))


@functools.cache
def _library() -> Any:
    """The C++ above; None where it cannot be had."""
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    try:
        from torch._inductor.codecache import CppCodeCache

        source = _SOURCE.replace("MOST", str(MOST_ARGUMENTS)).replace("RUN", str(RUN))
        library = CppCodeCache.load(source)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        library.over_rows.argtypes = [pointer, pointer, number, number, number, pointer]
        library.over_rows.restype = None
    except Exception:  # whatever a compiler or a loader may raise
        return None
    return library


def loop() -> Callable[..., None] | None:
    """What calls a kernel for every row; None where it cannot be had."""
    library = _library()
    return None if library is None else library.over_rows


@functools.cache
def copy_kernel(*, stream: bool = False) -> Kernel | None:
    """Copies the second of two tensors of bytes to the first."""
    library = _library()
    if library is None:
        return None
    function = library.stream_row if stream else library.copy_row
    address = ctypes.cast(function, ctypes.c_void_p).value
    return None if address is None else Kernel(address, (1, 2, LENGTH))


class Rows:
    """A kernel's calls for many tensors: `run` makes them all, in one call from Python.

    ``there`` are the pieces, ``numbers`` the address of the first argument of the pass, or one for
    each piece, ``tensors`` those of the other arguments, of each of them one for every tensor, and
    ``bits`` how many of them an element has. What has to live until then may be kept.
    """

    def __init__(
        self,
        kernel: Kernel,
        there: Pieces,
        numbers: Any,
        tensors: Sequence[np.ndarray],
        bits: Sequence[int],
        keep: Any = None,
    ):
        self._kernel, self._keep, self.there, count = kernel, keep, there, len(there.owner)
        self.counts = np.zeros(count, dtype=np.int64)
        self._done = np.zeros(1, dtype=np.int64)
        columns = {0: numbers, LENGTH: there.length}
        columns[COUNT] = self.counts.ctypes.data + 8 * np.arange(count)
        for i, (addresses, size) in enumerate(zip(tensors, bits, strict=True)):
            columns[i + 1] = addresses[there.owner] + (there.start * size >> 3)
        self._table = np.empty((count, len(kernel.plan)), dtype=np.int64)
        for i, what in enumerate(kernel.plan):
            self._table[:, i] = columns[what]

    def run(self) -> None:
        """Go over all elements; nothing in this can be interrupted by an exception."""
        function = loop()
        assert function is not None
        table, done = self._table.ctypes.data, self._done.ctypes.data
        function(self._kernel.address, table, *self._table.shape, torch.get_num_threads(), done)

    @property
    def ran(self) -> bool:
        """Whether `run` has done it."""
        return bool(self._done[0])


# ---- looking up ---------------------------------------------------------------------------------

Calls = list[tuple[Any, tuple[Any, ...]]]
"""Functions that were called, and with what."""


@contextlib.contextmanager
def recorded(graphs: Sequence[Any]) -> Iterator[Calls]:
    """Have the compiled functions that inductor's graph calls written down."""
    calls: Calls = []
    names = _namespace(graphs)
    kernels = {name: value for name, value in names.items() if name.startswith("cpp_fused")}

    def recorder(kernel: Any) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            calls.append((kernel, arguments))
            return kernel(*arguments)

        return record

    names.update({name: recorder(kernel) for name, kernel in kernels.items()})
    try:
        yield calls
    finally:
        names.update(kernels)


def _namespace(graphs: Sequence[Any]) -> dict[str, Any]:
    """Where the one graph looks for the functions it calls."""
    function = getattr(graphs[0], "current_callable", None) if len(graphs) == 1 else None
    names: dict[str, Any] = getattr(function, "__globals__", {})
    return names


def kernel_of(calls: Calls, arguments: Sequence[Tensor], result: Any) -> Kernel | None:
    """The one function called for a pass over these; None unless its arguments are beyond doubt."""
    if len(calls) != 1:
        return None
    function, given = calls[0]
    places = {tensor.data_ptr(): i for i, tensor in enumerate(arguments)}
    if isinstance(result, Tensor):
        places[result.data_ptr()] = COUNT
    length = arguments[-1 if len(arguments) == 2 else 1].numel()
    plan = []
    for value in given:
        known = places.get(value.data_ptr()) if isinstance(value, Tensor) else None
        if isinstance(value, int) and value == length:
            known = LENGTH
        if known is None:
            return None
        plan.append(known)
    address = _address(function)
    return None if address is None or len(plan) > MOST_ARGUMENTS else Kernel(address, tuple(plan))


def _address(function: Any) -> int | None:
    """Of the C function behind a Python function that inductor has made."""
    path = getattr(getattr(function, "__self__", None), "__file__", None)
    try:
        symbol = getattr(ctypes.CDLL(path), function.__name__) if path else None
    except (AttributeError, OSError):
        return None
    return None if symbol is None else ctypes.cast(symbol, ctypes.c_void_p).value
