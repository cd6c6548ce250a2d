"""Results to keep in a repository: one line of JSON a run, in ``results/EXPERIMENT.jsonl``.

A line holds all that a number needs to be believed: what was run, with which versions, on which
device, when, in which precision, how it went epoch by epoch, and what it cost. It holds no
weights and no folder of the machine it was made on. A file is sorted and its keys stand in one
order, so that the same runs make the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from aliceopt.lab.records import ENDED, RecordError, RunRecord, read_found, read_plan
from aliceopt.lab.spec import Plan
from aliceopt.lab.writing import replacing

__all__ = [
    "REQUIRED",
    "Added",
    "add",
    "check_line",
    "gather",
    "kept_line",
    "mean_seconds",
    "merged",
    "read_kept",
    "settings_digest",
]

Line = dict[str, Any]

REQUIRED: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "experiment": (str,),
    "scale": (str,),
    "method": (str,),
    "label": (str,),
    "seed": (int,),
    "precision": (str,),
    "status": (str,),
    "metric": (str,),
    "better": (str,),
    "final": (int, float, type(None)),
    "best": (int, float, type(None)),
    "steps": (int,),
    "gradients": (int,),
    "seconds": (int, float, type(None)),
    "date": (str,),
    "device": (str,),
    "versions": (dict,),
    "parameters": (int,),
    "data": (str,),
    "config": (dict,),
    "curve": (dict,),
}
"""What every line has, in this order, and of which type. Seconds are those of a run that had its
device to itself, otherwise null."""

_CURVE = ("epoch", "gradients", "seconds", "loss", "metric")


@dataclass(frozen=True)
class Added:
    """What `add` did, by counts of runs."""

    path: Path
    new: int
    replaced: int
    same: int


def kept_line(plan: Plan, run: RunRecord) -> Line:
    """The line of one run that has ended."""
    start, end = run.start, run.end or {}
    alone = start.get("sharing", 1) == 1
    evaluations = run.evaluations if alone else [{**e, "seconds": None} for e in run.evaluations]
    config = _without_folders(run.config)
    line = {
        "experiment": plan.name,
        "scale": plan.scale,
        "method": run.method,
        "label": run.label,
        "seed": run.seed,
        "precision": config["training"]["precision"],
        "status": run.status,
        "metric": plan.metric,
        "better": plan.better,
        "final": run.final,
        "best": end.get("best"),
        "steps": end.get("step"),
        "gradients": run.gradients,
        "seconds": round(run.seconds, 3) if alone else None,
        "date": start.get("time"),
        "device": start.get("device"),
        "versions": start.get("versions"),
        "parameters": start.get("parameters"),
        "data": start.get("data"),
        "config": config,
        "curve": _columns(evaluations, _CURVE) | {"training": _training(run)},
    }
    return {"id": identity(line), **line}


def mean_seconds(lines: Iterable[Line]) -> float | None:
    """Of the runs that had their device to themselves; None if there is none."""
    known = [line["seconds"] for line in lines if line["seconds"] is not None]
    return fmean(known) if known else None


def identity(line: Mapping[str, Any]) -> str:
    """What a run is, whenever it was made: the same settings, seed and device give the same."""
    digest = settings_digest(line)
    names = (line["experiment"], line["scale"], line["method"], line["precision"])
    return "/".join([*names, f"seed-{line['seed']}", digest])


def settings_digest(line: Mapping[str, Any]) -> str:
    """A name of the settings and the device: all but the seed, the label and CPU threads."""
    config = {k: v for k, v in line["config"].items() if k not in ("seed", "label")}
    config["training"] = {k: v for k, v in config["training"].items() if k != "threads"}
    text = json.dumps([config, line["device"]], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _without_folders(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without where the data lay, which is nobody else's."""
    problem = dict(config["problem"])
    data = {k: v for k, v in problem.get("data", {}).items() if k != "root"}
    return {**config, "problem": {**problem, "data": data}}


def _columns(events: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    return {name: [_short(event.get(name)) for event in events] for name in names}


def _training(run: RunRecord) -> dict[str, Any]:
    """The mean training loss since the record before, by epoch."""
    return _columns(run.training, ("epoch", "loss", "lr"))


def _short(value: Any) -> Any:
    """Six digits, which no curve needs more of."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def gather(source: Path) -> tuple[list[Line], list[str]]:
    """The lines of a folder of records or of a file of lines, and the runs that have no end.

    Every run in the folder counts, also of methods that its last plan does not name.
    """
    if source.suffix == ".jsonl":
        return read_kept(source), []
    plan = read_plan(source)
    if plan.kind != "experiment":
        raise RecordError(
            f"{str(source)!r} holds a {plan.kind}: results are kept of experiments (aliceopt list)"
        )
    runs = read_found(source)
    if any("(generated)" in str(run.start.get("data", "")) for run in runs):
        raise RecordError(
            f"{str(source)!r} was run on generated data, which says nothing about the real set: "
            "run it with --data"
        )
    ended = [run for run in runs if run.status in ENDED]
    left = [f"{run.label} seed {run.seed} ({run.status})" for run in runs if run not in ended]
    return [kept_line(plan, run) for run in ended], left


def add(lines: Sequence[Line], folder: Path, *, overwrite: bool = False) -> list[Added]:
    """Merge lines into the files of a folder; one result for every experiment.

    A run that is there already stays as it is. If it is there with other numbers, nothing at all
    is written, unless ``overwrite`` lets the new ones take its place.
    """
    for line in lines:
        check_line(line, "the run")
    files = []
    for name in dict.fromkeys(line["experiment"] for line in lines):
        path = folder / f"{name}.jsonl"
        mine = [line for line in lines if line["experiment"] == name]
        files.append((path, *merged(read_kept(path), mine, path, overwrite, _end)))
    for path, content, _ in files:
        _write(path, content)
    return [told for *_, told in files]


def merged(
    there: Sequence[Line],
    mine: Sequence[Line],
    path: Path,
    overwrite: bool,
    end: Callable[[Line], str],
) -> tuple[list[Line], Added]:
    """Lines and new ones, by their ids, and what was done; ``end`` says how one came out."""
    known = {line["id"]: line for line in there}
    new = replaced = same = 0
    for line in mine:
        old = known.get(line["id"])
        if old == line:
            same += 1
            continue
        if old is not None and not overwrite:
            raise RecordError(
                f"{str(path)!r} has {line['id']} of {old['date']} with {end(old)}, and this one "
                f"of {line['date']} ended with {end(line)}: --overwrite puts it in its place"
            )
        new, replaced = new + (old is None), replaced + (old is not None)
        known[line["id"]] = line
    return list(known.values()), Added(path, new, replaced, same)


def _end(line: Line) -> str:
    return line["status"] if line["final"] is None else f"{line['metric']} {line['final']:.6g}"


def _write(path: Path, lines: Iterable[Line]) -> None:
    """Sorted by what was run, keys in the order of `REQUIRED`; whole or not at all."""
    ordered = sorted(lines, key=_place)
    text = "".join(json.dumps(_in_order(line), allow_nan=False) + "\n" for line in ordered)
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _place(line: Line) -> tuple[Any, ...]:
    return (line["scale"], line["method"], line["precision"], line["seed"], line["id"])


def _in_order(line: Line) -> Line:
    return {name: line[name] for name in REQUIRED}


def read_kept(path: Path) -> list[Line]:
    """The lines of a file, each checked; none if there is no file."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        where = f"line {number} of {str(path)!r}"
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise RecordError(f"{where} is not JSON: {error}") from error
        check_line(line, where)
        lines.append(line)
    return lines


def check_line(line: Any, where: str) -> None:
    """Refuse a line that lacks something, or that says of itself what it is not."""
    if not isinstance(line, dict):
        raise RecordError(f"{where} is no JSON object")
    for name, types in REQUIRED.items():
        if name not in line:
            raise RecordError(f"{where} lacks {name!r}")
        if not isinstance(line[name], types) or isinstance(line[name], bool):
            raise RecordError(f"{where}: {name} is {line[name]!r}")
    if line.keys() - REQUIRED.keys():
        raise RecordError(f"{where} has unknown {', '.join(sorted(line.keys() - REQUIRED.keys()))}")
    finished = line["status"] == "finished"
    if line["status"] not in ENDED or finished != (line["final"] is not None):
        raise RecordError(f"{where}: status {line['status']!r} with final {line['final']!r}")
    if identity(line) != line["id"]:
        raise RecordError(f"{where}: its id {line['id']!r} is not that of its settings")
    lengths = {len(line["curve"].get(name, ())) for name in _CURVE}
    if len(lengths) > 1 or lengths == {0}:
        raise RecordError(f"{where}: the columns of its curve are not equally long, or empty")
