"""Problems made from the lab's own models and data, and those of users, from plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from aliceopt.lab import data, models
from aliceopt.lab.problem import Problem, ProblemError, load_function, make_problem
from aliceopt.lab.randomness import seed_all
from aliceopt.lab.spec import Source, UserProblem
from aliceopt.landscape import twin

__all__ = ["MODELS", "build_problem"]


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
    given = {k: v for k, v in source.data.items() if k != "name"}
    loaded = data.load(source.data["name"], batch_size=source.batch_size, **given)
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in source.model.items()}
    name = options.pop("name")
    if name not in MODELS:
        raise ProblemError(f"model must be one of {', '.join(MODELS)}; got {name!r}")
    seed_all(seed)
    model = _twinned(MODELS[name](loaded, given, options), source.twin)
    return Problem(
        model=model,
        loss=getattr(model, "loss", nn.functional.cross_entropy),
        train=loaded.train,
        validation=loaded.validation,
        metric=source.metric,
        batch_size=source.batch_size,
        note=loaded.note,
    )


def _twinned(model: nn.Module, activation: str | None) -> nn.Module:
    return model if activation is None else twin(model, activation).model


Maker = Callable[[data.Loaded, dict[str, Any], dict[str, Any]], nn.Module]


def _resnet18(loaded: data.Loaded, source: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    return models.resnet18(loaded.classes, in_channels=loaded.shape[0], **options)


def _vit(loaded: data.Loaded, source: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    channels, side, _ = loaded.shape
    return models.vit(loaded.classes, image=side, channels=channels, **options)


def _tensorised(loaded: data.Loaded, source: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    return models.tensorised_transformer(loaded.classes, length=source["length"], **options)


def _gpt(loaded: data.Loaded, source: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    return models.gpt(loaded.classes, context=loaded.shape[0], **options)


def _convnet(loaded: data.Loaded, source: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    return models.convnet(loaded.classes, image=loaded.shape, **options)


def _mlp(loaded: data.Loaded, source: dict[str, Any], options: dict[str, Any]) -> nn.Module:
    inputs = 1
    for size in loaded.shape:
        inputs *= size
    hidden = options.pop("hidden", (64, 64))
    return models.mlp([inputs, *hidden, loaded.classes], **options)


MODELS: dict[str, Maker] = {
    "resnet18": _resnet18,
    "vit": _vit,
    "tensorised-transformer": _tensorised,
    "gpt": _gpt,
    "convnet": _convnet,
    "mlp": _mlp,
}
"""Networks by the names that plans use; sizes that the data decides are filled in."""
