"""From an experiment's few lines of TOML to a list of runs with nothing left open.

An experiment says only how it differs from ``experiments/common.toml``, and from the file that it
is ``like``; a scale (lab, smoke) says only how it differs from the paper, or from the experiment's
long scale where it is none of the paper's; ``--set`` has the last word.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from aliceopt.lab import data
from aliceopt.lab.methods import METHODS, make_method, planned
from aliceopt.lab.problem import METRICS
from aliceopt.lab.spec import Run, Schedule, Training, checked_precision
from aliceopt.lab.words import meant

__all__ = [
    "EXPERIMENTS",
    "FAMILIES",
    "SCALES",
    "Plan",
    "PlanError",
    "choose",
    "experiment_plan",
    "label_of",
    "plan_of",
    "scales_of",
    "settings_of",
]

FOLDER = Path(__file__).with_name("experiments")
EXPERIMENTS = tuple(
    sorted(p.stem for p in FOLDER.glob("*.toml") if not p.stem.startswith("common"))
)
FAMILIES = {"pays": tuple(name for name in EXPERIMENTS if name.startswith("pays-"))}
"""Experiments that one name runs, one after the other."""
SCALES = ("paper", "long", "lab", "smoke")
"""The first is for the paper's experiments, the second for the others: see `scales_of`."""

_ABOUT_METHODS = ("label", "optimizer", "paper", "schedule", "epochs")
_TERM_NAMES = {"none": "no curvature", "glass+abs": "glass + abs", "glass+signed": "glass + signed"}


class PlanError(ValueError):
    """A plan that cannot be carried out, with the value that is wrong."""


@dataclass
class Plan:
    """What is to be run: ``document`` is written as plan.json, ``runs`` are carried out."""

    document: dict[str, Any]
    runs: list[Run]

    @property
    def gradients(self) -> int:
        """Estimated gradient evaluations of all runs."""
        return sum(int(run["gradients"]) for run in self.document["runs"])


def experiment_plan(
    name: str,
    scale: str = "lab",
    *,
    seeds: int | list[int] | None = None,
    sets: Iterable[str] = (),
    methods: Iterable[str] | None = None,
    precision: str | None = None,
    root: Path | None = None,
    read: bool = True,
    check: bool = True,
) -> Plan:
    """The plan of an experiment at a scale, with a user's changes.

    ``methods`` names those wanted, all for None; ``adamw@2e-3`` is ``adamw`` at that rate.
    With ``read`` the length of an epoch is that of the data, if it is there; else as published.
    Without ``check`` options are not held against their optimizers, whose packages may be missing:
    for a plan that is only looked at.
    """
    settings = settings_of(name, scale)
    for change in sets:
        _apply(settings, change)
    if seeds is not None:
        settings["seeds"] = seeds
    if precision is not None:
        try:
            settings["train"]["precision"] = checked_precision(precision)
        except ValueError as error:
            raise PlanError(str(error)) from error
    chosen = _methods(settings["methods"], methods)
    if not chosen:
        raise PlanError(f"--methods names none; there is {', '.join(settings['methods'])}")
    if root is not None:
        settings["data"]["root"] = str(root)
    problem = {
        "model": settings["model"],
        "data": settings["data"],
        "batch_size": settings["train"]["batch_size"],
        "metric": settings["metric"],
    }
    batches = _batches(settings, read)
    return plan_of(_about(name, scale, settings), problem, settings, chosen, batches, check=check)


def _about(name: str, scale: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    metric = settings["metric"]
    if metric not in METRICS:
        raise PlanError(f"metric must be one of {', '.join(METRICS)}; got {metric!r}")
    about = {"kind": "experiment", "name": name, "scale": scale}
    about |= {key: settings[key] for key in ("title", "figure", "metric")}
    about["better"] = METRICS[metric]
    about["reference"] = settings.get("paper", "")
    about["official_data"] = settings_of(name, scales_of(name)[0])["data"]["name"]
    return about


def _methods(known: Mapping[str, Any], wanted: Iterable[str] | None) -> dict[str, Any]:
    """Those that are wanted; a name with a rate behind it, ``adamw@2e-3``, is that method there."""
    if wanted is None:
        return dict(known)
    asked = list(wanted)
    names = dict.fromkeys(name.partition("@")[0] for name in asked)
    chosen = choose(known, names, "method")
    return {name: _at_rate(name, chosen[name.partition("@")[0]]) for name in asked}


def _at_rate(name: str, method: Mapping[str, Any]) -> dict[str, Any]:
    key, at, rate = name.partition("@")
    if not at:
        return dict(method)
    value = _value(rate)
    if not _is_number(value) or not 0 < value < math.inf:
        raise PlanError(
            f"method {name!r}: a learning rate > 0 stands behind the @, like {key}@1e-3; "
            f"got {rate!r}"
        )
    label = method.get("label") or (label_of(method) if _optimizer(key, method) == "alice" else key)
    return {**method, "lr": value, "label": f"{label}, lr {rate}"}


def plan_of(
    about: dict[str, Any],
    problem: dict[str, Any],
    settings: Mapping[str, Any],
    methods: Mapping[str, Mapping[str, Any]],
    batches: int,
    *,
    check: bool = True,
) -> Plan:
    """Every method with every seed on one problem."""
    seeds = _seeds(settings["seeds"])
    described: dict[str, Any] = {}
    runs: list[Run] = []
    for key, method in methods.items():
        optimizer, options = _optimizer(key, method), _options(method, settings)
        if check:
            _check_options(key, optimizer, options)
        training = _training(settings["train"], method, batches)
        label = method.get("label") or (label_of(options) if optimizer == "alice" else key)
        described[key] = {
            "label": label,
            "family": "alice" if optimizer == "alice" else "baseline",
            "terms": options.get("terms"),
            "step": options.get("step"),
            "optimizer": optimizer,
            "options": options,
            **({"schedule": method["schedule"]} if "schedule" in method else {}),
        }
        runs += [Run(key, label, optimizer, options, seed, problem, training) for seed in seeds]
    # Seeds outermost: an interrupted plan has compared all methods on the first seeds.
    runs.sort(key=lambda run: run.seed)
    document = {
        **about,
        "problem": problem,
        "data": problem.get("data", {}).get("name", "the problem's own"),
        "training": {**settings["train"], "batches": batches},
        "methods": described,
        "seeds": seeds,
        "runs": [_planned(run) for run in runs],
        "paper": {key: m["paper"] for key, m in methods.items() if "paper" in m},
    }
    return Plan(document, runs)


def _optimizer(key: str, method: Any) -> str:
    if not isinstance(method, Mapping) or "optimizer" not in method:
        raise PlanError(f"method {key} needs an optimizer, one of {', '.join(METHODS)}")
    return str(method["optimizer"])


def _check_options(key: str, optimizer: str, options: Mapping[str, Any]) -> None:
    """Refuse now what the optimizer would refuse when its first run begins."""
    try:
        make_method(optimizer, nn.Linear(2, 2), options, seed=0)
    except (RuntimeError, TypeError, ValueError) as error:
        raise PlanError(f"method {key}: {error}") from error


def _planned(run: Run) -> dict[str, Any]:
    steps = run.training.steps
    gradients = planned(run.optimizer, run.options, steps)
    if run.training.power_law is not None:
        times = 1 + min(run.training.evaluations, steps)
        gradients += times * (1 + 2 * run.training.power_law.get("directions", 4))
    return {"method": run.method, "seed": run.seed, "steps": steps, "gradients": gradients}


def _options(method: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    mine = {k: v for k, v in method.items() if k not in _ABOUT_METHODS}
    if method["optimizer"] != "alice":
        return mine
    return {**settings.get("alice", {}), **mine}


def label_of(options: Mapping[str, Any]) -> str:
    """A name for Alice with these options."""
    step = {"naq": "NAQ", "full": "full"}.get(options.get("step") or "", "")
    terms = options.get("terms", "glass+abs" if step else "none")
    return f"Alice, {_TERM_NAMES.get(terms, terms)}, {step}".rstrip(", ")


def _training(train: Mapping[str, Any], method: Mapping[str, Any], batches: int) -> Training:
    values = dict(train)
    usual = values.pop("schedule", {})
    if not isinstance(usual, Mapping):
        raise PlanError(f"train.schedule is a table, like train.schedule.shape; got {usual!r}")
    schedule = {**usual, **method.get("schedule", {})}
    epochs = method.get("epochs", values.get("epochs"))
    values.pop("epochs", None)
    for key in ("examples", "batch_size"):
        values.pop(key, None)
    if "steps" not in values:
        if epochs is None:
            raise PlanError("train needs steps or epochs")
        if not _is_number(epochs) or not 0 < epochs < math.inf:
            raise PlanError(f"train.epochs must be a number > 0, got {epochs!r}")
        values["steps"] = max(1, round(epochs * batches))
    try:
        schedule["drops"] = tuple(schedule.get("drops", ()))
        return Training(schedule=Schedule(**schedule), **values)
    except (TypeError, ValueError) as error:
        raise PlanError(f"train: {error}") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seeds(seeds: Any) -> list[int]:
    if isinstance(seeds, list):
        whole = all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in seeds)
        if not seeds or not whole or len(set(seeds)) < len(seeds):
            raise PlanError(f"seeds must be different whole numbers >= 0, got {seeds!r}")
        return seeds
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= 10_000:
        raise PlanError(f"seeds must be a whole number from 1 to 10000, got {seeds!r}")
    return list(range(seeds))


def _batches(settings: Mapping[str, Any], read: bool) -> int:
    """Batches an epoch: of the data if it is there, else of the set as published."""
    size: int = settings["train"]["batch_size"]
    examples: int = settings["train"].get("examples", 0)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise PlanError(f"train.batch_size must be a whole number >= 1, got {size!r}")
    source = {k: v for k, v in settings["data"].items() if k != "name"}
    if read:
        try:
            return len(data.load(settings["data"]["name"], batch_size=size, **source).train)
        except TypeError as error:
            raise PlanError(f"data: {error}") from error
        except data.DataError:
            pass  # told by the command that needs the data
    return max(1, examples // size)


# ---- settings ----------------------------------------------------------------------------------


def settings_of(name: str, scale: str) -> dict[str, Any]:
    """An experiment's settings at a scale, before a user's changes."""
    if name not in EXPERIMENTS:
        raise PlanError(f"no experiment {name!r}{meant(name, EXPERIMENTS)}")
    if scale not in (known := scales_of(name)):
        raise PlanError(f"scale must be one of {', '.join(known)}; got {scale!r}")
    settings, mine = _read("common"), _read(name)
    if "like" in mine:
        settings = _merged(settings, _read(mine.pop("like")))
    settings = _merged(settings, mine)
    smaller = settings.pop("scale").get(scale, {})
    if "steps" in smaller.get("train", {}):
        settings["train"].pop("epochs", None)
    return _merged(settings, smaller)


def scales_of(name: str) -> tuple[str, ...]:
    """An experiment's scales; the first is its file's own, from which the others differ.

    >>> scales_of("tt-limit"), scales_of("pays-gpt")
    (('paper', 'lab', 'smoke'), ('long', 'lab', 'smoke'))
    """
    return ("paper" if "paper" in _read(name) else "long", "lab", "smoke")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes``, table by table."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return result


_OPEN_TABLES = ("model", "data", "alice", "methods", "train")


def _apply(settings: dict[str, Any], change: str) -> None:
    """One ``--set key=value``; the value is TOML, or a word."""
    key, equals, text = change.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        raise PlanError(f"--set takes key=value, like train.epochs=10; got {change!r}")
    table = settings
    for part in path[:-1]:
        if part not in table or not isinstance(table[part], dict):
            raise PlanError(f"--set {change}: there is no {part!r}{meant(part, table)}")
        table[part] = dict(table[part])
        table = table[part]
    fields = {"train": _training_fields(), "train.schedule": list(Schedule.__dataclass_fields__)}
    where = ".".join(path[:-1])
    known = fields.get(where, [] if path[0] in _OPEN_TABLES and path[:-1] else list(table))
    if known and path[-1] not in known:
        raise PlanError(f"--set {change}: there is no {key!r}{meant(path[-1], known)}")
    if path[:-1] == ["train"] and path[-1] in ("steps", "epochs"):
        table.pop({"steps": "epochs", "epochs": "steps"}[path[-1]], None)
    value = _value(text.strip())
    if value == text.strip() and (not value or set("[]{}\"'=,#") & set(value)):
        raise PlanError(f"--set {change}: {value!r} is neither a TOML value nor a word")
    if isinstance(table.get(path[-1]), Mapping) and not isinstance(value, Mapping):
        raise PlanError(f"--set {change}: {key!r} is a table, like {{ name = value }}")
    table[path[-1]] = value


def _training_fields() -> list[str]:
    return ["epochs", "examples", "batch_size", *Training.__dataclass_fields__]


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def choose(known: Mapping[str, Any], wanted: Iterable[str] | None, what: str) -> dict[str, Any]:
    """Those that are wanted, in that order; all of them for None."""
    if wanted is None:
        return dict(known)
    chosen = {}
    for key in wanted:
        if key not in known:
            raise PlanError(f"no {what} {key!r}{meant(key, known)}")
        chosen[key] = known[key]
    return chosen
