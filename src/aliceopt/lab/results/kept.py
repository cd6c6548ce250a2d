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
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from aliceopt.lab.plans.plan import filed_label
from aliceopt.lab.records import ENDED, RecordError, RunRecord, read_found, read_plan
from aliceopt.lab.spec import Plan, Run
from aliceopt.lab.typed import FieldError, from_json, to_json
from aliceopt.lab.writing import replacing

Line = dict[str, Any]
_CURVE = ("epoch", "gradients", "seconds", "loss", "metric")


@dataclass(frozen=True)
class Kept:
    """A line: a run that has ended, its fields in the order of the file.

    Seconds are those of a run that had its device to itself, otherwise null. The ``id`` follows
    from the settings, and may be left empty.
    """

    id: str
    experiment: str
    scale: str
    method: str
    label: str
    seed: int
    precision: str
    status: Literal["finished", "diverged"]
    metric: str
    better: Literal["higher", "lower"]
    final: float | None
    best: float | None
    steps: int
    gradients: int
    seconds: float | None
    date: str
    device: str
    versions: dict[str, Any]
    parameters: int
    data: str
    config: Run
    curve: dict[str, Any]

    def __post_init__(self) -> None:
        names = (self.experiment, self.scale, self.method, self.precision, f"seed-{self.seed}")
        identity = "/".join([*names, self.settings_digest()])
        if not self.id:
            object.__setattr__(self, "id", identity)
        if self.id != identity:
            raise ValueError(f"id {self.id!r} is not that of its settings")
        if (self.status == "finished") != (self.final is not None):
            raise ValueError(f"status {self.status!r} with final {self.final!r}")
        lengths = {len(self.curve.get(name, ())) for name in _CURVE}
        if len(lengths) > 1 or lengths == {0}:
            raise ValueError("curve: its columns are not equally long, or empty")

    @property
    def called(self) -> str:
        """What tables and figures call it: as its experiment does today, else as it did then."""
        return filed_label(self.experiment, self.method) or self.label

    def settings_digest(self) -> str:
        """A name of the settings and the device: all but the seed, the label and CPU threads."""
        text = json.dumps([_settings(self.config), self.device], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def _settings(config: Run) -> Line:
    """What makes two runs the same but for their seeds."""
    return {k: v for k, v in config.settings.items() if k not in ("seed", "label")}


def settings_apart_from_names(config: Run) -> Line:
    """Likewise, whether or not a rate stands behind the method's name: options have it."""
    return {**_settings(config), "method": config.method.partition("@")[0]}


@dataclass(frozen=True)
class Added:
    """What `add` did, by counts of runs; ``again`` were made again and came out the same."""

    path: Path
    new: int
    replaced: int
    same: int
    again: int


def _kept(plan: Plan, run: RunRecord) -> Kept:
    """The line of one run that has ended."""
    where = f"{run.label} seed {run.seed}"
    if run.ran is None:
        raise RecordError(f"the records of {where} are of another version")
    start, end, config = run.start, run.end or {}, run.ran.anywhere
    of_run = ("method", "label", "seed", "status", "final", "gradients")
    line = {
        "id": "",
        "experiment": plan.name,
        **{name: getattr(plan, name) for name in ("scale", "metric", "better")},
        **{name: getattr(run, name) for name in of_run},
        "precision": config.training.precision,
        "best": end.get("best"),
        "steps": end.get("step"),
        "seconds": round(run.seconds, 3),
        "date": start.get("time"),
        **{name: start.get(name) for name in ("device", "versions", "parameters", "data")},
        "config": to_json(config),
        "curve": _columns(run.evaluations, _CURVE)
        | {"training": _columns(run.training, ("epoch", "loss", "lr"))}
        | ({"exponents": [_exponents(law) for law in run.power_law]} if run.power_law else {}),
    }
    kept = _read(line, where)
    return kept if start.get("sharing", 1) == 1 else untimed(kept)


def untimed(line: Kept) -> Kept:
    """Without its seconds: other work shared the device."""
    curve = {**line.curve, "seconds": [None] * len(line.curve["seconds"])}
    return replace(line, seconds=None, curve=curve)


def without_kept(plan: Plan, folder: Path, *, device: str | None) -> Plan:
    """The plan's runs whose results the folder does not keep, and the methods that are left.

    Only those of the device count; by None those of any.
    """

    def identity(config: Run) -> Line:
        return {**settings_apart_from_names(config), "seed": config.seed}

    lines = [x for x in read_kept(folder / f"{plan.name}.jsonl") if x.scale == plan.scale]
    mine = [x for x in lines if device in (None, x.device)]
    there = [identity(x.config) for x in mine]
    left = [run for run in plan.runs if identity(plan.run(run)) not in there]
    named = {run.method for run in left}
    methods = {key: method for key, method in plan.methods.items() if key in named}
    seeds = sorted({run.seed for run in left})
    paper = {key: values for key, values in plan.paper.items() if key in named}
    return replace(plan, runs=left, methods=methods, seeds=seeds, paper=paper)


def _columns(events: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    return {name: [_short(event.get(name)) for event in events] for name in names}


def _exponents(law: Mapping[str, Any]) -> Line:
    """A measurement of all blocks, without what the exponents were computed from."""
    told = ("exponent", "low", "high")
    blocks = {
        name: {key: _short(block[key]) for key in told} for name, block in law["blocks"].items()
    }
    place = ("step", "epoch", "radius", "factor", "directions", "batch_size", "held_out")
    return {key: law[key] for key in place if key in law} | {"blocks": blocks}


def _short(value: Any) -> Any:
    """Six digits, which no curve needs more of."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def check_alike(lines: Iterable[Kept]) -> None:
    """Refuse runs of several experiments, scales, devices or precisions, which do not compare."""
    places = {(x.experiment, x.scale, x.device, x.precision) for x in lines}
    if len(places) != 1:
        said = "; ".join(", ".join(place) for place in sorted(places)) or "none"
        raise RecordError(f"runs of one experiment, scale, device and precision are needed: {said}")


def _read(line: Any, where: str) -> Kept:
    try:
        return from_json(Kept, line)
    except FieldError as error:
        raise RecordError(f"{where}: {error}") from error


def mean_seconds(lines: Iterable[Kept]) -> float | None:
    """Of the runs that had their device to themselves; None if there is none."""
    known = [line.seconds for line in lines if line.seconds is not None]
    return fmean(known) if known else None


def gather(source: Path) -> tuple[list[Kept], list[str]]:
    """The lines of a folder of records or of a file of lines, and the runs that have no end.

    Every run in the folder counts, also of methods that its last plan does not name.
    """
    if source.suffix == ".jsonl":
        return read_kept(source), []
    lines, left = ended_runs(source)
    if any("(generated)" in line.data for line in lines):
        raise RecordError(
            f"{str(source)!r} was run on generated data, which says nothing about the real set: "
            "run it with --data"
        )
    return lines, left


def ended_runs(folder: Path) -> tuple[list[Kept], list[str]]:
    """The lines of a folder of records, whatever its data, and the runs that have no end."""
    plan = read_plan(folder)
    if plan.kind != "experiment":
        raise RecordError(
            f"{str(folder)!r} holds a {plan.kind}: results are kept of experiments (aliceopt list)"
        )
    runs = read_found(folder)
    ended = [run for run in runs if run.status in ENDED]
    left = [f"{run.label} seed {run.seed} ({run.status})" for run in runs if run not in ended]
    return [_kept(plan, run) for run in ended], left


def add(lines: Sequence[Kept], folder: Path, *, overwrite: bool = False) -> list[Added]:
    """Merge lines into the files of a folder; one result for every experiment.

    A run that is there already stays as it is, also if it was made again and came out the same. If
    it is there with other numbers, nothing at all is written. With ``overwrite`` new ones take its
    place, other seconds too.
    """
    files = []
    for name in dict.fromkeys(line.experiment for line in lines):
        path = folder / f"{name}.jsonl"
        there, mine = read_kept(path), [line for line in lines if line.experiment == name]
        files.append(merged(to_json(there), to_json(mine), path, overwrite, _end))
    place = itemgetter("scale", "method", "precision", "seed", "id")
    for content, told in files:
        write_lines(told.path, sorted(content, key=place))
    return [told for _, told in files]


def merged(
    there: Sequence[Line],
    mine: Sequence[Line],
    path: Path,
    overwrite: bool,
    end: Callable[[Line], str],
) -> tuple[list[Line], Added]:
    """Lines and new ones, by their ids, and what was done; ``end`` says how one came out."""
    known = {line["id"]: line for line in there}
    new = replaced = same = again = 0
    for line in mine:
        old = known.get(line["id"])
        if old == line:
            same += 1
            continue
        if old is not None and not overwrite:
            if not (other := _differing(old, line)):
                again += 1
                continue
            raise RecordError(
                f"{str(path)!r} has {line['id']} of {old['date']} with {end(old)}, and this one "
                f"of {line['date']} ended with {end(line)}; they differ in {', '.join(other)}: "
                "--overwrite puts it in its place"
            )
        new, replaced = new + (old is None), replaced + (old is not None)
        known[line["id"]] = line
    return list(known.values()), Added(path, new, replaced, same, again)


_AROUND = ("date", "seconds", "versions", "label", "config")
"""What may differ between two runs with the same id and the same results."""


def _differing(old: Line, new: Line) -> list[str]:
    """In what two lines came out otherwise, whenever they were made, with what and how fast.

    Of columns of the curve that only one of them has, as versions kept fewer, nothing is known.
    """
    pairs = {name: (old[name], new.get(name)) for name in old if name not in (*_AROUND, "curve")}
    columns = old.get("curve", {}).keys() & new.get("curve", {}).keys() - {"seconds"}
    pairs |= {f"curve.{x}": (old["curve"][x], new["curve"][x]) for x in sorted(columns)}
    return [name for name, (one, other) in pairs.items() if one != other]


def _end(line: Line) -> str:
    return line["status"] if line["final"] is None else f"{line['metric']} {line['final']:.6g}"


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """Write a file of lines, whole or not at all."""
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def read_kept(path: Path) -> list[Kept]:
    """The lines of a file, each checked; none if there is no file."""
    return list(_lines(path, path.stat().st_mtime_ns)) if path.exists() else []


@lru_cache(maxsize=8)  # a page asks for the same file at every number
def _lines(path: Path, changed: int) -> list[Kept]:
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        where = f"line {number} of {str(path)!r}"
        try:
            lines.append(_read(json.loads(text), where))
        except json.JSONDecodeError as error:
            raise RecordError(f"{where} is not JSON: {error}") from error
    return lines
