"""README, quickstart, guide, tutorial and example: one setting to start from, lines that run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
START = "Alice(model.parameters(),lr=1e-3,model=model)"
PAGES = ("README.md", "docs/index.md", "docs/quickstart.md", "docs/guide.md", "docs/tutorial.md")


def blocks(page: str) -> list[str]:
    """The Python of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def bare(code: str) -> str:
    """Code without comments and spaces."""
    return re.sub(r"\s", "", re.sub(r"#.*", "", code))


@pytest.mark.parametrize("page", PAGES)
def test_the_first_alice_of_every_page_is_the_same(page):
    """And the example's, so that nobody has to ask which is meant."""
    first = next(block for block in blocks(page) if "Alice(" in block)
    assert START in bare(first)
    assert START in bare((ROOT / "examples/quickstart.py").read_text())


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/quickstart.md"])
def test_the_pages_python_trains(page):
    """On any model, loader and loss of these names."""
    torch.manual_seed(0)
    data = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(5)]
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    space = {"model": model, "loader": data, "loss_fn": nn.functional.mse_loss}
    for block in blocks(page):
        before = [p.clone() for p in model.parameters()]
        exec(block, space)
        assert all(not torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_the_readme_says_the_first_things_first():
    """Lines, install, study, then whether to use it; equations come after all of these."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    order = ["<img ", "## Coming from AdamW", "## Install", "aliceopt study", "**Do not**"]
    places = [text.index(part) for part in [*order, "docs/step.md"]]
    assert places == sorted(places)
    assert (ROOT / re.findall(r'<img src="(.*?)"', text)[0]).exists()


def test_the_tutorial_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """Its Python in one go, its commands in one folder; and what it says of the numbers is so."""
    pytest.importorskip("sklearn")
    space: dict[str, object] = {}
    for block in blocks("docs/tutorial.md"):
        exec(block, space)
    assert 0 < space["adamw"] - space["alice"] < 0.01 * space["adamw"]
    assert space["rates"][0] < space["best"] < space["rates"][-1]
    assert space["by_rate"][1e-3] > 3 * space["by_rate"][space["best"]]
    assert abs(space["mean"]) < 4.3 * space["error"]
    pytest.importorskip("typer")
    from lab_cases import aliceopt

    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    commands = re.findall(r"^aliceopt (.*)$", text, flags=re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["new-problem", "study", "study"]
    for command in commands:
        more = ["--dry-run"] if command.startswith("study") and "--dry-run" not in command else []
        result = aliceopt(*shlex.split(command), *more)
        assert result.exit_code == 0, result.output
