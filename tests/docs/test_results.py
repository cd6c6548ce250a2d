"""The numbers that pages take from kept results are those of the records."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("rich")

from aliceopt.cli.pages import fill

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/learned.md",
    "docs/settings.md",
    "docs/results.md",
    "docs/compress.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_filling_the_page_anew_changes_nothing(page):
    """``aliceopt results fill`` with these pages writes what is there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "<!-- results: " in text
    assert fill(text, ROOT / "results") == text


@pytest.mark.parametrize("page", PAGES)
def test_no_number_begins_a_line(page):
    """A comment there begins a block of HTML, which ends the paragraph or the list around it."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    begun = [line for line in lines if line.lstrip().startswith("<!-- results: ")]
    tables = {"compare", "compress", "compress-differences", "compress-layers", "compress-radii"}
    tables |= {"exponents", "paper", "verdicts"}
    assert {line.split()[2] for line in begun} <= tables


def test_no_other_page_has_places_that_nobody_checks():
    pages = {str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")} - set(PAGES)
    assert not [page for page in pages if "<!-- results: " in (ROOT / page).read_text("utf-8")]
