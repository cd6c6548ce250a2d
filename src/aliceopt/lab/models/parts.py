"""What the models share: the arguments they accept, groups of parameters, a transformer layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from torch import Tensor, nn

from aliceopt.lab.typed import Count, checked

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "identity": nn.Identity,
}
"""Activations by name. The first four have kinks, hence glass; the others have none."""


def activation_named(name: str) -> nn.Module:
    """A fresh activation module; an unknown name is refused with the list of those there are.

    >>> activation_named("relu")
    ReLU()
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {name!r}")
    return ACTIVATIONS[name]()


def require_switch(**values: Any) -> None:
    """Raise ``ValueError`` unless each named value is True or False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def require_whole(**values: Any) -> None:
    """Raise ``ValueError`` unless each named value is a whole number of at least 1."""
    for name, value in values.items():
        checked(Count, value, name)


def require_whole_each(name: str, values: Any, *, least_count: int = 1) -> tuple[int, ...]:
    """Give ``values`` as a tuple of whole numbers >= 1, at least ``least_count`` of them."""
    if not isinstance(values, (list, tuple)) or len(values) < least_count:
        raise ValueError(
            f"{name} must be a list or tuple of at least {least_count} whole numbers, "
            f"got {values!r}"
        )
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"every entry of {name} must be a whole number >= 1, got {values!r}")
    return tuple(values)


def require_share(*, zero: bool, one: bool, **values: Any) -> None:
    """Raise ``ValueError`` unless each value lies between 0 and 1, ends included as told."""
    words = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
    for name, value in values.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        inside = number and (0 < value < 1 or (zero and value == 0) or (one and value == 1))
        if not inside:
            raise ValueError(f"{name} must be a number in {words}, got {value!r}")


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


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``attend(query, key, value)``, each ``[..., n, d]``, gives ``[..., n, d]``."""


class SelfAttention(nn.Module):
    """Attention in ``heads`` slices of the width, between two linear maps."""

    def __init__(self, width: int, heads: int, attend: Attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, n, width]`` to the same shape."""
        split = self.inward(x).unflatten(-1, (3, self.heads, -1))  # B, n, 3, heads, d
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = self.attend(query, key, value)
        return cast(Tensor, self.outward(mixed.transpose(1, 2).flatten(2)))


class PreNormLayer(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``, ``hidden`` units inside."""

    def __init__(self, width: int, heads: int, hidden: int, activation: str, attend: Attend):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, attend)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), activation_named(activation), nn.Linear(hidden, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[B, n, width]`` to the same shape."""
        x = x + self.attention(self.norm1(x))
        return cast(Tensor, x + self.mlp(self.norm2(x)))
