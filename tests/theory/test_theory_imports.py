"""Who may import whom: data flows one way, and the theory stands alone."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import aliceopt

ROOT = Path(aliceopt.__file__).parent
PACKAGE = "aliceopt"
LAYERS = ("landscape", "compress", "claims", "lab", "illustrations", "trained", "cli")
"""Each imports from those before it."""
OUTSIDE_THE_CORE = {*LAYERS, "integrations"}


def module_name(file: Path, root: Path) -> str:
    """Dotted name of a source file, ``__init__`` included as its package."""
    parts = file.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, module: str, *, is_package: bool) -> Iterator[str]:
    """Absolute dotted names of everything imported, at any depth of the file.

    ``from a import b`` counts as ``a.b``, since b may be a module. A call of ``import_module`` or
    ``__import__`` with a literal name counts too.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parents = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parents, *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            name = node.args[0]
            if called in {"import_module", "__import__"} and isinstance(name, ast.Constant):
                yield str(name.value)


def part_of(name: str) -> str:
    """``theory`` for ``aliceopt.theory.kernel``, the empty string for ``aliceopt`` itself."""
    return [*name.split("."), ""][1]


def is_ours(name: str) -> bool:
    return name.split(".")[0] == PACKAGE


def modules() -> list[tuple[str, list[str]]]:
    """Every module of the package with all that it imports."""
    return [
        (name, list(imports_of(file.read_text("utf-8"), name, is_package=file.stem == "__init__")))
        for file in sorted(ROOT.rglob("*.py"))
        for name in [module_name(file, ROOT)]
    ]


def offences(found: list[tuple[str, list[str]]]) -> list[str]:
    """Imports that break a rule, as ``importer -> imported``."""
    wrong = []
    for importer, names in found:
        part = part_of(importer)
        for name in filter(is_ours, names):
            target = part_of(name)
            theory_leaks = part == "theory" and target != "theory"
            core_leaks = part not in OUTSIDE_THE_CORE and target in OUTSIDE_THE_CORE
            backwards = part in LAYERS and target in LAYERS[LAYERS.index(part) + 1 :]
            if theory_leaks or core_leaks or backwards:
                wrong.append(f"{importer} -> {name}")
    return wrong


def test_nothing_imports_against_the_flow():
    """`theory` nothing of ours, the core nothing outside it, and no layer a later one."""
    found = modules()
    assert {"aliceopt", "aliceopt.theory", "aliceopt.theory.kernel"} <= {name for name, _ in found}
    assert offences(found) == []


def test_theory_needs_torch_and_numpy_only():
    """What ``pip install aliceopt`` brings is enough to use every theorem."""
    for importer, names in modules():
        if part_of(importer) == "theory":
            tops = {name.split(".")[0] for name in names}
            foreign = tops - set(sys.stdlib_module_names) - {PACKAGE, "torch", "numpy"}
            assert not foreign, f"{importer} imports {sorted(foreign)}"


PROJECT = Path(__file__).parents[2] / "pyproject.toml"
OF_PACKAGE = {"PIL": "pillow", "sklearn": "scikit-learn"}


ROOMS = ("data", "models", "optimizers", "problems", "plans", "training")
ROOMS += ("results", "figures", "report")


def test_the_labs_rooms_open_one_way():
    """A room imports from those before it; what stands beside the rooms, from none of them."""
    assert set(ROOMS) == {file.parent.name for file in ROOT.glob("lab/*/__init__.py")}

    def floor(name: str) -> int:
        """0 beside the rooms, then one more from room to room."""
        room = [*name.removeprefix("aliceopt.lab").split("."), ""][1]
        return ROOMS.index(room) + 1 if room in ROOMS else 0

    wrong = [
        f"{importer} -> {name}"
        for importer, names in modules()
        if importer.startswith("aliceopt.lab.")
        for name in names
        if name.startswith("aliceopt.lab.") and floor(name) > floor(importer)
    ]
    assert wrong == []


@pytest.mark.skipif(not PROJECT.exists(), reason="needs the source tree")
def test_the_lab_declares_what_it_imports_and_nothing_else():
    """Its extra; torch imports tensorboard for it. Templates are copied out, never imported.

    Optimizers are imported by the names in a table.
    """
    from aliceopt.lab.optimizers.methods import OPTIMIZERS

    declared = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["lab"]
    known = set(sys.stdlib_module_names) | {PACKAGE, "torch", "numpy"}
    tops = {
        name.split(".")[0]
        for importer, names in modules()
        if part_of(importer) in LAYERS[2:] and not importer.startswith("aliceopt.cli.templates.")
        for name in names
    }
    tops |= {module.split(".")[0] for module, _ in OPTIMIZERS.values()}
    needed = {OF_PACKAGE.get(top, top) for top in tops - known} | {"tensorboard"}
    assert needed == {re.split("[<>=]", line)[0] for line in declared}


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("aliceopt.theory.kernel", "from ..signs import rademacher"),
        ("aliceopt.theory.kernel", "from .. import signs"),
        ("aliceopt.theory.kernel", "import aliceopt.signs"),
        ("aliceopt.theory.kernel", "import aliceopt"),
        ("aliceopt.theory.kernel", "def f():\n    from aliceopt import alice"),
        ("aliceopt.theory.kernel", "import importlib\nimportlib.import_module('aliceopt.lab')"),
        ("aliceopt.alice", "from .lab.data import digits"),
        ("aliceopt.alice", "from . import landscape"),
        ("aliceopt.kernels.triton", "if True:\n    from ..landscape import report"),
        ("aliceopt.alice", "from .integrations import ray"),
        ("aliceopt.landscape.report", "from ..lab import figures"),
        ("aliceopt.landscape.report", "__import__('aliceopt.lab')"),
        ("aliceopt.lab.report.page", "from ...trained import network"),
        ("aliceopt.claims.registry", "from ..lab import words"),
    ],
)
def test_rule_catches(importer: str, source: str):
    """The checker itself: one violation of each kind, in every spelling of an import."""
    found = list(imports_of(source, importer, is_package=False))
    assert len(offences([(importer, found)])) == 1


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("aliceopt.theory.kernel", "from . import density\nfrom .density import GAUSSIAN"),
        ("aliceopt.theory.kernel", "import torch\nfrom torch import nn"),
        ("aliceopt.alice", "from .theory import curvature\nfrom . import step"),
        ("aliceopt.lab.figures.style", "from ...landscape import slices\nfrom ... import theory"),
        ("aliceopt.landscape.report", "from ..probe import Probe\nfrom . import slices"),
        ("aliceopt.cli", "from . import lab, landscape"),
        ("aliceopt.trained.landscape.report", "from ...lab.report import page"),
        ("aliceopt.lab.results.reproduced", "from ...claims import registry"),
    ],
)
def test_rule_allows(importer: str, source: str):
    """The checker itself: what the layout permits passes."""
    found = list(imports_of(source, importer, is_package=False))
    assert offences([(importer, found)]) == []


def test_relative_imports_of_a_package_start_at_itself():
    """``from . import x`` in ``aliceopt/theory/__init__.py`` is ``aliceopt.theory.x``."""
    assert list(imports_of("from . import x", "aliceopt.theory", is_package=True)) == [
        "aliceopt.theory.x"
    ]
    assert list(imports_of("from .. import x", "aliceopt.theory", is_package=True)) == [
        "aliceopt.x"
    ]
