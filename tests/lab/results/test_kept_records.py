"""Kept results give the tables and figures that the folder they were made from gave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

pytest.importorskip("rich")  # the lab's extra
pytest.importorskip("typer")
from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.lab.figures.experiment import draw_experiment
from aliceopt.lab.records import RecordError, read_records
from aliceopt.lab.results.exponents import series_of
from aliceopt.lab.results.kept import add, gather, read_kept
from aliceopt.lab.results.kept_records import kept_records
from aliceopt.lab.results.table import method_cells, method_rows
from aliceopt.lab.spec import PowerLaw
from experiment_records import kept_run, write_records

PAPERS = ("resnet18-methods", "resnet18-naq", "resnet18-powerlaw", "tt-limit")


def journals(folder: Path, name: str) -> Path:
    """Records of two seeds of an experiment, and the file of what is kept of them."""
    write_records(folder / "runs", name, seeds=2)
    add(gather(folder / "runs")[0], folder)
    return folder / f"{name}.jsonl"


@pytest.mark.parametrize("name", PAPERS)
def test_tables_and_figures_are_those_of_the_folder(name, tmp_path):
    """Every row to the bit but for seconds, which are kept to a thousandth."""
    path = journals(tmp_path, name)
    kept, made = kept_records(path, name, "lab"), read_records(tmp_path / "runs")
    assert list(kept.plan.methods) == list(made.plan.methods)
    for mine, its in zip(
        method_rows(kept.plan, kept.runs), method_rows(made.plan, made.runs), strict=True
    ):
        assert mine.pop("seconds") == pytest.approx(its.pop("seconds"), abs=1e-3)
        assert mine == its
    assert draw_experiment(kept, tmp_path / "f.png").stat().st_size > 10_000


def test_exponents_are_kept_with_their_intervals(tmp_path):
    kept = kept_records(journals(tmp_path, "resnet18-powerlaw"), "resnet18-powerlaw", "lab")
    journal = read_records(tmp_path / "runs")
    made = series_of(journal.plan, journal.runs)
    places = len(PowerLaw(0.002, radii=(2e-5,), batch_sizes=(500,), held_out=True).places)
    assert len(made) == 2 * places  # ReLUs and their twin
    for ours, theirs in zip(series_of(kept.plan, kept.runs), made, strict=True):
        assert (ours.method, ours.place) == (theirs.method, theirs.place)
        for mine, its in zip(ours.rows(), theirs.rows(), strict=True):
            assert mine["block"] == its["block"]
            assert mine["as_expected"] == its["as_expected"]
            for moment in ("first", "last"):
                assert mine[moment] == pytest.approx(its[moment], rel=1e-5)


def test_methods_with_fewer_seeds_are_told_by_theirs(tmp_path):
    lines = [kept_run("resnet18-methods", "adam", seed, 90.0 + seed) for seed in range(3)]
    add([*lines, kept_run("resnet18-methods", "sgd-m", 1, 89.0)], tmp_path)
    found = kept_records(tmp_path / "resnet18-methods.jsonl", "resnet18-methods", "lab")
    adam, sgd = method_rows(found.plan, found.runs)
    assert (adam["ours"], adam["finished"]) == ([90.0, median([90.0, 91.0, 92.0]), 92.0], 3)
    assert (sgd["ours"], sgd["finished"], sgd["planned"]) == ([89.0] * 3, 1, 1)


def test_what_is_not_kept_is_told_with_the_scales_that_are(tmp_path):
    add([kept_run("resnet18-methods", "adam", 0, 93.0, scale="paper")], tmp_path)
    path = tmp_path / "resnet18-methods.jsonl"
    with pytest.raises(RecordError, match=r"no runs of 'resnet18-methods' at scale lab .*paper"):
        kept_records(path, "resnet18-methods", "lab")
    with pytest.raises(RecordError, match="no runs of 'tt-limit' at scale lab"):
        kept_records(path, "tt-limit", "lab")


def test_the_commands_take_a_file_and_by_default_the_repositorys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    add([kept_run("resnet18-methods", "adam", 0, 93.25, scale="paper")], Path("results"))
    run = CliRunner().invoke
    command = ["table", "resnet18-methods", "--scale", "paper"]
    by_default = run(build(), command)
    assert by_default.exit_code == 0, by_default.output
    assert "93.25" in by_default.stdout
    assert "results/resnet18-methods.jsonl" in by_default.stdout
    given = run(build(), [*command, "--records", "results/resnet18-methods.jsonl"])
    assert by_default.stdout == f"kept results: results/resnet18-methods.jsonl\n{given.stdout}"
    drawn = run(build(), ["figure", *command[1:]])
    assert drawn.exit_code == 0, drawn.output
    assert Path("resnet18-methods.png").exists()
    told = run(build(), ["table", "resnet18-methods"])
    assert told.exit_code == 2
    assert "--scale paper" in told.stderr


def test_seconds_that_nobody_knows_are_no_seconds(tmp_path):
    """Of runs that shared a GPU: a dash, not zero, and known ones count alone."""
    alone = kept_run("resnet18-methods", "adam", 0, 93.0)
    shared = [kept_run("resnet18-methods", method, 1, 93.0) for method in ("adam", "sgd-m")]
    unknown = [replace(x, seconds=None, curve=x.curve | {"seconds": [None]}) for x in shared]
    add([alone, *unknown], tmp_path)
    found = kept_records(tmp_path / "resnet18-methods.jsonl", "resnet18-methods", "lab")
    adam, sgd = method_rows(found.plan, found.runs)
    assert (adam["seconds"], sgd["seconds"]) == (8.0, None)
    assert method_cells([sgd], "accuracy")[0][-1] == "\u2013"
    assert draw_experiment(found, tmp_path / "f.png").exists()


def test_two_results_of_one_seed_are_told(tmp_path):
    line = kept_run("resnet18-methods", "adam", 0, 93.0)
    config = replace(line.config, training=replace(line.config.training, evaluations=7))
    add([line, replace(line, id="", config=config, final=92.0)], tmp_path)
    with pytest.raises(RecordError, match="several results of adam seed 0"):
        kept_records(tmp_path / "resnet18-methods.jsonl", "resnet18-methods", "lab")


def test_a_line_from_before_exponents_were_kept_is_the_same_run(tmp_path):
    """It stays as it is; --overwrite takes the exponents."""
    path = journals(tmp_path, "resnet18-powerlaw")
    now = read_kept(path)
    before = [replace(x, curve={k: v for k, v in x.curve.items() if k != "exponents"}) for x in now]
    add(before, tmp_path, overwrite=True)
    assert [(done.again, done.new) for done in add(now, tmp_path)] == [(4, 0)]
    assert read_kept(path) == before
    add(now, tmp_path, overwrite=True)
    assert read_kept(path) == now
