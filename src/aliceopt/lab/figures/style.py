"""The shared look of every figure and the one way to write it to a file.

Figures are sized for print: placed at their own width of 5.5 inches, no text is smaller than
9 points. Colours are those of Okabe and Ito, safe for colour-blind readers, and every curve also
differs in line style, width or marker, so that a figure survives a grayscale printer.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from aliceopt.lab.writing import writing

TEXT_WIDTH = 5.5
"""Width of a figure in inches."""

SMALLEST_TEXT = 9.0
"""Smallest text of a figure in points, at print size."""

FORMATS = (".png", ".svg", ".pdf")
"""The file types `save` writes, chosen by suffix."""

BLACK = "#000000"
GRAY = "#8C8C8C"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
VERMILLION = "#D55E00"

_LOOK = {
    "font.family": "DejaVu Sans",
    "font.size": SMALLEST_TEXT,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.labelsize": SMALLEST_TEXT,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": SMALLEST_TEXT,
    "ytick.labelsize": SMALLEST_TEXT,
    "legend.fontsize": SMALLEST_TEXT,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.solid_capstyle": "round",
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # outlines stay text: journals refuse Type 3 fonts
    "svg.hashsalt": "aliceopt",  # element ids are random without a salt
}

_UNDATED: dict[str, dict[str, str | None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


def look() -> AbstractContextManager[None]:
    """Everything drawn and saved in this context ignores the reader's own matplotlib settings."""
    return matplotlib.style.context(["default", _LOOK])


def new_figure(height: float) -> Figure:
    """An empty figure, text width by `height` inches, tied to no window and no pyplot state."""
    figure = Figure(figsize=(TEXT_WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def checked_path(path: str | os.PathLike[str]) -> Path:
    """`path` as a Path whose suffix is one `save` can write; ValueError otherwise."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ValueError(
            f"path {str(target)!r} ends in {target.suffix!r}: "
            f"a figure is written as one of {', '.join(FORMATS)}"
        )
    return target


def safe(text: str, most: int = 28) -> str:
    """A label that leaves room for the figure and that matplotlib takes literally.

    A dollar sign would begin mathematics.
    """
    short = text if len(text) <= most else f"{text[: most - 1].rstrip()}\u2026"
    return short.replace("$", r"\$")


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write `figure` as .png, .svg or .pdf by suffix and return the path.

    The parent folder is created. The same figure gives the same bytes at any time of day.
    """
    target = checked_path(path)
    suffix = target.suffix.lower()
    with writing(target), look():
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, format=suffix[1:], metadata=_UNDATED[suffix])
    return target
