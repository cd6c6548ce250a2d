"""Where there is no GPU or no Triton, capturing is refused and everything else works."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import aliceopt


def test_capture_on_the_cpu_is_refused() -> None:
    """The error names the devices found."""
    optimizer = aliceopt.Alice([nn.Parameter(torch.zeros(3))])
    with pytest.raises(ValueError, match=r"one CUDA device, got .*cpu"):
        aliceopt.capture(optimizer, lambda: None)


WITHOUT_TRITON = """
import importlib.machinery, sys

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == "triton" else super().find_spec(name, path, target)

sys.meta_path = [Finder if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
import torch, aliceopt
param = torch.nn.Parameter(torch.ones(3))
optimizer = aliceopt.Alice([param], lr=0.1)
optimizer.step(lambda: (param**2).sum().backward())
assert (param < 1).all()
assert "triton" not in sys.modules
"""


def test_training_needs_no_triton() -> None:
    """In a process where it is not installed, the package is imported and a step is taken."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
