"""``aliceopt landscape``: from a problem or a checkpoint to verdicts, figures and numbers."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("rich")

from aliceopt.cli.landscape import _name
from aliceopt.lab.data.splits import Arrays
from aliceopt.lab.plans.plan import PlanError
from aliceopt.landscape import Estimate
from aliceopt.trained.landscape import report as landscape_report
from aliceopt.trained.landscape.presets import PRESETS, Asked, Preset, cost_of
from aliceopt.trained.landscape.report import tree_of
from aliceopt.trained.landscape.survey import batches_of, last_step, see
from aliceopt.trained.landscape.table import within
from aliceopt.trained.network import (
    Network,
    check_same,
    checkpoint_run,
    network_of,
    problem_run,
)
from landscape_command_cases import PROBLEM, landscape, small_landscapes


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("landscape")
    (folder / "small.py").write_text(PROBLEM)
    return f"{folder / 'small.py'}:problem"


@pytest.fixture(scope="module", autouse=True)
def small_preset():
    with small_landscapes():
        yield


@pytest.fixture(scope="module")
def seen(
    source: str, small_preset: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """One run, with a twin, in float64."""
    out = tmp_path_factory.mktemp("seen")
    asked = ["--preset", "quick", "--twin", "gelu", "--precision", "float64"]
    asked += ["--batches", "training"]
    result = landscape(source, "--out", out, *asked, "--batch-size", 32)
    assert result.exit_code == 0, result.output
    return out, result.output


def test_it_says_beforehand_what_it_takes_and_takes_no_more(seen: tuple[Path, str]) -> None:
    """The announced numbers are the sums of all that was measured."""
    out, said = seen
    announced = re.match(r"quick: ([\d,]+) gradients and ([\d,]+) losses at most", said)
    assert announced is not None
    told = tuple(int(number.replace(",", "")) for number in announced.groups())
    assert told == cost_of(Asked(PRESETS["quick"], parts=("training",)), 2)
    records = [json.loads(line) for line in (out / "landscape.jsonl").read_text().splitlines()]
    parts = [p for r in records for p in (r, r["diagonals"], *r["bounds"], *r["slices"])]
    assert sum(part["gradients"] for part in parts) + 2 * 26 == told[0]
    assert sum(part.get("losses", 0) for part in parts) == told[1]


def test_relu_and_its_twin_on_the_same_batches(seen: tuple[Path, str]) -> None:
    """A smooth twin, kinks without it, at the same radii; the output layer is smooth in both."""
    out, said = seen
    records = [json.loads(line) for line in (out / "landscape.jsonl").read_text().splitlines()]
    found = {(r["network"], r["part"]): r for r in records}
    assert {name for name, _ in found} == {"as trained", "gelu twin"}
    for (name, _), record in found.items():
        exponents = {b: rungs["exponents"][0]["value"] for b, rungs in record["blocks"].items()}
        assert exponents["1"] == pytest.approx(2, abs=0.1)
        assert record["batch_size"] == 32
        if name == "gelu twin":
            assert exponents["0"] == pytest.approx(2, abs=0.1)
        else:
            assert exponents["0"] < 1.9
    assert len({tuple(record["radii"]) for record in records}) == 1
    assert "On training batches its gelu twin has other exponents than the network as" in said
    assert found["as trained", "training"]["metric"] > 60


def test_bounds_are_checked_along_the_optimizer_too(seen: tuple[Path, str]) -> None:
    """Three kinds of moves, at two radii of the ladder."""
    out, said = seen
    record = json.loads((out / "landscape.jsonl").read_text().splitlines()[0])
    assert [b["radius"] for b in record["bounds"]] == [record["radii"][1], record["radii"][-1]]
    for check in record["bounds"]:
        assert list(check["kinds"]) == ["random", "gradient", "optimizer"]
    assert "optimizer" in said


def test_figures_and_tensors_are_there(seen: tuple[Path, str]) -> None:
    """Every figure as PNG and PDF, named by the output; sums by network, batches and parameter."""
    out, said = seen
    for name in ("exponents-training", "shares", "bounds", "slices-training", "planes"):
        for suffix in ("png", "pdf"):
            assert (out / "figures" / f"{name}.{suffix}").stat().st_size > 5_000
        assert f"{name}.png" in said
    safetensors = pytest.importorskip("safetensors.torch")
    tables = safetensors.load_file(out / "landscape.safetensors")
    assert tables["as trained/training/0.weight"].shape == (2, 4, 3, 3)
    record = json.loads((out / "landscape.jsonl").read_text().splitlines()[0])
    v = sum(tables[f"as trained/training/0.{n}"][..., 0].mean((0, 1)) for n in ("weight", "bias"))
    told = [rung["value"] for rung in record["blocks"]["0"]["variation"]]
    assert v.tolist() == pytest.approx(told)


def test_the_report_has_every_part_and_no_requests(seen: tuple[Path, str]) -> None:
    """Verdicts, parts of the model at every depth, moves and terms; all of it inside the file."""
    out, said = seen
    text = (out / "report.html").read_text()
    assert f"report: {out / 'report.html'}" in said
    assert "http" not in text.replace("http-equiv", "")
    assert text.count("data:image/png;base64") == 5
    for word in ("Glass share", "0.weight", "optimizer", "Hessian diagonal", "gelu twin, training"):
        assert word in text
    record = json.loads((out / "landscape.jsonl").read_text().splitlines()[0])
    assert f"{record['blocks']['0']['exponents'][0]['value']:.2f} (" in text
    below = re.search(r"of (?:training|held-out); ([^<]*)<", text)
    assert below is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", below[1].strip())  # a day, as other reports have it


def test_no_number_is_minus_zero() -> None:
    """Of an interval around nothing, in the terminal and in the report."""
    around = Estimate(0.001, -0.004, 0.006, 0.002, 0.001)
    assert within(around) == "0.00 (0.00 to 0.01)"
    assert within(Estimate(-0.2, -0.3, -0.1, 0.02, 0.01)) == "\u22120.20 (\u22120.30 to \u22120.10)"
    assert within(Estimate(-0.001, math.nan, math.nan, 0.02, 0.01)) == "0.00"
    assert landscape_report._estimate(around, after=" smooth").text == "0.00 (0.00 to 0.01) smooth"


def test_the_tree_has_what_adds_something() -> None:
    """Modules before what is below them; one with a single child is that child."""
    names = ["a.x.weight", "a.x.bias", "a.y.weight", "b.weight"]
    sums = dict.fromkeys(names, torch.zeros(0))
    ladder = SimpleNamespace(sums=sums)
    assert (
        tree_of(ladder)
        == {  # type: ignore[arg-type]
            "a": names[:3],
            "a.x": names[:2],
            "a.x.weight": names[:1],
            "a.x.bias": names[1:2],
            "a.y": names[2:3],
            "b": names[3:],
        }
    )


def test_a_checkpoint_is_enough_and_blocks_can_be_chosen(
    seen: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is known from the records beside it; only a twin that is asked for is trained."""
    monkeypatch.setattr(landscape_report, "draw_all", lambda views, folder: [])  # drawn above
    out, _ = seen
    trained = out / "adamw" / "seed-0" / "checkpoint.pt"
    before = trained.read_bytes()
    asked = [
        "--preset",
        "quick",
        "--precision",
        "float64",
        "--batch-size",
        32,
        "--batches",
        "held-out",
    ]
    asked += ["--twin", "silu", "--train-twin", "--blocks", r"(weight|bias)"]
    result = landscape(trained, "--out", tmp_path, *asked)
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in (tmp_path / "landscape.jsonl").read_text().splitlines()]
    assert list(records[0]["blocks"]) == ["weight", "bias"]
    names = [record["network"] for record in records]
    assert names == ["as trained", "silu twin", "silu twin, trained"]
    assert {record["part"] for record in records} == {"held-out"}
    assert len({record["validation_loss"] for record in records}) == 3
    (only,) = tmp_path.rglob("checkpoint.pt")
    assert only.parts[-4] == "twin-silu"
    assert trained.read_bytes() == before
    first = json.loads((out / "landscape.jsonl").read_text().splitlines()[0])
    assert records[0]["metric"] == first["metric"]


def test_a_folders_own_checkpoint_is_its_network_and_another_is_not(
    seen: tuple[Path, str], tmp_path: Path
) -> None:
    """Given as the one to read, in the folder that it is in; other weights are refused."""
    out, _ = seen
    trained = out / "adamw" / "seed-0" / "checkpoint.pt"
    run, before = checkpoint_run(trained), (trained.parent / "network.json").read_text()
    assert check_same(run, out, trained) == before
    other = torch.load(trained, weights_only=True)
    other["model"]["1.bias"] += 1
    torch.save(other, tmp_path / "other.pt")
    with pytest.raises(PlanError, match="holds another network: --overwrite begins anew"):
        check_same(run, out, tmp_path / "other.pt")


def test_checkpoints_of_different_runs_have_different_folders() -> None:
    """Methods and seeds have the same names everywhere."""
    names = {_name(f"runs/{run}/adamw/seed-0/checkpoint.pt") for run in ("a", "b")}
    assert names == {"a-adamw-seed-0", "b-adamw-seed-0"}


def test_batches_of_another_size_have_different_examples() -> None:
    """Put together in order, each example once, as many as there are."""
    split = Arrays(torch.arange(100.0)[:, None], torch.arange(100), 8)  # 12 full batches
    found = list(batches_of(split, 20, 9, 0, "training"))
    assert [len(inputs) for inputs, _ in found] == [20] * 4
    rows = torch.cat([targets for _, targets in found])
    assert len(rows.unique()) == 80
    assert all(torch.equal(inputs[:, 0], targets.float()) for inputs, targets in found)
    with pytest.raises(ValueError, match="from 1 to 96, the held-out examples there are; got 97"):
        next(batches_of(split, 97, 1, 0, "held-out"))


def test_the_optimizers_step_leaves_the_network_alone(source: str, tmp_path: Path) -> None:
    """It is AdamW's own: as far as the rate, where gradients have one sign; on a copy."""
    run = problem_run(source, 0, epochs=1)
    network = network_of(run, tmp_path, torch.device("cpu"))
    before = {name: value.clone() for name, value in network.model.state_dict().items()}
    moves = last_step(network)
    assert all(torch.equal(value, before[n]) for n, value in network.model.state_dict().items())
    largest = max(move.abs().max().item() for move in moves.values())
    assert 0.1 < largest / run.options["lr"] < 10


IMAGES = """
import torch
from torch import nn

seen = []

class Net(nn.Sequential):
    def forward(self, x):
        last = [t.is_contiguous(memory_format=torch.channels_last) for t in (x, self[0].weight)]
        seen.append((self.training, tuple(last)))
        return super().forward(x)

def problem():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(32, 3, 5, 5, generator=random)
    y = (x.mean((1, 2, 3)) > 0).long()
    model = Net(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    return {"model": model, "loss": nn.functional.cross_entropy, "train": (x, y),
            "validation": (x, y), "metric": "accuracy", "batch_size": 8}
"""


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_bf16_network_is_laid_out_as_it_is_measured(tmp_path: Path, precision: str) -> None:
    """Channels last is for tensor cores, and float32 convolutions are slow on it."""
    (tmp_path / f"images_{precision}.py").write_text(IMAGES)
    run = problem_run(f"{tmp_path}/images_{precision}.py:problem", 0, precision="bf16", epochs=1)
    network = network_of(run, tmp_path, torch.device("cpu"))
    told = sys.modules[f"aliceopt_problem_images_{precision}"].seen
    told.clear()
    asked = Asked(Preset(2, 1, 1, 3, 0), precision=precision, parts=("training",), radius=0.01)
    next(see({"as trained": network}, asked))
    assert {last for training, last in told if not training} == {(True, True)}
    measured = {last for training, last in told[-9:] if training}
    assert measured == {(precision == "bf16",) * 2}


def test_a_loss_that_is_no_number_does_not_lose_the_records(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin may stand where its loss overflows; all that was measured is written."""
    monkeypatch.setattr(landscape_report, "draw_all", lambda views, folder: [])
    told = {"loss": math.inf, "accuracy": math.nan, "metric": math.nan}
    monkeypatch.setattr(Network, "evaluated", lambda self, model: told)
    asked = ["--preset", "quick", "--batches", "training", "--batch-size", 32]
    result = landscape(source, "--out", tmp_path, *asked)
    assert result.exit_code == 0, result.output
    (record,) = map(json.loads, (tmp_path / "landscape.jsonl").read_text().splitlines())
    assert record["validation_loss"] is record["metric"] is None


@pytest.mark.parametrize("share", [0.0, math.nan])
def test_a_step_that_goes_nowhere_makes_no_slice(
    share: float, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimizer at rest, or one whose gradient overflows: all else is measured and written."""
    nowhere = lambda n: {k: share * p.detach() for k, p in n.model.named_parameters()}  # noqa: E731
    monkeypatch.setattr("aliceopt.trained.landscape.survey.last_step", nowhere)
    monkeypatch.setattr(landscape_report, "draw_all", lambda views, folder: [])
    result = landscape(source, "--out", tmp_path, "--preset", "quick", "--batches", "training")
    assert result.exit_code == 0, result.output
    (record,) = map(json.loads, (tmp_path / "landscape.jsonl").read_text().splitlines())
    lines = [one["directions"] for one in record["slices"] if len(one["directions"]) == 1]
    assert lines == [["gradient"], ["random"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "huge"], "--preset 'huge' is no preset; there is quick, standard, thorough"),
        (["--batches", "test"], "--batches must be both, training or held-out; got 'test'"),
        (["--precision", "half"], "--precision must be one of float32, float64, tf32, bf16"),
        (["--seed", "-1"], "--seed must be a whole number >= 0, got -1"),
        (["--train-twin"], "--train-twin needs --twin"),
        (["--twin", "tanh"], "--twin must be one of relu, gelu, silu, relu2, leaky; got 'tanh'"),
        (["--batch-size", "0"], "--batch-size must be a whole number >= 1, got 0"),
        (["--radius", "0"], "--radius must be a number > 0, got 0"),
        (["--radius", "1e-30"], "--radius 1e-30: no gradient changes, or none is finite"),
        (["--radius", "1e30"], "--radius 1e+30: no gradient changes, or none is finite"),
        (["--blocks", "zzz"], "blocks finds no parameter, got 'zzz'; one is '0.weight'"),
        (["--checkpoint", __file__], "(File is not a zip file): a state dict is needed, as"),
        (["--radius", "nan"], "--radius must be a number > 0, got nan"),
        (["--blocks", "("], "--blocks is no regular expression, got '('"),
        (["--blocks", "0"], "--blocks must be a whole number >= 1, got 0"),
        (["--method", "sgd-m"], "--method is for experiments; what a study has is trained by"),
        (["--batch-size", "1000"], "from 1 to 256, the training examples there are; got 1000"),
        (["--batch-size", "200"], "the held-out examples there are; got 200"),
        (["--device", "tpu"], "--device must be auto, cpu, cuda or cuda:N"),
    ],
)
def test_bad_input_is_one_sentence(
    source: str, seen: tuple[Path, str], options: list[str], message: str
) -> None:
    """And the numbers of before are still there."""
    out, _ = seen
    before = (out / "landscape.jsonl").read_bytes()
    result = landscape(source, "--out", out, "--preset", "quick", "--overwrite", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "as trained, training batches" not in result.output  # nothing was measured before
    assert (out / "landscape.jsonl").read_bytes() == before


def test_a_network_has_one_set_of_weights(tmp_path: Path) -> None:
    """A checkpoint as the source and another beside it: neither is chosen silently."""
    result = landscape("one.pt", "--checkpoint", "two.pt", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "two checkpoints: 'one.pt' and --checkpoint two.pt" in result.stderr


def test_other_weights_are_checked_first(source: str, seen: tuple[Path, str], tmp_path: Path):
    """Those of another model, and the network's own, are refused before anything is measured."""
    out, _ = seen
    own = out / "adamw" / "seed-0" / "checkpoint.pt"
    torch.save({"0.weight": torch.zeros(1)}, tmp_path / "other.pt")
    torch.save({"model": [1, 2]}, tmp_path / "list.pt")
    for path, message in (
        (tmp_path / "list.pt", "list.pt' holds no weights by name, but a list"),
        (own, "has the very weights of the network"),
        (tmp_path / "other.pt", "has no '0.weight' of the model's shape"),
        (tmp_path / "none.pt", "there is no checkpoint"),
    ):
        asked = ["--preset", "quick", "--between", path, "--overwrite"]
        result = landscape(source, "--out", out, *asked)
        assert result.exit_code == 2
        assert message in result.output


def test_a_file_that_is_no_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    """It says how to go on."""
    torch.save({}, tmp_path / "mine.pt")
    result = landscape(tmp_path / "mine.pt", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "has no records of a run beside it: give the problem" in result.output
