"""What the tests of several kernels share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor


@pytest.fixture
def exact_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square roots as IEEE 754 has them; torch's, where MKL makes them, may miss the last bit."""

    def root(tensor: Tensor) -> Tensor:
        return torch.as_tensor(np.sqrt(tensor.detach().numpy()))

    monkeypatch.setattr(torch, "sqrt", root)
    monkeypatch.setattr(Tensor, "sqrt", root)
    monkeypatch.setattr(Tensor, "sqrt_", lambda tensor: tensor.copy_(root(tensor)))
