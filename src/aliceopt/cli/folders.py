"""Where records go, and what may be done with the ones that are there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aliceopt.lab.plan import EXPERIMENTS, SCALES, Plan, settings_of
from aliceopt.lab.records import RecordError, read_plan, read_runs, run_folder

__all__ = ["check_not_both", "clear", "clear_retuned", "default_folder", "records_folder"]


def default_folder(name: str, scale: str) -> Path:
    """``runs/NAME-SCALE`` in the current folder."""
    return Path("runs") / f"{name}-{scale}"


def records_folder(name: str, scale: str, given: Path | None) -> Path:
    """The folder of an experiment's records, given or the default; told if it has none of them."""
    settings_of(name, scale)  # refuses a name or scale that there is not
    folder = default_folder(name, scale) if given is None else given
    if not (folder / "plan.json").exists():
        raise RecordError(f"no records in {str(folder)!r}{_elsewhere(name, scale, given)}")
    there = read_plan(folder)["name"]
    if there != name:
        raise RecordError(f"{str(folder)!r} holds the records of {there!r}, not of {name!r}")
    return folder


def _elsewhere(name: str, scale: str, given: Path | None) -> str:
    """Where there are some instead, or how to make them."""
    if given is not None:
        return ": it has no plan.json"
    others = [s for s in SCALES if (default_folder(name, s) / "plan.json").exists()]
    if others:
        return f"; there are some at {' and '.join(f'--scale {s}' for s in others)}"
    said = "" if scale == "lab" else f" --scale {scale}"
    return f": make some with aliceopt run {name}{said}, or name their folder with --records"


def check_not_both(resume: bool) -> None:
    """Refuse to go on with records and to delete them at once."""
    if resume:
        raise ValueError("--resume goes on with the records, --overwrite deletes them: choose one")


def clear(folder: Path, new: Mapping[str, Any] | None = None) -> None:
    """Delete the records, figures and report of the plan there and of a new one, and no more.

    The new one may name runs of an even earlier plan. Runs that chose a study's rates go too.
    """
    _clear(folder / "tuning", None)  # also if nothing came after it
    _clear(folder, new)
    _delete_empty([folder / "tuning"])


def _clear(folder: Path, new: Mapping[str, Any] | None) -> None:
    try:
        plan = read_plan(folder)
    except RecordError:
        return
    named = [*plan["runs"], *(new["runs"] if new is not None else ())]
    places = list({run_folder(folder, run["method"], run["seed"]): None for run in named})
    for place in places:
        _clear_run(place)
    if plan["name"] in EXPERIMENTS:
        _delete((folder / "figures").glob(f"{plan['name']}.*"))
    _delete([folder / "report.html", folder / "plan.json"])
    _delete_empty([*places, *dict.fromkeys(place.parent for place in places), folder / "figures"])


def clear_retuned(plan: Plan, folder: Path) -> list[str]:
    """Delete runs at a rate that tuning no longer chooses; returns the labels of their methods.

    A tuning run that was made again may have come out otherwise, and its study has to go on.
    """
    labels: dict[str, None] = {}
    for run, record in zip(plan.runs, read_runs(folder, plan.document), strict=True):
        before = record.config.get("options", {})
        if before != run.options and {**before, "lr": run.options["lr"]} == run.options:
            _clear_run(run_folder(folder, run.method, run.seed))
            labels[run.label] = None
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
