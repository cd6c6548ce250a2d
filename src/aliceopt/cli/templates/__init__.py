"""Problems to start from: files that ``aliceopt new-problem`` writes, and that run as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from aliceopt.lab.problems.problem import ProblemError
from aliceopt.lab.words import meant
from aliceopt.lab.writing import writing

__all__ = ["KINDS", "missing_package", "template", "write_template"]

KINDS = {
    "spirals": "a small network and points in a plane",
    "vision": "images, a convnet with BatchNorm",
    "tabular": "columns of numbers, an MLP, a metric of your own",
    "text": "a language model on bytes",
    "huggingface": "a model of the transformers package",
}
"""Each is a file of this folder."""

_NEEDS = {"huggingface": "transformers"}
"""Packages that the lab does not bring."""


def template(kind: str) -> str:
    """The text of a problem of some kind."""
    if kind not in KINDS:
        raise ProblemError(f"--kind {kind!r} is no kind of problem{meant(kind, KINDS)}")
    return Path(__file__).with_name(f"{kind}.py").read_text(encoding="utf-8")


def missing_package(kind: str) -> str | None:
    """What has to be installed before a problem of some kind can run; None if nothing has."""
    package = _NEEDS.get(kind)
    return package if package and importlib.util.find_spec(package) is None else None


def write_template(path: Path, kind: str = "spirals") -> None:
    """Write a new problem to start from; an existing file is never overwritten."""
    text = template(kind)
    if path.suffix != ".py":
        raise ProblemError(f"a problem is a Python file, name.py; got {str(path)!r}")
    if not path.stem.isidentifier():
        raise ProblemError(f"{path.stem!r} cannot be a module's name: use letters, digits and _")
    if path.exists():
        raise ProblemError(f"{str(path)!r} exists already; it was left as it is")
    with writing(path), path.open("x", encoding="utf-8") as file:
        file.write(text)
