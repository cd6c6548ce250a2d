"""Problems made from the lab's own models and data, and those of users, from plain values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from aliceopt.lab import data, models
from aliceopt.lab.problem import Problem, ProblemError, load_function, make_problem
from aliceopt.lab.randomness import seed_all
from aliceopt.lab.spec import Source, UserProblem
from aliceopt.landscape import twin


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


def model_for(loaded: data.Loaded, about: Mapping[str, Any]) -> nn.Module:
    """The network for some data; a name or an option that there is not is refused."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in about.items()}
    name = options.pop("name")
    if name not in MODELS:
        raise ProblemError(f"model must be one of {', '.join(MODELS)}; got {name!r}")
    try:
        return MODELS[name](loaded, options)
    except TypeError as error:
        raise ProblemError(f"model {name}: {error} (its options: {options})") from error


def _twinned(model: nn.Module, activation: str | None) -> nn.Module:
    return model if activation is None else twin(model, activation).model


def _mlp(loaded: data.Loaded, options: dict[str, Any]) -> nn.Module:
    hidden = options.pop("hidden", (64, 64))
    return models.mlp([math.prod(loaded.shape), *hidden, loaded.classes], **options)


MODELS: dict[str, Callable[[data.Loaded, dict[str, Any]], nn.Module]] = {
    "resnet18": lambda it, o: models.resnet18(it.classes, in_channels=it.shape[0], **o),
    "vit": lambda it, o: models.vit(it.classes, image=it.shape[1], channels=it.shape[0], **o),
    "tensorised-transformer": lambda it, o: models.tensorised_transformer(
        it.classes, length=it.shape[0], **o
    ),
    "gpt": lambda it, o: models.gpt(it.classes, context=it.shape[0], **o),
    "convnet": lambda it, o: models.convnet(it.classes, image=it.shape, **o),
    "mlp": _mlp,
}
"""Networks by the names that plans use, from data and options; data decides some of the sizes."""
