"""Where records go, and what may be done with the ones that are there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_type_hints

from aliceopt.cli.options import KEPT
from aliceopt.cli.refusal import say
from aliceopt.lab.plan import EXPERIMENTS, SCALES, settings_of
from aliceopt.lab.records import RecordError, Records, read_records, read_runs, run_folder
from aliceopt.lab.results.kept import read_kept
from aliceopt.lab.results.kept_compare import as_filed
from aliceopt.lab.results.kept_records import kept_records
from aliceopt.lab.spec import Plan


def default_folder(name: str, scale: str) -> Path:
    """``runs/NAME-SCALE`` in the current folder."""
    return Path("runs") / f"{name}-{scale}"


def of_a_clone(kept: Path, option: str) -> str:
    """Where results are kept that this folder has none of; nothing where it has some."""
    if next(kept.glob("*.jsonl"), None) is not None:
        return ""
    return f"those of the documentation are in the folder results of a clone ({option})"


def experiment_records(name: str, scale: str, given: Path | None) -> Records:
    """An experiment's records in the folder that is given, or the default; told if it has none.

    Results that are kept of it may stand in for them: a file that is given, or the repository's.
    """
    settings_of(name, scale)  # refuses a name or scale that there is not
    folder = default_folder(name, scale) if given is None else given
    if given is not None and given.suffix == ".jsonl":
        return kept_records(given, name, scale)
    if (folder / "plan.json").exists():
        records = read_records(folder)
        if records.plan.name == name:
            return records
        raise RecordError(
            f"{str(folder)!r} holds the records of {records.plan.name!r}, not of {name!r}"
        )
    kept = KEPT / f"{name}.jsonl"
    scales = {line.scale for line in as_filed(read_kept(kept))}
    if given is None and scale in scales:
        say(f"kept results: {kept}")
        return kept_records(kept, name, scale)
    ran = {s for s in SCALES if (default_folder(name, s) / "plan.json").exists()}
    others = [s for s in SCALES if s in scales | ran]
    if given is not None:
        instead = ": it has no plan.json"
    elif others:
        instead = f"; there are some at {' and '.join(f'--scale {s}' for s in others)}"
    else:
        said = "" if scale == "lab" else f" --scale {scale}"
        quick = "" if scale == "smoke" else " (--scale smoke: a run of seconds)"
        instead = f": make some with aliceopt run {name}{said}{quick}, or name them with --records"
        if clone := of_a_clone(KEPT, "--records"):
            instead += f"; {clone}"
    raise RecordError(f"no records in {str(folder)!r}{instead}")


def check_not_both(resume: bool) -> None:
    """Refuse to go on with records and to delete them at once."""
    if resume:
        raise ValueError("--resume goes on with the records, --overwrite deletes them: choose one")


def clear(folder: Path, new: Plan | None = None) -> None:
    """Delete the records, figures and report of the plan there and of a new one, and no more.

    The plan there may be of another version. The new one may name runs of an even earlier plan.
    Runs that chose a study's rates go too.
    """
    _clear(folder / "tuning", None)  # also if nothing came after it
    _clear(folder, new)
    _delete_empty([folder / "tuning"])


def _clear(folder: Path, new: Plan | None) -> None:
    """Of any version of ours, also one that can no longer be carried out; not somebody else's."""
    path = folder / "plan.json"
    there: Any = None
    named: list[tuple[Any, Any]] = []
    if path.exists():
        with contextlib.suppress(ValueError):
            there = json.loads(path.read_text(encoding="utf-8"))
        kinds = get_args(get_type_hints(Plan)["kind"])
        if not isinstance(there, dict) or there.get("kind") not in kinds:
            return
        if not isinstance(there.get("runs"), list):
            return
        old = [run for run in there["runs"] if isinstance(run, dict)]
        named = [(run.get("method"), run.get("seed")) for run in old]
    if new is not None:
        named += [(run.method, run.seed) for run in new.runs]
    fine = [(m, s) for m, s in named if isinstance(m, str) and type(s) is int]
    places = list(dict.fromkeys(run_folder(folder, *run) for run in fine))
    for place in places:
        _clear_run(place)
    if there is not None:
        if there.get("name") in EXPERIMENTS:
            _delete((folder / "figures").glob(f"{there['name']}.*"))
        _delete([folder / "report.html", path])
    _delete_empty([*places, *dict.fromkeys(place.parent for place in places), folder / "figures"])


def clear_retuned(plan: Plan, folder: Path) -> list[str]:
    """Delete runs at a rate that tuning no longer chooses; returns the labels of their methods.

    A tuning run that was made again may have come out otherwise, and its study has to go on.
    """
    labels: dict[str, None] = {}
    for record in read_runs(folder, plan):
        options = plan.methods[record.method].options
        before = {} if record.ran is None else record.ran.options
        if before != options and {**before, "lr": options["lr"]} == options:
            _clear_run(run_folder(folder, record.method, record.seed))
            labels[record.label] = None
    return list(labels)


def _clear_run(place: Path) -> None:
    for pattern in ("records.jsonl", "checkpoint.*", "events.out.tfevents.*"):
        _delete(place.glob(pattern))


def _delete_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # not empty: something of the user's, or never made
            folder.rmdir()


def _delete(paths: Iterable[Path]) -> None:
    for path in list(paths):
        path.unlink(missing_ok=True)
