"""Where records go, and what may be done with the ones that are there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_type_hints

from aliceopt.cli.options import KEPT
from aliceopt.cli.refusal import say
from aliceopt.lab.plans.plan import EXPERIMENTS, SCALES, settings_of
from aliceopt.lab.plans.study import Study
from aliceopt.lab.records import (
    RecordError,
    Records,
    read_records,
    read_runs,
    run_folder,
    run_paths,
)
from aliceopt.lab.results.kept import read_kept
from aliceopt.lab.results.kept_compare import as_filed
from aliceopt.lab.results.kept_records import kept_records
from aliceopt.lab.spec import Plan, Run


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
    Runs that chose a study's rates go too, also where no plan names them any more.
    """
    tuning = folder / "tuning"
    tried = {path.parent: Study.named(path.parent.parent.name) for path in run_paths(tuning, "*")}
    methods = () if new is None else new.methods
    # Also if nothing came after it.
    _clear(tuning, [place for place, name in tried.items() if name and name[0] in methods])
    _clear(folder, [] if new is None else _places(folder, ((r.method, r.seed) for r in new.runs)))
    _delete_empty([tuning])


def _clear(folder: Path, places: Iterable[Path]) -> None:
    """Of any version of ours, also one that can no longer be carried out; not somebody else's."""
    path = folder / "plan.json"
    there: Any = None
    found = list(places)
    if path.exists():
        with contextlib.suppress(ValueError):
            there = json.loads(path.read_text(encoding="utf-8"))
        kinds = get_args(get_type_hints(Plan)["kind"])
        if not isinstance(there, dict) or there.get("kind") not in kinds:
            return
        runs = there.get("runs")
        old = [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
        found = _places(folder, ((run.get("method"), run.get("seed")) for run in old)) + found
    found = list(dict.fromkeys(found))
    for place in found:
        _clear_run(place)
    if there is not None:
        if there.get("name") in EXPERIMENTS:
            delete((folder / "figures").glob(f"{there['name']}.*"))
        delete([folder / "report.html", path])
    _delete_empty([*found, *dict.fromkeys(place.parent for place in found), folder / "figures"])


def _places(folder: Path, named: Iterable[tuple[Any, Any]]) -> list[Path]:
    """The folders of runs; a name that cannot be one of ours has none."""
    found = []
    for method, seed in named:
        if isinstance(method, str) and type(seed) is int:
            with contextlib.suppress(RecordError):
                found.append(run_folder(folder, method, seed))
    return found


def clear_networks(there: Iterable[tuple[Path, Run]], used: Path | None) -> None:
    """Delete the networks that folders have for runs, and what was made of them.

    None if the weights to be ``used`` now are one of theirs.
    """
    from aliceopt.trained.network import JOURNAL

    places = [run_folder(folder, run.method, run.seed) for folder, run in there]
    if used is not None and used.resolve() in [(p / "checkpoint.pt").resolve() for p in places]:
        raise RecordError(
            f"--overwrite would delete {str(used)!r}, which is to be read: choose another --out"
        )
    for place in places:
        _clear_run(place)
        delete([place / "network.json", place / JOURNAL])


def clear_retuned(plan: Plan, folder: Path) -> list[str]:
    """Delete runs at a rate that tuning no longer chooses; returns the labels of their methods.

    A tuning run that was made again may have come out otherwise, and its study has to go on.
    """
    labels: dict[str, None] = {}
    for record in read_runs(folder, plan):
        options = plan.methods[record.method].options
        before = options if record.ran is None else record.ran.options
        if before != options and {**before, "lr": options["lr"]} == options:
            _clear_run(run_folder(folder, record.method, record.seed))
            labels[record.label] = None
    return list(labels)


def _clear_run(place: Path) -> None:
    for pattern in ("records.jsonl", "checkpoint.*", "events.out.tfevents.*"):
        delete(place.glob(pattern))


def _delete_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # not empty: something of the user's, or never made
            folder.rmdir()


def delete(paths: Iterable[Path]) -> None:
    """Files that may be there."""
    for path in list(paths):
        path.unlink(missing_ok=True)
