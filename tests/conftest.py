"""Where there is no GPU, Triton kernels run in Triton's interpreter."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    # Read when the kernels are defined, so before anything imports them.
    os.environ.setdefault("TRITON_INTERPRET", "1")
