"""What was made of trained networks: a line of JSON a result, written as it is made.

``METHOD/seed-N/compression.jsonl`` in the folder of ``aliceopt compress`` holds two kinds of
events: ``pruned``, a network pruned by one criterion to one sparsity, and ``layer``, what removing
a share of one layer was predicted to cost and did cost. Each says what it was made of and with.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from aliceopt.lab.provenance import device_name, versions
from aliceopt.lab.records import RecordError, run_folder, run_paths
from aliceopt.lab.spec import Run
from aliceopt.lab.writing import replacing
from aliceopt.trained.compress.rows import PREDICTED, ROWS, Ask, LayerIncrease, Result, spelled
from aliceopt.trained.network import JOURNAL, Network

Line = dict[str, Any]

_NUMBER = (int, float)
_UNKNOWN = (*_NUMBER, type(None))
_ABOUT: dict[str, tuple[type, ...]] = {
    "problem": (str,),
    "twin": (str,),
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
"""What every line has beside its event, and of which type; ``twin`` where it is of one."""


def journal_path(folder: Path, run: Run) -> Path:
    """Where the lines of a run's network are."""
    return run_folder(folder, run.method, run.seed) / JOURNAL


# ---- writing -----------------------------------------------------------------------------------


def about(problem: str, scale: str, run: Run, network: Network) -> Line:
    """What all lines of a network share; ``network`` is a name of how it was trained.

    ``twin``, its activation, is there only if that is not the model's own.
    """
    twin = run.problem.twin
    return {
        "problem": problem,
        **({} if twin is None else {"twin": twin}),
        "scale": scale,
        "seed": run.seed,
        "precision": network.precision,
        "metric_name": network.problem.measure.name,
        "device": device_name(network.device),
        "versions": versions(),
        "parameters": sum(p.numel() for p in network.model.parameters()),
        "data": network.problem.note,
        "network": training_of(run),
    }


def training_of(run: Run) -> str:
    """The same for networks that differ in their seed only."""
    alike = {name: value for name, value in run.settings.items() if name != "seed"}
    return hashlib.sha256(json.dumps(alike, sort_keys=True).encode()).hexdigest()[:8]


def check_alike(folder: Path, run: Run, but: Sequence[int] = ()) -> None:
    """Refuse a folder with networks that were trained in another way: a table would mix them.

    ``but`` those of these seeds, which are to be replaced.
    """
    for line in read_folder(folder):
        if line["network"] != training_of(run) and line["seed"] not in but:
            raise RecordError(
                f"{str(folder)!r} has results of another network ({subject(line)}, seed "
                f"{line['seed']}): choose another --out"
            )


def forget(folder: Path, run: Run, unwanted: Callable[[Line], bool]) -> None:
    """Delete lines of a run's network."""
    kept = [line for line in read_run(folder, run) if not unwanted(line)]
    with replacing(journal_path(folder, run)) as beside:
        beside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


# ---- reading -----------------------------------------------------------------------------------


def read_folder(folder: Path) -> list[Line]:
    """The lines of all networks of a folder, seed by seed."""
    return [line for path in run_paths(folder, JOURNAL) for line in read_lines(path)]


def read_run(folder: Path, run: Run) -> list[Line]:
    """The lines of one network."""
    return read_lines(journal_path(folder, run))


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
        if name == "twin" and name not in line:
            continue
        if name not in line:
            raise RecordError(f"{where} lacks {name!r}")
        if not isinstance(line[name], types) or isinstance(line[name], bool):
            raise RecordError(f"{where}: {name} is {line[name]!r}")
    unknown = line.keys() - needed.keys() - {"event", "id"}
    if unknown:
        raise RecordError(f"{where} has unknown {', '.join(sorted(unknown))}")
    if line["event"] == "layer" and line["predicted"].keys() != set(PREDICTED):
        raise RecordError(f"{where} predicts {', '.join(line['predicted'])}")


def subject(line: Line) -> str:
    """The problem whose network was pruned, and which twin if it was one.

    >>> subject({"problem": "digits"}), subject({"problem": "digits", "twin": "gelu"})
    ('digits', 'digits+gelu')
    """
    return "+".join(line[name] for name in ("problem", "twin") if name in line)


def asked_for(ask: Ask, line: Line) -> bool:
    """Whether a line tells of what is asked for, of whichever seed; of a whole network: no."""
    if line["event"] == "layer":
        return (line["sparsity"], line["budget"]) == (ask.layers, ask.gradients)
    wanted = [(name, share, ask.group) for name in ask.criteria for share in ask.sparsities]
    return any(result.key in wanted for result in results_of([line]))


def results_of(lines: Iterable[Line]) -> list[Result]:
    """Of the lines that tell of a pruned network; a loss that was not finite is NaN.

    Those of criteria that there are no more are left out, and a radius is `spelled` in one way.
    """
    found = []
    for line in lines:
        if line["event"] == "pruned" and line["criterion"].partition("@")[0] in ("none", *ROWS):
            values = {field.name: line[field.name] for field in fields(Result)}
            values |= {name: _number(line[name]) for name in ("loss", "metric")}
            if "@" in line["criterion"]:
                values["criterion"] = spelled(line["criterion"])
            found.append(Result(**values))
    return found


Calibrations = dict[int, list[LayerIncrease]]
"""The layers of networks, by seed."""


def calibrations_of(lines: Iterable[Line]) -> dict[tuple[float, int], Calibrations]:
    """By the share removed and the gradients allowed."""
    found: dict[tuple[float, int], Calibrations] = {}
    for line in lines:
        if line["event"] == "layer":
            alike = found.setdefault((line["sparsity"], line["budget"]), {})
            predicted = {name: _number(value) for name, value in line["predicted"].items()}
            layer = LayerIncrease(line["layer"], _number(line["measured"]), predicted)
            alike.setdefault(line["seed"], []).append(layer)
    return found


def _number(value: float | None) -> float:
    return math.nan if value is None else value
