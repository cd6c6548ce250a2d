"""What a claim is, how a measurement is judged, and how claims are run.

A verdict is computed from three numbers, never stored. The *expected* value comes from
`aliceopt.theory` or from an exact argument; the *measured* one from an experiment that does not use
it; the *paper's* is what the paper prints.

    failed      measured and expected differ
    confirmed   they agree, and the paper agrees with what was measured
    corrected   they agree, and the paper does not

Numbers agree when they differ by at most four standard errors plus the stated tolerance.

A claim about training runs, which take hours, is judged by results that were kept of such runs:

    reproduced       they show what it says, by more than their 95% interval
    not reproduced   they show the contrary of it, by more than that
    cannot tell      neither, or too few are kept; the note says why
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch

__all__ = [
    "DEFAULT_SAMPLES",
    "LEAST_SAMPLES",
    "MOST_SAMPLES",
    "OF_MEASUREMENTS",
    "OF_TRAINING",
    "Claim",
    "Context",
    "Measurement",
    "Result",
    "Training",
    "Verdict",
    "judge",
    "register",
    "run",
    "select",
]

Relation = Literal["=", "<=", ">="]
Verdict = Literal["confirmed", "corrected", "failed", "reproduced", "not reproduced", "cannot tell"]
OF_MEASUREMENTS: tuple[Verdict, ...] = ("confirmed", "corrected", "failed")
OF_TRAINING: tuple[Verdict, ...] = ("reproduced", "not reproduced", "cannot tell")

STANDARD_ERRORS = 4
DEFAULT_SAMPLES = 20_000
LEAST_SAMPLES, MOST_SAMPLES = 1_000, 100_000
"""Fewer would decide nothing, more would not fit into the memory of a small machine."""

T = TypeVar("T")


@dataclass(frozen=True)
class Measurement:
    """What an experiment found, and what it should have found.

    ``error`` is a standard error, ``tolerance`` what an approximation or a limit is allowed.
    ``relation`` says how ``measured`` must stand to ``expected``: equal, below or above.

    ``paper`` is the paper's number for the same quantity (None: it prints none that could
    differ) and ``paper_tolerance`` half a unit of its last digit. A paper's number that stems
    from a single trial is judged by ``spread`` instead, the range that single trials have here.
    """

    measured: float
    expected: float
    error: float = 0.0
    tolerance: float = 0.0
    relation: Relation = "="
    paper: float | None = None
    paper_relation: Relation = "="
    paper_tolerance: float = 0.0
    spread: tuple[float, float] | None = None
    note: str = ""

    @property
    def slack(self) -> float:
        """How far two numbers may differ and still agree."""
        return STANDARD_ERRORS * self.error + self.tolerance

    def as_expected(self) -> bool:
        """Does the experiment agree with the theory?"""
        return _holds(self.measured, self.relation, self.expected, self.slack)

    def as_printed(self) -> bool:
        """Does the experiment agree with the paper?"""
        if self.paper is None:
            return True
        if self.spread is not None:
            return self.spread[0] <= self.paper <= self.spread[1]
        slack = self.slack + self.paper_tolerance
        return _holds(self.measured, self.paper_relation, self.paper, slack)


def _holds(value: float, relation: Relation, target: float, slack: float) -> bool:
    """A comparison that no NaN can pass."""
    if relation == "=":
        return abs(value - target) <= slack
    return value <= target + slack if relation == "<=" else value >= target - slack


@dataclass(frozen=True)
class Training:
    """What a claim about training says of an experiment of the lab (`aliceopt list`).

    Of every pair of methods the first ends better than the second. Without pairs it is about the
    exponents of gradient variations: the last block's is near 2, the others' below.
    """

    experiment: str
    pairs: tuple[tuple[str, str], ...] = ()


@dataclass
class Context:
    """What every experiment is given: where randomness comes from and how much of it.

    ``samples`` scales every Monte-Carlo size: an experiment asks for the number of draws it needs
    by default and gets it times ``samples / DEFAULT_SAMPLES``. ``trained`` judges claims about
    training, by a verdict and its reason: `aliceopt.lab.results.reproduced` has one.
    """

    seed: int = 0
    samples: int = DEFAULT_SAMPLES
    trained: Callable[[Training], tuple[Verdict, str]] | None = None
    _shared: dict[str, Any] = field(default_factory=dict, repr=False)

    def generator(self, name: str) -> torch.Generator:
        """A generator of its own for everything with a name, whatever else is run."""
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=7).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "big"))

    def draws(self, standard: int, least: int = 1) -> int:
        """``standard`` draws, scaled by ``samples``, but no fewer than ``least``."""
        return max(least, round(standard * self.samples / DEFAULT_SAMPLES))

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """The value of ``compute()``, made for the first of the claims that share it."""
        if name not in self._shared:
            self._shared[name] = compute()
        value: T = self._shared[name]
        return value


Experiment = Callable[[Context], Measurement]


@dataclass(frozen=True)
class Claim:
    """One statement of the paper: where it stands, what it says, and how it is tested.

    ``correction`` is the sentence printed when the verdict is "corrected". A claim about training
    has no experiment of its own but says what kept results must show.
    """

    id: str
    place: str
    statement: str
    paper: str
    correction: str = ""
    experiment: Experiment | None = None
    training: Training | None = None


def register(
    claims: list[Claim], id: str, place: str, statement: str, paper: str, correction: str = ""
) -> Callable[[Experiment], Experiment]:
    """Decorator: append to ``claims`` the claim that the decorated experiment tests."""

    def decorate(experiment: Experiment) -> Experiment:
        claims.append(Claim(id, place, statement, paper, correction, experiment))
        return experiment

    return decorate


@dataclass(frozen=True)
class Result:
    """A claim and its verdict; no measurement of training runs and of broken experiments."""

    claim: Claim
    verdict: Verdict
    measurement: Measurement | None = None
    note: str = ""


def judge(claim: Claim, measurement: Measurement) -> Result:
    """The verdict that follows from the numbers."""
    verdict: Verdict = "failed"
    if measurement.as_expected():
        verdict = "confirmed" if measurement.as_printed() else "corrected"
    return Result(claim, verdict, measurement, measurement.note)


def _settle(claim: Claim, context: Context) -> Result:
    if claim.training is not None:
        if context.trained is None:
            return Result(claim, "cannot tell", note="kept results were not looked at")
        verdict, reason = context.trained(claim.training)  # what it cannot read is no verdict
        return Result(claim, verdict, note=reason)
    assert claim.experiment is not None
    try:
        return judge(claim, claim.experiment(context))
    except Exception as error:  # one broken experiment must not hide the other verdicts
        return Result(
            claim, "failed", note=f"the experiment raised {type(error).__name__}: {error}"
        )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors here are small: threads would cost more than they bring, and vary the last digits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run(claims: Iterable[Claim], context: Context) -> Iterator[Result]:
    """Test claims one after the other; results do not depend on which others are run."""
    for claim in claims:
        with _one_thread():
            result = _settle(claim, context)
        yield result


def _meant(name: str, claims: Sequence[Claim]) -> str:
    """The nearest names and beginnings of names, or all beginnings where none is near."""
    firsts = list(dict.fromkeys(claim.id.partition("-")[0] for claim in claims))
    near = difflib.get_close_matches(name, {*firsts, *(claim.id for claim in claims)})
    if near:
        return f": did you mean {' or '.join(repr(word) for word in near)}?"
    return f"; names begin with {', '.join(firsts)}"


def select(claims: Sequence[Claim], wanted: Sequence[str]) -> list[Claim]:
    """The claims whose id is, or begins with, one of ``wanted``; all of them if none is given."""
    for name in wanted:
        if not name or not any(claim.id.startswith(name) for claim in claims):
            raise ValueError(f"no claim is named {name!r} or begins so{_meant(name, claims)}")
    return [c for c in claims if not wanted or any(c.id.startswith(name) for name in wanted)]
