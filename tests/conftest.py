"""Settings that must be made before torch or Triton looks at them."""

from __future__ import annotations

import os

import torch

# Read when cuBLAS starts; deterministic algorithms need it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
if not torch.cuda.is_available():
    # Triton kernels then run in the interpreter. Read when they are defined.
    os.environ.setdefault("TRITON_INTERPRET", "1")
