"""``aliceopt landscape --every``: ladders along a run, which is the same as without."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("rich")

from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.lab.figures import style
from aliceopt.lab.records import load_checkpoint
from aliceopt.lab.spec import Run
from aliceopt.lab.training.train import Loop, train
from aliceopt.trained.landscape import report as landscape_report
from aliceopt.trained.landscape.along import Along, moments
from aliceopt.trained.landscape.presets import PARTS, PRESETS, Asked, Preset
from aliceopt.trained.network import network_of, problem_run

PROBLEM = """
import torch
from torch import nn

def problem():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(96, 8, generator=random)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2)
    )
    return {"model": model, "loss": nn.functional.cross_entropy, "train": (x[:64], y[:64]),
            "validation": (x[64:], y[64:]), "metric": "accuracy", "batch_size": 16}
"""
CPU = torch.device("cpu")
SMALL = Preset(2, 2, 1, 3, 0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("along")
    (folder / "small.py").write_text(PROBLEM)
    return f"{folder / 'small.py'}:problem"


@pytest.fixture(scope="module")
def run(source: str) -> Run:
    """Two epochs of four steps."""
    return problem_run(source, 0, epochs=2)


def saved(folder: Path) -> dict:
    """All of the checkpoint that says what training did, and nothing that says when."""
    content = load_checkpoint(folder / "adamw" / "seed-0" / "checkpoint.pt")
    assert content is not None
    return {name: content[name] for name in ("model", "method", "random", "losses", "step")}


def plain(value: Any) -> Any:
    """Tensors as lists, so that equal means equal."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])])
def test_looking_changes_no_bit_of_the_training(run: Run, tmp_path: Path, kind: str) -> None:
    """Weights, BatchNorm's statistics, the optimizer and all random states, with dropout."""
    count: list[bool] = []
    device = torch.device(kind)
    along = Along(
        *(run, Asked(SMALL), 0.5, tmp_path / "with", device),
        lambda instrument, *, gradient: count.append(gradient),
    )
    network_of(run, tmp_path / "with", device, watch=along)
    network_of(run, tmp_path / "without", device)
    one, other = (saved(tmp_path / name) for name in ("with", "without"))
    assert plain(one) == plain(other)
    assert len(count) == sum(count) == along.gradients  # as announced
    steps = [line["step"] for line in along.lines() if line["part"] == "held-out"]
    assert steps == along.steps == [0, 2, 4, 6, 8]
    assert len({tuple(line["radii"]) for line in along.lines()}) == 1


class Drawing:
    """A watcher that uses up random numbers of every kind."""

    def due(self, step: int) -> bool:
        return True

    def look(self, loop: Any) -> None:
        torch.rand(3)
        random.random()
        np.random.rand()  # noqa: NPY002


def test_a_watcher_may_draw_random_numbers(run: Run, tmp_path: Path) -> None:
    """The run does not notice."""
    train(run, tmp_path / "with", watch=Drawing())
    train(run, tmp_path / "without")
    assert plain(saved(tmp_path / "with")) == plain(saved(tmp_path / "without"))


def test_each_moment_is_measured_where_the_run_was(run: Run, tmp_path: Path) -> None:
    """The last is a ladder on the trained network; the first has the weights of the start."""
    asked = Asked(SMALL, parts=("training",), evaluating=True)  # without dropout
    along = Along(run, asked, 1, tmp_path, CPU)
    trained = network_of(run, tmp_path, CPU, watch=along)
    seen = along.instruments.model.state_dict()
    assert all(torch.equal(value, seen[n]) for n, value in trained.model.state_dict().items())
    first, last = along.lines()[0], along.lines()[-1]
    found = along.instruments.climb("training", along.instruments.radii(first["radii"][0]))
    there, before, after = (
        found.total.variation[0].value,
        *(line["total"]["variation"][0]["value"] for line in (first, last)),
    )
    assert after == there != before
    assert Along(run, asked, 1, tmp_path, CPU).lines() == along.lines()  # found there again


def test_an_interrupted_run_goes_on_at_the_same_radii(run: Run, tmp_path: Path) -> None:
    """Nothing is measured twice, and the run is that of one go."""
    asked = Asked(SMALL, parts=("training",))
    status = train(run, tmp_path, watch=Along(run, asked, 1, tmp_path, CPU), deadline=0.0)
    assert status == "interrupted"
    along = Along(run, asked, 1, tmp_path, CPU)
    assert [line["step"] for line in along.lines()] == [0]
    assert train(run, tmp_path, watch=along, resume=True) == "finished"
    lines = along.lines()
    assert [line["step"] for line in lines] == [0, 4, 8]
    assert len({tuple(line["radii"]) for line in lines}) == 1


def test_a_run_that_died_goes_on_from_where_it_was_last_looked_at(run: Run, tmp_path: Path) -> None:
    """Also if it would keep no checkpoint on its way."""
    run = replace(run, training=replace(run.training, evaluations=1, checkpoints=1))
    asked = Asked(SMALL, parts=("training",))
    dying = Along(run, asked, 1, tmp_path, CPU)
    look = dying.look

    def once(loop: Loop) -> None:
        if loop.step == 8:
            raise KeyboardInterrupt
        look(loop)

    dying.look = once  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path, watch=dying)
    told: list[str] = []
    again = Along(run, asked, 1, tmp_path, CPU, tell=told.append)
    assert train(run, tmp_path, watch=again, resume=True) == "finished"
    assert told == ["ladders after step 8 of 8"]
    assert [line["step"] for line in again.lines()] == [0, 4, 8]


def command(*words: object) -> tuple[int, str]:
    runner = CliRunner()
    asked = ["landscape", *map(str, words), "--preset", "quick", "--device", "cpu"]
    result = runner.invoke(build(), asked, env={"COLUMNS": "160"})
    return result.exit_code, result.output


def test_the_command_has_lines_a_figure_and_a_table(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says beforehand what it takes; a folder's network is not taken for another's."""
    monkeypatch.setitem(PRESETS, "quick", SMALL)
    monkeypatch.setitem(style._LOOK, "savefig.dpi", 60)
    monkeypatch.setattr(landscape_report, "draw_all", lambda views, folder: [])
    status, said = command(source, "--every", 4, "--out", tmp_path)
    assert status == 0, said
    lines = [json.loads(line) for line in (tmp_path / "along.jsonl").read_text().splitlines()]
    assert [(line["step"], line["part"]) for line in lines] == [
        (step, part) for step in (0, 16, 32) for part in PARTS
    ]
    announced = re.search(r"while it trains: (\d+) gradients at most, 3 times", said)
    assert announced is not None
    assert int(announced[1]) == sum(line["gradients"] for line in lines) + 26 + 2 * 6
    for suffix in ("png", "pdf"):
        assert (tmp_path / "figures" / f"along.{suffix}").stat().st_size > 5_000
    page = (tmp_path / "report.html").read_text()
    last = lines[-1]["blocks"]["0"]
    assert f"{last['exponents'][last['start']]['value']:.2f} (" in page
    assert "While it trained" in page
    before = (tmp_path / "along.jsonl").read_bytes()
    status, said = command(source, "--every", 4, "--out", tmp_path, "--overwrite")
    assert status == 0, said
    assert (tmp_path / "along.jsonl").read_bytes() == before  # the network was used again
    results = ("landscape.jsonl", "landscape.safetensors", "along.jsonl", "report.html")
    for name in results:
        (tmp_path / name).rename(tmp_path / f"old-{name}")
    status, said = command(source, "--every", 1, "--out", tmp_path)
    assert status == 2
    assert "was trained without this --every 1, or measured otherwise: --overwrite trains" in said
    assert not (tmp_path / "along.jsonl").exists()


@pytest.mark.parametrize("every", [0.0, -1.0, float("nan"), float("inf")])
def test_only_epochs_above_zero(run: Run, tmp_path: Path, every: float) -> None:
    """One sentence, before anything is trained."""
    with pytest.raises(
        ValueError, match=f"--every must be a number of epochs above 0, got {every:g}"
    ):
        Along(run, Asked(SMALL), every, tmp_path, CPU)
    assert not list(tmp_path.iterdir())


def test_a_trained_network_cannot_be_looked_at_while_it_trains(source: str, tmp_path: Path) -> None:
    """A checkpoint has no past."""
    weights = tmp_path / "weights.pt"
    torch.save({}, weights)
    status, said = command(source, "--every", 1, "--checkpoint", weights, "--out", tmp_path / "o")
    assert status == 2
    assert "--every looks on while a network trains: give a problem, no checkpoint" in said


def test_moments_are_a_start_an_end_and_what_is_between() -> None:
    """However rare or dense: each step at most once."""
    assert moments(8, 4, 0.01) == moments(8, 4, 1e-12) == list(range(9))
    assert moments(8, 4, 3) == [0, 8]
    assert moments(9, 4, 1) == [0, 4, 8, 9]
