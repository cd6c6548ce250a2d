"""``aliceopt run --tune``: rates first, then seeds, in one command that may be given again."""

from pathlib import Path

import pytest

pytest.importorskip("rich")

from typer.testing import CliRunner, Result

from aliceopt.cli import build
from aliceopt.lab.plans.study import TUNING_SEED
from aliceopt.lab.records import read_found

COMMAND = "run pays-small-gpt --scale smoke --methods adamw --seeds 2 --workers 1 --tune 4"


def given(out: Path, *more: str) -> Result:
    return CliRunner().invoke(build(), [*COMMAND.split(), "--out", str(out), *more])


def test_rates_are_found_and_run_with_all_seeds(own_folder, tmp_path: Path):
    """What was run is gone on with: the same command once more runs nothing and prints the same."""
    done = given(tmp_path / "out")
    assert done.exit_code == 0, done.output
    found = read_found(tmp_path / "out")
    rates = {run.ran.options["lr"] for run in found if run.ran and run.seed == TUNING_SEED}
    assert 3 <= len(rates) <= 4
    assert {run.seed for run in found} == {0, 1, TUNING_SEED}
    assert len({run.method for run in found if run.seed != TUNING_SEED}) == 1
    again = given(tmp_path / "out")
    assert again.exit_code == 0
    assert again.output == done.output[-len(again.output) :]
    assert "Differences to adamw" in again.output


def test_a_dry_run_shows_the_first_round(own_folder, tmp_path: Path):
    """And says that more follows; nothing is left behind."""
    shown = given(tmp_path / "out", "--dry-run")
    assert "in all 3 runs" in shown.output
    assert "and what follows from these" in shown.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [["--overwrite"], ["--set", "train.steps=3"], ["--tune", "2"]])
def test_what_does_not_go_with_it_is_refused(own_folder, tmp_path: Path, more: list[str]):
    """Records that are deleted, or of other settings, would never count."""
    refused = given(tmp_path / "out", *more)
    assert refused.exit_code == 2
    assert "at least 3, and goes on with what there is, with settings as filed" in refused.output
