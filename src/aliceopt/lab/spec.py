"""What is to be run, as plain values that travel to worker processes and into the records.

A `Plan` says it all and is what plan.json holds; `Plan.run` gives each of its runs, fully resolved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

from aliceopt.lab.typed import UNLESS_NONE, Count, Positive, check, from_json, to_json

__all__ = [
    "PRECISIONS",
    "Chosen",
    "LabProblem",
    "Place",
    "Plan",
    "PlannedMethod",
    "PlannedRun",
    "PlannedTraining",
    "PowerLaw",
    "Recipe",
    "Run",
    "Schedule",
    "Source",
    "Training",
    "TriedRate",
    "Tuned",
    "UserProblem",
    "checked_precision",
]

PRECISIONS = ("float32", "tf32", "bf16")
"""float32; float32 with TF32 products on CUDA; bfloat16 autocast: see `training.precision`."""

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
            raise ValueError(f"shape must be one of {', '.join(_SHAPES)}; got {self.shape!r}")
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


def checked_precision(precision: str | None, name: str = "--precision") -> str | None:
    """One of `PRECISIONS`, or None for that of the settings; ``name`` is what an error calls it."""
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"{name} must be one of {', '.join(PRECISIONS)}; got {precision!r}")
    return precision


class Place(NamedTuple):
    """Where exponents are measured: at a radius, and on how many examples of which data.

    ``batch_size`` is None for that of training.
    """

    radius: float
    batch_size: int | None = None
    held_out: bool = False

    def __str__(self) -> str:
        batch = "" if self.batch_size is None else f" of {self.batch_size:,}"
        data = "held-out" if self.held_out else "training"
        return f"{data} batch{batch}, radius {self.radius:g}"


@dataclass(frozen=True)
class PowerLaw:
    """How Figure 1's exponents are measured: at a radius and twice as far, in so many directions.

    On a training batch; and at further ``radii``, on ``batch_sizes`` besides that of training, and
    on ``held_out`` batches, each of these with each.
    """

    radius: Positive
    directions: Count = 4
    radii: tuple[Positive, ...] | None = field(default=None, metadata=UNLESS_NONE)
    batch_sizes: tuple[Count, ...] | None = field(default=None, metadata=UNLESS_NONE)
    held_out: bool | None = field(default=None, metadata=UNLESS_NONE)

    @property
    def places(self) -> list[Place]:
        """All of them, the paper's first."""
        return [
            Place(radius, size, held_out)
            for held_out in ((False, True) if self.held_out else (False,))
            for size in (None, *(self.batch_sizes or ()))
            for radius in (self.radius, *(self.radii or ()))
        ]


@dataclass(frozen=True)
class Recipe:
    """How long runs are trained, how precisely, and what is recorded on the way.

    Args:
        steps: steps to take; None where epochs say it.
        schedule: of the learning rate.
        precision: one of `PRECISIONS`.
        evaluations: how often to evaluate, evenly spaced; the end always counts as one.
        validation_batches: evaluate on the first so many only; None: on all.
        logs: how often to record the training loss, evenly spaced.
        capture: on CUDA, replay steps from graphs.
        compile: put what a step computes through torch.compile, but for several ranks.
        telemetry: record Alice's curvature at every evaluation.
        power_law: measure it at every evaluation; None: never.
        checkpoints: how often to save, evenly spaced; None: at every evaluation.
        keep_checkpoint: keep the last checkpoint of a finished run.
        threads: of a CPU run; part of the record, since sums depend on it.
    """

    steps: Count | None = None
    schedule: Schedule = field(default_factory=Schedule)
    precision: str = "float32"
    evaluations: Count = 20
    validation_batches: Count | None = None
    logs: Count = 50
    capture: bool = True
    compile: bool | None = field(default=None, metadata=UNLESS_NONE)
    telemetry: bool = True
    power_law: PowerLaw | None = None
    checkpoints: Count | None = None
    keep_checkpoint: bool = False
    threads: Count = 1

    def __post_init__(self) -> None:
        check(self)
        checked_precision(self.precision, "precision")


@dataclass(frozen=True)
class Training(Recipe):
    """How one run is trained; the plan works its steps out from epochs."""

    steps: Count = field()  # needed, unlike above

    def due(self, step: int, times: int) -> bool:
        """Whether one of ``times`` evenly spaced moments has come after ``step`` steps."""
        times = min(times, self.steps)
        return step * times // self.steps > (step - 1) * times // self.steps


@dataclass(frozen=True)
class LabProblem:
    """A model of the lab's on data of the lab's: each a name, and options beside it.

    ``twin``: the activation that takes the place of the model's own.
    """

    model: dict[str, Any]
    data: dict[str, Any]
    batch_size: int
    metric: str = "loss"
    twin: str | None = field(default=None, metadata=UNLESS_NONE)

    def __post_init__(self) -> None:
        for part in ("model", "data"):
            if "name" not in getattr(self, part):
                raise ValueError(f"{part}.name is missing")

    def __str__(self) -> str:
        return f"{self.model['name']} on {self.data['name']}"


@dataclass(frozen=True)
class UserProblem:
    """A user's function, ``file.py:name``, and a checksum of the file it is in."""

    function: str
    source: str | None = field(default=None, metadata=UNLESS_NONE)
    twin: str | None = field(default=None, metadata=UNLESS_NONE)

    def __str__(self) -> str:
        return self.function


Source = LabProblem | UserProblem
"""Where a problem comes from."""


@dataclass(frozen=True)
class Run:
    """One method, one seed, one problem."""

    method: str
    label: str
    optimizer: str
    options: dict[str, Any]
    seed: int
    problem: Source
    training: Training

    @property
    def anywhere(self) -> Run:
        """The same, wherever its data lies."""
        if not isinstance(self.problem, LabProblem):
            return self
        data = {k: v for k, v in self.problem.data.items() if k != "root"}
        return replace(self, problem=replace(self.problem, data=data))

    @property
    def settings(self) -> dict[str, Any]:
        """What makes it this run, in plain values: not where its data lies, nor its CPU threads."""
        settings: dict[str, Any] = to_json(self.anywhere)
        settings["training"].pop("threads")
        return settings


# ---- plans -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedTraining(Recipe):
    """How all runs of a plan are trained, for ``steps`` or ``epochs`` of so many ``batches``.

    Methods may have a length of their own, which is that of their runs. ``examples`` are those of
    an epoch, where the data is not there to be counted.
    """

    batches: int = field(kw_only=True)
    batch_size: Count | None = None
    epochs: Positive | None = None
    examples: int | None = None

    @property
    def length(self) -> int | None:
        """Steps of a run; None where only methods say how long."""
        if self.steps is not None or self.epochs is None:
            return self.steps
        return max(1, round(self.epochs * self.batches))


@dataclass(frozen=True)
class PlannedMethod:
    """A method: its optimizer with options, and what of schedule and network is its own.

    ``twin``: the activation that takes the place of the network's.
    """

    label: str
    family: Literal["alice", "baseline"]
    optimizer: str
    options: dict[str, Any]
    terms: str | None = None
    step: str | None = None
    schedule: dict[str, Any] | None = field(default=None, metadata=UNLESS_NONE)
    twin: str | None = field(default=None, metadata=UNLESS_NONE)

    @property
    def lr(self) -> float | None:
        """Its learning rate, if it is given one."""
        return self.options.get("lr")


@dataclass(frozen=True)
class PlannedRun:
    """A method and a seed, and what they will take."""

    method: str
    seed: int
    steps: int
    gradients: int


@dataclass(frozen=True)
class TriedRate:
    """A learning rate, and the final metric at every seed; None where it diverged."""

    lr: float
    finals: list[float | None]


@dataclass(frozen=True)
class Chosen:
    """A method's learning rate, and whether it is the lowest or highest of those tried."""

    lr: float
    edge: bool
    tried: list[TriedRate]


@dataclass(frozen=True)
class Tuned:
    """How learning rates were chosen, at most ``most`` tried for a method, and what it took."""

    seeds: list[int]
    most: int
    runs: int
    gradients: int
    seconds: float
    chosen: dict[str, Chosen]


@dataclass(frozen=True)
class Plan:
    """What is to be run, as plan.json holds it.

    ``data`` names the data set and ``official_data`` the paper's; ``reference`` says where in the
    paper its numbers, ``paper``, stand, and is empty for experiments that are none of the paper's.
    ``paces`` are seconds a step by which a budget of seconds was divided.
    """

    kind: Literal["experiment", "study", "tuning"]
    name: str
    scale: str
    title: str
    figure: str
    metric: str
    better: Literal["higher", "lower"]
    problem: Source
    data: str
    training: PlannedTraining
    methods: dict[str, PlannedMethod]
    seeds: list[int]
    runs: list[PlannedRun]
    paper: dict[str, list[float]] = field(default_factory=dict)
    reference: str | None = None
    official_data: str | None = None
    generated: bool = False
    data_note: str = ""
    budget: str = "steps"
    target: float | None = None
    tuned: Tuned | Literal[False] = False
    paces: dict[str, Positive] | None = None
    command: str = ""

    def __post_init__(self) -> None:
        for run in self.runs:
            if run.method not in self.methods:
                raise ValueError(f"runs has the method {run.method!r}, which methods has not")

    @property
    def gradients(self) -> int:
        """Estimated gradient evaluations of all runs."""
        return sum(run.gradients for run in self.runs)

    def schedule_of(self, method: str) -> Schedule:
        """A method's, where it differs from that of all others."""
        own = self.methods[method].schedule
        usual = self.training.schedule
        return from_json(Schedule, to_json(usual) | own, "schedule") if own else usual

    def run(self, planned: PlannedRun) -> Run:
        """One of the runs, with nothing left open."""
        method = self.methods[planned.method]
        shared = {f.name: getattr(self.training, f.name) for f in fields(Recipe)}
        shared |= {"schedule": self.schedule_of(planned.method), "steps": planned.steps}
        return Run(
            method=planned.method,
            label=method.label,
            optimizer=method.optimizer,
            options=method.options,
            seed=planned.seed,
            problem=replace(self.problem, twin=method.twin) if method.twin else self.problem,
            training=Training(**shared),
        )
