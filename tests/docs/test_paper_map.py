"""The paper map leads to things that exist, and leaves nothing of the paper or the theory out."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aliceopt import claims, theory

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "paper_map.md"
ERRATA = ROOT / "docs" / "errata.md"
COLUMNS = ("paper", "what it says", "functions", "tests", "claims")
CORRECTED = {claim.id for claim in claims.CLAIMS if claim.correction}


@dataclass(frozen=True)
class Row:
    """One statement of the paper; functions, tests and claims are the backticked words."""

    paper: str
    functions: tuple[str, ...]
    tests: tuple[str, ...]
    claims: tuple[str, ...]
    italic: frozenset[str]


def words(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def rows() -> list[Row]:
    """Every table row of the map; each table has the same five columns."""
    found = []
    for line in MAP.read_text("utf-8").splitlines():
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == len(COLUMNS), line
        if tuple(cells) == COLUMNS or set(cells[0]) == {"-"}:
            continue
        paper, _, functions, tests, ids = cells
        italic = frozenset(re.findall(r"\*`([^`]+)`\*", ids))
        found.append(Row(paper, words(functions), words(tests), words(ids), italic))
    return found


ROWS = rows()


def resolve(dotted: str) -> Any:
    """The object behind a dotted name: the longest module, then attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[cut:], module)
    raise ModuleNotFoundError(dotted)


@functools.cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


@pytest.mark.parametrize("name", sorted({name for row in ROWS for name in row.functions}))
def test_every_function_exists(name):
    assert name.startswith("aliceopt.")
    assert resolve(name) is not None


@pytest.mark.parametrize("test", sorted({test for row in ROWS for test in row.tests}))
def test_every_test_exists(test):
    path, name = test.split("::")
    assert (ROOT / path).is_file(), path
    assert name in functions_of(path), test


def test_every_claim_exists_and_is_italic_where_it_corrects_the_paper():
    known = {claim.id for claim in claims.CLAIMS}
    for row in ROWS:
        assert set(row.claims) <= known, row
        assert row.italic == CORRECTED & set(row.claims), row


def test_every_row_leads_somewhere():
    """A row without code is marked as planned; one with code has a test."""
    text = MAP.read_text("utf-8")
    for row in ROWS:
        assert bool(row.functions) == bool(row.tests), row
        assert row.functions or f"| {row.paper} |" in text
        line = next(line for line in text.splitlines() if line.startswith(f"| {row.paper} |"))
        assert bool(row.functions) != ("| planned | planned |" in line), row


def numbers(kind: str) -> set[int]:
    found = (re.match(rf"{kind} (\d+)\b", row.paper) for row in ROWS)
    return {int(match[1]) for match in found if match}


def test_every_theorem_algorithm_equation_and_figure_is_there():
    assert numbers("Theorem") == set(range(1, 7))
    assert numbers("Algorithm") == {1, 2, 3}
    assert numbers("Equation") >= set(range(1, 22))
    assert numbers("Figure") == set(range(1, 7))


@pytest.mark.parametrize(("algorithm", "lines"), [(1, 5), (2, 11), (3, 10)])
def test_every_line_of_the_algorithms_is_there(algorithm, lines):
    wanted = {f"Algorithm {algorithm}, line {n}" for n in range(1, lines + 1)}
    assert wanted == {r.paper for r in ROWS if r.paper.startswith(f"Algorithm {algorithm},")}


@pytest.mark.parametrize("module", theory.__all__)
def test_every_public_name_of_the_theory_is_there(module):
    listed = {name for row in ROWS for name in row.functions}
    for name in getattr(theory, module).__all__:
        assert f"aliceopt.theory.{module}.{name}" in listed


def test_every_claim_is_in_the_map_or_the_errata():
    listed = {claim for row in ROWS for claim in row.claims}
    listed |= set(re.findall(r"[\w-]+", ERRATA.read_text("utf-8")))
    assert {claim.id for claim in claims.CLAIMS} <= listed
