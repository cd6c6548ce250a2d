"""A page from its template: one file, no requests, readable with scripts off and on paper."""

from __future__ import annotations

import re
from base64 import b64encode
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from aliceopt.lab.writing import replacing

_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


class Picture(NamedTuple):
    """A drawn figure: the question that it answers, what is seen, and the same in words."""

    path: Path
    question: str
    caption: str
    alt: str


def data_uri(path: Path) -> str:
    """An address that holds the whole picture."""
    return f"data:{_TYPES[path.suffix]};base64,{b64encode(path.read_bytes()).decode()}"


def _unbroken(escaped: str) -> str:
    """With numbers and units of time kept on one line, and `words to type` as such."""
    whole = re.sub(r"(\d) (s|min|h)\b", r"\1&nbsp;\2", str(escaped))
    return re.sub("`([^`]*)`", r"<code>\1</code>", whole)


_PAGES = Environment(
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_PAGES.filters |= {"unbroken": _unbroken, "data_uri": data_uri}


def write_page(path: Path, template: Path, **values: Any) -> Path:
    """Write a page, whole or not at all. Every template has a kind, a title and facts.

    It extends ``base.html`` of this folder, and may include what lies beside either of them.
    """
    folders = FileSystemLoader([template.parent, Path(__file__).parent])
    content = _PAGES.overlay(loader=folders).get_template(template.name).render(**values)
    with replacing(path) as beside:
        beside.write_text(content, encoding="utf-8")
    return path
