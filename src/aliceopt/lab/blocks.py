"""The blocks of parameters that a model names itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


def blocks_of(model: nn.Module) -> dict[str, list[str]] | None:
    """What the model's method ``blocks()`` says, if it is what the lab means by it, else None.

    The lab's own models name their blocks: a mapping from names to parameter names. Other models
    have an attribute ``blocks`` that is a list of layers.
    """
    if not callable(getattr(type(model), "blocks", None)):
        return None
    named: Any = model.blocks  # a method of the class, so no submodule
    try:
        found = named()
    except TypeError:  # it wants arguments
        return None
    known = {name for name, _ in model.named_parameters()}
    if not isinstance(found, Mapping):
        return None
    blocks = {str(block): list(names) for block, names in found.items()}
    return blocks if all(set(names) <= known for names in blocks.values()) else None


def blocks_in_words(model: nn.Module) -> dict[str, str]:
    """The kind and shape of the largest tensor of every block that telemetry tells apart.

    >>> blocks_in_words(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    {'0': 'Linear, 2×3'}
    """
    named = dict(model.named_parameters())
    blocks = blocks_of(model)
    if blocks is None:
        blocks = {}
        for name in named:
            blocks.setdefault(name.split(".")[0], []).append(name)
    said = {}
    for block, names in blocks.items():
        if names:
            largest = max(names, key=lambda name: named[name].numel())
            owner = model.get_submodule(largest.rpartition(".")[0])
            shape = "\u00d7".join(map(str, named[largest].shape))
            said[block] = f"{type(owner).__name__}, {shape or 'a number'}"
    return said
