"""Help and lists as one reads them: flags are flags, numbers are said as the pages say them."""

import re
from pathlib import Path

import pytest

pytest.importorskip("typer")

from lab_cases import aliceopt

COMMANDS = [
    (), ("study",), ("new-problem",), ("compress",), ("landscape",), ("run",), ("table",),
    ("figure",), ("list",), ("claims",), ("data",), ("data", "where"), ("data", "check"),
    ("data", "get"), ("results",), ("results", "add"), ("results", "show"),
    ("results", "compare"), ("results", "fill"), ("results", "draw"),
]  # fmt: skip
PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_follows_a_flag(command, monkeypatch):
    """``--resume``, not ``--resume <bool>``; what takes a value says of which kind."""
    monkeypatch.setenv("COLUMNS", "120")
    shown = aliceopt(*command, "--help")
    assert shown.exit_code == 0
    assert "--help" in shown.output
    assert "bool" not in shown.output
    if command == ("study",):
        assert re.search(r"--resume\s+Go on", shown.output)
        assert re.search(r"--seeds\s+<int>", shown.output)


def test_the_help_begins_with_comparing_optimizers(monkeypatch):
    """What most come for, in one line."""
    monkeypatch.setenv("COLUMNS", "100")
    lines = [line.strip() for line in aliceopt("--help").output.splitlines() if line.strip()]
    (said,) = [line for line in lines if line.startswith("Compare optimizers")]
    assert said.endswith(".")
    assert lines.index(said) == 1  # below the usage


def test_every_command_is_looked_at():
    """A new one has to be added above."""
    from aliceopt.cli import build

    app = build()
    names = {c.name or c.callback.__name__ for c in app.registered_commands}
    for group in app.registered_groups:
        inner = group.typer_instance
        name = inner.info.name
        names |= {f"{name} {c.name or c.callback.__name__}" for c in inner.registered_commands}
        names.add(name)
    assert names == {" ".join(command) for command in COMMANDS if command}


def test_the_list_says_costs_as_the_page_does(monkeypatch):
    """Paper, lab and smoke of every experiment of the paper; no powers of ten."""
    monkeypatch.setenv("COLUMNS", "200")
    listed = aliceopt("list").output
    assert not re.search(r"\de\+\d", listed)
    rows = re.findall(r"^\| `([\w-]+)` \|(.* runs?, .*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 6
    for name, cells in rows:
        (line,) = [line for line in listed.splitlines() if line.strip().startswith(f"{name} ")]
        said = [cell.split(", ")[-1].strip() for cell in cells.split("|")]
        for cost in said:
            assert cost in line, (name, cost)
