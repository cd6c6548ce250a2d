"""What a run leaves behind: lines of JSON, a checkpoint that is never half-written, a reader.

A folder holds ``plan.json`` and, for every run, ``METHOD/seed-N/records.jsonl`` and a checkpoint.
A checkpoint remembers how long the journal was when it was taken. Resuming cuts the journal back
to that length, so the records of a resumed run are those of an uninterrupted one, except for
times.
"""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from aliceopt.lab.spec import Plan, Run
from aliceopt.lab.typed import FieldError, from_json, to_json
from aliceopt.lab.words import plain
from aliceopt.lab.writing import replacing, write_all, writing

__all__ = [
    "ENDED",
    "Journal",
    "RecordError",
    "Records",
    "RunRecord",
    "Silent",
    "fitting",
    "load_checkpoint",
    "read_events",
    "read_found",
    "read_plan",
    "read_records",
    "read_runs",
    "run_folder",
    "save_checkpoint",
    "write_plan",
]

Status = Literal["finished", "diverged", "failed", "interrupted", "missing"]
ENDED: tuple[Status, ...] = ("finished", "diverged")
"""Of these runs nothing is left to do."""


class RecordError(ValueError):
    """A folder of records that cannot be read."""


def run_folder(folder: Path, method: str, seed: int) -> Path:
    """Where one run of a plan is recorded: always inside the folder, whatever a plan says."""
    if method in ("", ".", "..") or set("/\\\0") & set(method):
        raise RecordError(f"a method's name must do as the name of a folder, got {method!r}")
    return folder / method / f"seed-{seed:d}"


class Journal:
    """Appends events to a file of JSON lines, from ``offset`` bytes on; what follows is dropped."""

    def __init__(self, path: Path, offset: int = 0):
        self._path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.truncate(path, offset)
            self._file = path.open("ab", buffering=0)  # what fails, fails here and not at the end
        self.mirror: Callable[[str, dict[str, Any]], None] | None = None

    def write(self, event: str, **fields: Any) -> None:
        """One line; numbers that are not finite become null, which JSON can say."""
        line = json.dumps(to_json({"event": event, **fields}), allow_nan=False) + "\n"
        end = self._file.tell()
        with writing(self._path):
            try:
                write_all(self._file, line.encode())
            except OSError:
                self._file.truncate(end)  # no half line before the next
                raise
        if self.mirror is not None:
            self.mirror(event, fields)

    def synced(self) -> int:
        """The length of the file, once it is safely on disk."""
        with writing(self._path):
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Silent(Journal):
    """The journal of a process that has nothing to record, since another one does."""

    def __init__(self) -> None:
        self.mirror = None

    def write(self, event: str, **fields: Any) -> None:
        """Nothing."""

    def synced(self) -> int:
        """No length."""
        return 0

    def close(self) -> None:
        """Nothing to close."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write it safely to the disk, whole or not at all."""
    with replacing(path) as beside, beside.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # its archive fails again as it is closed, and hides why
            if isinstance(why := error.__context__, OSError):
                raise why from None
            raise
        file.flush()
        os.fsync(file.fileno())


_ANEW = ": delete it, and --resume makes that run anew"


def load_checkpoint(
    path: Path, needed: Iterable[str] = (), *, advice: str = _ANEW
) -> dict[str, Any] | None:
    """What `save_checkpoint` wrote, or None; plain tensors and containers only, no pickled code.

    torch writes a checksum of every part into the file and does not look at it again; here all are
    compared, so that weights which changed on the disk are not trained on. ``needed`` are names
    that the content must have, ``advice`` is given about a file that cannot be read.
    """
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as parts:
            if (part := parts.testzip()) is not None:
                raise ValueError(f"the checksum of {part} is wrong")
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or not set(needed) <= set(content):
            raise ValueError("it does not hold a run")
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RecordError(f"cannot read the checkpoint {str(path)!r} ({reason}){advice}") from error
    return dict(content)


@contextlib.contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Within, a checkpoint that was read well but is of another model or method is told by name."""
    try:
        yield
    except Exception as error:
        reason = " ".join((str(error) or type(error).__name__).split())
        reason = reason if len(reason) < 200 else f"{reason[:200]}..."
        raise RecordError(
            f"the checkpoint {str(path)!r} does not fit the run ({reason}){_ANEW}"
        ) from error


def write_plan(folder: Path, plan: Plan) -> None:
    """Write ``plan.json``, whole or not at all."""
    with replacing(folder / "plan.json") as beside:
        beside.write_text(json.dumps(to_json(plan), indent=2, allow_nan=False) + "\n")


def read_plan(folder: Path) -> Plan:
    """The plan of a folder of records."""
    path = Path(folder) / "plan.json"
    if not path.exists():
        raise RecordError(f"no records in {str(folder)!r}: there is no plan.json")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(
            f"{str(path)!r} is not JSON ({error}): delete it, or choose another folder"
        ) from error
    try:
        plan = from_json(Plan, content)
    except FieldError as error:
        raise RecordError(
            f"{str(path)!r} is not a plan of aliceopt ({error}): choose another folder, or "
            "--overwrite if it is one of another version"
        ) from error
    # Labels stand in tables and figures, whoever wrote them.
    named = {key: replace(m, label=plain(m.label)) for key, m in plan.methods.items()}
    return replace(plan, methods=named)


@dataclass
class RunRecord:
    """One run as its journal tells it.

    ``ran`` is what was run, None if it has not begun or another version wrote ``config``.
    ``final`` is the metric at the end of the schedule, None unless the run finished. Seconds of a
    kept result are NaN if nobody knows them.
    """

    method: str
    label: str
    seed: int
    status: Status = "missing"
    config: dict[str, Any] = field(default_factory=dict)
    ran: Run | None = None
    start: dict[str, Any] = field(default_factory=dict)
    training: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    telemetry: list[dict[str, Any]] = field(default_factory=list)
    power_law: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    final: float | None = None
    gradients: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Records:
    """A folder's plan and its runs, all that are planned, in the plan's order."""

    folder: Path
    plan: Plan
    runs: list[RunRecord]

    def of(self, method: str) -> list[RunRecord]:
        """The runs of one method."""
        return [run for run in self.runs if run.method == method]


def read_records(folder: Path, plan: Plan | None = None) -> Records:
    """All that a folder tells of its plan, or of another one."""
    folder = Path(folder)
    plan = read_plan(folder) if plan is None else plan
    return Records(folder, plan, read_runs(folder, plan))


def read_runs(folder: Path, plan: Plan | None = None) -> list[RunRecord]:
    """Every planned run in the plan's order, also those not yet begun."""
    plan = read_plan(folder) if plan is None else plan
    runs = []
    for run in plan.runs:
        path = run_folder(folder, run.method, run.seed) / "records.jsonl"
        label = plan.methods[run.method].label
        runs.append(_read_run(path, RunRecord(run.method, label, run.seed)))
    return runs


def read_found(folder: Path) -> list[RunRecord]:
    """Every run that has begun in a folder, by method and seed, whatever its last plan names."""
    runs = []
    for path in run_paths(folder, "records.jsonl"):
        method, seed = path.parent.parent.name, path.parent.name.removeprefix("seed-")
        run = _read_run(path, RunRecord(method, method, int(seed)))
        if run.status != "missing":
            if run.start:  # else it failed before its first line
                run.label = run.start["run"].get("label", method)
            runs.append(run)
    return runs


def run_paths(folder: Path, name: str) -> list[Path]:
    """The files of this name that runs have in a folder, by method and seed; no copies of runs."""

    def place(path: Path) -> tuple[str, int]:
        return path.parent.parent.name, int(path.parent.name.removeprefix("seed-"))

    found = Path(folder).glob(f"*/seed-*/{name}")
    ours = [path for path in found if path.parent.name.removeprefix("seed-").isdecimal()]
    return sorted(ours, key=place)


def _read_run(path: Path, run: RunRecord) -> RunRecord:
    series = {
        "train": run.training,
        "evaluation": run.evaluations,
        "telemetry": run.telemetry,
        "power_law": run.power_law,
    }
    for event in _events(path):
        kind = event["event"]
        if kind == "start":
            run.status, run.start, run.config = "interrupted", event, event["config"]
            with contextlib.suppress(FieldError):
                run.ran = from_json(Run, run.config, "config")
        elif kind == "end":
            run.end, run.status = event, event["status"]
            run.final = event["metric"] if run.status == "finished" else None
        elif kind in series:
            series[kind].append(event)
        run.gradients = event.get("gradients", run.gradients)
        run.seconds = event.get("seconds", run.seconds)
    return run


def read_events(path: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind in a journal, which need not be there."""
    return [event for event in _events(path) if event["event"] == kind]


def _events(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a journal; a kill may leave half of one at the end."""
    if not path.exists():
        return []
    events: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            events.append(json.loads(line))
            wrong = _wrong(events[-1], first=number == 1)
        except ValueError as error:
            wrong = f"is not JSON: {error}"
        if wrong:
            raise RecordError(
                f"line {number} of {str(path)!r} {wrong}; delete that file, and --resume makes "
                "the run anew"
            )
    return events


_NUMBER = (int, float)
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "run": dict,
    "config": dict,
    "status": str,
    "step": int,
    "gradients": int,
    "seconds": _NUMBER,
    "loss": (*_NUMBER, type(None)),
    "metric": (*_NUMBER, type(None)),
    "groups": list,
    "ladder": dict,
    "blocks": dict,
}
_NEEDED: dict[str, tuple[str, ...]] = {
    "start": ("run", "config"),
    "train": ("step", "gradients", "seconds", "loss"),
    "evaluation": ("step", "gradients", "seconds", "loss", "metric"),
    "telemetry": ("step", "gradients", "groups", "blocks"),
    "power_law": ("step", "blocks"),
    "ladder": ("step", "ladder"),
    "end": ("status",),
}


def _wrong(event: Any, *, first: bool) -> str:
    """What makes a line none of ours, or nothing: readers rely on these fields."""
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return "is no record"
    kind = event["event"]
    if first and kind != "start" and event.get("status") != "failed":
        return "is the first, and no run begins so"
    needed = _NEEDED.get(kind, ())
    if kind == "end" and event.get("status") == "finished":
        needed += ("metric",)
    for name in dict.fromkeys([*needed, *(_FIELDS.keys() & event.keys())]):
        if name not in event:
            return f"has no {name!r}"
        if not isinstance(event[name], _FIELDS[name]):
            return f"has {event[name]!r} for {name!r}"
    if kind == "end" and event["status"] not in ("finished", "diverged", "failed"):
        return f"has {event['status']!r} for 'status'"
    return ""
