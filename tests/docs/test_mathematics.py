"""Equations of the pages are set as MathML, all of them, without asking for anything."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("latex2mathml")

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if "```math" in page.read_text("utf-8")]


def set_equations(text: str) -> str:
    spec = importlib.util.spec_from_file_location("mathematics", DOCS / "mathematics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.set_equations(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_equation_of_a_page_is_well_formed(page):
    """As many as were written; no LaTeX is left in what they show."""
    text = page.read_text("utf-8")
    found = re.findall(r"<math.*?</math>", set_equations(text), flags=re.DOTALL)
    assert len(found) == text.count("```math") + text.count("$`")
    for equation in found:
        shown = "".join(ElementTree.fromstring(equation).itertext())
        assert not set(shown) & set("\\{}$&"), shown


def test_the_step_and_the_errata_have_equations():
    """Where a reader looks for them."""
    assert {"step", "errata", "settings"} <= {page.stem for page in PAGES}


def test_other_text_stays_as_it_is():
    """Code, prices and shell variables."""
    text = "costs $5\n\n```bash\necho $HOME `ls`\n```\n"
    assert set_equations(text) == text
    assert "<mfrac>" in set_equations(r"a $`\frac12`$ b")
