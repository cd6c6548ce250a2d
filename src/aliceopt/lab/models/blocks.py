"""The blocks of parameters that a model names itself, and how the lab's own models name theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

Blocks = dict[str, list[str]]
"""Block name -> names of its parameters, as ``model.named_parameters()`` gives them."""


def blocks_of(model: nn.Module) -> Blocks | None:
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


def group_by_prefix(model: nn.Module, prefixes: Mapping[str, Iterable[str]]) -> Blocks:
    """Sort every parameter into the block one of whose dotted prefixes its name starts with.

    The blocks are a partition: a parameter that fits none, or two, is an error, so a layer added
    to a model cannot drop out of the figures unseen.
    """
    blocks: Blocks = {block: [] for block in prefixes}
    owners = [(prefix, block) for block, listed in prefixes.items() for prefix in listed]
    for name, _ in model.named_parameters():
        fits = {block for prefix, block in owners if f"{name}.".startswith(f"{prefix}.")}
        if len(fits) != 1:
            raise ValueError(f"parameter {name} belongs to {len(fits)} blocks, must be one")
        blocks[fits.pop()].append(name)
    return blocks


def consecutive_layers(count: int) -> dict[str, list[str]]:
    """Prefixes of ``count`` numbered layers in up to four runs; the last may be shorter.

    >>> consecutive_layers(5)
    {'layers 1-2': ['layers.0', 'layers.1'], 'layers 3-4': ['layers.2', 'layers.3'],
     'layer 5': ['layers.4']}
    """
    run = -(-count // 4)
    runs = {}
    for first in range(0, count, run):
        end = min(first + run, count)
        name = f"layer {end}" if end - first == 1 else f"layers {first + 1}-{end}"
        runs[name] = [f"layers.{i}" for i in range(first, end)]
    return runs
