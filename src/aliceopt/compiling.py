"""C++ compiled at first use by the system's compiler.

A library is kept in a cache folder under a key of all that went into it, so that a machine compiles
it once, and again after any change. Loading it from there compiles nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["BuildError", "built", "cache_folder"]

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


def cache_folder() -> Path:
    """Where libraries are kept: ``ALICEOPT_CACHE``, or ``aliceopt`` in the user's cache folder."""
    if chosen := os.environ.get("ALICEOPT_CACHE"):
        return Path(chosen)
    general = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(general, "aliceopt")


def built(text: str, folder: Path) -> ctypes.CDLL:
    """The library that this text makes, from the folder or into it.

    >>> built("int three() { return 3; }", Path("/dev/null"))
    Traceback (most recent call last):
    aliceopt.compiling.BuildError: folder /dev/null cannot be written (ALICEOPT_CACHE ...)
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
