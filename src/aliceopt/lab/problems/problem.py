"""What the lab trains: a model, a loss, data, and how success is measured.

A user's problem is a function without arguments that returns a `Problem`, or a dictionary or tuple
with the same parts. The lab seeds torch before it calls the function, so that every seed starts
from other weights.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from aliceopt.lab import data, models
from aliceopt.lab.randomness import seed_all
from aliceopt.lab.spec import LabProblem, Source, UserProblem
from aliceopt.lab.words import meant
from aliceopt.landscape import twin

__all__ = ["Problem", "ProblemError", "build_problem", "load_function", "make_problem"]

BATCH_SIZE = 64
"""Examples a batch, where the problem does not say."""

METRICS = {"loss": "lower", "accuracy": "higher", "perplexity": "lower"}
"""Names of metrics, and which direction is better."""

_PARTS = ("model", "loss", "train", "validation")
_OPTIONS = ("metric", "better", "batch_size", "note", "same_weights")
_RECORDED = ("event", "step", "epoch", "gradients", "seconds")


class ProblemError(ValueError):
    """A problem that cannot be trained, with what is missing."""


@dataclass(frozen=True)
class Metric:
    """A number that says how good a model is: a name, a direction, and a mean over a batch.

    ``of(outputs, targets)`` is None for the loss and the perplexity, which follow from the loss.
    """

    name: str
    better: str
    of: Callable[[Any, Any], Any] | None = None


@dataclass
class Problem:
    """A model, its loss, and data to train and to validate on.

    Args:
        model: what is trained.
        loss: ``loss(model(inputs), targets)``, the mean over a batch, one number to minimise.
        train: a pair of tensors, a map-style Dataset, a DataLoader, or a `Split`.
        validation: the same; the metric is measured on all of it.
        metric: "loss", "accuracy" (percent of ``argmax(outputs, -1) == targets``), "perplexity"
            (the exponential of the loss), or a function of outputs and targets that gives a mean.
        better: for a metric of your own, whether "higher" or "lower" is better.
        batch_size: examples a batch; None: that of the DataLoader, or 64, or all if fewer.
        note: a line about the data for the report.
        same_weights: the weights are the same at every seed, and that is meant.
    """

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    train: Any
    validation: Any
    metric: Any = "loss"
    better: str | None = None
    batch_size: int | None = None
    note: str = ""
    same_weights: bool = False
    measure: Metric = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise ProblemError(f"model must be a torch.nn.Module, got {kind_of(self.model)}")
        if not any(p.requires_grad for p in self.model.parameters()):
            raise ProblemError("model has no parameters that require gradients")
        if not callable(self.loss):
            raise ProblemError(
                f"loss must be a function of outputs and targets, got {kind_of(self.loss)}"
            )
        size = self.batch_size
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ProblemError(f"batch_size must be a whole number >= 1, got {size!r}")
        usual = size or BATCH_SIZE
        try:
            self.train = data.as_split(self.train, usual, name="train", shrink=size is None)
            self.validation = data.as_split(self.validation, usual, name="validation", shrink=True)
        except (TypeError, ValueError) as error:
            raise ProblemError(str(error)) from error
        self.measure = _metric(self.metric, self.better)


def _metric(metric: Any, better: str | None) -> Metric:
    if callable(metric):
        if better not in ("higher", "lower"):
            raise ProblemError(
                f"with a metric of your own, better must be 'higher' or 'lower', got {better!r}"
            )
        name = str(getattr(metric, "__name__", "metric"))
        if not name.isidentifier():
            name = "metric"
        elif name in METRICS or name in _RECORDED:  # never what records call something else
            name = f"custom {name}"
        return Metric(name, better, metric)
    if not isinstance(metric, str) or metric not in METRICS:
        known = ", ".join(map(repr, METRICS))
        raise ProblemError(f"metric must be {known} or a function, got {metric!r}")
    if better not in (None, METRICS[metric]):
        raise ProblemError(f"{METRICS[metric]} {metric} is better, got better={better!r}")
    return Metric(metric, METRICS[metric], accuracy if metric == "accuracy" else None)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Percent of examples whose largest output is the target's."""
    guesses = outputs.argmax(-1)
    if guesses.shape != targets.shape:
        raise ValueError(
            f"accuracy needs targets of shape {tuple(guesses.shape)}, numbers of classes; "
            f"got {tuple(targets.shape)}"
        )
    return 100.0 * (guesses == targets).float().mean()


def make_problem(function: Callable[[], Any], name: str) -> Problem:
    """Call a user's function and check what it returns."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ProblemError(
            f"{name} must be a function that can be called without arguments: {error}"
        ) from error
    try:
        return _as_problem(function())
    except ProblemError as error:
        raise ProblemError(f"{name}: {error}") from error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ProblemError(
            f"{name} raised {said(error)} ({place.filename}, line {place.lineno})"
        ) from error


def _as_problem(made: Any) -> Problem:
    if isinstance(made, Problem):
        return made
    if isinstance(made, tuple | list):
        if len(made) != 4:
            raise ProblemError(
                f"returned {len(made)} things; expected four: {', '.join(_PARTS)} "
                "(or a Problem, or a dictionary)"
            )
        return Problem(*made)
    if isinstance(made, Mapping):
        missing = [part for part in _PARTS if part not in made]
        unknown = [key for key in made if key not in _PARTS + _OPTIONS]
        if missing or unknown:
            wrong = [f"missing: {', '.join(missing)}"] if missing else []
            wrong += [f"not known: {', '.join(map(str, unknown))}"] if unknown else []
            raise ProblemError(f"returned a dictionary; {'; '.join(wrong)}")
        return Problem(**made)
    raise ProblemError(
        f"returned {kind_of(made)}; expected a Problem, or a dictionary or tuple of "
        f"{', '.join(_PARTS)}"
    )


def load_function(name: str) -> Callable[[], Any]:
    """The function that ``package.module:function`` or ``path/to/file.py:function`` names."""
    module_name, colon, function_name = name.rpartition(":")
    if not colon or not module_name or not function_name.isidentifier():
        hint = f"; perhaps {name}:problem" if name.endswith(".py") else ""
        raise ProblemError(
            f"a problem is package.module:function or file.py:function, got {name!r}{hint}"
        )
    if module_name.endswith(".py") and not Path(module_name).is_file():
        raise ProblemError(f"there is no file {module_name!r}")
    module = _load(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        mine = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value)
            and value.__module__ == module.__name__  # not what it imports
            and not key.startswith("_")
        ]
        there = meant(function_name, mine) if mine else ""
        raise ProblemError(f"{module_name} has no function {function_name!r}{there}")
    found: Callable[[], Any] = function
    return found


def source_of(name: str) -> str | None:
    """A checksum of the file that a problem's function is in; None if it has none.

    Part of a run's settings, so that records of an edited problem are not gone on with.
    """
    try:
        file = inspect.getsourcefile(inspect.unwrap(load_function(name)))
    except TypeError:
        return None
    if file is None:
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


def _load(name: str) -> ModuleType:
    """A file, which may import its neighbours, or a module, here or installed."""
    in_file = name.endswith(".py")
    folder = str(Path(name).resolve().parent) if in_file else ""  # as `python -m` does
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        if not in_file:
            return importlib.import_module(name)
        key = f"aliceopt_problem_{Path(name).stem}"
        spec = importlib.util.spec_from_file_location(key, name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module  # so that classes defined there can be found again
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if not in_file and error.name and name.split(".")[0] == error.name.split(".")[0]:
            raise ProblemError(
                f"no module {name!r} here or installed; for a file write "
                f"{name.replace('.', '/')}.py:function"
            ) from error
        raise ProblemError(
            f"{name} needs {error.name}, which is not installed{how_to_get(error.name)}"
        ) from error
    except Exception as error:
        verb = "run" if in_file else "imported"
        raise ProblemError(f"{name} cannot be {verb}: {said(error)}") from error
    return module


_PACKAGES = {"PIL": "pillow", "cv2": "opencv-python", "sklearn": "scikit-learn", "yaml": "pyyaml"}
"""That bring modules of another name."""


def how_to_get(module: str | None) -> str:
    """What goes behind a module that is missing; nothing if only a part of a package is.

    >>> how_to_get("transformers"), how_to_get("sklearn"), how_to_get("torch.nothing")
    (': pip install transformers', ': pip install scikit-learn', '')
    """
    if not module or "." in module:
        return ""
    return f": pip install {_PACKAGES.get(module, module)}"


# ---- from plain values -------------------------------------------------------------------------


def build_problem(source: Source, seed: int) -> Problem:
    """The problem of a run.

    Everything is read and imported first and the generators seeded then, so that the weights
    follow from the seed alone.
    """
    if isinstance(source, UserProblem):
        function = load_function(source.function)
        seed_all(seed)
        problem = make_problem(function, source.function)
        problem.model = _twinned(problem.model, source.twin)
        return problem
    loaded = load_data(source)
    seed_all(seed)
    model = _twinned(model_for(loaded, source.model), source.twin)
    return Problem(
        model=model,
        loss=getattr(model, "loss", nn.functional.cross_entropy),
        train=loaded.train,
        validation=loaded.validation,
        metric=source.metric,
        batch_size=source.batch_size,
        note=loaded.note,
    )


def load_data(source: LabProblem) -> data.Loaded:
    """The data that a plan names; an option that the set has not is a `TypeError`."""
    given = {k: v for k, v in source.data.items() if k != "name"}
    return data.load(source.data["name"], batch_size=source.batch_size, **given)


def model_for(loaded: data.Loaded, about: Mapping[str, Any]) -> nn.Module:
    """The network for some data; a name or an option that there is not is refused."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in about.items()}
    name = options.pop("name")
    if name not in tuple(MODELS):  # which also takes what no table can look up
        raise ProblemError(f"model must be one of {', '.join(MODELS)}; got {name!r}")
    try:
        return MODELS[name](loaded, options)
    except TypeError as error:
        raise ProblemError(f"model {name}: {error} (its options: {options})") from error


def _twinned(model: nn.Module, activation: str | None) -> nn.Module:
    return model if activation is None else twin(model, activation).model


MODELS: dict[str, Callable[[data.Loaded, dict[str, Any]], nn.Module]] = {
    "resnet18": lambda it, o: models.resnet18(it.classes, in_channels=it.shape[0], **o),
    "vit": lambda it, o: models.vit(it.classes, image=it.shape[1], channels=it.shape[0], **o),
    "tensorised-transformer": lambda it, o: models.tensorised_transformer(
        it.classes, length=it.shape[0], **o
    ),
    "gpt": lambda it, o: models.gpt(it.classes, context=it.shape[0], **o),
    "convnet": lambda it, o: models.convnet(it.classes, image=it.shape, **o),
}
"""Networks by the names that plans use, from data and options; data decides some of the sizes."""


def kind_of(value: Any) -> str:
    """What a value is, for a sentence about it."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"


def said(error: BaseException) -> str:
    """An error's kind and text."""
    return f"{type(error).__name__}: {error}"
