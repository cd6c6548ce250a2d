"""Settings of a plan in words, for reports and for the terminal."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aliceopt.lab.spec import PlannedTraining, PowerLaw, Schedule


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


def schedule_in_words(schedule: Schedule) -> str:
    """The course of the learning rate.

    >>> schedule_in_words(Schedule("cosine", warmup=0.05))
    'rising over the first 5% of the run, then falling to zero along a cosine'
    >>> schedule_in_words(Schedule("drops", drops=(0.5, 0.75)))
    'multiplied by 0.1 at 50% and 75% of the run'
    """
    course = {
        "constant": "constant",
        "cosine": "falling to zero along a cosine",
        "linear": "falling to zero along a line",
        "drops": f"multiplied by {schedule.gamma:g} at {_shares(schedule.drops)} of the run",
    }["constant" if not schedule.drops and schedule.shape == "drops" else schedule.shape]
    if not schedule.warmup:
        return course
    return f"rising over the first {_shares([schedule.warmup])} of the run, then {course}"


def _shares(shares: Sequence[float]) -> str:
    said = [f"{100 * share:.3g}%" for share in shares]
    return " and ".join(filter(None, [", ".join(said[:-1]), *said[-1:]]))


def training_in_words(training: PlannedTraining, own: Mapping[str, Schedule]) -> str:
    """How the runs of a plan are trained.

    ``own`` are the schedules of methods by label; those that differ from the plan's are told.

    >>> training_in_words(PlannedTraining(batches=22, epochs=8, batch_size=64), {})
    '8 epochs of 22 batches; batch size 64; float32; learning rate constant; 20 evaluations; 50
    records of the training loss'
    """
    said = [] if training.steps is None else [counted(training.steps, "step")]
    if training.epochs is not None and not said:
        each = counted(training.batches, "batch", "batches")
        said.append(f"{counted(training.epochs, 'epoch')} of {each}")
    said += [f"batch size {training.batch_size}"] if training.batch_size else []
    course = schedule_in_words(training.schedule)
    words = {label: schedule_in_words(mine) for label, mine in own.items()}
    others = [f"for {label}: {mine}" for label, mine in words.items() if mine != course]
    course = f"{course} ({'; '.join(others)})" if others else course
    said += [training.precision, f"learning rate {course}"]
    said.append(counted(training.evaluations, "evaluation"))
    if training.validation_batches is not None:
        said.append(f"each on {counted(training.validation_batches, 'batch', 'batches')}")
    said.append(f"{counted(training.logs, 'record')} of the training loss")
    if training.power_law is not None:
        said.append(exponents_in_words(training.power_law))
    usual = PlannedTraining(batches=1)
    rare = ("capture", "compile", "telemetry", "checkpoints", "keep_checkpoint", "threads")
    rest = {k: v for k in rare if (v := getattr(training, k)) != getattr(usual, k)}
    return "; ".join([*said, *([settings_in_words(rest)] if rest else [])])


def exponents_in_words(law: PowerLaw) -> str:
    """How they are measured.

    >>> exponents_in_words(PowerLaw(0.002, radii=(2e-5,), batch_sizes=(500,), held_out=True))
    'exponents measured at radius 0.002 and 2e-05 in 4 directions, on batches of 500 besides, on
    held-out examples, too'
    """
    radii = " and ".join(f"{radius:g}" for radius in (law.radius, *(law.radii or ())))
    said = [f"exponents measured at radius {radii} in {counted(law.directions, 'direction')}"]
    said += [f"on batches of {size:,} besides" for size in law.batch_sizes or ()]
    said += ["on held-out examples, too"] if law.held_out else []
    return ", ".join(said)


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
