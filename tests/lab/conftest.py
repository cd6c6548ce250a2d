"""Fixtures of the lab's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lab_cases import write_problem


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small problem, written down."""
    return write_problem(tmp_path)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Here and in workers: sums depend on the number of threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """An empty folder to run commands in, without data, with one thread and a wide terminal."""
    monkeypatch.setenv("ALICEOPT_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
