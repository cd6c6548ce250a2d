"""``aliceopt compress --twin``: another activation, trained, pruned and kept by itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("rich")

from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.compress import weights_of
from aliceopt.lab.data import generate
from aliceopt.landscape.twins import check_swapped
from aliceopt.trained.compress import survey
from aliceopt.trained.compress.rows import Ask, Result
from aliceopt.trained.compress.table import difference_rows
from aliceopt.trained.network import fresh_network, network_of, problem_run, twin_run

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(8, 16), nn.ReLU()
        self.second, self.third = nn.Linear(16, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.third(torch.relu(self.second(self.act(self.first(x)))))

def problem():
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).long()
    return {"model": Net(), "loss": nn.functional.cross_entropy, "train": (x, y),
            "validation": (x, y), "metric": "accuracy", "batch_size": 32}
"""

LAYERS = ("first", "second", "third")


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(SOURCE)
    return f"{tmp_path / 'small.py'}:problem"


def aliceopt(*words: object) -> Any:
    return CliRunner().invoke(build(), [*map(str, words)], env={"COLUMNS": "160"})


def compress(source: str, out: Path, *more: object) -> Any:
    asked = ("--sparsity", "0.5", "--gradients", 30, "--criteria", "curvature,both,both@0.1")
    return aliceopt("compress", source, "--out", out, *asked, *more, "--device", "cpu")


def lines_of(out: Path) -> list[dict[str, Any]]:
    paths = sorted(out.glob("adamw/seed-*/compression.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def by_hand(state: dict[str, torch.Tensor], x: torch.Tensor, activation: Any) -> torch.Tensor:
    """The three layers as written, with the masks multiplied in."""
    for name in LAYERS:
        weight = state[f"{name}.weight_orig"] * state[f"{name}.weight_mask"]
        x = F.linear(x, weight, state[f"{name}.bias"])
        x = x if name == "third" else activation(x)
    return x


def test_what_is_pruned_has_the_other_activation_everywhere(source, tmp_path):
    """A module and a function: a pruned GELU twin is the formula with GELUs, and none with ReLUs.

    The recorded loss is that formula's, too, and the masks leave what was asked for.
    """
    run = twin_run(problem_run(source, 0, epochs=2), "gelu")
    network = network_of(run, tmp_path / "out", torch.device("cpu"))
    x, y = network.validation.inputs, network.validation.targets
    ask, pruned = Ask((0.5,), ("magnitude", "both", "refit"), 30), 0
    for result, model in survey.compare(network, 0, ask):
        if result.criterion == "none":
            continue
        pruned += 1
        state = model.state_dict()
        smooth, kinked = (by_hand(state, x, f) for f in (F.gelu, F.relu))
        assert torch.allclose(model(x), smooth, atol=1e-5)
        assert not torch.allclose(model(x), kinked, atol=1e-2)
        assert result.loss == pytest.approx(float(F.cross_entropy(smooth, y)), rel=1e-4)
        left = sum(int(state[f"{name}.weight_mask"].sum()) for name in LAYERS)
        assert left == (8 * 16 + 16 * 8 + 8 * 2) // 2
    assert pruned == 3


def test_a_twin_starts_where_the_network_does_and_is_trained_by_itself(source, tmp_path):
    """The same weights at every seed before the first step, and others after the last."""
    own = problem_run(source, 3, epochs=1)
    other, place = twin_run(own, "gelu"), torch.device("cpu")

    def same(one: Any, two: Any) -> bool:
        states = (network.model.state_dict() for network in (one, two))
        return all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))

    assert same(fresh_network(own, place), fresh_network(other, place))
    trained = (network_of(r, tmp_path / n, place) for n, r in (("a", own), ("b", other)))
    assert not same(*trained)


def test_the_example_has_a_twin_without_kinks(tmp_path, monkeypatch):
    """Six layers and 72,112 weights; on made-up images, whose results are not to be kept."""
    monkeypatch.setenv("ALICEOPT_DATA", str(generate.write("cifar10", tmp_path, size=400)))
    example = Path(__file__).parents[2] / "examples/cifar_convnet.py"
    run = twin_run(problem_run(f"{example}:problem", 0), "gelu")
    network = fresh_network(run, torch.device("cpu"))
    sizes = [weight.parameter.numel() for weight in weights_of(network.model).values()]
    assert (len(sizes), sum(sizes)) == (6, 432 + 4608 + 9216 + 18432 + 36864 + 2560)
    network.forward(network.train.batch(0, 0, 0))
    assert check_swapped(network.model) == "replaced 5 modules and 0 calls of functions"
    assert network.problem.note.endswith("images of CIFAR-10 (generated)")


def test_records_of_a_network_and_its_twin_never_mix(source, tmp_path):
    """Kept in one file, shown and filled in apart; the same seeds, each with its own numbers."""
    own, twin, results = (tmp_path / name for name in ("own", "twin", "results"))
    assert compress(source, own, "--seeds", 2, "--layers", "0.5").exit_code == 0
    assert aliceopt("results", "add", own, "--to", results).exit_code == 0
    path = results / "compress-small.jsonl"
    before = path.read_text().splitlines()
    assert not any("twin" in json.loads(line) for line in before)  # as they always were
    told = compress(source, twin, "--twin", "gelu", "--seeds", 2, "--layers", "0.5")
    assert told.exit_code == 0, told.output
    assert {line["twin"] for line in lines_of(twin)} == {"gelu"}
    assert aliceopt("results", "add", twin, "--to", results).exit_code == 0
    after = path.read_text().splitlines()
    assert set(before) < set(after)
    assert len(after) == 2 * len(before) == len({json.loads(line)["id"] for line in after})
    shown = aliceopt("results", "show", "compress-small", "--from", results).output
    assert shown.count("small, lab") == shown.count("small+gelu, lab") == 2
    page = tmp_path / "page.md"
    for name, out in (("small", own), ("small+gelu", twin)):
        kinds = (f"compress {name}", f"compress-layers {name} 0.5")
        kinds += (f"compress-differences {name} both:curvature both@1e-1:curvature rounds=1",)
        page.write_text("\n".join(f"<!-- results: {kind} --><!-- end -->" for kind in kinds))
        assert aliceopt("results", "fill", page, "--from", results).exit_code == 0
        text = page.read_text().replace("**", "")
        mine = [line for line in lines_of(out) if line.get("criterion") == "curvature"]
        assert f"h over a radius: h w\u00b2 | {fmean(r['loss'] for r in mine):.3f} / " in text
        assert "rank correlation, 2 networks" in text
        theirs = {r["seed"]: r["loss"] for r in lines_of(out) if r.get("criterion") == "both@0.1"}
        mean = fmean(theirs[r["seed"]] - r["loss"] for r in mine)
        said = re.search(r"\| both@0.1 \u2212 curvature \| (.*?) \u00b1", text)
        assert said is not None
        assert float(said[1].replace("\u2212", "-")) == pytest.approx(mean, abs=6e-4)
    for asked, told in (
        ("compress small+silu", "kept compressions of 'small+silu' in"),
        ("compress-differences small both", "pairs like both:curvature stand there, got 'both'"),
        ("compress-differences small both:luck", "no criterion 'luck'; there is magnitude,"),
    ):
        page.write_text(f"<!-- results: {asked} --><!-- end -->")
        refused = aliceopt("results", "fill", page, "--from", results)
        assert refused.exit_code == 2
        assert told in " ".join(refused.stderr.split())


def test_a_folder_of_the_one_is_no_folder_of_the_other(source, tmp_path):
    """Nor for another seed, which has records of its own but would stand in the same table.

    --overwrite replaces networks of the seeds that are asked for, if that leaves no other kind.
    """
    out, other = tmp_path / "out", "has results of another network (small, seed 0): choose another"
    assert compress(source, out).exit_code == 0
    for more, told in (
        (("--seeds", "1"), "holds another network: --overwrite begins anew"),
        (("--seeds", "5,"), other),
        (("--seeds", "5,", "--overwrite"), other),
    ):
        refused = compress(source, out, "--twin", "gelu", *more)
        assert refused.exit_code == 2
        assert told in " ".join(refused.stderr.split())
    assert compress(source, out, "--seeds", "5,").exit_code == 0
    assert {line["seed"] for line in lines_of(out)} == {0, 5}
    refused = compress(source, out, "--twin", "gelu", "--seeds", "5,", "--overwrite")
    assert other in " ".join(refused.stderr.split())
    assert {line["seed"] for line in lines_of(out)} == {0, 5}  # nothing is lost by that
    wrong = tmp_path / "wrong.pt"
    torch.save({"weight": torch.zeros(2)}, wrong)
    files = sorted(path for path in out.rglob("*") if path.is_file())
    for more in (("--checkpoint", wrong), ("--twin", "relu")):  # neither can be made
        assert compress(source, out, *more, "--seeds", "0,5", "--overwrite").exit_code == 2
        assert sorted(path for path in out.rglob("*") if path.is_file()) == files
    again = compress(source, out, "--twin", "gelu", "--seeds", "0,5", "--overwrite")
    assert again.exit_code == 0, again.output
    assert {(line["seed"], line["twin"]) for line in lines_of(out)} == {(0, "gelu"), (5, "gelu")}


def test_bad_twins_are_refused_before_anything_is_trained(source, tmp_path):
    """A name that there is not, with the choices; and a twin that would be the network itself."""
    refused = compress(source, tmp_path / "out", "--twin", "tanh")
    assert refused.exit_code == 2
    assert "--twin must be one of relu, gelu, silu, relu2, leaky; got 'tanh'" in refused.stderr
    smooth = SOURCE.replace("nn.ReLU", "nn.GELU").replace("torch.relu", "nn.functional.gelu")
    (tmp_path / "small.py").write_text(smooth)
    refused = compress(source, tmp_path / "out", "--twin", "gelu")
    assert refused.exit_code == 2
    assert "nothing was replaced" in refused.stderr
    assert not list(tmp_path.rglob("checkpoint.pt"))
    assert compress(source, tmp_path / "out", "--twin", "relu").exit_code == 0  # the other way


def test_a_line_that_says_no_activation_is_refused(source, tmp_path):
    out, results = tmp_path / "out", tmp_path / "results"
    assert compress(source, out, "--twin", "gelu").exit_code == 0
    journal = out / "adamw/seed-0/compression.jsonl"
    journal.write_text(journal.read_text().replace('"twin": "gelu"', '"twin": null'))
    assert "twin is None" in aliceopt("results", "add", out, "--to", results).stderr


def test_differences_are_the_first_minus_the_second_paired_by_seed():
    """By hand: t(1) is 12.706, and of two numbers s/sqrt(2) is half of their distance."""

    def result(name: str, seed: int, loss: float) -> Result:
        return Result(name, 0.5, seed, loss, 0.0, budget=30)

    losses = {"both": (1.0, 1.4, 9.0), "curvature": (0.9, 1.1), "point": (2.0001, 2.1001)}
    results = [result(n, seed, x) for n, told in losses.items() for seed, x in enumerate(told)]
    pairs = [("both", "curvature"), ("curvature", "both"), ("curvature", "point")]
    head, *rows = difference_rows(results, [*pairs, ("both", "free")], "*{}*".format)
    assert head == ["loss", "\u221250%", "seeds"]
    half = 12.7062 * 0.1
    assert rows[0] == ["both \u2212 curvature", f"+0.200 \u00b1 {half:.3f}", "2"]
    assert rows[1] == ["curvature \u2212 both", f"\u22120.200 \u00b1 {half:.3f}", "2"]
    assert rows[2] == ["curvature \u2212 point", "*\u22121.050 \u00b1 0.635*", "2"]
    assert rows[3] == ["both \u2212 free", "\u2013", "0"]
