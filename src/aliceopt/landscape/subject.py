"""What all instruments share: their subject and its blocks, batches, and what is refused."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat, tee
from typing import Any

import torch
from torch import Tensor, nn

from ..site import Site
from .excursion import named_parameters, sites_of

__all__ = [
    "STREAM",
    "Blocks",
    "Subject",
    "check_above",
    "check_callable",
    "check_whole",
    "closures_of",
    "with_losses",
    "without_nan",
]

STREAM = 0x6C6E6473 << 32  # other directions than an optimizer of the same seed

Blocks = Mapping[str, Iterable[str]] | int | str | None
"""Which parameters are looked at together, see `power_law`."""


class Subject:
    """A model's parameters by name, and a site for each that is trained.

    Tied names share a site; ``unique`` has each once. ``multiples`` of the radius, where they are
    to go as well, are refused if a parameter cannot.
    """

    def __init__(
        self,
        model: nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]],
        radius: float,
        center: Mapping[str, Tensor] | None = None,
        multiples: Iterable[float] = (),
    ) -> None:
        self.named, self.module = named_parameters(model)
        self.sites = sites_of(self.named, self.module, radius, center)
        self.unique = list(dict.fromkeys(self.sites.values()))
        for multiple in multiples:
            self._check_factor(multiple)

    def blocks(self, blocks: Blocks) -> dict[str, list[Site]]:
        """Trainable members of every block, each once; a block must have some."""
        members = {}
        for block, names in _listed(self.sites, blocks).items():
            for name in names:
                if name not in self.named:
                    near = difflib.get_close_matches(name, self.named, n=1)
                    meant = f": did you mean {near[0]!r}?" if near else ""
                    raise ValueError(f"block {block!r} has {name!r}, which is no parameter{meant}")
            found = list(dict.fromkeys(self.sites[name] for name in names if name in self.sites))
            if not found:
                raise ValueError(f"block {block!r} has no trainable parameter: leave it out")
            members[block] = found
        return members

    def _check_factor(self, factor: float) -> None:
        """Refuse a factor between the grid points of a half-precision parameter."""
        for name, param in self.named.items():
            low = param.requires_grad and param.dtype in (torch.bfloat16, torch.float16)
            if low and not float(factor).is_integer():
                raise ValueError(
                    f"factor must be a whole number for the {param.dtype} parameter {name!r}, "
                    f"whose grid has no place for both displacements otherwise, got {factor!r}"
                )


def _listed(sites: Mapping[str, Site], blocks: Blocks) -> dict[str, list[str]]:
    """Names by block: as given, by what an expression finds in them, or by their first parts."""
    if isinstance(blocks, Mapping):
        return {block: list(names) for block, names in blocks.items()}
    listed: dict[str, list[str]] = {}
    if isinstance(blocks, str):
        try:
            pattern = re.compile(blocks)
        except re.error as error:
            raise ValueError(f"blocks is no regular expression, got {blocks!r}: {error}") from None
        for name in sites:
            if found := pattern.search(name):
                block = found[1] if pattern.groups and found[1] is not None else found[0]
                listed.setdefault(block, []).append(name)
        if not listed:
            raise ValueError(
                f"blocks finds no parameter, got {blocks!r}; one is {next(iter(sites))!r}"
            )
        return listed
    depth = 1 if blocks is None else blocks
    check_whole("blocks, as a depth of names,", depth, 1)
    for name in sites:
        listed.setdefault(".".join(name.split(".")[:depth]), []).append(name)
    return listed


# ---- batches -----------------------------------------------------------------------------------


def closures_of(
    closure: Callable[..., Any] | Sequence[Callable[[], Any]],
    batches: Iterable[Any] | None,
    label: str = "closure",
) -> Iterator[Callable[[], Any]]:
    """One closure a batch; batches are drawn when their turn comes."""
    given: Iterable[Callable[[], Any]]
    if callable(closure):
        given = [closure] if batches is None else (partial(closure, batch) for batch in batches)
    elif not isinstance(closure, Sequence) or not all(map(callable, closure)):
        raise ValueError(f"{label} must be callable, or a sequence of callables, got {closure!r}")
    elif batches is not None:
        raise ValueError(f"with batches one {label} is needed, got a list of {len(closure)}")
    else:
        given = closure
    empty = True
    for on_batch in given:
        empty = False
        yield on_batch
    if empty:
        raise ValueError("there is nothing to measure on: no batches were given")


def with_losses(
    closure: Callable[..., Any] | Sequence[Callable[[], Any]],
    loss: Callable[..., Any] | Sequence[Callable[[], Any]] | None,
    batches: Iterable[Any] | None,
) -> Iterator[tuple[Callable[[], Any], Callable[[], Any] | None]]:
    """The same, each with what has the loss of that batch alone, if anything has."""
    counts = [len(given) if isinstance(given, Sequence) else 1 for given in (closure, loss)]
    if loss is not None and counts[0] != counts[1]:
        raise ValueError(f"every closure needs its loss, got {counts[0]} and {counts[1]} of them")
    first, second = (batches, batches) if batches is None else tee(batches)
    losses = repeat(None) if loss is None else closures_of(loss, second, "loss")
    yield from zip(closures_of(closure, first), losses, strict=False)


# ---- numbers -----------------------------------------------------------------------------------


def check_above(label: str, value: Any, least: float = 0.0) -> None:
    """Refuse what is no finite number above ``least``."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= least:
        raise ValueError(f"{label} must be a number in ({least:g}, inf), got {value!r}")


def check_whole(label: str, value: Any, least: int) -> None:
    """Refuse what is no whole number from ``least`` on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{label} must be a whole number >= {least}, got {value!r}")


def check_callable(label: str, value: Any) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise ValueError(f"{label} must be callable, got {type(value).__name__}")


def without_nan(value: Any) -> Any:
    """The same dicts and lists with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
