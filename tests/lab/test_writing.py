"""What cannot be written is told by name, and leaves what was there."""

import contextlib
import json

import pytest
import torch

pytest.importorskip("resource")
pytest.importorskip("typer")
pytest.importorskip("matplotlib")

import resource

import typer
from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.cli.refusal import told
from aliceopt.lab.records import Journal, save_checkpoint, write_plan
from aliceopt.lab.training.train import train
from aliceopt.lab.writing import WriteError, replacing
from lab_cases import events, small_run
from study_cases import grid_plan


@contextlib.contextmanager
def full_disk(size):
    """No file grows beyond so many bytes: as on a full disk, the error names no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_with_the_file(tmp_path):
    """A plan and a checkpoint: the old ones stay, and nothing is left beside them."""
    plan, checkpoint = tmp_path / "plan.json", tmp_path / "checkpoint.pt"
    write_plan(tmp_path, grid_plan(1, terms=(), baselines=("adam",)))
    save_checkpoint(checkpoint, {"step": 1})
    before = {path: path.read_bytes() for path in (plan, checkpoint)}
    with full_disk(4000):
        with pytest.raises(WriteError, match=rf"cannot write '{plan}': File too large"):
            write_plan(tmp_path, grid_plan(9))
        with pytest.raises(WriteError, match=rf"cannot write '{checkpoint}': File too large"):
            save_checkpoint(checkpoint, {"step": 2, "weights": torch.zeros(5000)})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_journal_keeps_whole_lines_on_a_full_disk(tmp_path):
    """What did not fit leaves no half line before the next that does."""
    journal = Journal(tmp_path / "records.jsonl")
    with full_disk(100):
        journal.write("note", text="short")
        with pytest.raises(WriteError, match=r"cannot write '.*records.jsonl': File too large"):
            journal.write("note", text="long" * 100)
        journal.write("note", text="again")
    journal.close()
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["short", "again"]


def test_a_run_on_a_full_disk_fails_by_name_and_goes_on_later(file, tmp_path):
    """It raises nothing, in a worker too; with room again --resume makes it whole."""
    run, heard = small_run(file, "adam", {"lr": 1e-2}), []
    with full_disk(10):
        assert train(run, tmp_path / "out", report=heard.append) == "failed"
    path = tmp_path / "out/adam/seed-1/records.jsonl"
    assert heard[-1].reason == f"WriteError: cannot write '{path}': File too large"
    assert train(run, tmp_path / "out", resume=True) == "finished"
    train(run, tmp_path / "whole")
    assert events(tmp_path / "out", "adam", 1) == events(tmp_path / "whole", "adam", 1)


def test_an_error_without_a_file_is_told_as_it_is(capsys):
    """Not as 'None'."""
    with pytest.raises(typer.Exit), told():
        raise OSError(28, "No space left on device")
    assert capsys.readouterr().err == "aliceopt: [Errno 28] No space left on device\n"


def test_what_could_not_be_made_leaves_nothing_beside(tmp_path):
    """Whatever stopped it."""
    (tmp_path / "a.txt").write_text("old")

    def stopped():
        with replacing(tmp_path / "a.txt") as beside:
            beside.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "old"}


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (("figure", "relu", "--out", "notes.txt/f.png"), "notes.txt/f.png"),
        (("run", "tt-limit", "--scale", "smoke", "--out", "notes.txt/out"), "notes.txt/out"),
        (("study", "--out", "notes.txt"), "notes.txt"),
        (("new-problem", "notes.txt/mine.py"), "notes.txt/mine.py"),
        (("claims", "--only", "thm4", "--json", "notes.txt/x.json"), "notes.txt/x.json"),
        (("compress", "--out", "notes.txt/c"), "notes.txt/c"),
    ],
)
def test_every_command_says_what_it_cannot_write(command, path, tmp_path, monkeypatch):
    """In one sentence, exit 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    result = CliRunner().invoke(build(), command)
    assert result.exit_code == 2, result.output
    assert f"cannot write '{path}': " in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_folder_for_data_that_cannot_be_made_is_told_before_any_download(tmp_path, monkeypatch):
    """By name; not as a file of JSON that cannot be read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    result = CliRunner().invoke(build(), ["data", "get", "cifar10", "--data", "notes.txt/d"])
    assert result.exit_code == 1
    assert result.stderr.strip().startswith("aliceopt: cannot write 'notes.txt/d/")
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_page_is_filled_whole_or_not_at_all(tmp_path):
    """A full disk leaves the page as it was, and is told with its name."""
    page = tmp_path / "page.md"
    page.write_text("words " * 1000)
    with full_disk(100):
        result = CliRunner().invoke(build(), ["results", "fill", str(page)])
    assert result.exit_code == 2
    assert f"cannot write '{page}': File too large" in result.stderr
    assert page.read_text() == "words " * 1000
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


def test_a_pruned_network_that_does_not_fit_on_the_disk_is_told_by_name(tmp_path):
    """And leaves nothing half written."""
    from aliceopt.trained.compress.rows import Result
    from aliceopt.trained.compress.survey import _Keeper

    result = Result("curvature", 0.5, 0, loss=1.0, metric=1.0)
    with full_disk(100), pytest.raises(WriteError, match=r"cannot write '.*pruned-50.pt'"):
        _Keeper(tmp_path, [])(result, torch.nn.Linear(50, 50))
    assert list(tmp_path.iterdir()) == []
