"""What numbers were made with: versions, commit and device, for every record."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import torch

import aliceopt
from aliceopt.lab.words import counted


def device_name(device: torch.device, threads: int | None = None) -> str:
    """What numbers are made on, on a CPU with so many threads, by default those of this process."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    used = counted(torch.get_num_threads() if threads is None else threads, "thread")
    return f"{device.type} ({platform.machine()}, {used})"


@cache
def versions() -> dict[str, str | None]:
    """What the numbers were made with."""
    return {
        "aliceopt": aliceopt.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _commit() -> str | None:
    """The commit this package is run from, with a mark if files differ; None if it is installed.

    A copy without its history may be told the commit in $ALICEOPT_COMMIT.
    """
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists():
        return os.environ.get("ALICEOPT_COMMIT") or None
    git = ["git", "--no-optional-locks", "-C", str(here)]  # a reader only, who may be killed
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        edits = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    except OSError:
        return None
    if head.returncode != 0:
        return None
    return head.stdout.strip() + ("+changes" if edits.stdout.strip() else "")
