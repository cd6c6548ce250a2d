"""How records differ from the paper's experiment: said under every table and figure.

A smaller scale, another data set or changed settings make numbers that must not be read against
the paper's, however close they come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from aliceopt.lab.plan import EXPERIMENTS, settings_of
from aliceopt.lab.records import RunRecord

__all__ = ["data_name", "differences", "lost", "remark", "setting", "title_of"]

Plan = Mapping[str, Any]


def setting(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """Data, scale, length, batch size and seeds: ``cifar10, lab scale, 10 epochs, ...``."""
    said = [data_name(plan, runs)]
    if plan.get("scale"):
        said.append(f"{plan['scale']} scale")
    said += [_length(plan["training"])] if plan.get("training") else []
    batch = _batch_size(plan)
    said += [f"batch size {batch}"] if batch is not None else []
    count = len(plan["seeds"])
    return ", ".join([*said, f"{count} seed" + "s" * (count != 1)])


def data_name(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """The data set, with ``(generated)`` behind it if any record or the plan says so."""
    name = str(plan["data"])
    notes = [str(run.start.get("data", "")) for run in runs]
    generated = any("generated" in note for note in notes) and "generated" not in name
    return f"{name} (generated)" if generated else name


def title_of(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """The experiment's title, which names the paper's data; other data is named behind it."""
    name, official = data_name(plan, runs), plan.get("official_data")
    title = str(plan["title"])
    if official is None or name == official:
        return title
    bare, _, generated = name.partition(" (")
    said = [f"here: {bare}"] if bare != official else []
    return f"{title} ({', '.join([*said, *(['generated data'] if generated else [])])})"


def lost(runs: Sequence[RunRecord]) -> str:
    """``2 of 24 runs missing, 1 diverged``; empty if all finished."""
    counts = Counter(run.status for run in runs if run.status != "finished")
    said = [f"{counts[s]} {s}" for s in ("diverged", "interrupted", "failed") if counts[s]]
    if counts["missing"]:
        said.insert(0, f"{counts['missing']} missing")
    return f"of {len(runs)} runs: {', '.join(said)}" if said else ""


def differences(plan: Plan, runs: Sequence[RunRecord]) -> list[str]:
    """What keeps these numbers from being compared with the paper's; empty if nothing does."""
    found = [] if plan.get("scale") == "paper" else [f"{plan.get('scale')} scale"]
    name = data_name(plan, runs)
    official = plan.get("official_data")
    if official is not None and not name.startswith(official):
        found.append(f"{name} instead of {official}")
    elif "generated" in name:
        found.append("generated data")
    if plan["name"] in EXPERIMENTS:
        found += _changed(plan, settings_of(plan["name"], "paper"))
    return found


def _changed(plan: Plan, paper: Mapping[str, Any]) -> list[str]:
    """Settings that are not those of the paper's scale, whoever changed them."""
    found = []
    ours, theirs = _length(plan["training"]), _length(paper["train"])
    if ours != theirs:
        short, same_unit = ours.split()[0], ours.split()[1] == theirs.split()[1]
        found.append(f"{short if same_unit else ours} instead of {theirs}")
    batch = paper["train"]["batch_size"]
    if _batch_size(plan) != batch:
        found.append(f"batch size {_batch_size(plan)} instead of {batch}")
    if plan["problem"]["model"] != paper["model"]:
        model = plan["problem"]["model"]
        sizes = [f"{k} {v}" for k, v in model.items() if paper["model"].get(k) != v]
        found.append(f"another network ({', '.join(sizes)})")
    for name in ("schedule", "precision"):
        if plan["training"].get(name) != paper["train"].get(name):
            found.append(f"another {name}")
    for key, method in plan["methods"].items():
        theirs_too = paper["methods"].get(key)
        if theirs_too is not None and _differ(method, {**paper["alice"], **theirs_too}):
            found.append(f"other options of {method['label']}")
    return found


def _differ(method: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether an option is not the wanted one; options can be changed or added, not removed."""
    return any(wanted.get(name) != value for name, value in method["options"].items())


def _length(train: Mapping[str, Any]) -> str:
    unit = "steps" if "steps" in train else "epochs"
    count = train[unit]
    return f"{count:,} {unit if count != 1 else unit[:-1]}"


def _batch_size(plan: Plan) -> int | None:
    problem = plan.get("problem")
    size = problem.get("batch_size") if isinstance(problem, Mapping) else None
    return plan.get("training", {}).get("batch_size", size)  # type: ignore[no-any-return]


def remark(plan: Plan, runs: Sequence[RunRecord]) -> str:
    """One sentence on whether the paper's values may be read against these."""
    found = differences(plan, runs)
    if not found:
        return "Settings are the paper's or its authors' scripts', as far as known."
    text = f"{', '.join(found)}: not comparable with the paper's values."
    return text[0].upper() + text[1:]
