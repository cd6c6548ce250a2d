"""From an experiment's few lines of TOML to a list of runs with nothing left open.

An experiment says only how it differs from ``experiments/common.toml``, and from the file that it
is ``like``; a scale (lab, small, smoke) says only how it differs from the paper, or from the
experiment's long scale where it is none of the paper's; ``--set`` has the last word.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from aliceopt.lab import data, spec, typed
from aliceopt.lab.optimizers.methods import METHODS, make_method, planned
from aliceopt.lab.problems.problem import METRICS, load_data
from aliceopt.lab.words import meant
from aliceopt.landscape.twins import ACTIVATIONS

__all__ = ["PlanError", "experiment_plan", "filed_label", "scales_of", "settings_of"]

FOLDER = Path(__file__).with_name("experiments")
EXPERIMENTS = tuple(
    sorted(p.stem for p in FOLDER.glob("*.toml") if not p.stem.startswith("common"))
)
FAMILIES = {"pays": tuple(name for name in EXPERIMENTS if name.startswith("pays-"))}
"""Experiments that one name runs, one after the other."""
SCALES = ("paper", "long", "lab", "small", "smoke")
"""From days on a GPU to seconds on a CPU; an experiment has some of them: see `scales_of`."""

_ABOUT_METHODS = ("label", "optimizer", "paper", "schedule", "epochs", "share", "twin")
TERM_NAMES = {"none": "no curvature", "glass+abs": "glass + abs", "glass+signed": "glass + signed"}


class PlanError(ValueError):
    """A plan that cannot be carried out, with the value that is wrong."""


@contextmanager
def _refusing(place: str = "") -> Iterator[None]:
    """Within, whatever value is refused is one of the plan's; ``place`` says where in it."""
    try:
        yield
    except PlanError:
        raise
    except ValueError as error:
        raise PlanError(f"{place}{error}") from error


@_refusing()
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
) -> spec.Plan:
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
        settings["train"]["precision"] = spec.checked_precision(precision)
    if root is not None:
        settings["data"]["root"] = str(root)
    known = settings["methods"]
    wanted = {key: key.partition("@")[0] for key in (known if methods is None else methods)}
    if not wanted:
        raise PlanError(f"--methods names none; there is {', '.join(known)}")
    there = choose(known, wanted.values(), "method")
    metric = settings["metric"]
    if metric not in tuple(METRICS):  # which also takes what no table can look up
        raise PlanError(f"metric must be one of {', '.join(METRICS)}; got {metric!r}")
    size = _training(settings["train"]).batch_size
    if size is None:
        raise PlanError("train needs a batch_size")
    problem = spec.LabProblem(settings["model"], settings["data"], size, metric)
    return plan_of(
        problem,
        settings,
        {key: there[method] for key, method in wanted.items()},
        _batches(problem, settings["train"], read),
        check=check,
        kind="experiment",
        name=name,
        scale=scale,
        title=settings["title"],
        figure=settings["figure"],
        metric=metric,
        better=METRICS[metric],
        reference=settings.get("paper", ""),
        official_data=settings_of(name, scales_of(name)[0])["data"]["name"],
    )


def _batches(problem: spec.LabProblem, train: Mapping[str, Any], read: bool) -> int:
    """Batches an epoch: of the data if it is there, else of the set as published."""
    if read:
        try:
            return len(load_data(problem).train)
        except TypeError as error:
            raise PlanError(f"data: {error}") from error
        except data.DataError:
            pass  # told by the command that needs the data
    return max(1, int(train.get("examples", 0)) // problem.batch_size)


@_refusing()
def plan_of(
    problem: spec.Source,
    settings: Mapping[str, Any],
    methods: Mapping[str, Mapping[str, Any]],
    batches: int,
    *,
    check: bool = True,
    **about: Any,
) -> spec.Plan:
    """Every method with every seed on one problem; ``about`` are further fields of the plan.

    A method whose key has a rate behind it, like ``adamw@2e-3``, gets that rate.
    """
    seeds = checked_seeds(settings["seeds"])
    described: dict[str, spec.PlannedMethod] = {}
    costs: dict[str, tuple[int, int]] = {}
    for key, method in methods.items():
        mine = described[key] = _method(key, method, settings.get("alice", {}))
        if check:
            _check_options(key, mine)
        training = _training(settings["train"], batches, method.get("epochs"))
        steps = training.length
        if steps is None:
            raise PlanError("train needs steps or epochs")
        if "share" in method:  # of everybody else's steps
            share = typed.checked(typed.Positive, method["share"], f"methods.{key}.share")
            steps = max(1, round(steps * share))
        costs[key] = steps, gradients_of(mine, training, steps)
    plan = spec.Plan(
        **about,
        problem=problem,
        data=problem.data["name"] if isinstance(problem, spec.LabProblem) else "the problem's own",
        training=_training(settings["train"], batches),
        methods=described,
        seeds=seeds,
        # Seeds outermost: an interrupted plan has compared all methods on the first seeds.
        runs=[spec.PlannedRun(key, seed, *costs[key]) for seed in sorted(seeds) for key in methods],
        paper={key: m["paper"] for key, m in methods.items() if "paper" in m},
    )
    typed.check(plan)
    for key in methods:
        with _refusing(f"method {key}: "):
            plan.schedule_of(key)
    return plan


def _method(key: str, method: Any, alice: Mapping[str, Any]) -> spec.PlannedMethod:
    """A method as the plan has it; ``alice``: what every Alice starts from."""
    name, at, rate = key.partition("@")
    if not isinstance(method, Mapping) or "optimizer" not in method:
        raise PlanError(f"method {name} needs an optimizer, one of {', '.join(METHODS)}")
    optimizer = str(method["optimizer"])
    options = {k: v for k, v in method.items() if k not in _ABOUT_METHODS}
    options = {**alice, **options} if optimizer == "alice" else options
    label = method.get("label") or (label_of(options) if optimizer == "alice" else name)
    if at:
        options["lr"], label = _value(rate), f"{label}, lr {rate}"
        if not typed.fits(typed.Positive, options["lr"]):
            raise PlanError(
                f"method {key!r}: a learning rate > 0 stands behind the @, like {name}@1e-3; "
                f"got {rate!r}"
            )
    about = {
        "label": label,
        "family": "alice" if optimizer == "alice" else "baseline",
        "optimizer": optimizer,
        "options": options,
        "terms": options.get("terms"),
        "step": options.get("step"),
        "schedule": method.get("schedule"),
        "twin": method.get("twin"),
    }
    if about["twin"] not in (None, *ACTIVATIONS):
        known = meant(str(about["twin"]), ACTIVATIONS)
        raise PlanError(f"method {name}: no activation {about['twin']!r}{known}")
    return typed.from_json(spec.PlannedMethod, about, f"methods.{key}")


def _check_options(key: str, method: spec.PlannedMethod) -> None:
    """Refuse now what the optimizer would refuse when its first run begins."""
    try:
        make_method(method.optimizer, nn.Linear(2, 2), method.options, seed=0)
    except TypeError as error:  # which does not say the value
        raise PlanError(f"method {key}: {error} (its options: {method.options})") from error
    except (RuntimeError, ValueError) as error:
        raise PlanError(f"method {key}: {error}") from error


def gradients_of(method: spec.PlannedMethod, training: spec.Recipe, steps: int) -> int:
    """Gradient evaluations of a run of so many steps."""
    gradients = planned(method.optimizer, method.options, steps)
    if training.power_law is None:
        return gradients
    times = 1 + min(training.evaluations, steps)
    each = 1 + 2 * training.power_law.directions
    return gradients + times * each * len(training.power_law.places)


def label_of(options: Mapping[str, Any]) -> str:
    """A name for Alice with these options."""
    step = {"naq": "NAQ", "full": "full"}.get(str(options.get("step")), "")
    terms = str(options.get("terms", "glass+abs" if step else "none"))
    return f"Alice, {TERM_NAMES.get(terms, terms)}, {step}".rstrip(", ")


@cache
def filed_label(experiment: str, method: str) -> str | None:
    """The name that an experiment gives a method, also at another rate; None if it gives none.

    >>> filed_label("pays-gpt", "ahead-1_5"), filed_label("pays-gpt", "adamw@2e-3")
    ('Alice (as it comes)', 'AdamW, lr 2e-3')
    """
    if experiment not in EXPERIMENTS:
        return None
    settings = settings_of(experiment, scales_of(experiment)[0])
    filed = settings["methods"].get(method.partition("@")[0])
    if filed is None or "label" not in filed:
        return None  # others are named after the options that they were run with
    return _method(method, filed, settings.get("alice", {})).label


def _training(
    train: Mapping[str, Any], batches: int = 1, epochs: float | None = None
) -> spec.PlannedTraining:
    """The table ``train``, with epochs of a method's own if they are given."""
    own = {} if epochs is None else {"epochs": epochs}
    return typed.from_json(spec.PlannedTraining, {**train, "batches": batches, **own}, "train")


def checked_seeds(seeds: Any) -> list[int]:
    """Which they are: so many from 0 on, or those of a list."""
    if not isinstance(seeds, list):
        return list(range(typed.checked(typed.whole(1, 10_000), seeds, "seeds")))
    fine = all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in seeds)
    if not seeds or not fine or len(set(seeds)) < len(seeds):
        raise PlanError(f"seeds must be different whole numbers >= 0, got {seeds!r}")
    return seeds


# ---- settings ----------------------------------------------------------------------------------


def settings_of(name: str, scale: str) -> dict[str, Any]:
    """An experiment's settings at a scale, before a user's changes."""
    if name not in EXPERIMENTS:
        raise PlanError(f"no experiment {name!r}{meant(name, EXPERIMENTS)}")
    if scale not in (known := scales_of(name)):
        raise PlanError(f"no scale {scale!r} of {name}{meant(scale, known)}")
    settings, mine = _read("common"), _read(name)
    if "like" in mine:
        settings = merged(settings, _read(mine.pop("like")))
    settings = merged(settings, mine)
    smaller = settings.pop("scale").get(scale, {})
    if "steps" in smaller.get("train", {}):
        settings["train"].pop("epochs", None)
    return merged(settings, smaller)


def scales_of(name: str) -> tuple[str, ...]:
    """An experiment's scales; the first is its file's own, from which the others differ.

    >>> scales_of("tt-limit"), scales_of("pays-gpt")
    (('paper', 'lab', 'small', 'smoke'), ('long', 'lab', 'smoke'))
    """
    return (
        ("paper", "lab", "small", "smoke") if "paper" in _read(name) else ("long", "lab", "smoke")
    )


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes``, table by table; None changes nothing."""
    result = dict(base)
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        elif value is not None:
            result[key] = value
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
        table = table[part]
    training = [name for name in spec.PlannedTraining.__dataclass_fields__ if name != "batches"]
    fields = {"train": training, "train.schedule": list(spec.Schedule.__dataclass_fields__)}
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


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def choose(known: Mapping[str, Any], wanted: Iterable[str], what: str) -> dict[str, Any]:
    """Those that are wanted, in that order."""
    chosen = {}
    for key in wanted:
        if key not in known:
            raise PlanError(f"no {what} {key!r}{meant(key, known)}")
        chosen[key] = known[key]
    return chosen
