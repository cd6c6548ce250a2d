"""Figures to look into instead of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from aliceopt.lab.figures import style


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were to be saved."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path) -> Path:
        figures.append(figure)
        return path

    monkeypatch.setattr(style, "save", keep)
    return figures
