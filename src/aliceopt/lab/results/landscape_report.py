"""The report of a landscape: one HTML file with verdicts, a tree of blocks, bounds and slices."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from aliceopt.lab.figures import landscape as figures
from aliceopt.lab.figures.study_look import Picture
from aliceopt.lab.landscapes import View
from aliceopt.lab.results.landscape_table import at_small_end, reading, within
from aliceopt.lab.results.report_page import data_uri, escape, page
from aliceopt.lab.results.report_tables import Cell, Row, table
from aliceopt.lab.writing import replacing
from aliceopt.landscape import Estimate, Ladder, Rungs
from aliceopt.landscape.bounds import FORMS

__all__ = ["draw_all", "tree_of", "write_landscape_report"]

_READING = {
    "Exponent p": "how the square of the gradient's change grows with the radius of a "
    "displacement, at the smallest radius that can be read. 2: the gradient changes smoothly, a "
    "Hessian. 1: it changes by jumps at kinks, glass.",
    "Verdict": "glass, if p stays below 1.9 with 95% confidence and does not rise as the radius "
    "shrinks; smooth, if it is 2 within 0.1; undecided, if these radii cannot tell.",
    "Glass share": "how much of the gradient's change is left when its even part is taken away: 1 "
    "for glass alone, 0 for a Hessian alone.",
    "Crossover": "the radius at which glass and Hessian change the gradient alike.",
    "Held-out batches": "examples that were not trained on. Training leaves kinks that bend up on "
    "its own examples, so the two may differ.",
    "Twin": "the same weights with another activation, on the same batches along the same "
    "directions. What differs comes from the activation.",
    "Predicted rise": "half of the Hessian's diagonal and Theorem 4's glass term, along a move; "
    "the measured rise is the change of the loss beyond its slope. Separable: every coordinate by "
    "itself. Joint: independent coordinates. Coherent: as coordinates really add up.",
}

_SCRIPT = """
for (const box of document.querySelectorAll("[data-tree]")) {
  const rows = Array.from(box.querySelectorAll("tbody tr"));
  const paths = rows.map((row) => row.cells[0].textContent.trim());
  const bar = document.createElement("div");
  bar.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Filter blocks";
  input.setAttribute("aria-label", "Filter blocks");
  const deepest = Math.max(...rows.map((row) => Number(row.dataset.family)));
  let most = Math.min(2, deepest);
  const show = () => rows.forEach((row, i) => {
    const found = paths[i].toLowerCase().includes(input.value.toLowerCase());
    row.hidden = !found || (input.value === "" && Number(row.dataset.family) > most);
  });
  input.addEventListener("input", show);
  bar.append(input);
  for (let depth = 1; depth <= deepest; depth++) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = depth === deepest ? "all" : "depth " + depth;
    button.setAttribute("aria-pressed", String(depth === most));
    button.addEventListener("click", () => {
      most = depth;
      for (const b of bar.querySelectorAll("button"))
        b.setAttribute("aria-pressed", String(b === button));
      show();
    });
    bar.append(button);
  }
  box.prepend(bar);
  show();
}
"""


def write_landscape_report(
    folder: Path, views: Sequence[View], facts: Mapping[str, str]
) -> tuple[Path, list[Picture]]:
    """Write ``report.html``, and its figures under ``figures`` as PNG and PDF."""
    pictures = draw_all(views, folder / "figures")
    said = "".join(f"<li>{escape(line)}</li>" for line in reading(views))
    sections = [
        f'<header><p class="kind">aliceopt landscape</p><h1>{escape(facts["Problem"])}</h1>'
        f"<p>{escape('; '.join(filter(None, (facts.get('Batches', ''), facts.get('Date', '')))))}"
        "</p></header>",
        _section("Finding", f'<div class="finding" id="finding"><ul>{said}</ul></div>'),
        _section("Blocks", _blocks(views)),
        _section("Figures", "\n".join(map(_figure, pictures))),
        _section("Every part of the model", _trees(views)),
        _section("Predicted against measured", _bounds(views)),
        _section("Curvature by coordinate, summed", _diagonals(views)),
        _section("How to read this", _pairs(_READING)),
        _section("How it was measured", _pairs(facts)),
        f"<script>{_SCRIPT}</script>",
    ]
    path = folder / "report.html"
    with replacing(path) as beside:
        beside.write_text(page(facts["Problem"], "\n".join(sections)), encoding="utf-8")
    return path, pictures


def command() -> str:
    """The command that is running, for the record."""
    return shlex.join(["aliceopt", *sys.argv[1:]])


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>"


def _pairs(pairs: Mapping[str, str]) -> str:
    told = (f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs.items() if v)
    return f"<dl>{''.join(told)}</dl>"


def _figure(picture: Picture) -> str:
    return (
        f"<figure><h3>{escape(picture.question)}</h3>"
        f'<img src="{data_uri(picture.path)}" alt="{escape(picture.alt)}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


# ---- figures -----------------------------------------------------------------------------------

_SHARES = (
    "How much of the gradient's change is glass?",
    "At the smallest radius that can be read; lines are 95% intervals. Paler bars are of the "
    "second kind of batches.",
)
_BOUNDS = (
    "Does the bound hold?",
    "Rises of the loss beyond its slope against half of the Hessian's diagonal and the joint glass "
    "term; on the dotted line they are equal. Only what is above zero and above rounding.",
)
_EXPONENTS = "Exponents between neighbouring radii; bands are 95% intervals."
_SLICES = (
    "Along a direction, in root mean squares of the displacement; predictions are from the middle."
)
_PLANES = (
    "And along two directions?",
    "Left the loss on one batch, right the prediction from the middle.",
)


def draw_all(views: Sequence[View], folder: Path) -> list[Picture]:
    """Every figure that the views allow, each as PNG and PDF."""
    found: list[Picture] = []

    def add(name: str, draw: Callable[[Path], Path | None], question: str, caption: str) -> None:
        drawn = draw(folder / f"{name}.png")
        if drawn is not None:
            found.append(Picture(drawn, question, caption, question))

    parts = list(dict.fromkeys(view.part for view in views))
    for part in parts:
        add(
            f"exponents-{part}",
            partial(figures.draw_exponents, views, part=part),
            f"Glass or a Hessian, on {part} batches?",
            _EXPONENTS,
        )
    add("shares", partial(figures.draw_shares, views), *_SHARES)
    add("bounds", partial(figures.draw_bounds, views), *_BOUNDS)
    for part in parts:
        question = f"What does the loss look like, on a {part} batch?"
        add(f"slices-{part}", partial(figures.draw_slices, views, part=part), question, _SLICES)
    add("planes", partial(figures.draw_planes, views), *_PLANES)
    return found


# ---- tables ------------------------------------------------------------------------------------


def _heads(views: Sequence[View]) -> list[str]:
    return [f"{view.network}, {view.part}" for view in views]


def _number(value: float, digits: str = ".3g") -> Cell:
    if not math.isfinite(value):
        return Cell("\u2013", None, True)
    return Cell(f"{value:{digits}}", value, True)


def _blocks(views: Sequence[View]) -> str:
    tables = []
    for view in views:
        rows = []
        for name, rungs in view.ladder.blocks.items():
            p, share = at_small_end(rungs), rungs.glass_share[rungs.start]
            value = p.value if math.isfinite(p.value) else None
            cells = [
                Cell(rungs.verdict),
                Cell(within(p), value, True),
                _number(view.ladder.radii[rungs.start], ".1e"),
                Cell(within(share), share.value if math.isfinite(share.value) else None, True),
                Cell(within(rungs.crossover, ".1e"), _finite(rungs.crossover), True),
            ]
            rows.append(Row(name, cells))
        heads = ["Block", "Verdict", "Exponent p", "From radius", "Glass share", "Crossover"]
        title = f"{view.network}, {view.part} batches of {view.batch_size:,}"
        spaced = '<h3 style="margin-top: 1.5rem">'
        tables.append(f"{spaced}{escape(title)}</h3>{table(title, heads, rows)}")
    return "\n".join(tables)


def _finite(estimate: Estimate) -> float | None:
    return estimate.value if math.isfinite(estimate.value) else None


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


def _trees(views: Sequence[View]) -> str:
    rungs = [
        {node: view.ladder.of(names) for node, names in tree_of(view.ladder).items()}
        for view in views
    ]
    rows = []
    for node in rungs[0]:
        cells = [_node(found[node]) for found in rungs]
        rows.append(Row(node, cells, family=str(node.count(".") + 1)))
    shown = table("Every part", ["Part", *_heads(views)], rows)
    note = "Exponent at the smallest radius that can be read, its 95% interval, and the verdict."
    return f'<div data-tree>{shown}</div><p class="note">{escape(note)}</p>'


def _node(rungs: Rungs) -> Cell:
    p = at_small_end(rungs)
    return Cell(f"{within(p)} {rungs.verdict}", p.value if math.isfinite(p.value) else None, True)


def _bounds(views: Sequence[View]) -> str:
    rows = []
    for view in views:
        for check in view.bounds:
            for kind, forms in check.kinds.items():
                cells = [Cell(kind), _number(check.radius, ".1e")]
                for form in FORMS:
                    cells += [_percent(forms[form].violations), _number(forms[form].ratio.value)]
                rows.append(Row(f"{view.network}, {view.part}", cells))
    heads = ["Network", "Move", "Radius"]
    for form in FORMS:
        heads += [f"{form}: too low", "rise / bound"]
    note = (
        "How often the loss rose by more than predicted, and mean rise over mean prediction: 1 if "
        "it is right on average. Random moves are what the theory is about; along a gradient or an "
        "optimizer's step coordinates act together, which no diagonal knows."
    )
    return table("Bounds", heads, rows) + f'<p class="note">{escape(note)}</p>'


def _percent(share: float) -> Cell:
    return _number(100 * share, ".0f")


def _diagonals(views: Sequence[View]) -> str:
    rows = []
    exact = any(view.exact for view in views)
    for view in views:
        for block, sums in view.diagonals.blocks.items():
            cells = [Cell(f"{view.network}, {view.part}")]
            for term in ("glass", "signed", "free"):
                cells += [_number(sums[term].value), _percent(sums[term].relative_error)]
                if exact and term != "glass":
                    cells.append(_number((view.exact or {}).get(block, {}).get(term, math.nan)))
            rows.append(Row(block, cells))
    heads = ["Block", "Network", "Glass density", "error, %", "Hessian diagonal", "error, %"]
    heads += [*(["exact"] if exact else []), "Squares of its rows", "error, %"]
    heads += ["exact"] if exact else []
    radius = views[0].diagonals.radius
    note = (
        f"At radius {radius:.1e}, summed over the block, with relative standard errors. Single "
        "kinks add nothing to the squares of rows."
    )
    return table("Curvature", heads, rows) + f'<p class="note">{escape(note)}</p>'
