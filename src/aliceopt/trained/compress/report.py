"""The report of ``aliceopt compress``: one HTML file, in the look of a study's.

What to use on top, then the tables, figures, and all that is needed to believe the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from aliceopt.lab.records import RecordError
from aliceopt.lab.report.page import Picture, write_page
from aliceopt.lab.report.tables import Cell, Row, Table
from aliceopt.lab.results.numbers import show_count, show_seconds
from aliceopt.lab.training.precision import in_words
from aliceopt.lab.words import counted, settings_in_words
from aliceopt.trained.compress import table as tables
from aliceopt.trained.compress.figures import draw_compression, draw_layers, draw_radii
from aliceopt.trained.compress.records import (
    Line,
    calibrations_of,
    read_folder,
    results_of,
    subject,
)
from aliceopt.trained.compress.rows import Group, Result

_READING = {
    "Criterion": "what decides which weights go: F are squared gradients of batches, h the "
    "curvature over the distance that the probes go, w the weight.",
    "Fitted anew": "what stays of a layer is moved, by least squares, so that the layer's outputs "
    "are nearly those of before.",
    "Gradients and seconds": "what the scores took for one network, measurements of all rounds "
    "and the update of what stays included; recalibration, training with the masks on and "
    "evaluation are the same for all and not counted.",
    "Established": "the mean difference over seeds, paired, is larger than half of its 95% "
    "interval (Student's t). The best of many criteria is also the luckiest, which no interval "
    "counts.",
    "Radius": "how far the probes go, in units of the weights. The default is as far as weights "
    "move, root mean square over all, when four fifths of them, the smaller ones, are removed.",
}

_SECONDS = {"min": 60.0, "h": 3600.0}


def write_compression_report(folder: Path, command: str = "") -> Path:
    """Write ``report.html``, and figures under ``figures``, from the records of a folder."""
    lines = read_folder(folder)
    if not lines:
        raise RecordError(f"no records in {str(folder)!r}: make some with aliceopt compress")
    groups, metric = tables.groups_of(results_of(lines)), lines[0]["metric_name"]
    return write_page(
        folder / "report.html",
        Path(__file__).with_name("report.html"),
        kind=f"compress, scale {lines[0]['scale']}",
        title=f"Which weights can go: {subject(lines[0])}",
        facts=_facts(lines),
        decisions={group.in_words(): tables.decision(of) for group, of in groups.items()},
        tables=_tables(groups, metric),
        layers=_layers(lines),
        shown=_pictures(groups, lines, folder / "figures"),
        reading=_READING,
        setting=_setting(lines, command),
    )


def _facts(lines: Sequence[Line]) -> str:
    days = sorted({line["date"][:10] for line in lines})
    facts = [
        f"{show_count(lines[0]['parameters'])} parameters",
        counted(len({line["seed"] for line in lines}), "network"),
        counted(sum(line["event"] == "pruned" for line in lines), "result"),
        " to ".join(dict.fromkeys((days[0], days[-1]))),
    ]
    return "; ".join(facts)


def _tables(groups: Mapping[Group, Sequence[Result]], metric: str) -> list[Table]:
    shown, found = tables.shown_as(metric), []
    for group, results in groups.items():
        plain = [r for r in results if "@" not in r.criterion]
        title = f"{shown}, means over seeds: {group.in_words()}"
        if len(plain) > sum(r.criterion == "none" for r in plain):
            found.append(_table(title, tables.compression_rows(plain, metric)))
        if curve := tables.radius_rows(results, metric):
            found.append(_table(f"{shown} by radius of the probes: {group.in_words()}", curve))
    return found


def _layers(lines: Sequence[Line]) -> list[tuple[Table, list[Table]]]:
    """What predictions are worth, by share removed, and behind it the layers of every network."""
    found = []
    for (share, budget), told in calibrations_of(lines).items():
        title = f"Rise of the loss, {100 * share:g}% of one layer removed, {budget} gradients"
        title += ": what the predictions are worth"
        layers = [_table(f"Seed {seed}", tables.layer_rows(one)) for seed, one in told.items()]
        found.append((_table(title, tables.calibration_rows(told)), layers))
    return found


def _table(title: str, rows: tables.Rows) -> Table:
    heads, *others = rows
    cells = [[Cell(text, _first(text), number=True) for text in row[1:]] for row in others]
    named = [Row(row[0], mine) for row, mine in zip(others, cells, strict=True)]
    return Table(title, [head or " " for head in heads], named)


def _first(text: str) -> float | None:
    """The number that a cell begins with, to sort by; of a time, in seconds.

    >>> _first("0.52 / 91.3"), _first("1.5e+04"), _first("2.5 min"), _first("nan")
    (0.52, 15000.0, 150.0, None)
    """
    found = re.match(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?: (min|h)\b)?", text)
    return None if found is None else float(found[1]) * _SECONDS.get(found[2], 1.0)


def _pictures(
    groups: Mapping[Group, Sequence[Result]], lines: Sequence[Line], folder: Path
) -> list[Picture]:
    found = []
    for number, (group, results) in enumerate(groups.items(), start=1):
        said = group.in_words()
        path = draw_compression(results, folder / f"compression-{number}.svg")
        question = "What does it cost to remove weights?"
        caption = f"Mean validation loss over seeds; {said}."
        found.append(Picture(path, question, caption, "loss against share removed, by criterion"))
        curve = draw_radii(results, folder / f"radii-{number}.svg")
        if curve is not None:
            caption = f"Stars stand at the default radius; {said}."
            question = "Does the radius of the probes matter?"
            found.append(Picture(curve, question, caption, "loss against radius, by sparsity"))
    for number, ((share, _), told) in enumerate(calibrations_of(lines).items(), start=1):
        path = draw_layers(told, folder / f"layers-{number}.svg")
        question = "Was the cost of a removal predicted?"
        caption = f"{100 * share:g}% of one layer removed, a point a layer and network."
        found.append(Picture(path, question, caption, "predicted against measured rises"))
    return found


def _setting(lines: Sequence[Line], command: str) -> dict[str, str]:
    def unique(name: str) -> str:
        return "; ".join(dict.fromkeys(str(line[name]) for line in lines))

    seconds = sum(line.get("seconds") or 0.0 for line in lines)
    return {
        "Command": command,
        "Data": unique("data"),
        "Precision": "; ".join(in_words(p) for p in unique("precision").split("; ")),
        "Seeds": ", ".join(map(str, sorted({line["seed"] for line in lines}))),
        "Versions": "; ".join(dict.fromkeys(settings_in_words(x["versions"]) for x in lines)),
        "Device": unique("device"),
        "Scores took": show_seconds(seconds),
    }
