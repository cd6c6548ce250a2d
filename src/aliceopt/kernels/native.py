"""The compiled CPU kernels: `cpu.cpp`, built at first use by the system's compiler.

The library is kept in a cache folder under a key of all that went into it, so that a machine
compiles it once, and again after any change. Loading it from there compiles nothing.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..options import HESSIANS, LIMITS
from .table import DIMS, Goal, Launch, Row

__all__ = ["MOVE_BLOCK", "UPDATE_BLOCK", "BuildError", "CpuKernels", "library"]

MOVE_BLOCK = UPDATE_BLOCK = 1 << 14
"""Elements of a chunk, what a thread takes at a time: one flag for both passes over it."""

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_COMPILERS = ("g++", "c++", "clang++")
_FLAGS = (
    *("-std=c++17", "-O2", "-march=native", "-fPIC", "-fno-exceptions", "-fno-rtti"),
    # Half as wide is gcc's own choice, and slower.
    *(["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []),
    # Results are those of torch's operations, bit for bit; these two ask only that nobody looks at
    # errno or at the floating-point exceptions.
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
_THREADS = (
    # torch has loaded an OpenMP runtime; linked to none, the library finds that one, and there is
    # one pool of threads in the process.
    (("-fopenmp",), ()),
    (("-fopenmp",), ("-fopenmp",)),
    (("-fopenmp-simd",), ()),
)
"""Flags of compiling and of linking, in order of preference."""


class BuildError(RuntimeError):
    """The kernels cannot be compiled here; the message says why."""


def source() -> str:
    """The text that is compiled: enums of everything that is numbered in Python, and `cpu.cpp`."""
    enums = {
        "row": {row.name: row.value for row in Row},
        "goal": {goal.name: goal.value for goal in Goal},
        "limit": {name.upper(): code for code, name in enumerate(LIMITS)},
        "hessian": {name.upper(): code for code, name in enumerate(HESSIANS)},
        "dtype": {str(d).removeprefix("torch.").upper(): code for code, d in enumerate(_DTYPES)},
    }
    lines = [_enum(space, members) for space, members in enums.items()]
    kernels = Path(__file__).with_name("cpu.cpp").read_text()
    return "\n".join([*lines, f"constexpr int DIMS = {DIMS};", '#line 1 "cpu.cpp"', kernels])


def _enum(space: str, members: Mapping[str, int]) -> str:
    listed = ", ".join(f"{name} = {value}" for name, value in members.items())
    return f"namespace {space} {{ enum {{ {listed} }}; }}"


def cache_folder() -> Path:
    """Where libraries are kept: ``ALICEOPT_CACHE``, or ``aliceopt`` in the user's cache folder."""
    if chosen := os.environ.get("ALICEOPT_CACHE"):
        return Path(chosen)
    general = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(general, "aliceopt")


@functools.cache
def library() -> ctypes.CDLL:
    """The kernels, loaded; compiled before that where they are not in the cache yet."""
    kernels = built(source(), cache_folder())
    for name, arguments in {"move": 11, "update": 16, "square_sum": 9}.items():
        function = getattr(kernels, name)
        function.argtypes, function.restype = [ctypes.c_int64] * arguments, None
    return kernels


def built(text: str, folder: Path) -> ctypes.CDLL:
    """The library that this text makes, from the folder or into it.

    >>> built("int three() { return 3; }", Path("/dev/null"))
    Traceback (most recent call last):
    aliceopt.kernels.native.BuildError: folder /dev/null cannot be written (ALICEOPT_CACHE ...)
    """
    compiler = _compiler()
    version = _run([*compiler, "--version"])
    first_failure: Exception | None = None
    for compiling, linking in _THREADS:
        key = hashlib.sha256()
        for part in (text, version, *_FLAGS, *compiling, "and", *linking, _processor()):
            key.update(part.encode() + b"\0")
        path = folder / f"cpu-{key.hexdigest()[:24]}.so"
        try:
            if not path.exists():
                _build(text, path, [*compiler, *_FLAGS, *compiling], [*compiler, *linking])
            return ctypes.CDLL(str(path))
        except (BuildError, OSError) as failure:
            first_failure = first_failure or failure
    if isinstance(first_failure, BuildError):
        raise first_failure
    raise BuildError(f"the compiled kernels cannot be loaded: {first_failure}")


def _compiler() -> list[str]:
    chosen = shlex.split(os.environ.get("CXX", ""))
    for name in chosen[:1] or _COMPILERS:
        if shutil.which(name):
            return [name, *chosen[1:]]
    named = f"{chosen[0]!r}" if chosen else " or ".join(map(repr, _COMPILERS))
    raise BuildError(f"no compiler {named} on the path (CXX names another)")


def _processor() -> str:
    """What -march=native looks at."""
    try:
        with open("/proc/cpuinfo") as lines:
            found = (line for line in lines if line.startswith(("flags", "Features")))
            return next(found, platform.processor())
    except OSError:
        return platform.processor()


def _build(text: str, path: Path, compiling: Sequence[str], linking: Sequence[str]) -> None:
    """Compile to ``path``; processes that do it at the same time all succeed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            unlinked, linked = f"{scratch}/cpu.o", f"{scratch}/cpu.so"
            _run([*compiling, "-c", "-x", "c++", "-", "-o", unlinked], text)
            _run([*linking, "-shared", unlinked, "-o", linked])
            os.replace(linked, path)
    except OSError as failure:
        raise BuildError(
            f"folder {path.parent} cannot be written (ALICEOPT_CACHE names another)"
        ) from failure


def _run(command: Sequence[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        line = next((line for line in said if "error" in line), said[0])
        raise BuildError(f"compiler {command[0]!r} said: {line.strip()}")
    return done.stdout


class CpuKernels:
    """Moves and updates of any number of CPU tensors, in one call each."""

    name = "compiled"
    move_block = MOVE_BLOCK
    update_block = UPDATE_BLOCK

    def __init__(self) -> None:
        self._library = library()
        self._has_float16 = bool(self._library.has_float16())

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether parameters and gradients may have this dtype."""
        return dtype in _DTYPES and (dtype != torch.float16 or self._has_float16)

    def send(self, array: np.ndarray, device: torch.device) -> Tensor:
        """The array itself: the kernels read the host's memory."""
        return torch.from_numpy(array)

    def move(self, launch: Launch, goal: Goal, *, depart: bool, swap: bool) -> None:
        """Send parameters to a `Goal`; departing, take their positions aside or ``swap`` them."""
        param = _DTYPES.index(launch.kind.param)
        self._library.move(*_common(launch), goal, depart, swap, param, launch.permuted)

    def update(self, launch: Launch, clip: Tensor | None) -> None:
        """Averages, step, position and probe center; gradients count ``clip`` times."""
        kind = launch.kind
        self._library.update(
            *_common(launch),
            0 if clip is None else clip.data_ptr(),
            LIMITS.index(kind.limit),
            HESSIANS.index(kind.hessian),
            kind.glass,
            kind.measuring,
            kind.maximize,
            *(_DTYPES.index(d or kind.param) for d in (kind.param, kind.grad, kind.side)),
            launch.permuted,
        )

    def square_sum(self, launch: Launch) -> Tensor:
        """Sum of squares of all finite entries of the gradients, in float64."""
        partial = torch.empty(launch.count, dtype=torch.float64)
        kind = launch.kind
        dtypes = (_DTYPES.index(d or kind.param) for d in (kind.param, kind.grad))
        self._library.square_sum(*_common(launch), partial.data_ptr(), *dtypes)
        return partial.sum()


def _common(launch: Launch) -> tuple[int, ...]:
    return (
        launch.table.data_ptr(),
        launch.chunk_tensor.data_ptr(),
        launch.chunk_index.data_ptr(),
        launch.count,
        launch.block,
        torch.get_num_threads(),
    )
