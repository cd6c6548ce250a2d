"""The errata point at claims that exist and miss none; numbers on the front page are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aliceopt import claims

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "errata.md").read_text("utf-8")
KNOWN = {claim.id for claim in claims.CLAIMS}


def entries() -> dict[str, str]:
    """Every numbered section of the errata, by its heading."""
    parts = re.split(r"^## (\d+\. .*)$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def only(text: str) -> list[str]:
    return re.findall(r"--only (\S+?)(?=[\s`]|$)", text)


def test_every_command_names_known_claims():
    assert only(TEXT)
    assert set(only(TEXT)) <= KNOWN


def test_every_correction_has_its_entry():
    """A claim that corrects the paper is shown by a command in some numbered entry."""
    shown = {name for text in entries().values() for name in only(text)}
    corrected = {claim.id for claim in claims.CLAIMS if claim.correction}
    assert corrected <= shown


@pytest.mark.parametrize("heading", entries())
def test_every_entry_is_complete(heading):
    """What the paper says, what is right, why, the command, and what the package does."""
    text = entries()[heading].split("\n## ")[0]
    for part in ("**Paper.**", "**Right.**", "**Why.**", "**Check.**", "**Package.**"):
        assert part in text, part
    assert only(text)


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL))
def test_examples_run_and_hold(block):
    """Findings beyond the claims come with a program; its assertions are the findings."""
    assert "assert " in block
    exec(compile(block, "docs/errata.md", "exec"), {})


def test_the_readme_counts_the_claims():
    """Verdicts as published: confirmed, or corrected with a correction; training runs apart."""
    trained = sum(claim.training is not None for claim in claims.CLAIMS)
    corrected = sum(bool(claim.correction) for claim in claims.CLAIMS)
    theory = len(claims.CLAIMS) - trained
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"{len(claims.CLAIMS)} claims. Of {theory} about theorems and algorithms" in readme
    assert f"{theory - corrected} are confirmed, {corrected} corrected, 0 failed" in readme
    assert f"The other {trained} are about training" in readme
