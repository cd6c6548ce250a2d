"""Settings of a plan in words, for reports and for the terminal."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = [
    "counted",
    "meant",
    "plain",
    "rounded",
    "schedule_in_words",
    "settings_in_words",
    "training_in_words",
]


def counted(count: float, noun: str, nouns: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "run"), counted(2000.0, "run"), counted(0.5, "batch", "batches")
    ('1 run', '2,000 runs', '0.5 batches')
    """
    whole = int(count) if count == int(count) else count
    return f"{whole:,} {noun if count == 1 else nouns or noun + 's'}"


def meant(word: str, known: Iterable[str]) -> str:
    """What goes behind a name that is not known: the one that was meant, or all there are.

    >>> meant("adm", ["adam", "sgd"]), meant("lion", ["adam", "sgd"])
    (": did you mean 'adam'?", '; there is adam, sgd')
    """
    names = list(known)
    near = difflib.get_close_matches(word.lower(), names, n=1)
    return f": did you mean {near[0]!r}?" if near else f"; there is {', '.join(names)}"


def rounded(count: int) -> str:
    """A large number as one says it.

    >>> rounded(288), rounded(60_000), rounded(1_209_600), rounded(12_000_000)
    ('288', '60 thousand', '1.2 million', '12 million')
    """
    for size, name in ((10**6, "million"), (10**3, "thousand")):
        if count >= size:
            share = count / size
            return f"{share:.1f} {name}" if share < 10 and size > 1000 else f"{share:.0f} {name}"
    return str(count)


_CONTROLS = dict.fromkeys(
    code for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in b"\t\n"
)


def plain(text: str) -> str:
    r"""Text without the characters that a terminal would obey instead of showing them.

    >>> plain("a name\x1b[2J that clears the screen")
    'a name[2J that clears the screen'
    """
    return text.translate(_CONTROLS)


def schedule_in_words(schedule: Mapping[str, Any]) -> str:
    """The course of the learning rate.

    >>> schedule_in_words({"shape": "cosine", "warmup": 0.05})
    'rising over the first 5% of the run, then falling to zero along a cosine'
    >>> schedule_in_words({"shape": "drops", "drops": [0.5, 0.75]})
    'multiplied by 0.1 at 50% and 75% of the run'
    """
    shape, drops = schedule.get("shape", "constant"), schedule.get("drops") or ()
    course = {
        "cosine": "falling to zero along a cosine",
        "linear": "falling to zero along a line",
        "drops": f"multiplied by {schedule.get('gamma', 0.1):g} at {_shares(drops)} of the run",
    }.get("constant" if shape == "drops" and not drops else shape, "constant")
    warmup = schedule.get("warmup") or 0
    rise = f"rising over the first {_shares([warmup])} of the run, then " if warmup else ""
    return rise + course


def _shares(shares: Any) -> str:
    said = [f"{100 * share:.3g}%" for share in shares]
    return " and ".join(filter(None, [", ".join(said[:-1]), *said[-1:]]))


def training_in_words(
    training: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """How the runs of a plan are trained.

    ``own`` are the schedules of methods by label; those that differ from the plan's are told.

    >>> training_in_words({"epochs": 8, "batches": 22, "batch_size": 64, "precision": "float32"})
    '8 epochs of 22 batches; batch size 64; float32; learning rate constant'
    """
    left = {k: v for k, v in training.items() if v is not None and k != "examples"}
    batches = left.pop("batches", None)
    said = []
    if "epochs" in left:
        each = f" of {counted(batches, 'batch', 'batches')}" if batches else ""
        said.append(counted(left.pop("epochs"), "epoch") + each)
    elif "steps" in left:
        said.append(counted(left.pop("steps"), "step"))
    said += [f"batch size {left.pop('batch_size')}"] if "batch_size" in left else []
    said += [str(left.pop("precision"))] if "precision" in left else []
    said.append(f"learning rate {_courses(left.pop('schedule', {}), own or {})}")
    for name, words in _RECORDED.items():
        said += [words(left.pop(name))] if name in left else []
    rest = settings_in_words(left)
    return "; ".join([*said, *([rest] if rest else [])])


def _courses(schedule: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]]) -> str:
    course = schedule_in_words(schedule)
    words = {label: schedule_in_words(mine) for label, mine in own.items()}
    others = [f"for {label}: {mine}" for label, mine in words.items() if mine != course]
    return f"{course} ({'; '.join(others)})" if others else course


_RECORDED: dict[str, Callable[[Any], str]] = {
    "evaluations": lambda n: counted(n, "evaluation"),
    "validation_batches": lambda n: f"each on {counted(n, 'batch', 'batches')}",
    "logs": lambda n: f"{counted(n, 'record')} of the training loss",
    "power_law": lambda law: f"exponents measured with {settings_in_words(law)}",
}


def settings_in_words(values: Mapping[str, Any]) -> str:
    """``name value`` pairs in a line; what is nested stays JSON, what is unset is left out.

    >>> settings_in_words({"name": "resnet18", "width": 4, "sizes": [1, 2], "depth": None})
    'resnet18, width 4, sizes [1, 2]'
    """
    told = []
    for name, value in values.items():
        if value is not None:
            plain = value if isinstance(value, str | float) else json.dumps(value)
            told.append(str(plain) if name == "name" else f"{name.replace('_', ' ')} {plain}")
    return ", ".join(told)
