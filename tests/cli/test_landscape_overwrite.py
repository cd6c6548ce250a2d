"""A landscape that is there already: what ``--overwrite`` replaces, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("rich")

from aliceopt.lab.problems.problem import build_problem
from aliceopt.lab.spec import UserProblem
from aliceopt.trained.landscape import report as landscape_report
from landscape_command_cases import PROBLEM, landscape, small_landscapes


@pytest.fixture(scope="module", autouse=True)
def small_preset():
    with small_landscapes():
        yield


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(PROBLEM)
    return f"{tmp_path / 'small.py'}:problem"


SMALLEST = ["--preset", "quick", "--batches", "training", "--precision", "float64"]


def test_a_landscape_is_not_replaced_without_a_word(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, by folder and flag, before anything is done; replaced as a whole once there is one.

    What the new one has not goes, what is the user's stays, and the network is used again.
    """
    monkeypatch.setattr(landscape_report, "draw_all", lambda views, folder: [])
    out = tmp_path / "out"
    assert landscape(source, "--out", out, *SMALLEST).exit_code == 0
    trained = out / "adamw/seed-0/checkpoint.pt"
    figures = out / "figures"
    figures.mkdir()
    for path in (out / "along.jsonl", figures / "planes.png", figures / "planes.pdf"):
        path.write_text("of the landscape before")
    mine = [out / "notes.txt", figures / "own.png"]
    for path in mine:
        path.write_text("mine")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    result = landscape(source, "--out", out, *SMALLEST, "--seed", 1)
    assert result.exit_code == 2
    assert f"{str(out)!r} already holds landscape.jsonl, along.jsonl, landscape.safete" in (
        result.stderr
    )
    assert "--overwrite" in result.stderr
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    result = landscape(source, "--out", out, *SMALLEST, "--overwrite", "--blocks", "(weight|bias)")
    assert result.exit_code == 0, result.output
    (record,) = map(json.loads, (out / "landscape.jsonl").read_text().splitlines())
    assert list(record["blocks"]) == ["weight", "bias"]
    gone = {out / "along.jsonl", figures / "planes.png", figures / "planes.pdf"}
    assert {path for path in out.rglob("*") if path.is_file()} == before.keys() - gone
    assert all(path.read_bytes() == before[path] for path in (*mine, trained))


def test_an_old_landscape_stays_until_there_is_a_new_one(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while it is measured: everything is as it was."""
    monkeypatch.setattr(landscape_report, "draw_all", lambda views, folder: [])
    out = tmp_path / "out"
    assert landscape(source, "--out", out, *SMALLEST).exit_code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def stopped(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("aliceopt.trained.landscape.survey.Instruments.climb", stopped)
    assert landscape(source, "--out", out, *SMALLEST, "--overwrite").exit_code != 0
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_overwriting_trains_anew_where_the_network_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other data, and ladders on the way; but not if the network's own weights are to be read."""
    monkeypatch.setattr(landscape_report, "draw_all", lambda views, folder: [])
    file, out = tmp_path / "data.py", tmp_path / "out"
    file.write_text(PROBLEM)
    asked = [f"{file}:problem", "--out", out, *SMALLEST]
    trained = out / "adamw/seed-0/checkpoint.pt"
    assert landscape(*asked).exit_code == 0
    before = trained.read_bytes()
    file.write_text(PROBLEM.replace("> 0)", "> 0.5)"))
    (out / "landscape.jsonl").rename(tmp_path / "kept.jsonl")
    for name in ("landscape.safetensors", "report.html"):
        (out / name).unlink()
    refused = landscape(*asked)
    assert refused.exit_code == 2
    assert "holds another network: --overwrite begins anew" in refused.stderr
    own = landscape(*asked, "--overwrite", "--checkpoint", trained)
    assert own.exit_code == 2
    assert "--overwrite would delete" in own.stderr
    assert trained.read_bytes() == before
    assert landscape(*asked, "--overwrite").exit_code == 0
    assert trained.read_bytes() != before
    assert not (out / "along.jsonl").exists()
    assert landscape(*asked, "--every", 8, "--overwrite").exit_code == 0
    assert len((out / "along.jsonl").read_text().splitlines()) == 2


def test_with_a_twin_it_goes_into_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default: one after the other refuses neither."""
    seen = []

    def locked(folder: Path) -> None:
        seen.append(folder.name)
        raise ValueError("far enough")

    monkeypatch.setattr("aliceopt.cli.landscape.locked", locked)
    landscape()
    landscape("--twin", "gelu")
    assert seen == ["landscape-digits", "landscape-digits+gelu"]


def test_what_does_not_fit_is_refused_before_a_network_is_trained(tmp_path: Path) -> None:
    """Blocks, batch sizes and, in evaluation mode, statistics that a slice would not take along."""
    normed = PROBLEM.replace(
        "nn.Linear(8, 128),", "nn.Sequential(nn.Linear(8, 9), nn.BatchNorm1d(9)),"
    )
    (tmp_path / "net.py").write_text(normed.replace("nn.Linear(128, 2)", "nn.Linear(9, 2)"))
    source, out = f"{tmp_path / 'net.py'}:problem", tmp_path / "out"
    other = build_problem(UserProblem(source), 0).model
    torch.save(other.state_dict(), tmp_path / "same.pt")
    other[0][1].running_mean += 1
    torch.save(other.state_dict(), tmp_path / "other.pt")
    for options, message in (
        (["--blocks", "zzz"], "blocks finds no parameter"),
        (["--batch-size", 1000], "the training examples there are; got 1000"),
        (["--between", tmp_path / "other.pt", "--eval"], "has another '0.1.running_mean', which"),
    ):
        result = landscape(source, "--out", out, "--preset", "quick", *options)
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())
        assert not (out / "adamw").exists()
    result = landscape(source, "--out", out, "--preset", "quick", "--between", tmp_path / "same.pt")
    assert result.exit_code == 0, result.output  # where the network began


def test_ctrl_c_ends_in_a_sentence(source: str, tmp_path: Path, monkeypatch) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("aliceopt.cli.landscape.network_of", interrupted)
    result = landscape(source, "--out", tmp_path / "out", "--preset", "quick")
    assert result.exit_code == 130
    assert "stopped: what is finished is kept" in result.output
