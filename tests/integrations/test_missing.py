"""A framework that is not there is asked for by name; none is imported by the core."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "framework", "extra"),
    [
        ("lightning", "lightning.pytorch", "lightning"),
        ("transformers", "transformers", "transformers"),
        ("accelerate", "accelerate", "accelerate"),
    ],
)
def test_a_missing_framework_is_named_with_its_extra(
    module: str, framework: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is an ImportError that says what to install."""
    name = f"aliceopt.integrations.{module}"
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match=rf"{name} needs .*pip install 'aliceopt\[{extra}\]'"):
        importlib.import_module(name)


def test_the_core_imports_no_framework() -> None:
    """In an interpreter of its own."""
    names = ("lightning", "transformers", "accelerate", "skorch")
    code = f"import sys, aliceopt; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
