"""Results of ``aliceopt compress`` to keep in a repository: ``results/compress-PROBLEM.jsonl``.

The lines of the journals, each with a name of what it is, sorted, so that the same results make
the same bytes; and what pages and a terminal show of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from aliceopt.lab.records import RecordError
from aliceopt.lab.results.kept import Added, merged, write_lines
from aliceopt.lab.words import counted
from aliceopt.trained.compress import table as tables
from aliceopt.trained.compress.records import (
    KINDS,
    Line,
    calibrations_of,
    read_folder,
    read_lines,
    results_of,
    subject,
)
from aliceopt.trained.compress.rows import Result, spelled

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


def untimed(line: Line) -> Line:
    """Without its seconds: other work shared the device."""
    return {**line, "seconds": None} if "seconds" in line else line


def identity(line: Line) -> str:
    """What a result is, whenever it was made: the same network, device and question."""
    text = json.dumps([line["network"], line["device"]])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    asked = [
        f"{line[name]:g}" if isinstance(line[name], float) else str(line[name])
        for name in _ASKED
        if name in line
    ]
    names = (subject(line), line["scale"], line["precision"], f"seed-{line['seed']}")
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
        content.sort(key=lambda line: (line["scale"], line["event"], line["seed"], line["id"]))
        heads = {event: ("id", "event", *names) for event, names in KINDS.items()}
        write_lines(
            path, ({n: line[n] for n in heads[line["event"]] if n in line} for line in content)
        )
    return [told for *_, told in done]


def _end(line: Line) -> str:
    name = "loss" if line["event"] == "pruned" else "measured"
    return f"{name} {line[name]}"


# ---- showing -----------------------------------------------------------------------------------


def kept_tables(path: Path) -> list[tables.Told]:
    """Every table of a kept file."""
    told: list[tables.Told] = []
    for place, lines in _alike(read_kept_compression(path)).items():
        where, metric = ", ".join(place), lines[0]["metric_name"]
        for group, results in tables.groups_of(results_of(lines)).items():
            seeds = counted(len({r.seed for r in results}), "seed")
            title = f"{where}: {group.in_words()}, {seeds}"
            rows = tables.compression_rows(results, metric)
            told.append((title, rows, tables.decision(results)))
            if curve := tables.radius_rows(results, metric):
                told.append((f"{title}, by radius of the probes", curve, []))
        for (share, _), found in calibrations_of(lines).items():
            title = f"{where}: {100 * share:g}% of one layer removed"
            told.append((title, tables.calibration_rows(found), []))
    return told


def _alike(lines: Iterable[Line]) -> dict[tuple[str, str, str, str], list[Line]]:
    """By what may not be mixed: problem and twin, scale, precision and device."""
    found: dict[tuple[str, str, str, str], list[Line]] = {}
    for line in lines:
        place = (subject(line), line["scale"], line["precision"], line["device"])
        found.setdefault(place, []).append(line)
    return found


# ---- pages -------------------------------------------------------------------------------------


def _lines_of(folder: Path, name: str) -> list[Line]:
    """Of ``problem/scale``, or of the twin of its network, ``problem+gelu/scale``."""
    of, _, scale = name.partition("/")
    lines = read_kept_compression(folder / f"{PREFIX}{of.partition('+')[0]}.jsonl")
    wanted = (of, scale or "lab")
    places = _alike(line for line in lines if (subject(line), line["scale"]) == wanted)
    if len(places) != 1:
        raise RecordError(
            f"{len(places)} kinds of device and precision in the kept compressions of {name!r} "
            f"in {str(folder)!r}, where one is needed"
        )
    return next(iter(places.values()))


def _asked(folder: Path, name: str, options: Sequence[str]) -> tuple[list[Result], str]:
    """The results that ``rounds=3 finetune=2 structure=2:4 gradients=300`` names; the metric."""
    lines = _lines_of(folder, name)
    wanted = {"structure": "unstructured", "rounds": "1", "finetune": "0"}
    wanted |= dict(option.partition("=")[::2] for option in options)
    groups = tables.groups_of(results_of(lines))
    found = []
    for group, results in groups.items():
        named = {
            "structure": group.structure,
            "rounds": str(group.rounds),
            "finetune": f"{group.finetune:g}",
            "gradients": str(group.budget),
        }
        found += [results] if wanted.items() <= named.items() else []
    if len(found) != 1:
        there = "; ".join(group.in_words() for group in groups)
        raise RecordError(f"{len(found)} tables fit {' '.join(options)!r}; there are: {there}")
    return found[0], lines[0]["metric_name"]


def _markdown(rows: tables.Rows) -> str:
    safe = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [safe[0], ["---"] * len(safe[0]), *safe[1:]]
    return "\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def _table(folder: Path, name: str, *options: str) -> str:
    results, metric = _asked(folder, name, options)
    plain = [r for r in results if "@" not in r.criterion]
    return _markdown(tables.compression_rows(plain, metric, "**{}**".format))


def _radii(folder: Path, name: str, *options: str) -> str:
    return _markdown(tables.radius_rows(*_asked(folder, name, options)))


def _layers(folder: Path, name: str, share: str) -> str:
    told = calibrations_of(_lines_of(folder, name)).items()
    mine = {k: one for (of, _), found in told if f"{of:g}" == share for k, one in found.items()}
    if not mine:
        raise RecordError(f"no layers of {name!r} with {share} removed in {str(folder)!r}")
    return _markdown(tables.calibration_rows(mine))


def _lead(folder: Path, name: str, first: str, second: str, share: str, *options: str) -> str:
    results, _ = _asked(folder, name, options)
    return tables.lead(results, first, second, float(share))


def _differences(folder: Path, name: str, *asked: str) -> str:
    """Of pairs like ``both:curvature``; the others of ``asked`` name the table."""
    options = [word for word in asked if "=" in word]
    pairs = [[*map(spelled, word.split(":"))] for word in asked if "=" not in word]
    if any(len(pair) != 2 for pair in pairs):
        raise RecordError(f"pairs like both:curvature stand there, got {' '.join(asked)!r}")
    results, _ = _asked(folder, name, options)
    return _markdown(tables.difference_rows(results, pairs, "**{}**".format))


page_kinds: dict[str, Callable[..., str]] = {
    "compress": _table,
    "compress-radii": _radii,
    "compress-layers": _layers,
    "compress-lead": _lead,
    "compress-differences": _differences,
}
"""What a page can ask for, see `pages`."""
