"""What is said while a plan runs: a line for every run that ended, bars only on a terminal."""

import io

import pytest

pytest.importorskip("rich")

from rich.console import Console

from aliceopt.cli.live import Live
from aliceopt.lab.spec import PlannedMethod, PlannedRun
from aliceopt.lab.training.train import Progress
from study_cases import grid_plan

METHODS = {
    "adam": PlannedMethod("Adam [fused]", "baseline", "adam", {}),
    "alice": PlannedMethod("Alice", "alice", "alice", {}),
}
RUNS = [
    PlannedRun(method, seed, 10, 10 * (1 + (method == "alice")))
    for seed in (0, 1)
    for method in METHODS
]
PLAN = grid_plan(methods=METHODS, runs=RUNS)


def show(progresses, todo, *, terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120)
    with Live(PLAN, console, todo) as live:
        for progress in progresses:
            live(progress)
        bar = live.tasks[0]
    return text.getvalue(), bar


def test_only_ends_are_printed_where_there_is_no_terminal():
    """Brackets in labels and reasons are text; what was finished before is counted."""
    todo = RUNS[1:]
    printed, bar = show(
        [
            Progress("alice", 0, 5, 10, 10, 81.234567),
            Progress("alice", 0, 10, 10, 20, 90.5, "finished"),
            Progress("adam", 1, 0, 10, 0, None, "failed", "OSError: no [/disk]"),
        ],
        todo,
        terminal=False,
    )
    assert printed.splitlines() == [
        "2 of 4  Alice, seed 0: accuracy 90.5, 20 gradients",
        "3 of 4  Adam [fused], seed 1: failed: OSError: no [/disk]",
    ]
    assert bar.total == 50
    assert bar.completed == 30


def test_bars_come_and_go_on_a_terminal():
    """One for all runs, in gradients, and one for every run under way."""
    printed, bar = show(
        [Progress("adam", 0, 5, 10, 5, 81.0), Progress("adam", 0, 10, 10, 10, 82.0, "finished")],
        RUNS[:2],
        terminal=True,
    )
    assert "all runs, in gradients" in printed
    assert "Adam" in printed
    assert (bar.completed, bar.total) == (10, 30)
