"""What a terminal would obey does not reach it, wherever a name comes from."""

import io
import json

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")

from dataclasses import replace

from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.cli.live import Live
from aliceopt.lab.records import read_plan, write_plan
from aliceopt.lab.terminal import Terminal
from aliceopt.lab.training.train import Progress
from aliceopt.lab.typed import to_json
from experiment_records import write_records
from study_cases import grid_plan

HOSTILE = "Ad\x1b]0;owned\x1b\\am\x9b31m"
SHOWN = r"Ad]0;owned\am31m"


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def test_a_terminal_shows_what_it_does_not_obey():
    """In texts and tables, with the styles that are ours; also what would be an emoji."""
    text = io.StringIO()
    console = Terminal(file=text, force_terminal=True, width=80)
    table = Table("name")
    table.add_row(Text(HOSTILE))
    table.add_row("rate :x:")
    console.print(Text(HOSTILE, style="bold"))
    console.print("lost :boom:", table)
    printed = text.getvalue()
    assert "lost :boom:" in printed
    assert "rate :x:" in printed
    assert printed.count(SHOWN) == 2
    assert "\x1b[1m" in printed
    assert "\x1b]" not in printed


def test_names_of_a_plan_from_elsewhere_are_shown_by_every_command(tmp_path):
    """By a table, by a refusal."""
    write_records(tmp_path, "resnet18-methods", "smoke")
    plan = read_plan(tmp_path)
    plan.methods["adam"] = replace(plan.methods["adam"], label=HOSTILE)
    write_plan(tmp_path, plan)
    shown = ("table", "resnet18-methods", "--records", str(tmp_path))
    result = CliRunner().invoke(build(), shown)
    assert result.exit_code == 0, result.output
    assert SHOWN in result.output
    assert "\x1b" not in result.output
    (tmp_path / "plan.json").write_text(json.dumps({**to_json(plan), "name": HOSTILE}))
    result = CliRunner().invoke(build(), shown)
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr


def test_a_bar_shows_labels_as_they_are():
    """Brackets are no markup, and nothing of them is obeyed."""
    text = io.StringIO()
    label = f"{HOSTILE} [/x]"
    plan = grid_plan(1, terms=(), baselines=("adam",))
    plan.methods["adam"] = replace(plan.methods["adam"], label=label)
    console = Terminal(file=text, force_terminal=True, width=120)
    with Live(plan, console, plan.runs) as live:
        live(Progress("adam", 0, 5, 10, 5, 0.5))
    assert f"{SHOWN} [/x], seed 0" in text.getvalue()
    assert "\x1b]" not in text.getvalue()
