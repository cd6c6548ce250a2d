"""Named groups of parameters: what Figure 1 of the paper plots one curve for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

Blocks = dict[str, list[str]]
"""Block name -> names of its parameters, as ``model.named_parameters()`` gives them."""


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


def consecutive_layers(stem: str, count: int, groups: int = 4) -> dict[str, list[str]]:
    """Prefixes of ``count`` numbered layers in up to ``groups`` runs; the last may be shorter.

    >>> consecutive_layers("layers", 5)
    {'layers 1-2': ['layers.0', 'layers.1'], 'layers 3-4': ['layers.2', 'layers.3'],
     'layer 5': ['layers.4']}
    """
    run = -(-count // groups)
    runs = {}
    for first in range(0, count, run):
        end = min(first + run, count)
        name = f"layer {end}" if end - first == 1 else f"layers {first + 1}-{end}"
        runs[name] = [f"{stem}.{i}" for i in range(first, end)]
    return runs
