"""The report of a landscape: one HTML file with verdicts, a tree of blocks, bounds and slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from aliceopt.lab.report.page import Picture, write_page
from aliceopt.lab.report.tables import Cell, Row, Table
from aliceopt.lab.results.numbers import NONE
from aliceopt.landscape import Estimate, Ladder
from aliceopt.landscape.bounds import FORMS
from aliceopt.trained.landscape import figures as figures
from aliceopt.trained.landscape.reading import reading, reading_along
from aliceopt.trained.landscape.survey import View
from aliceopt.trained.landscape.table import Lines, at_small_end, exponents_along, short, within

_READING = {
    "Exponent p": "how the square of the gradient's change grows with the radius of a "
    "displacement, at the smallest radius that can be read. 2: the gradient changes smoothly, a "
    "Hessian. 1: it changes by jumps at kinks, glass.",
    "Verdict": "glass, if p stays below 1.9 with 95% confidence and does not rise as the radius "
    "shrinks; smooth, if it is 2 within 0.1; undecided, if these radii cannot tell.",
    "Glass share": "how much of the gradient's change is left when what is opposite on the two "
    "sides, as a Hessian's is, is taken away: 1 for glass alone, 0 for a Hessian alone.",
    "Crossover": "the radius at which glass and Hessian change the gradient alike.",
    "Held-out batches": "examples that were not trained on. Training leaves kinks that bend up on "
    "its own examples, so the two may differ.",
    "Twin": "the same weights with another activation, on the same batches along the same "
    "directions. What differs comes from the activation.",
    "Predicted rise": "half of the Hessian's diagonal and Theorem 4's glass term, along a move; "
    "the measured rise is the change of the loss beyond its slope. Separable: every coordinate by "
    "itself. Joint: independent coordinates. Coherent: as coordinates really add up.",
}


def write_landscape_report(
    folder: Path, views: Sequence[View], facts: Mapping[str, str], lines: Lines = ()
) -> tuple[Path, list[Picture]]:
    """Write ``report.html``, and its figures under ``figures`` as PNG and PDF.

    ``lines`` are ladders along the training, if there are any.
    """
    pictures = draw_all(views, folder / "figures")
    if lines:
        question = "How do exponents change while the network trains?"
        drawn = figures.draw_along(lines, folder / "figures" / "along.png")
        pictures.insert(0, Picture(drawn, question, _ALONG, question))
    path = write_page(
        folder / "report.html",
        Path(__file__).with_name("report.html"),
        kind="landscape",
        title=facts["Problem"],
        facts="; ".join(filter(None, (facts.get("Batches", ""), facts.get("Date", "")[:10]))),
        finding=[*reading(views), *reading_along(lines)],
        blocks=_blocks(views),
        along=_along(lines),
        shown=pictures,
        trees=_trees(views),
        bounds=_bounds(views),
        diagonals=_diagonals(views),
        radius=f"{views[0].diagonals.radius:.1e}",
        reading=_READING,
        setting=facts,
    )
    return path, pictures


# ---- figures -----------------------------------------------------------------------------------

_ALONG = "At the smallest radius that can be read; bands are 95% intervals."
_EXPONENTS = "Exponents between neighbouring radii; bands are 95% intervals."
_SHARES = (
    "At the smallest radius that can be read; lines are 95% intervals. Paler bars are of the "
    "second kind of batches."
)
_BOUNDS = (
    "Rises of the loss beyond its slope against half of the Hessian's diagonal and the joint glass "
    "term; on the dotted line they are equal. Only what is above zero and above rounding."
)
_SLICES = (
    "Along a direction, in root mean squares of the displacement; predictions are from the middle."
)
_PLANES = "Left the loss on one batch, right the prediction from the middle."


def draw_all(views: Sequence[View], folder: Path) -> list[Picture]:
    """Every figure that the views allow, each as PNG and PDF."""
    found: list[Picture] = []

    def add(name: str, draw: Callable[..., Path | None], question: str, caption: str) -> None:
        drawn = draw(views, folder / f"{name}.png")
        if drawn is not None:
            found.append(Picture(drawn, question, caption, question))

    parts = list(dict.fromkeys(view.part for view in views))
    for part in parts:
        question = f"Glass or a Hessian, on {part} batches?"
        add(f"exponents-{part}", partial(figures.draw_exponents, part=part), question, _EXPONENTS)
    add("shares", figures.draw_shares, "How much of the gradient's change is glass?", _SHARES)
    add("bounds", figures.draw_bounds, "Does the bound hold?", _BOUNDS)
    for part in parts:
        question = f"What does the loss look like, on a {part} batch?"
        add(f"slices-{part}", partial(figures.draw_slices, part=part), question, _SLICES)
    add("planes", figures.draw_planes, "And along two directions?", _PLANES)
    return found


# ---- tables ------------------------------------------------------------------------------------


def _number(value: float, digits: str = ".3g") -> Cell:
    if not math.isfinite(value):
        return Cell(NONE, None, True)
    return Cell(f"{value:{digits}}", value, True)


def _percent(share: float) -> Cell:
    return Cell(f"{100 * share:.0f}%", share, True) if math.isfinite(share) else _number(share)


def _short(value: float) -> Cell:
    return Cell(short(value), value, True) if math.isfinite(value) else _number(value)


def _estimate(found: Estimate, digits: str = ".2f", after: str = "") -> Cell:
    value = found.value if math.isfinite(found.value) else None
    return Cell(within(found, digits) + after, value, True)


def _blocks(views: Sequence[View]) -> list[Table]:
    tables = []
    for view in views:
        rows = []
        for name, rungs in view.ladder.blocks.items():
            cells = [
                Cell(rungs.verdict),
                _estimate(at_small_end(rungs)),
                _number(view.ladder.radii[rungs.start], ".1e"),
                _estimate(rungs.glass_share[rungs.start]),
                _estimate(rungs.crossover, ".1e"),
            ]
            rows.append(Row(name, cells))
        heads = ["Block", " Verdict", "Exponent p", "From radius", "Glass share", "Crossover"]
        title = f"{view.network}, {view.part} batches of {view.batch_size:,}"
        tables.append(Table(title, heads, rows))
    return tables


def _along(lines: Lines) -> list[Table]:
    """A table for each kind of batches: a row a moment, a column a block."""
    tables = []
    for part in dict.fromkeys(line["part"] for line in lines):
        mine = [line for line in lines if line["part"] == part]
        rows = []
        for line in mine:
            cells = [_number(line["epoch"]), *map(_estimate, exponents_along(line).values())]
            rows.append(Row(f"{line['step']:,}", cells))
        tables.append(Table(f"{part} batches", ["Step", "Epoch", *mine[0]["blocks"]], rows))
    return tables


def tree_of(ladder: Ladder) -> dict[str, list[str]]:
    """Every module and parameter with the parameters below; what adds nothing is left out.

    In the order of the model, each node before what is below it.
    """
    found: dict[str, list[str]] = {}
    for name in ladder.sums:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:depth]), []).append(name)
    return {
        node: names
        for node, names in found.items()
        if found.get(node.rpartition(".")[0]) != names  # the same as its parent
    }


def _trees(views: Sequence[View]) -> Table:
    rows: dict[str, list[Cell]] = {}
    for view in views:
        for node, names in tree_of(view.ladder).items():
            rungs = view.ladder.of(names)
            cell = _estimate(at_small_end(rungs), after=f" {rungs.verdict}")
            rows.setdefault(node, []).append(cell)
    heads = ["Part", *(f"{view.network}, {view.part}" for view in views)]
    found = [Row(node, cells, family=str(node.count(".") + 1)) for node, cells in rows.items()]
    return Table("Every part", heads, found)


def _bounds(views: Sequence[View]) -> Table:
    rows = []
    for view in views:
        for check in view.bounds:
            for kind, forms in check.kinds.items():
                cells = [Cell(kind), _number(check.radius, ".1e")]
                for form in FORMS:
                    found = forms[form]
                    cells += [_percent(found.violations), _short(found.ratio.value)]
                rows.append(Row(f"{view.network}, {view.part}", cells))
    heads = ["Network", " Move", "Radius"]
    for form in FORMS:
        heads += [f"{form}: too low", "rise / bound"]
    return Table("Bounds", heads, rows)


def _diagonals(views: Sequence[View]) -> Table:
    rows = []
    exact = any(view.exact for view in views)
    for view in views:
        for block, sums in view.diagonals.blocks.items():
            cells = [Cell(f"{view.network}, {view.part}")]
            for term in ("glass", "signed", "free"):
                error = _number(100 * sums[term].relative_error, ".0f")
                cells += [_number(sums[term].value), error]
                if exact and term != "glass":
                    cells.append(_number((view.exact or {}).get(block, {}).get(term, math.nan)))
            rows.append(Row(block, cells))
    heads = ["Block", " Network", "Glass density", "error, %", "Hessian diagonal", "error, %"]
    heads += [*(["exact"] if exact else []), "Squares of its rows", "error, %"]
    heads += ["exact"] if exact else []
    return Table("Curvature", heads, rows)
