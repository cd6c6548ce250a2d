"""Where records go, and what may be done with the ones that are there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from aliceopt.lab.records import RecordError, read_plan, run_folder

__all__ = ["clear", "default_folder"]


def default_folder(name: str, scale: str) -> Path:
    """``runs/NAME-SCALE`` in the current folder."""
    return Path("runs") / f"{name}-{scale}"


def clear(folder: Path) -> None:
    """Delete a plan's records, figures and report, its tuning's too, and nothing else there."""
    for place in (folder / "tuning", folder):  # the first also if nothing came after it
        _clear(place)
    _delete_empty([folder / "tuning"])


def _clear(folder: Path) -> None:
    try:
        plan = read_plan(folder)
    except RecordError:
        return
    places = [run_folder(folder, run["method"], run["seed"]) for run in plan["runs"]]
    for place in places:
        for pattern in ("records.jsonl", "checkpoint.*", "events.out.tfevents.*"):
            _delete(place.glob(pattern))
    drawn = ["study-*.*"] + ([f"{plan['name']}.*"] if plan["kind"] == "experiment" else [])
    for pattern in drawn:
        _delete((folder / "figures").glob(pattern))
    _delete([folder / "report.html", folder / "plan.json"])
    _delete_empty([*places, *(folder / method for method in plan["methods"]), folder / "figures"])


def _delete_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # not empty: something of the user's, or never made
            folder.rmdir()


def _delete(paths: Iterable[Path]) -> None:
    for path in list(paths):
        path.unlink(missing_ok=True)
