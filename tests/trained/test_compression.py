"""``aliceopt compress``: criteria at equal gradients, a decision, and the pruned networks."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("rich")

from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.lab.records import Journal
from aliceopt.trained.compress import records as journals
from aliceopt.trained.compress import survey
from aliceopt.trained.compress.rows import PREDICTED, ROWS, WHOLE, Ask, Result
from aliceopt.trained.compress.survey import _Keeper, calibrate
from aliceopt.trained.network import network_of, problem_run
from lab_cases import PRUNED


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(PRUNED)
    return f"{tmp_path / 'small.py'}:problem"


def records_of(out: Path, seed: int = 0) -> list[dict[str, Any]]:
    """The lines of one network."""
    text = (out / f"adamw/seed-{seed}/compression.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_the_page_names_every_criterion():
    page = (Path(__file__).parents[2] / "docs/compress.md").read_text(encoding="utf-8")
    table = page.partition("| `--criteria` |")[2].partition("\n\n")[0]
    first = " ".join(line.split(" | ")[0] for line in table.splitlines()[2:])
    named = set(re.findall(r"`(.*?)`", first))
    assert named == set(ROWS)


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
    assert "one seed: no difference is established" in " ".join(result.output.split())
    records = records_of(out)
    assert [r["criterion"] for r in records] == ["none", *ROWS]
    for record in records[1:]:
        row = ROWS[record["criterion"]]
        assert record["gradients"] == (30 if row.gradients else 0)
        assert record["temper"] == row.temper or row.temper is None
    old = {**records[-1], "criterion": "regression"}
    assert len(journals.results_of([*records, old])) == len(records)
    kept = torch.load(out / "pruned-75.pt", weights_only=True)
    left = sum(int((kept[name] != 0).sum()) for name in ("0.weight", "3.weight"))
    assert left == 40
    assert (out / "figures/compression-1.svg").stat().st_size > 5_000
    best = min(records[1:], key=lambda r: r["loss"])
    assert ROWS[best["criterion"]].label in result.output.rpartition("75%: ")[2]


def test_the_trained_network_is_used_again_and_weights_can_be_given(tmp_path, source):
    out, asked = tmp_path / "out", ["--sparsity", "0.5", "--gradients", 20, "--criteria"]
    first = compress(source, "--out", out, *asked, "curvature,magnitude")
    trained = next(out.rglob("checkpoint.pt"))
    before = trained.read_bytes()
    again = compress(source, "--out", out, *asked, "curvature,magnitude", "--overwrite")
    assert trained.read_bytes() == before
    lines = [r.output.partition("seconds")[0].replace("seed 0: none", "") for r in (first, again)]
    assert lines[0].splitlines()[1:] == lines[1].splitlines()
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
    losses = [line["loss"] for line in records_of(tmp_path / "out")[1:3]]
    assert losses[0] != losses[1]


def test_a_radius_spelled_in_two_ways_is_one_criterion() -> None:
    """In what is asked for and in records: nothing is measured, or tabled, twice."""
    names = ("curvature@1e-3", "curvature@0.001", "magnitude", "both@1e-1")
    assert Ask((0.5,), names).criteria == ("curvature@0.001", "magnitude", "both@0.1")
    line = {"event": "pruned", "criterion": "curvature@1e-3"}
    others = {f.name: 0.0 for f in fields(Result) if f.name not in line}
    assert [result.criterion for result in journals.results_of([others | line])] == [
        "curvature@0.001"
    ]


def test_training_with_the_masks_on_brings_loss_back(tmp_path, source):
    asked = ["--sparsity", "0.8", "--criteria", "magnitude", "--out", tmp_path / "out"]
    compress(source, *asked)
    result = compress(source, *asked, "--finetune", 4)
    assert result.exit_code == 0, result.output
    _, before, after = records_of(tmp_path / "out")
    assert (before["finetune"], after["finetune"]) == (0, 4)
    assert after["loss"] < before["loss"]
    kept = torch.load(tmp_path / "out/pruned-80-finetune-4.pt", weights_only=True)
    assert sum(int((kept[name] != 0).sum()) for name in ("0.weight", "3.weight")) == 32


def test_an_interrupted_comparison_goes_on_behind_what_is_there(tmp_path, source, monkeypatch):
    """Half a line at the end, as a kill leaves it, is made again, and nothing else."""
    out, asked = tmp_path / "out", ["--sparsity", "0.5,0.8", "--gradients", 20]
    asked += ["--criteria", "magnitude,curvature,refit", "--layers", "0.5"]
    whole = tmp_path / "whole"
    assert compress(source, "--out", whole, *asked).exit_code == 0
    done = []

    class Killed(Journal):
        def write(self, event: str, **fields: Any) -> None:
            if len(done) == 4:
                raise KeyboardInterrupt
            super().write(event, **fields)
            done.append(event)

    monkeypatch.setattr(survey, "Journal", Killed)
    stopped = compress(source, "--out", out, *asked)
    assert stopped.exit_code == 130
    assert "the same command with --resume goes on" in stopped.output
    monkeypatch.undo()
    journal = out / "adamw/seed-0/compression.jsonl"
    with journal.open("a") as file:
        file.write('{"event": "pru')
    before = records_of_complete(journal)
    refused = compress(source, "--out", out, *asked)
    assert refused.exit_code == 2
    assert "has 3 of these results for seed 0 already: --resume" in refused.stderr
    assert compress(source, "--out", out, *asked, "--resume").exit_code == 0
    assert records_of(out)[:4] == before
    new, old = (
        [{k: v for k, v in line.items() if k not in ("date", "seconds")} for line in records_of(o)]
        for o in (out, whole)
    )
    assert new == old


def test_layers_of_which_a_kill_left_some_are_made_again(tmp_path, source):
    """Each once, as if there had been no kill; whole ones are left alone."""
    out = tmp_path / "out"
    asked = ["--out", out, "--sparsity", "0.5", "--gradients", 20, "--criteria", "magnitude"]
    asked += ["--layers", "0.5"]
    assert compress(source, *asked).exit_code == 0
    journal = out / "adamw/seed-0/compression.jsonl"
    whole = journal.read_bytes()
    assert compress(source, *asked, "--resume").exit_code == 0
    assert journal.read_bytes() == whole
    before = [{**line, "date": ""} for line in records_of(out)]
    assert [line.get("layer") for line in before] == [None, None, "0.weight", "3.weight"]
    journal.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])  # all but the last line
    assert compress(source, *asked, "--resume").exit_code == 0
    assert [{**line, "date": ""} for line in records_of(out)] == before


def records_of_complete(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().split("\n")[:-1]]


def test_rounds_share_the_gradients_and_fours_keep_two(tmp_path, source):
    """In three rounds of 20 gradients each; 2:4 beside it in the same folder, one network."""
    asked = ["--out", tmp_path / "out", "--criteria", "magnitude,measured,measured-refit,sparsegpt"]
    result = compress(source, *asked, "--sparsity", "0.75", "--rounds", 3, "--gradients", 60)
    assert result.exit_code == 0, result.output
    lines = {line["criterion"]: line for line in records_of(tmp_path / "out")[1:]}
    assert {n: line["gradients"] for n, line in lines.items()} == {
        "magnitude": 0, "measured": 60, "measured-refit": 60, "sparsegpt": 0
    }  # fmt: skip
    assert all(line["removed"] == pytest.approx(0.75, abs=0.01) for line in lines.values())
    result = compress(source, *asked, "--structure", "2:4", "--gradients", 20)
    assert result.exit_code == 0, result.output
    lines = {line["criterion"]: line for line in records_of(tmp_path / "out")[5:]}
    assert [line["removed"] for line in lines.values()] == [0.5] * 4
    kept = torch.load(tmp_path / "out/pruned-50-2-4.pt", weights_only=True)
    assert ((kept["0.weight"].view(16, 2, 4) != 0).sum(-1) == 2).all()
    report = (tmp_path / "out/report.html").read_text()
    assert "60 gradients, in 3 rounds" in report
    assert "2:4, 20 gradients" in report
    assert report.index("What to use") < report.index("Results")
    assert report.count('src="data:image/svg+xml') == 2  # a figure a table, within the file


def test_results_are_kept_shown_and_filled_into_pages(tmp_path, source):
    """Twice the same is kept once; another number is refused; a table is asked for by its kind."""
    out, results = tmp_path / "out", tmp_path / "results"
    asked = ["--out", out, "--sparsity", "0.5", "--gradients", 20, "--seeds", 2, "--layers", "0.5"]
    compress(source, *asked, "--criteria", "magnitude,curvature,curvature@0.1,curvature@1e-3")

    def keep(*words: object):
        return CliRunner().invoke(build(), ["results", *map(str, words)], env={"COLUMNS": "160"})

    told = keep("add", out, "--to", results)
    assert "14 results added" in told.output, told.output
    path = results / "compress-small.jsonl"
    first = path.read_bytes()
    assert "0 results added, 14 there already" in keep("add", out, "--to", results).output
    assert path.read_bytes() == first
    assert keep("add", out, "--to", tmp_path / "shared", "--shared").exit_code == 0
    lines = list(map(json.loads, (tmp_path / "shared" / path.name).read_text().splitlines()))
    assert {line.get("seconds") for line in lines} == {None}
    shown = keep("show", "compress-small", "--from", results).output
    assert "20 gradients, in one round, 2 seeds" in shown
    assert "rank correlation, 2 networks" in shown
    page = tmp_path / "page.md"
    places = ("compress small", "compress-radii small", "compress-layers small 0.5")
    places += ("compress-lead small curvature magnitude 0.5 rounds=1",)
    page.write_text("\n".join(f"<!-- results: {place} --><!-- end -->" for place in places))
    assert keep("fill", page, "--from", results).exit_code == 0
    text = page.read_text()
    lines = [*records_of(out, 0), *records_of(out, 1)]
    losses = [line["loss"] for line in lines if line.get("criterion") == "curvature"]
    assert f"| h over a radius: h w\u00b2 | {sum(losses) / 2:.3f} / " in text.replace("**", "")
    assert "the default | " in text
    assert "difference " in text
    page.write_text("<!-- results: compress small rounds=7 --><!-- end -->")
    refused = keep("fill", page, "--from", results).stderr
    assert "0 tables fit 'rounds=7'; there are: 20 gradients" in refused
    line = json.loads(first.splitlines()[-1])
    path.write_text(json.dumps({**line, "loss": 7.5}) + "\n")
    told = keep("add", out, "--to", results)
    assert told.exit_code == 2
    assert "with loss 7.5, and this one" in told.stderr
    assert "--overwrite puts it in its place" in told.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_in_bfloat16_goes_the_same_ways(tmp_path, source):
    """Every criterion, rounds, 2:4, fine-tuning and predictions, on CUDA."""
    common = ["--out", tmp_path / "out", "--precision", "bf16", "--gradients", "40"]
    for more in (["--layers", "0.5"], ["--rounds", "2"], ["--structure", "2:4"], ["--finetune", 1]):
        words = ["compress", source, *common, *more, "--device", "cuda"]
        result = CliRunner().invoke(build(), [*map(str, words)])
        assert result.exit_code == 0, result.output
    assert all(math.isfinite(line.get("loss", 0.0)) for line in records_of(tmp_path / "out"))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--sparsity", "1.2"], "--sparsity must be numbers in (0, 1), got 1.2"),
        (["--sparsity", "0.5,0.50"], "--sparsity must be different numbers"),
        (["--sparsity", "half"], "--sparsity takes numbers by commas"),
        (["--criteria", " , "], "--criteria must name some of magnitude,"),
        (["--criteria", "luck"], "--criteria: no criterion 'luck'; there is magnitude,"),
        (["--criteria", "curvature@0"], "a radius > 0 stands behind the @"),
        (["--criteria", "fisher@0.1"], "of one that probes"),
        (["--layers", "2"], "--layers must be a number in (0, 1), got 2.0"),
        (["--finetune", "-1"], "--finetune must be a number of epochs >= 0, got -1"),
        (["--gradients", "3"], "--gradients must be at least 10 a round, got 3"),
        (["--gradients", "30", "--rounds", "4"], "--gradients must be at least 10 a round, got 30"),
        (["--rounds", "0"], "--rounds must be a whole number >= 1, got 0"),
        (["--structure", "4:8"], "--structure must be one of unstructured, 2:4; got '4:8'"),
        (["--structure", "2:4", "--sparsity", "0.7"], "2:4 removes one half in one round"),
        (["--resume", "--overwrite"], "choose one"),
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
    run = problem_run(source, 0, epochs=10)
    network = network_of(run, tmp_path, torch.device("cpu"))
    before = {name: value.clone() for name, value in network.model.state_dict().items()}
    found = calibrate(network, 0, 0.2, 60)
    assert [layer.layer for layer in found] == ["0.weight", "3.weight"]
    for layer in found:
        assert layer.predicted.keys() == set(PREDICTED)
        told = layer.predicted["glass"] - layer.predicted["radius"]
        assert math.isfinite(told)
    after = network.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    asked = ["--sparsity", "0.5", "--criteria", "magnitude", "--layers", "0.3"]
    result = compress(source, "--out", tmp_path / "out", *asked, "--gradients", 30)
    assert result.exit_code == 0, result.output
    assert "median of predicted / measured" in result.output


def test_criteria_share_measurements_and_each_is_as_if_it_were_alone(tmp_path, source, monkeypatch):
    """Taylor and Fisher take one gradient a batch each, h free of kinks and with glass three."""
    network = network_of(problem_run(source, 0, epochs=1), tmp_path, torch.device("cpu"))
    real, calls = survey.sensitivity, []

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(options["terms"])
        return real(*args, **options)

    monkeypatch.setattr(survey, "sensitivity", counted)

    def losses(*names: str) -> list[tuple[float, int]]:
        found = survey.compare(network, 0, Ask((0.6,), names, 30), [WHOLE])
        return [(result.loss, result.gradients) for result, _ in found]

    names = ("taylor", "fisher", "free", "curvature-few", "both", "glass")
    together = losses(*names)
    assert calls == [("gradient", "fisher"), ("free", "rms", "glass")]
    assert together == [one for name in names for one in losses(name)]


def test_an_exponent_is_chosen_on_batches_that_the_refit_has_not_seen(
    tmp_path, source, monkeypatch
):
    """Of training data, in every round; where all are seen, the last; gradients are taken by h."""
    network = network_of(problem_run(source, 0, epochs=1), tmp_path, torch.device("cpu"))
    real, seen, tempers = survey.temper_by_loss, [], []

    def watched(model: Any, measured: Any, sparsity: float, loss: Any, batches: Any, **how: Any):
        there = list(batches)
        seen.append((round(sparsity, 2), [x for x, _ in there]))
        tempers.append(real(model, measured, sparsity, loss, there, **how))
        return tempers[-1]

    monkeypatch.setattr(survey, "temper_by_loss", watched)
    ask = Ask((0.75,), ("fisher-measured-refit", "measured"), 40, rounds=2)
    for refitted, chosen, places in ((3, 4, range(4, 8)), (6, 4, (6, 7)), (8, 5, range(3, 8))):
        monkeypatch.setattr(survey, "UPDATE_BATCHES", refitted)
        monkeypatch.setattr(survey, "CHOICE_BATCHES", chosen)
        seen.clear()
        found = [result for result, _ in survey.compare(network, 0, ask, [WHOLE])]
        assert [share for share, _ in seen] == [0.5, 0.75] * 2
        expected = torch.stack([network.train.batch(0, 0, i)[0] for i in places])
        assert all(torch.equal(torch.stack(batches), expected) for _, batches in seen)
        assert [result.temper for result in found] == tempers[1:4:2]
        assert [result.gradients for result in found] == [40, 40]
        tempers.clear()


def test_a_result_that_is_no_number_does_not_stand_for_the_best(tmp_path):
    """Behind it, in the records of before, a better network is kept still."""
    (tmp_path / "pruned-50.pt").touch()
    old = [Result("fisher", 0.5, 0, 1.0, 0.0), Result("taylor", 0.5, 0, math.nan, 0.0)]
    keeper = _Keeper(tmp_path, old)
    keeper(Result("free", 0.5, 0, 2.0, 0.0), nn.Linear(2, 2))
    assert (tmp_path / "pruned-50.pt").stat().st_size == 0
    keeper(Result("both", 0.5, 0, 0.9, 0.0), nn.Linear(2, 2))
    assert (tmp_path / "pruned-50.pt").stat().st_size > 0


def test_what_is_no_problem_or_does_not_fit_is_told(tmp_path, source):
    result = compress("resnet19")
    assert result.exit_code == 2
    assert "'resnet19' is neither an experiment" in result.stderr
    torch.save({"0.weight": torch.zeros(2, 2)}, tmp_path / "other.pt")
    result = compress(source, "--out", tmp_path / "out", "--checkpoint", tmp_path / "other.pt")
    assert result.exit_code == 2
    assert "does not fit the model" in result.stderr


def test_a_folder_with_another_network_is_refused(tmp_path, source):
    """The same layers, trained on other data, would be pruned as if they were these.

    With --overwrite it goes, with all that was made of it.
    """
    asked = ["--out", tmp_path / "out", "--sparsity", "0.5", "--criteria", "magnitude"]
    compress(source, *asked)
    Path(source.rpartition(":")[0]).write_text(PRUNED.replace("> 0", "> 0.5"))
    result = compress(source, *asked)
    assert result.exit_code == 2
    assert "holds another network: --overwrite begins anew" in " ".join(result.stderr.split())
    (tmp_path / "out/pruned-70.pt").touch()  # of the network before
    result = compress(source, *asked, "--overwrite")
    assert result.exit_code == 0, result.output
    assert [line["criterion"] for line in records_of(tmp_path / "out")] == ["none", "magnitude"]
    assert [path.name for path in (tmp_path / "out").glob("pruned-*.pt")] == ["pruned-50.pt"]
