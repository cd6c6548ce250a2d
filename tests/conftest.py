"""Settings that must be made before torch or Triton looks at them, and fixtures of many tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Read when cuBLAS starts; deterministic algorithms need it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
if not torch.cuda.is_available():
    # Triton kernels then run in the interpreter. Read when they are defined.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small problem, written down."""
    from lab_cases import write_problem

    return write_problem(tmp_path)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were to be saved, to look into instead of files."""
    from aliceopt.lab.figures import style

    figures: list[Figure] = []

    def keep(figure: Figure, path: Path) -> Path:
        figures.append(figure)
        return path

    monkeypatch.setattr(style, "save", keep)
    return figures


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Here and in workers: sums depend on the number of threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to run commands in, without data, with one thread and a wide terminal."""
    monkeypatch.setenv("ALICEOPT_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
