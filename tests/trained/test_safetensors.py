"""The numbers behind a landscape, in a file for other programs."""

from pathlib import Path

import pytest
import torch

from aliceopt.trained.landscape.safetensors import write_tensors


def test_tensors_are_written_as_others_read_them(tmp_path: Path) -> None:
    """Types, shapes and values come back; an empty one and a single number as well."""
    safetensors = pytest.importorskip("safetensors.torch")
    given = {
        "a": torch.randn(3, 4, dtype=torch.float64).T,
        "b/c": torch.tensor(2, dtype=torch.int64),
        "d": torch.zeros(0, 2),
        "e": torch.randn(5).to(torch.bfloat16),
    }
    write_tensors(tmp_path / "x.safetensors", given)
    read = safetensors.load_file(tmp_path / "x.safetensors")
    assert read.keys() == given.keys()
    assert all(torch.equal(read[name], given[name]) for name in given)
    assert [read[name].dtype for name in given] == [given[name].dtype for name in given]
