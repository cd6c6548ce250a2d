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
    """Delete the records, figures and report of a plan, and nothing else that lies there."""
    if (folder / "tuning" / "plan.json").exists():  # also if nothing came after it
        try:
        plan = read_plan(folder)
    except RecordError:
        return
    for run in plan["runs"]:
        place = run_folder(folder, run["method"], run["seed"])
        for pattern in ("records.jsonl", "checkpoint.*", "events.out.tfevents.*"):
            _delete(place.glob(pattern))
    _delete((folder / "figures").glob("study-*.*"))
    _delete((folder / "figures").glob(f"{plan['name']}.*"))
    _delete([folder / "report.html", folder / "plan.json"])
    emptied = {run_folder(folder, run["method"], run["seed"]) for run in plan["runs"]}
    emptied |= {folder / name for name in ("figures", *plan["methods"])} | {folder / "tuning"}
    for place in sorted(emptied, reverse=True):  # what is inside first
        with contextlib.suppress(OSError):  # not empty: something of the user's
            place.rmdir()


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
