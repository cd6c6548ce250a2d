"""One run, fully resolved: plain values that travel to worker processes and into the records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["PRECISIONS", "Run", "Schedule", "Training"]

PRECISIONS = ("float32", "tf32", "bf16")
"""float32; float32 with TF32 products on CUDA; bfloat16 autocast: see `aliceopt.lab.precision`."""

_SHAPES = ("constant", "cosine", "linear", "drops")


@dataclass(frozen=True)
class Schedule:
    """The learning rate over a run, as a factor of its full value.

    Args:
        shape: "constant"; "cosine" or "linear" down to zero at the end; or "drops".
        warmup: share of the run in which the factor first rises from zero.
        drops: shares of the run at which "drops" multiplies by ``gamma``.
        gamma: see ``drops``.
    """

    shape: str = "constant"
    warmup: float = 0.0
    drops: tuple[float, ...] = ()
    gamma: float = 0.1

    def __post_init__(self) -> None:
        if self.shape not in _SHAPES:
            raise ValueError(f"schedule must be one of {', '.join(_SHAPES)}; got {self.shape!r}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the run, from 0 to 1; got {self.warmup!r}")
        if any(not 0 < drop < 1 for drop in self.drops):
            raise ValueError(f"drops are shares of the run, between 0 and 1; got {self.drops!r}")

    def factor(self, step: int, steps: int) -> float:
        """The factor at ``step`` (from 0) of ``steps``.

        >>> Schedule("cosine").factor(50, 100), Schedule(warmup=0.1).factor(4, 100)
        (0.5, 0.5)
        """
        done = step / steps
        rise = min(1.0, (step + 1) / (self.warmup * steps)) if self.warmup else 1.0
        if self.shape == "cosine":
            # Written so that one half is one half: cos(pi/2) is not exactly 0.
            return rise * math.sin(math.pi * (1 - done) / 2) ** 2 if done != 0.5 else rise * 0.5
        if self.shape == "linear":
            return rise * (1 - done)
        if self.shape == "drops":
            return float(rise * self.gamma ** sum(done >= drop for drop in self.drops))
        return rise


def checked_precision(precision: str, name: str = "--precision") -> str:
    """One of `PRECISIONS`; ``name`` is what an error calls it."""
    if precision not in PRECISIONS:
        raise ValueError(f"{name} must be one of {', '.join(PRECISIONS)}; got {precision!r}")
    return precision


@dataclass(frozen=True)
class Training:
    """How long, how precisely, and what is recorded on the way.

    Args:
        steps: steps to take; the plan works it out from epochs.
        schedule: of the learning rate.
        precision: one of `PRECISIONS`.
        evaluations: how often to evaluate, evenly spaced; the end always counts as one.
        validation_batches: evaluate on the first so many only; None: on all.
        logs: how often to record the training loss, evenly spaced.
        capture: on CUDA, replay steps from graphs.
        telemetry: record Alice's curvature at every evaluation.
        power_law: radius and directions for Figure 1's exponents at every evaluation, or None.
        checkpoints: how often to save, evenly spaced; None: at every evaluation.
        keep_checkpoint: keep the last checkpoint of a finished run.
        threads: of a CPU run; part of the record, since sums depend on it.
    """

    steps: int
    schedule: Schedule = field(default_factory=Schedule)
    precision: str = "float32"
    evaluations: int = 20
    validation_batches: int | None = None
    logs: int = 50
    capture: bool = True
    telemetry: bool = True
    power_law: dict[str, Any] | None = None
    checkpoints: int | None = None
    keep_checkpoint: bool = False
    threads: int = 1

    def __post_init__(self) -> None:
        checked_precision(self.precision, "precision")
        counts = ("steps", "evaluations", "validation_batches", "logs", "checkpoints", "threads")
        for name in counts:
            value = getattr(self, name)
            if name in ("validation_batches", "checkpoints") and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
        law = self.power_law
        if law is not None and (not isinstance(law, dict) or "radius" not in law):
            raise ValueError(f"power_law is a table with a radius, or nothing; got {law!r}")

    def due(self, step: int, times: int) -> bool:
        """Whether one of ``times`` evenly spaced moments has come after ``step`` steps."""
        times = min(times, self.steps)
        return step * times // self.steps > (step - 1) * times // self.steps


@dataclass(frozen=True)
class Run:
    """One method, one seed, one problem.

    ``problem`` is {"function": "file.py:name"} or {"model": {...}, "data": {...}, "metric": ...}.
    """

    method: str
    label: str
    optimizer: str
    options: dict[str, Any]
    seed: int
    problem: dict[str, Any]
    training: Training

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Run:
        """The inverse of `as_dict`, also after JSON made lists of tuples."""
        training = dict(values["training"])
        schedule = {**training.pop("schedule")}
        schedule["drops"] = tuple(schedule["drops"])
        known = {f.name for f in fields(cls)}
        rest = {key: value for key, value in values.items() if key in known - {"training"}}
        return cls(**rest, training=Training(schedule=Schedule(**schedule), **training))
