"""``aliceopt compress``: criteria at equal gradients, a decision, and the pruned networks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("rich")

from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.lab.calibration import PREDICTIONS, calibrate
from aliceopt.lab.compression import ROWS, Result
from aliceopt.lab.network import Network, network_of, problem_run
from aliceopt.lab.problem import Problem
from aliceopt.lab.results.compression_table import decision

PROBLEM = """
import torch
from torch import nn

def problem():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=random)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    return {"model": model, "loss": nn.functional.cross_entropy, "train": (x, y),
            "validation": (x, y), "metric": "accuracy", "batch_size": 32}
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(PROBLEM)
    return f"{tmp_path / 'small.py'}:problem"


def compress(*args: object):
    words = ["compress", *map(str, args), "--device", "cpu"]
    return CliRunner().invoke(build(), words, env={"COLUMNS": "160"})


def test_every_criterion_takes_as_many_gradients_and_the_best_network_is_kept(tmp_path, source):
    """160 weights: at 75% 40 are left in the file, and the records say what each did cost."""
    out = tmp_path / "out"
    result = compress(source, "--out", out, "--sparsity", "0.75", "--gradients", 30)
    assert result.exit_code == 0, result.output
    for row in ROWS.values():
        assert row.label in result.output
    assert "75%: " in result.output
    assert "one seed: no difference is established" in result.output.replace("\n", " ")
    records = [json.loads(line) for line in (out / "compression.jsonl").read_text().splitlines()]
    assert [r["criterion"] for r in records] == ["none", *ROWS]
    for record in records[1:]:
        row = ROWS[record["criterion"]]
        assert record["gradients"] == (30 if row.gradients else 0)
    kept = torch.load(out / "pruned-75.pt", weights_only=True)
    left = sum(int((kept[name] != 0).sum()) for name in ("0.weight", "3.weight"))
    assert left == 40
    assert (out / "compression.png").stat().st_size > 5_000
    best = min(records[1:], key=lambda r: r["loss"])
    assert ROWS[best["criterion"]].label in result.output.rpartition("75%: ")[2]


def test_the_trained_network_is_used_again_and_weights_can_be_given(tmp_path, source):
    out, asked = tmp_path / "out", ["--sparsity", "0.5", "--gradients", 20, "--criteria"]
    first = compress(source, "--out", out, *asked, "curvature,magnitude")
    trained = next(out.rglob("checkpoint.pt"))
    before = trained.read_bytes()
    again = compress(source, "--out", out, *asked, "curvature,magnitude")
    assert trained.read_bytes() == before
    lines = [r.output.partition("seconds")[0] for r in (first, again)]
    assert lines[0] == lines[1]
    state = torch.load(trained, weights_only=True)["model"]
    torch.save(state, tmp_path / "mine.pt")
    given = compress(
        source, "--out", tmp_path / "b", *asked, "magnitude", "--checkpoint", tmp_path / "mine.pt"
    )
    assert given.exit_code == 0, given.output
    assert "seed 0: none 0%" in given.output
    same = [line for line in first.output.splitlines() if line.startswith("seed 0: magnitude")]
    assert same[0] in given.output


def test_a_criterion_can_be_tried_at_several_radii(tmp_path, source):
    asked = ["--sparsity", "0.5", "--gradients", 20, "--out", tmp_path / "out"]
    result = compress(source, *asked, "--criteria", "curvature@1e-4,curvature@0.1,magnitude")
    assert result.exit_code == 0, result.output
    for radius in ("0.0001", "0.1"):
        assert f"radius {radius}" in " ".join(result.output.split())
    lines = (tmp_path / "out/compression.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines[1:3]]
    assert losses[0] != losses[1]


def test_training_with_the_masks_on_brings_loss_back(tmp_path, source):
    asked = ["--sparsity", "0.8", "--criteria", "magnitude", "--out", tmp_path / "out"]
    compress(source, *asked)
    before = json.loads((tmp_path / "out/compression.jsonl").read_text().splitlines()[1])
    result = compress(source, *asked, "--finetune", 4)
    assert result.exit_code == 0, result.output
    after = json.loads((tmp_path / "out/compression.jsonl").read_text().splitlines()[1])
    assert (before["finetune"], after["finetune"]) == (0, 4)
    assert after["loss"] < before["loss"]
    kept = torch.load(tmp_path / "out/pruned-80.pt", weights_only=True)
    assert sum(int((kept[name] != 0).sum()) for name in ("0.weight", "3.weight")) == 32


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--sparsity", "1.2"], "--sparsity must be numbers in (0, 1), got 1.2"),
        (["--sparsity", "half"], "--sparsity takes numbers by commas"),
        (["--criteria", "luck"], "--criteria has 'luck'"),
        (["--criteria", "curvature@0"], "a radius > 0 stands behind the @"),
        (["--criteria", "fisher@0.1"], "of one that probes"),
        (["--layers", "2"], "--layers must be a number in (0, 1), got 2.0"),
        (["--finetune", "-1"], "--finetune must be a whole number of epochs >= 0, got -1"),
        (["--gradients", "3"], "--gradients must be at least 10, got 3"),
        (["--checkpoint", "nowhere.pt"], "there is no checkpoint 'nowhere.pt'"),
    ],
)
def test_bad_input_gets_one_sentence(tmp_path, source, asked, told):
    result = compress(source, "--out", tmp_path / "out", *asked)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())
    assert not list(tmp_path.rglob("checkpoint.pt"))  # nothing was trained for it


def test_predictions_are_set_against_what_removal_costs(tmp_path, source):
    """On a small move the Hessian's prediction is close; the network stays as it was."""
    run = problem_run(source, 0, epochs=60)
    network = network_of(run, tmp_path, torch.device("cpu"))
    before = {name: value.clone() for name, value in network.model.state_dict().items()}
    found = calibrate(network, 0, 0.2, 600)
    assert [layer.layer for layer in found.layers] == ["0.weight", "3.weight"]
    for layer in found.layers:
        assert layer.predicted.keys() == set(PREDICTIONS)
        told = layer.predicted["glass"] - layer.predicted["radius"]
        assert math.isfinite(told)
    after = network.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    asked = ["--sparsity", "0.5", "--criteria", "magnitude", "--layers", "0.3"]
    result = compress(source, "--out", tmp_path / "out", *asked, "--gradients", 30)
    assert result.exit_code == 0, result.output
    assert "median of predicted / measured" in result.output


def test_a_quadratic_is_predicted_exactly_by_every_hessian():
    """Logistic regression is no quadratic, least squares is: one layer, a full-batch split."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 6, generator=random), torch.randn(64, 2, generator=random)
    model = nn.Linear(6, 2, bias=False)
    loss = nn.functional.mse_loss
    problem = Problem(model, loss, (x, y), (x, y), batch_size=64)
    network = Network(
        problem, model, problem.train, problem.validation, "float32", torch.device("cpu")
    )
    found = calibrate(network, 0, 0.1, 900).layers[0]  # one weight goes
    assert found.predicted["glass"] == pytest.approx(found.measured, rel=0.05, abs=1e-4)


def test_what_is_no_problem_or_does_not_fit_is_told(tmp_path, source):
    result = compress("resnet19")
    assert result.exit_code == 2
    assert "'resnet19' is neither an experiment" in result.stderr
    torch.save({"0.weight": torch.zeros(2, 2)}, tmp_path / "other.pt")
    result = compress(source, "--out", tmp_path / "out", "--checkpoint", tmp_path / "other.pt")
    assert result.exit_code == 2
    assert "does not fit the model" in result.stderr


def test_a_folder_with_another_network_is_refused(tmp_path, source):
    """The same layers, trained on other data, would be pruned as if they were these."""
    asked = ["--out", tmp_path / "out", "--sparsity", "0.5", "--criteria", "magnitude"]
    compress(source, *asked)
    Path(source.rpartition(":")[0]).write_text(PROBLEM.replace("> 0", "> 0.5"))
    result = compress(source, *asked)
    assert result.exit_code == 2
    assert "holds another network: choose another --out" in " ".join(result.stderr.split())


def test_a_lead_is_established_only_if_seeds_agree():
    """Differences of .10, .12, .14 do; of -.2, .0, .5 do not."""

    def results(**losses: list[float]) -> list[Result]:
        return [
            Result(name, 0.5, seed, loss, 0.0, 0, 0.0, None, 0)
            for name, values in losses.items()
            for seed, loss in enumerate(values)
        ]

    losses = {"curvature": [1.0, 1.0, 1.0], "point": [1.01, 1.01, 1.01]}
    (said,) = decision(results(**losses, fisher=[1.10, 1.12, 1.14]))
    assert said.startswith(
        "50%: h over a radius: h w\u00b2, loss 1.000; best of the others: Fisher: F w\u00b2, 1.120"
    )
    assert said.endswith("(difference 0.120 \u00b1 0.050, established)")
    (said,) = decision(results(curvature=[1.0, 1.0, 1.0], fisher=[0.8, 1.0, 1.5]))
    assert said.endswith("not established)")
