"""How the C++ kernels are built, kept and loaded; what they compute is tested elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aliceopt import compiling
from aliceopt.compiling import BuildError, built
from aliceopt.kernels import native
from aliceopt.kernels.table import Row

TINY = 'extern "C" int answer() { return 42; }'

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and loads ELF files")


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message names what was looked for, and the variable that names another."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match=r"no compiler 'no-such-compiler' .*CXX"):
        built(TINY, tmp_path)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"no compiler 'g\+\+' or .*CXX"):
        built(TINY, tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """So is the variable that names another."""
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=r"folder .*/file/cache cannot .*ALICEOPT_CACHE"):
        built(TINY, tmp_path / "file" / "cache")


def test_what_the_compiler_says_is_passed_on(tmp_path: Path) -> None:
    """Its first error, in one line, and no half-made library is left."""
    with pytest.raises(BuildError, match=r"compiler .* said: .*error.*no_such_name") as raised:
        built("int x = no_such_name;", tmp_path)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_the_environment_chooses_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ALICEOPT_CACHE`` before ``XDG_CACHE_HOME`` before the home folder."""
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("ALICEOPT_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert compiling.cache_folder() == Path("/a")
    monkeypatch.delenv("ALICEOPT_CACHE")
    assert compiling.cache_folder() == Path("/b/aliceopt")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compiling.cache_folder() == Path("/home/alice/.cache/aliceopt")


def test_processes_may_build_at_once(tmp_path: Path) -> None:
    """Two that find the folder empty both load, and leave one library and nothing else."""
    program = (
        "import sys, pathlib; from aliceopt.compiling import built;"
        "print(built(sys.argv[1], pathlib.Path(sys.argv[2])).answer())"
    )
    folder = tmp_path / "cache"
    command = [sys.executable, "-c", program, TINY, str(folder)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0] for process in running] == ["42\n", "42\n"]
    assert [file.suffix for file in folder.iterdir()] == [".so"]


def test_a_library_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Found in the folder, it is loaded; another source is another library."""
    compiled = []
    build = compiling._build

    def counted(text: str, path: Path, *commands: list[str]) -> None:
        compiled.append(path)
        build(text, path, *commands)

    monkeypatch.setattr(compiling, "_build", counted)
    assert built(TINY, tmp_path).answer() == 42
    assert built(TINY, tmp_path).answer() == 42
    assert len(compiled) == 1
    assert built(TINY.replace("42", "43"), tmp_path).answer() == 43
    assert len(set(compiled)) == 2


def test_flags_and_processor_are_part_of_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder may be shared by machines, and outlive a change of flags."""
    built(TINY, tmp_path)
    monkeypatch.setattr(compiling, "_processor", lambda: "another")
    built(TINY, tmp_path)
    monkeypatch.setattr(compiling, "_FLAGS", (*compiling._FLAGS, "-O1"))
    built(TINY, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_what_cannot_be_loaded_is_linked_otherwise(tmp_path: Path) -> None:
    """A library that needs what nobody has is an error, after every way was tried."""
    with pytest.raises(BuildError, match=r"cannot be loaded: .*no_such_function"):
        built('void no_such_function(); extern "C" void f() { no_such_function(); }', tmp_path)
    assert len(list(tmp_path.iterdir())) == len(compiling._THREADS)


def test_the_rows_of_the_table_are_those_of_python() -> None:
    """There is one definition of the table, and the library is compiled with it."""
    assert f"namespace row {{ enum {{ PARAM = {Row.PARAM:d}, " in native.source()


RUNTIMES = """
import os
import torch
from pathlib import Path

def runtimes():
    lines = Path("/proc/self/maps").read_text().splitlines()
    names = {os.path.realpath(line.split()[-1]) for line in lines}
    return {name for name in names if os.path.basename(name).startswith(("libgomp", "libomp"))}

before = runtimes()
from aliceopt.kernels.native import library
library()
assert runtimes() == before, runtimes() - before
"""


def test_there_is_one_pool_of_threads() -> None:
    """The library uses the OpenMP runtime that torch has loaded, and brings none of its own.

    In a process of its own, since other packages may bring theirs.
    """
    done = subprocess.run([sys.executable, "-c", RUNTIMES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
