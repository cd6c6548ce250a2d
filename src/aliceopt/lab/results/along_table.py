"""Ladders along a training run, as sentences and as the numbers that are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from aliceopt.lab.results.landscape_table import within
from aliceopt.landscape import Estimate

__all__ = ["exponents", "reading_along"]

Lines = Sequence[Mapping[str, Any]]


def exponents(line: Mapping[str, Any]) -> dict[str, Estimate]:
    """By block: the exponent at the smallest radius that can be read."""
    found = {}
    for name, block in line["blocks"].items():
        told = block["exponents"][min(block["start"], len(block["exponents"]) - 1)]
        plain = {key: math.nan if value is None else value for key, value in told.items()}
        found[name] = Estimate(**plain)
    return found


def reading_along(lines: Lines) -> list[str]:
    """A sentence a kind of batches: where every block began, and where it ended."""
    said = []
    for part in dict.fromkeys(line["part"] for line in lines):
        mine = [line for line in lines if line["part"] == part]
        first, last = (exponents(line) for line in (mine[0], mine[-1]))
        parts = [f"{name} {within(first[name])}, then {within(p)}" for name, p in last.items()]
        said.append(
            f"While it trained, {part} batches, exponents at the start and after step "
            f"{mine[-1]['step']:,}: {'; '.join(parts)}."
        )
    return said
