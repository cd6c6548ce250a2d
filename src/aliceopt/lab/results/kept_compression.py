"""Results of ``aliceopt compress`` to keep in a repository: ``results/compress-PROBLEM.jsonl``.

The lines of the journals, each with a name of what it is, sorted, so that the same results make
the same bytes; and what pages and a terminal show of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from aliceopt.lab.compression_records import (
    KINDS,
    Line,
    calibrations_of,
    read_folder,
    read_lines,
    results_of,
)
from aliceopt.lab.records import RecordError
from aliceopt.lab.results.compression_table import (
    Group,
    Rows,
    calibration_rows,
    compression_rows,
    decision,
    groups_of,
    lead,
    radius_rows,
)
from aliceopt.lab.results.kept import Added, merged, write_lines
from aliceopt.lab.words import counted

__all__ = ["PREFIX", "add", "gather", "kept_tables", "page_kinds", "read_kept_compression"]

PREFIX = "compress-"
"""What the names of these files begin with."""

_ASKED = ("criterion", "layer", "sparsity", "structure", "rounds", "finetune", "budget")


def gather(source: Path) -> tuple[list[Line], list[str]]:
    """The lines of a folder of ``aliceopt compress``, or of a kept file; none is without an end."""
    if source.suffix == ".jsonl":
        return read_kept_compression(source), []
    lines = read_folder(source)
    if any("(generated)" in line["data"] for line in lines):
        raise RecordError(
            f"{str(source)!r} was made on generated data, which says nothing about the real set: "
            "run it with --data"
        )
    return [{"id": identity(line), **line} for line in lines], []


def identity(line: Line) -> str:
    """What a result is, whenever it was made: the same network, device and question."""
    text = json.dumps([line["network"], line["device"]])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    asked = [
        f"{line[name]:g}" if isinstance(line[name], float) else str(line[name])
        for name in _ASKED
        if name in line
    ]
    names = (line["problem"], line["scale"], line["precision"], f"seed-{line['seed']}")
    return "/".join([*names, digest, *asked])


def read_kept_compression(path: Path) -> list[Line]:
    """The lines of a kept file, each checked; none if there is no file."""
    lines = read_lines(path)
    for number, line in enumerate(lines, start=1):
        if line.get("id") != identity(line):
            raise RecordError(
                f"line {number} of {str(path)!r}: its id {line.get('id')!r} is not that of what "
                "it tells"
            )
    return lines


def add(lines: Sequence[Line], folder: Path, *, overwrite: bool = False) -> list[Added]:
    """Merge lines into the files of a folder, as `kept.add` does it with runs."""
    done = []
    for name in dict.fromkeys(line["problem"] for line in lines):
        path = folder / f"{PREFIX}{name}.jsonl"
        mine = [line for line in lines if line["problem"] == name]
        content, told = merged(read_kept_compression(path), mine, path, overwrite, _end)
        done.append((path, content, told))
    for path, content, _ in done:
        write_lines(path, map(_in_order, sorted(content, key=_place)))
    return [told for *_, told in done]


def _end(line: Line) -> str:
    name = "loss" if line["event"] == "pruned" else "measured"
    return f"{name} {line[name]}"


def _place(line: Line) -> tuple[Any, ...]:
    return (line["scale"], line["event"], line["seed"], line["id"])


def _in_order(line: Line) -> Line:
    return {name: line[name] for name in ("id", "event", *KINDS[line["event"]])}


# ---- showing -----------------------------------------------------------------------------------


def kept_tables(path: Path) -> list[tuple[str, Rows, Sequence[str]]]:
    """Every table of a kept file: a title, rows, and what to say below."""
    told: list[tuple[str, Rows, Sequence[str]]] = []
    for place, lines in _alike(read_kept_compression(path)).items():
        metric = lines[0]["metric_name"]
        for group, results in groups_of(results_of(lines)).items():
            seeds = counted(len({r.seed for r in results}), "seed")
            title = f"{', '.join(place)}: {group.in_words()}, {seeds}"
            told.append((title, compression_rows(results, metric), decision(results)))
            if curve := radius_rows(results, metric):
                told.append((f"{title}, by radius of the probes", curve, []))
        found = calibrations_of(lines)
        for share, budget in dict.fromkeys(key[:2] for key in found):
            mine = {k[2]: one for k, one in found.items() if k[:2] == (share, budget)}
            title = f"{', '.join(place)}: {100 * share:g}% of one layer removed"
            told.append((title, calibration_rows(mine), []))
    return told


def _alike(lines: Iterable[Line]) -> dict[tuple[str, str, str, str], list[Line]]:
    """By what may not be mixed: problem, scale, precision and device."""
    found: dict[tuple[str, str, str, str], list[Line]] = {}
    for line in lines:
        place = (line["problem"], line["scale"], line["precision"], line["device"])
        found.setdefault(place, []).append(line)
    return found


# ---- pages -------------------------------------------------------------------------------------


def _lines_of(folder: Path, name: str) -> list[Line]:
    problem, _, scale = name.partition("/")
    lines = read_kept_compression(folder / f"{PREFIX}{problem}.jsonl")
    places = _alike(line for line in lines if line["scale"] == (scale or "lab"))
    if len(places) != 1:
        raise RecordError(
            f"{len(places)} kinds of device and precision in the kept compressions of {name!r} "
            f"in {str(folder)!r}, where one is needed"
        )
    return next(iter(places.values()))


def _asked(lines: Sequence[Line], options: Sequence[str]) -> tuple[Group, list[Any]]:
    """The one table that ``rounds=3 finetune=2 structure=2:4 gradients=300`` names."""
    wanted = {"structure": "unstructured", "rounds": "1", "finetune": "0"}
    wanted |= dict(option.partition("=")[::2] for option in options)
    groups = groups_of(results_of(lines))
    found = {g: results for g, results in groups.items() if wanted.items() <= _named(g).items()}
    if len(found) != 1:
        there = "; ".join(group.in_words() for group in groups)
        raise RecordError(f"{len(found)} tables fit {' '.join(options)!r}; there are: {there}")
    return next(iter(found.items()))


def _named(group: Group) -> dict[str, str]:
    return {
        "structure": group.structure,
        "rounds": str(group.rounds),
        "finetune": f"{group.finetune:g}",
        "gradients": str(group.budget),
    }


def _markdown(rows: Rows) -> str:
    safe = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [safe[0], ["---"] * len(safe[0]), *safe[1:]]
    return "\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def _table(folder: Path, name: str, *options: str) -> str:
    lines = _lines_of(folder, name)
    results = [r for r in _asked(lines, options)[1] if "@" not in r.criterion]
    return _markdown(compression_rows(results, lines[0]["metric_name"], "**{}**".format))


def _radii(folder: Path, name: str, *options: str) -> str:
    lines = _lines_of(folder, name)
    return _markdown(radius_rows(_asked(lines, options)[1], lines[0]["metric_name"]))


def _layers(folder: Path, name: str, share: str) -> str:
    found = calibrations_of(_lines_of(folder, name))
    mine = {key[2]: one for key, one in found.items() if f"{key[0]:g}" == share}
    if not mine:
        raise RecordError(f"no layers of {name!r} with {share} removed in {str(folder)!r}")
    return _markdown(calibration_rows(mine))


def _lead(folder: Path, name: str, first: str, second: str, share: str, *options: str) -> str:
    results = _asked(_lines_of(folder, name), options)[1]
    return lead(results, first, second, float(share))


page_kinds: dict[str, Callable[..., str]] = {
    "compress": _table,
    "compress-radii": _radii,
    "compress-layers": _layers,
    "compress-lead": _lead,
}
"""What a page can ask for, see `pages`."""
