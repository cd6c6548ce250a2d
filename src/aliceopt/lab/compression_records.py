"""What was made of trained networks: a line of JSON a result, written as it is made.

``METHOD/seed-N/compression.jsonl`` in the folder of ``aliceopt compress`` holds two kinds of
events: ``pruned``, a network pruned by one criterion to one sparsity, and ``layer``, what removing
a share of one layer was predicted to cost and did cost. Each says what it was made of and with.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from aliceopt.lab.calibration import PREDICTIONS, Calibration, LayerIncrease
from aliceopt.lab.clock import now
from aliceopt.lab.compression import Result
from aliceopt.lab.compression_rows import ROWS, spelled
from aliceopt.lab.network import JOURNAL, Network
from aliceopt.lab.records import Journal, RecordError, device_name, run_folder, versions
from aliceopt.lab.spec import Run
from aliceopt.lab.typed import to_json
from aliceopt.lab.writing import replacing

__all__ = [
    "Line",
    "about",
    "calibrations_of",
    "forget",
    "journal_of",
    "keep_layers",
    "keep_result",
    "read_folder",
    "read_lines",
    "read_run",
    "results_of",
]

Line = dict[str, Any]

_NUMBER = (int, float)
_UNKNOWN = (*_NUMBER, type(None))
_ABOUT: dict[str, tuple[type, ...]] = {
    "problem": (str,),
    "scale": (str,),
    "seed": (int,),
    "precision": (str,),
    "metric_name": (str,),
    "device": (str,),
    "versions": (dict,),
    "parameters": (int,),
    "data": (str,),
    "network": (str,),
    "date": (str,),
}
_RESULT: dict[str, tuple[type, ...]] = {
    "criterion": (str,),
    "sparsity": _NUMBER,
    "loss": _UNKNOWN,
    "metric": _UNKNOWN,
    "gradients": (int,),
    "seconds": _UNKNOWN,
    "temper": _UNKNOWN,
    "radius": _UNKNOWN,
    "removed": _NUMBER,
    "structure": (str,),
    "rounds": (int,),
    "finetune": _NUMBER,
    "budget": (int,),
}
_LAYER: dict[str, tuple[type, ...]] = {
    "layer": (str,),
    "sparsity": _NUMBER,
    "budget": (int,),
    "measured": _UNKNOWN,
    "predicted": (dict,),
}
KINDS = {"pruned": _ABOUT | _RESULT, "layer": _ABOUT | _LAYER}
"""What every line has beside its event, and of which type."""


# ---- writing -----------------------------------------------------------------------------------


def about(problem: str, scale: str, run: Run, network: Network) -> Line:
    """What all lines of a network share; ``network`` is a name of how it was trained."""
    config = to_json(run)
    config.pop("seed")
    config["training"].pop("threads")
    config["problem"].get("data", {}).pop("root", None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    return {
        "problem": problem,
        "scale": scale,
        "seed": run.seed,
        "precision": network.precision,
        "metric_name": network.problem.measure.name,
        "device": device_name(network.device),
        "versions": versions(),
        "parameters": sum(p.numel() for p in network.model.parameters()),
        "data": network.problem.note,
        "network": digest,
    }


def journal_of(folder: Path, run: Run) -> Journal:
    """Where the results of a run's network go, behind those that are there."""
    path = run_folder(folder, run.method, run.seed) / JOURNAL
    whole = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    return Journal(path, len(whole[0]) + len(whole[1]))  # a kill may have left half a line


def keep_result(journal: Journal, said: Mapping[str, Any], result: Result) -> None:
    """A line, safely on disk."""
    journal.write("pruned", **{**said, **asdict(result)}, date=now())
    journal.synced()


def keep_layers(journal: Journal, said: Mapping[str, Any], found: Calibration, budget: int) -> None:
    """A line a layer."""
    for layer in found.layers:
        row = {"layer": layer.layer, "sparsity": found.sparsity, "budget": budget}
        numbers = {"measured": layer.measured, "predicted": layer.predicted}
        journal.write("layer", **said, **row, **numbers, date=now())
    journal.synced()


def forget(folder: Path, run: Run, unwanted: Callable[[Line], bool]) -> None:
    """Delete lines of a run's network."""
    kept = [line for line in read_run(folder, run) if not unwanted(line)]
    with replacing(run_folder(folder, run.method, run.seed) / JOURNAL) as beside:
        beside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


# ---- reading -----------------------------------------------------------------------------------


def read_folder(folder: Path) -> list[Line]:
    """The lines of all networks of a folder, seed by seed."""
    paths = Path(folder).glob(f"*/seed-*/{JOURNAL}")
    return [line for path in sorted(paths, key=_seed_of) for line in read_lines(path)]


def read_run(folder: Path, run: Run) -> list[Line]:
    """The lines of one network."""
    return read_lines(run_folder(folder, run.method, run.seed) / JOURNAL)


def _seed_of(path: Path) -> tuple[str, int]:
    return path.parent.parent.name, int(path.parent.name.removeprefix("seed-"))


def read_lines(path: Path) -> list[Line]:
    """The complete lines of a journal, each checked; none if there is no file."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        where = f"line {number} of {str(path)!r}"
        try:
            line = json.loads(text)
        except ValueError as error:
            raise RecordError(f"{where} is not JSON: {error}") from error
        check_line(line, where)
        lines.append(line)
    return lines


def check_line(line: Any, where: str) -> None:
    """Refuse a line that lacks something, or has what no line has."""
    if not isinstance(line, dict) or line.get("event") not in KINDS:
        raise RecordError(f"{where} is no record of a compression")
    needed = KINDS[line["event"]]
    for name, types in needed.items():
        if name not in line:
            raise RecordError(f"{where} lacks {name!r}")
        if not isinstance(line[name], types) or isinstance(line[name], bool):
            raise RecordError(f"{where}: {name} is {line[name]!r}")
    unknown = line.keys() - needed.keys() - {"event", "id"}
    if unknown:
        raise RecordError(f"{where} has unknown {', '.join(sorted(unknown))}")
    if line["event"] == "layer" and line["predicted"].keys() != set(PREDICTIONS):
        raise RecordError(f"{where} predicts {', '.join(line['predicted'])}")


def results_of(lines: Iterable[Line]) -> list[Result]:
    """Of the lines that tell of a pruned network; a loss that was not finite is NaN.

    Those of criteria that there are no more are left out, and a radius is `spelled` in one way.
    """
    names = [field.name for field in fields(Result)]
    found = []
    for line in lines:
        if line["event"] == "pruned" and line["criterion"].partition("@")[0] in ("none", *ROWS):
            values = {name: _number(name, line[name]) for name in names}
            if "@" in line["criterion"]:
                values["criterion"] = spelled(line["criterion"])
            found.append(Result(**values))
    return found


def _number(name: str, value: Any) -> Any:
    return math.nan if value is None and name in ("loss", "metric") else value


def calibrations_of(lines: Sequence[Line]) -> dict[tuple[float, int, int], Calibration]:
    """By the share removed, the gradients allowed and the seed."""
    found: dict[tuple[float, int, int], Calibration] = {}
    for line in lines:
        if line["event"] == "layer":
            key = (line["sparsity"], line["budget"], line["seed"])
            one = found.setdefault(key, Calibration(line["sparsity"], []))
            predicted = {k: math.nan if v is None else v for k, v in line["predicted"].items()}
            rise = math.nan if line["measured"] is None else line["measured"]
            one.layers.append(LayerIncrease(line["layer"], rise, predicted))
    return found
