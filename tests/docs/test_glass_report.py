"""The page on the glass report says what the presets take, and shows figures that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("rich")

from aliceopt.trained.landscape.presets import PRESETS, Asked, cost_of

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "glass_report.md").read_text("utf-8")


def test_the_table_of_presets_is_theirs():
    """Radii, directions, batches, and gradients and losses of one network."""
    rows = re.findall(r"\| `(\w+)`" + 3 * r" \| (\d+)" + 2 * r" \| ([\d,]+)" + r" \|", TEXT)
    assert [row[0] for row in rows] == list(PRESETS)
    for name, *numbers in rows:
        preset = PRESETS[name]
        told = [int(number.replace(",", "")) for number in numbers]
        assert told == [*preset[:3], *cost_of(Asked(preset), 1)]


def test_the_announcement_is_that_of_two_networks():
    """As the command prints it."""
    cost = cost_of(Asked(PRESETS["thorough"]), 2).in_words()
    assert f"thorough: {cost} at most, for 2 networks" in TEXT


def test_every_figure_is_there():
    """Three by the command that the page begins with, a ResNet18's and a GPT's."""
    shown = re.findall(r"\]\((figures/[\w-]+\.png)\)", TEXT)
    assert len(shown) == 5
    assert all((DOCS / path).stat().st_size > 20_000 for path in shown)
