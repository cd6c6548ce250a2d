"""What the tests of several kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import aliceopt.kernels.compiled as compiled
from cpu_cases import forget_passes


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The passes as they are: what they compute does not depend on who runs them."""
    monkeypatch.setattr(compiled, "_compile", lambda function, name: function)
    forget_passes()
    yield
    forget_passes()
