"""The ladder's example runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

TEXT = (Path(__file__).parents[2] / "docs" / "landscape.md").read_text("utf-8")
LADDER = TEXT.split("\n## The ladder\n")[1].split("\n## ")[0]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_the_ladders_example_prints_what_the_page_says(capsys):
    """The same verdicts, and numbers within a few units of the last digit."""
    (example,) = re.findall(r"```python\n(.*?)```", LADDER, flags=re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", LADDER, flags=re.DOTALL)
    with torch.random.fork_rng(devices=[]):
        exec(compile(example, "docs/landscape.md", "exec"), {})
    shown = capsys.readouterr().out
    assert re.findall(r"[a-z]+", shown) == re.findall(r"[a-z]+", printed)
    assert numbers(shown) == pytest.approx(numbers(printed), abs=0.03)
