"""What the instruments cost is counted on the command's own path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("rich")

from aliceopt.landscape.floor import CHOOSING_GRADIENTS
from aliceopt.trained.landscape.presets import INSTRUMENTS, PRESETS, Asked, Preset, cost_of
from aliceopt.trained.landscape.survey import see
from benchmarks import landscape, shapes

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_every_gradient_of_the_command_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many as the command announces, with seconds; memory is counted on CUDA alone.

    Every row is told once it is measured, before the table: for both kinds of batches.
    """
    monkeypatch.setitem(PRESETS, "quick", Preset(2, 1, 1, 3, 3))
    path = tmp_path / "landscape.json"
    words = ["--device", "cpu", "--preset", "quick", "--batch", "2", "--json", str(path)]
    assert landscape.main(["--model", "tiny-gpt", *words]) == 0
    found = json.loads(path.read_text())
    rows = {row["what"]: row for row in found["rows"]}
    assert list(rows) == ["AdamW step", "start", *INSTRUMENTS, "all"]
    whole = (rows["all"]["gradients"], rows["all"]["losses"])
    assert whole == cost_of(Asked(PRESETS["quick"]), 1)
    assert [name for name in INSTRUMENTS if rows[name]["losses"]] == ["bounds", "slices"]
    assert all(rows[name]["gradients"] > 0 for name in INSTRUMENTS)
    assert all(row["seconds"] > 0 and row["peak"] == 0 for row in rows.values())
    told = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if "so far" in line]
    assert told == ["AdamW step", "start", *INSTRUMENTS, *INSTRUMENTS[1:]]


@pytest.mark.parametrize("plane", [0, 3])
@pytest.mark.parametrize("between", [False, True])
def test_as_many_gradients_and_losses_are_taken_as_announced(plane: int, between: bool) -> None:
    """With and without a plane and a slice to other weights; slices are in their order."""
    cpu, setting = torch.device("cpu"), landscape.MODELS["tiny-gpt"]
    here = landscape.network(setting, 2, "float32", cpu)
    others = {name: param.detach() + 0.01 for name, param in here.model.named_parameters()}
    asked = Asked(Preset(2, 1, 1, 3, plane), 2, between=others if between else None)
    taken: list[bool] = []
    views = list(see({"it": here}, asked, lambda name, *, gradient: taken.append(gradient)))
    cost = cost_of(asked, 1)
    assert (sum(taken), len(taken)) == (cost.gradients, cost.evaluations)
    told = [sum(column) for column in zip(*(view.cost for view in views), strict=True)]
    assert told == [cost.gradients - CHOOSING_GRADIENTS, cost.losses]
    lines = [("gradient",), ("random",), ("optimizer",), *[("other weights",)] * between]
    planes = [("gradient", "random")] * (plane > 0)
    assert all([cut.directions for cut in view.slices] == lines + planes for view in views)


def test_the_training_step_that_memory_is_compared_with_moves_nothing() -> None:
    """Weights are as before, and there is no gradient left."""
    cpu, setting = torch.device("cpu"), landscape.MODELS["tiny-resnet"]
    here = landscape.network(setting, setting.batch, setting.precision, cpu)
    before = [param.detach().clone() for param in here.model.parameters()]
    row = landscape.training_step(here, setting.batch, landscape.Meter(cpu))
    assert (row.gradients, row.peak) == (1, 0)
    assert all(map(torch.equal, before, here.model.parameters()))
    assert all(param.grad is None for param in here.model.parameters())


def test_gpt2_has_its_published_size() -> None:
    """124,439,808 parameters, the output layer being the embedding."""
    with torch.device("meta"):
        model = landscape.MODELS["gpt2"].make()
    assert sum(param.numel() for param in model.parameters()) == shapes.count(shapes.gpt2())


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("model", ["tiny-gpt", "tiny-resnet"])
def test_memory_is_counted_on_cuda(model: str) -> None:
    """Every row has a peak; flash attention is all that a GPT has, and it is enough."""
    words = ["--device", "cuda", "--model", model, "--preset", "quick"]
    _, rows = landscape.measure(landscape._parser().parse_args(words))
    assert all(row.peak > 0 for row in rows)
    assert rows[-1].peak == max(row.peak for row in rows[1:])
