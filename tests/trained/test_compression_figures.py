"""Pictures of pruned networks: readable, and of one share as rows."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.figure import Figure

from aliceopt.trained.compress.figures import draw_compression
from aliceopt.trained.compress.rows import ROWS, Result, row_of
from figure_checks import assert_legible

LOSSES = {name: 0.5 + 0.1 * i for i, name in enumerate(ROWS)}


def results(*shares: float) -> list[Result]:
    """Every criterion at two seeds, the first the best; the last is not finite at one of them."""
    found = [Result("none", 0.0, seed, 0.4, 90.0) for seed in (0, 1)]
    for name, loss in LOSSES.items():
        for seed in (0, 1):
            broken = name == list(LOSSES)[-1] and seed == 1
            mine = math.nan if broken else loss + 0.02 * seed
            found += [Result(name, share, seed, mine, 80.0) for share in shares]
    return found


def test_of_one_share_every_criterion_has_a_row(kept: list[Figure], tmp_path: Path) -> None:
    """The best on top, each seed where its loss is; what was lost at a seed has no mean."""
    draw_compression(results(0.5), tmp_path / "one.svg")
    (figure,) = kept
    (axes,) = figure.axes
    rows = [text.get_text() for text in axes.get_yticklabels()]
    assert rows == [row_of(name).label for name in [*LOSSES][:-1]][::-1]
    dots = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "."]
    best = LOSSES[next(iter(LOSSES))]
    assert dots[-1] == [[best, len(rows) - 1.0], [best + 0.02, len(rows) - 1.0]]
    assert axes.get_xlabel() == "validation loss, 50% removed"
    assert_legible(figure, at_least=len(rows) + 3)


def test_of_several_shares_a_line_each(kept: list[Figure], tmp_path: Path) -> None:
    """As many as can be told apart."""
    draw_compression(results(0.5, 0.7), tmp_path / "two.svg")
    (axes,) = kept[0].axes
    assert axes.get_xlabel() == "weights removed, %"
    assert {tuple(line.get_xdata()) for line in axes.lines[1:]} == {(50.0, 70.0)}
