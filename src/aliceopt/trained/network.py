"""A trained network and its data: what the instruments of the lab are pointed at.

It is trained once a seed, kept in its folder, and found there the next time; or its weights are
read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aliceopt.lab.plans.plan import EXPERIMENTS, PlanError, experiment_plan
from aliceopt.lab.plans.study import SETTINGS
from aliceopt.lab.problems.problem import Problem, build_problem
from aliceopt.lab.problems.rules import try_problem
from aliceopt.lab.records import load_checkpoint, run_folder
from aliceopt.lab.spec import LabProblem, Run, Schedule, Source, Training, UserProblem
from aliceopt.lab.training.evaluation import evaluate
from aliceopt.lab.training.precision import ChannelsLast, autocast, lay_out_, set_products
from aliceopt.lab.training.train import Progress, train
from aliceopt.lab.training.watch import Watch
from aliceopt.lab.typed import from_json
from aliceopt.lab.words import meant
from aliceopt.lab.writing import replacing
from aliceopt.landscape.twins import ACTIVATIONS, check_swapped

__all__ = [
    "JOURNAL",
    "Batch",
    "Network",
    "check_activation",
    "check_same",
    "checkpoint_run",
    "fresh_network",
    "network_of",
    "problem_name",
    "problem_run",
    "twin_run",
    "weights_of",
]

Batch = tuple[Any, Any]

JOURNAL = "compression.jsonl"
"""The records of what was made of a network, in its folder."""


@dataclass(frozen=True)
class Network:
    """A trained model with its data on a device, and how it is computed.

    ``run`` and ``method`` say how it was trained and where its optimizer stands, if that is known.
    """

    problem: Problem
    model: nn.Module
    train: Any
    validation: Any
    precision: str
    device: torch.device
    validation_batches: int | None = None
    run: Run | None = None
    method: Mapping[str, Any] | None = None

    def loss(self, batch: Batch, model: nn.Module | None = None) -> Tensor:
        """Of a batch."""
        outputs = self.forward(batch, model)
        with autocast(self.precision, self.device):
            return self.problem.loss(outputs, batch[1]).reshape(())

    def forward(self, batch: Batch, model: nn.Module | None = None) -> Any:
        """The outputs of a model for a batch, in this precision."""
        with autocast(self.precision, self.device):
            return (self.model if model is None else model)(batch[0])

    def batches(self, seed: int) -> Iterator[Batch]:
        """Training batches without end."""
        epoch = 0
        while True:
            yield from (self.train.batch(seed, epoch, i) for i in range(len(self.train)))
            epoch += 1

    @contextmanager
    def precisely(self) -> Iterator[Network]:
        """Within, the same network in float32: for moves shorter than what bf16 or TF32 resolve."""
        set_products("float32")
        try:
            yield replace(self, precision="float32")
        finally:
            set_products(self.precision)

    def evaluated(self, model: nn.Module) -> dict[str, float]:
        """Loss and metric on the validation data."""
        with autocast(self.precision, self.device):
            return evaluate(self.problem, model, self.validation, self.validation_batches)


def problem_run(
    source: str | None,
    seed: int,
    *,
    scale: str = "lab",
    data: Path | None = None,
    precision: str | None = None,
    epochs: float | None = None,
    method: str = "adamw",
) -> Run:
    """How the network is trained: as an experiment, a study or the digits train ``method``.

    ``source`` names an experiment that has this method, or a function (``file.py:function``), for
    which there is AdamW alone; None: the digits.
    """
    if source is None or ":" in source:
        if method != "adamw":
            raise PlanError(
                f"--method is for experiments; what a study has is trained by adamw, got {method!r}"
            )
        return _studied_run(source, seed, precision, epochs)
    if source not in EXPERIMENTS:
        raise PlanError(
            f"{source!r} is neither an experiment nor file.py:function{meant(source, EXPERIMENTS)}"
        )
    plan = experiment_plan(
        source, scale, seeds=[seed], methods=[method], precision=precision, root=data
    )
    run = plan.run(plan.runs[0])
    return replace(run, training=replace(run.training, keep_checkpoint=True))


def problem_name(source: str | None) -> str:
    """For folders and records: an experiment's, or that of the file.

    >>> problem_name("my/net.py:problem"), problem_name("pays-gpt"), problem_name(None)
    ('net', 'pays-gpt', 'digits')
    """
    if source is None:
        return "digits"
    return Path(source.rpartition(":")[0] or source).name.removesuffix(".py")


def _studied_run(source: str | None, seed: int, precision: str | None, epochs: float | None) -> Run:
    """A function's problem or the digits, trained as a study trains AdamW."""
    how, adamw = SETTINGS["train"], SETTINGS["baselines"]["adamw"]
    problem: Source = LabProblem(SETTINGS["model"], SETTINGS["data"], how["batch_size"], "accuracy")
    if source is not None:
        problem = UserProblem(source)
    made = build_problem(problem, seed)
    try_problem(made)
    training = Training(
        steps=max(1, round((epochs or how["epochs"]) * len(made.train))),
        schedule=Schedule(**how["schedule"]),
        precision=precision or "float32",
        evaluations=1,
        logs=8,
        keep_checkpoint=True,
    )
    options = {name: value for name, value in adamw.items() if name in ("lr", "weight_decay")}
    return Run("adamw", "AdamW", "adamw", options, seed, problem, training)


def twin_run(run: Run, activation: str) -> Run:
    """The same run, but of the activation twin of its model, which starts from the same weights."""
    check_activation(activation)
    return replace(run, problem=replace(run.problem, twin=activation))


def check_activation(name: str) -> None:
    """Refuse what no twin can have."""
    if name not in ACTIVATIONS:
        raise PlanError(f"--twin must be one of {', '.join(ACTIVATIONS)}; got {name!r}")


def checkpoint_run(path: Path) -> Run:
    """The run of a checkpoint that the lab wrote, from the records beside it."""
    records = path.with_name("records.jsonl")
    try:
        with records.open(encoding="utf-8") as lines:
            return from_json(Run, json.loads(next(lines))["config"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        raise PlanError(
            f"{str(path)!r} has no records of a run beside it: give the problem, and this file as "
            "--checkpoint"
        ) from None


def network_of(
    run: Run,
    folder: Path,
    device: torch.device,
    checkpoint: Path | None = None,
    twin: str | None = None,
    watch: Watch | None = None,
) -> Network:
    """Train, or go on with what the folder has; or read the weights of a checkpoint.

    ``twin`` puts another activation into the trained network, see `aliceopt.landscape.twin`.
    ``watch`` looks on while it is trained. A twin in which nothing was replaced is refused.
    """
    if run.problem.twin is not None:  # before it is trained for nothing
        _check_twin(fresh_network(run, device))
    given = None if checkpoint is None else _content(checkpoint)
    made_by = check_same(run, folder, checkpoint)
    with replacing(run_folder(folder, run.method, run.seed) / "network.json") as beside:
        beside.write_text(made_by, encoding="utf-8")
    content = _trained(run, folder, device, watch) if given is None else given
    network = fresh_network(run, device, twin, content.get("model", content))
    if twin is not None:
        _check_twin(network)
    return replace(network, method=content.get("method") if "model" in content else None)


def _check_twin(network: Network) -> None:
    with torch.no_grad():
        network.forward(network.train.batch(0, 0, 0))
    check_swapped(network.model)


def check_new(run: Run, checkpoint: Path | None) -> None:
    """Refuse a network that could not be made, before another is deleted for it."""
    weights = None if checkpoint is None else weights_of(checkpoint)
    network = fresh_network(run, torch.device("cpu"), None, weights)
    if run.problem.twin is not None:
        _check_twin(network)


def fresh_network(
    run: Run,
    device: torch.device,
    twin: str | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> Network:
    """The network of a run before its first step, or with given weights."""
    source = run.problem if twin is None else replace(run.problem, twin=twin)
    problem, precision = build_problem(source, run.seed), run.training.precision
    set_products(precision)
    if weights is not None:
        try:
            problem.model.load_state_dict(weights)
        except RuntimeError as error:
            raise PlanError(f"the checkpoint does not fit the model: {error}") from error
    model = problem.model.to(device).eval()
    if isinstance(problem.loss, nn.Module):
        problem.loss.to(device)  # it may hold the weights of classes
    train_, validation = problem.train.to(device), problem.validation.to(device)
    if lay_out_(model, precision):
        train_, validation = ChannelsLast(train_), ChannelsLast(validation)
    most = run.training.validation_batches
    return Network(problem, model, train_, validation, precision, device, most, run)


def _trained(run: Run, folder: Path, device: torch.device, watch: Watch | None) -> dict[str, Any]:
    """The checkpoint at the end of training, which is made, gone on with, or over."""
    place = run_folder(folder, run.method, run.seed)
    done = load_checkpoint(place / "checkpoint.pt")
    if done is None or done["step"] < run.training.steps:
        told: list[Progress] = []
        how: dict[str, Any] = {"device": str(device), "resume": done is not None}
        status = train(run, folder, **how, report=told.append, watch=watch)
        if status == "interrupted":
            raise KeyboardInterrupt
        if status != "finished":
            raise PlanError(f"training ended {status}: {told[-1].reason}; see {str(place)!r}")
        done = load_checkpoint(place / "checkpoint.pt")
    assert done is not None
    return done


def check_same(run: Run, folder: Path, checkpoint: Path | None = None) -> str:
    """A folder's network and its records are used again only for the run that made them.

    Returns what the run is known by. Where the data lies makes no difference, nor how many threads
    there are, nor whether the folder's own checkpoint is given as the one to read.
    """
    place = run_folder(folder, run.method, run.seed)
    if checkpoint is not None and checkpoint.resolve() == (place / "checkpoint.pt").resolve():
        checkpoint = None
    source = str(run.problem).rpartition(":")[0]
    made_by = run.settings
    for name, file in (("code", Path(source)), ("weights", checkpoint)):
        content = file.read_bytes() if file is not None and file.is_file() else b""
        made_by[name] = hashlib.sha256(content).hexdigest()
    text = json.dumps(made_by, sort_keys=True, indent=1)
    path = place / "network.json"
    begun = any((place / name).exists() for name in ("checkpoint.pt", JOURNAL))
    if begun and (not path.exists() or path.read_text(encoding="utf-8") != text):
        raise PlanError(
            f"{str(place)!r} holds another network: --overwrite begins anew in its place, or "
            "choose another --out"
        )
    return text


def weights_of(path: Path) -> Mapping[str, Tensor]:
    """The weights of a checkpoint by name."""
    content = _content(path)
    weights = content.get("model", content)
    if not isinstance(weights, Mapping):
        kind = type(weights).__name__
        raise PlanError(f"{str(path)!r} holds no weights by name, but a {kind}")
    return weights


def _content(path: Path) -> dict[str, Any]:
    """A state dict, or the lab's checkpoint that has one."""
    content = load_checkpoint(
        path, advice=": a state dict is needed, as torch.save(model.state_dict(), path) writes it"
    )
    if content is None:
        raise PlanError(f"there is no checkpoint {str(path)!r}")
    return content
