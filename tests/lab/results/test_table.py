"""The table of an experiment: ours beside the paper's, costs, and what must not be compared."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from aliceopt.lab.records import RecordError, read_plan, read_records, read_runs
from aliceopt.lab.results.deviations import differences, lost, remark
from aliceopt.lab.results.exponents import by_place
from aliceopt.lab.results.table import experiment_table, print_table, unique_labels
from aliceopt.lab.spec import Place, PlannedMethod
from experiment_records import BLOCKS, exponent, write_records
from study_cases import grid_plan


def printed(folder: Path, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_table(read_records(folder), console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def value(method: str, seed: int, done: float) -> float:
    """Known numbers: 80, 81, 82, ... by seed."""
    return 80.0 + seed


def test_rows_have_both_triples_and_the_costs(tmp_path):
    """Minimum, median and maximum over seeds; gradients and seconds of a run."""
    plan = write_records(tmp_path, "resnet18-methods", seeds=3, value=value)
    found = experiment_table(read_records(tmp_path))
    assert [row["method"] for row in found["rows"]] == list(plan.methods)
    row = next(row for row in found["rows"] if row["method"] == "alice")
    assert row["ours"] == [80.0, 81.0, 82.0]
    assert row["paper"] == [93.50, 93.76, 93.96]
    assert (row["finished"], row["planned"]) == (3, 3)
    assert (row["gradients"], row["seconds"]) == (7500, pytest.approx(7.5))
    assert found["rows"][-1]["paper"] is None
    json.dumps(found, allow_nan=False)
    text = printed(tmp_path)
    assert "Alice, no curvature, NAQ" in text
    assert "80.00 / 81.00 / 82.00" in text
    assert "93.23 / 93.41 / 93.73" in text
    assert "7,500" in text
    assert "Accuracy (higher is better): minimum / median / maximum over seeds" in text


def test_a_result_that_ran_away_takes_no_room_from_the_names(tmp_path):
    ran_away = {"adahessian": 7.692e23}
    write_records(tmp_path, "tt-methods", seeds=1, value=lambda m, s, d: ran_away.get(m, 20.5))
    text = printed(tmp_path)
    assert "AdaHessian" in text
    assert "7.692e+23 / 7.692e+23" in text
    assert "20.50 / 20.50 / 20.50" in text


def test_lost_runs_are_counted_and_give_no_result(tmp_path):
    """A method that never finished has a dash, not a number."""
    fates = {("adam", 1): "missing", **{("sgd-m", s): "diverged" for s in range(3)}}
    write_records(tmp_path, "resnet18-methods", seeds=3, value=value, lost=fates)
    rows = {row["method"]: row for row in experiment_table(read_records(tmp_path))["rows"]}
    assert rows["adam"]["ours"] == [80.0, 81.0, 82.0]
    assert rows["adam"]["finished"] == 2
    assert rows["sgd-m"]["ours"] is None
    assert rows["sgd-m"]["gradients"] is None
    text = printed(tmp_path)
    assert "2 of 3" in text
    assert "0 of 3" in text
    assert "Not finished, of 24 runs: 1 missing, 3 diverged." in text


def test_a_null_metric_is_no_result(tmp_path):
    """Early records call such a run finished; the table counts it as diverged."""
    lost = {("adam", s): "null" for s in range(2)}
    write_records(tmp_path, "resnet18-methods", seeds=2, lost=lost)
    row = experiment_table(read_records(tmp_path))["rows"][0]
    assert (row["ours"], row["finished"], row["status"]) == (None, 0, "2 diverged")
    text = printed(tmp_path)
    assert "0 of 2" in text
    assert "Not finished, of 16 runs: 2 diverged." in text


def test_methods_of_one_name_are_told_apart(tmp_path):
    """Two bounds of the same terms differ in lr, and the table says which is which."""
    write_records(tmp_path, "tt-limit", seeds=1)
    labels = [row["label"] for row in experiment_table(read_records(tmp_path))["rows"]]
    assert len(set(labels)) == 8
    assert "0.001" in labels[0]
    assert "0.0025" in labels[4]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([{"lr": 1}, {"lr": 2}], ["A, lr 1", "A, lr 2"]),
        ([{"lr": 1}, {"lr": 1, "eps": 2}], ["A, m0", "A, eps 2"]),
        ([{"lr": 1}, {"lr": 1}, {"lr": 2}], ["A, m0", "A, m1", "A, lr 2"]),
        ([{}, {}], ["A, m0", "A, m1"]),
    ],
)
def test_labels_use_every_methods_options_and_keys_where_these_fail(options, expected):
    """An option that only the second method has tells them apart too."""
    methods = {
        f"m{i}": PlannedMethod("A", "baseline", "adam", mine) for i, mine in enumerate(options)
    }
    plan = grid_plan(methods=methods, runs=[])
    assert list(unique_labels(plan).values()) == expected


def test_exponents_first_and_last_against_what_is_expected(tmp_path):
    """The last block near 2, the others below: by the last measurement's interval."""
    write_records(tmp_path, "resnet18-powerlaw", seeds=3)
    rows = experiment_table(read_records(tmp_path))["exponents"][0]["rows"]
    assert [row["block"] for row in rows] == list(BLOCKS)
    assert rows[0]["first"]["exponent"] == pytest.approx(exponent(0, 1, 0.0))
    assert rows[0]["last"]["exponent"] == pytest.approx(exponent(0, 1, 1.0))
    assert rows[0]["last"]["high"] == pytest.approx(exponent(0, 2, 1.0) + 0.05)
    assert [row["expected"] for row in rows] == ["below 2"] * 5 + ["near 2"]
    assert all(row["as_expected"] for row in rows)
    text = printed(tmp_path)
    assert "epoch 0" in text
    assert "epoch 10" in text
    assert "1.42 (1.35 to 1.49)" in text


def test_interrupted_seeds_do_not_count_as_last_measurements(tmp_path):
    """Finished seeds alone; with none of them, the last moment that all have reached."""
    lost = {("alice", 1): "interrupted", ("alice", 2): "diverged"}
    write_records(tmp_path, "resnet18-powerlaw", seeds=3, lost=lost)
    row = experiment_table(read_records(tmp_path))["exponents"][0]["rows"][0]
    assert (row["seeds"], row["last"]["epoch"]) == (1, 10)
    assert row["last"]["exponent"] == pytest.approx(exponent(0, 0, 1.0))
    lost = {("alice", s): "interrupted" for s in (0, 1)}
    write_records(tmp_path, "resnet18-powerlaw", seeds=2, lost=lost, evaluations=10)
    journal = tmp_path / "alice" / "seed-1" / "records.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[: -2 - 7]))
    row = experiment_table(read_records(tmp_path))["exponents"][0]["rows"][0]
    assert (row["seeds"], row["last"]["epoch"]) == (2, 3)
    assert row["last"]["low"] == pytest.approx(exponent(0, 0, 0.3) - 0.05)


@pytest.mark.parametrize(
    ("block", "exponent", "verdict"),
    [(0, 2.5, False), (5, 1.5, False), (0, None, None), (5, 2.15, True)],
)
def test_exponents_that_are_not_as_expected_are_said(block, exponent, verdict, tmp_path):
    """Too high, too low, or not to be told."""
    write_records(tmp_path, "resnet18-powerlaw", seeds=1)
    path = tmp_path / "alice" / "seed-0" / "records.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    laws = [event for event in events if event["event"] == "power_law"]
    law = by_place(laws)[Place(0.002)][-1]
    law["blocks"][BLOCKS[block]] |= {"exponent": exponent, "high": exponent, "low": exponent}
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert (
        experiment_table(read_records(tmp_path))["exponents"][0]["rows"][block]["as_expected"]
        is verdict
    )
    printed(tmp_path)


def test_the_papers_own_settings_are_comparable(tmp_path):
    """Nothing differs at the paper's scale on real data, whatever the number of seeds."""
    write_records(tmp_path, "resnet18-methods", "paper", seeds=2)
    plan, runs = read_plan(tmp_path), read_runs(tmp_path)
    assert differences(plan, runs) == []
    assert remark(plan, runs).startswith("Settings are the paper's or its authors' scripts'")
    assert lost(runs) == ""


@pytest.mark.parametrize(
    ("name", "scale", "sets", "generated", "said"),
    [
        ("vit-naq", "lab", "", False, "Lab scale, tiny-imagenet-64 instead of imagenet64, 20"),
        ("resnet18-naq", "lab", "", False, "Lab scale, 20 instead of 60 epochs: not"),
        ("resnet18-naq", "paper", "", True, "Generated data: not comparable"),
        ("tt-limit", "smoke", "", True, "wikitext-2 (generated) instead of wikitext-103, 6"),
        ("resnet18-naq", "paper", "train.epochs=5", False, "5 instead of 60 epochs: not"),
        ("resnet18-naq", "paper", "train.steps=5", False, "5 steps instead of 60 epochs: not"),
        ("resnet18-naq", "paper", "train.batch_size=50", False, "Batch size 50 instead of 100:"),
        ("resnet18-naq", "paper", "model.width=8", False, "Another network (width 8): not"),
        ("resnet18-methods", "paper", "methods.adam.lr=0.1", False, "Other options of Adam: not"),
        (
            "resnet18-methods",
            "paper",
            "data.augment=false",
            False,
            "Data with augment false instead of true: not",
        ),
        ("tt-limit", "paper", "data.length=16", False, "Data with length 16 instead of 80: not"),
        (
            "vit-naq",
            "paper",
            "train.validation_batches=1",
            False,
            "Another number of validation batches: not",
        ),
        (
            "resnet18-methods",
            "paper",
            "methods.adam.epochs=1",
            False,
            "Another length of Adam: not",
        ),
        (
            "resnet18-methods",
            "paper",
            'methods.adam.schedule={shape="cosine"}',
            False,
            "Another schedule of Adam: not",
        ),
        ("tt-methods", "paper", "train.schedule.warmup=0.1", False, "Another schedule: not"),
        ("resnet18-powerlaw", "paper", "train.power_law.radius=1", False, "Another measurement of"),
        ("vit-naq", "paper", "metric=accuracy", False, "Accuracy instead of loss: not"),
        (
            "resnet18-methods",
            "paper",
            "methods.adam.optimizer=adamw",
            False,
            "Other options of Adam: not",
        ),
    ],
)
def test_what_differs_from_the_paper_is_said(name, scale, sets, generated, said, tmp_path):
    """Scale, data, length, batch, network, options: whoever changed them."""
    changes = [sets] if sets else []
    write_records(tmp_path, name, scale, seeds=1, sets=changes, generated=generated)
    text = experiment_table(read_records(tmp_path))["remark"]
    assert said in text
    assert text.endswith("not comparable with the paper's values.")
    assert said.split()[0] in printed(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        *("data.root=elsewhere", "train.evaluations=7", "train.logs=3", "train.threads=2"),
        *("train.keep_checkpoint=true", "train.telemetry=false", "train.schedule.warmup=0.0"),
    ],
)
def test_what_does_not_change_results_keeps_them_comparable(change, tmp_path):
    """Where the data lies, what is recorded, and defaults that were spelled out."""
    write_records(tmp_path, "resnet18-methods", "paper", seeds=1, sets=[change])
    assert differences(read_plan(tmp_path), read_runs(tmp_path)) == []


def test_another_precision_is_named_and_leaves_them_comparable(tmp_path):
    """Unless only some methods have it."""
    plan = write_records(tmp_path, "tt-methods", "paper", seeds=1, sets=["train.precision=bf16"])
    runs = read_runs(tmp_path)
    assert differences(plan, runs) == []
    assert remark(plan, runs).endswith("as far as known, but for bf16 instead of tf32.")
    first, *others = runs
    usual = replace(first.ran, training=replace(first.ran.training, precision="tf32"))
    mixed = [replace(first, ran=usual), *others]
    assert "bf16 instead of tf32 of AdaHessian" in differences(plan, mixed)


def test_plans_alone_tell_what_differs(tmp_path):
    """Before the first run has begun there is no record of its schedule, but there is the plan."""
    sets = ["train.precision=bf16", "train.schedule.warmup=0.1"]
    plan = write_records(tmp_path, "tt-methods", "paper", seeds=1, sets=sets)
    assert differences(plan, []) == ["another schedule"]
    assert remark(plan, []).startswith("Another schedule, bf16 instead of tf32: not comparable")


def test_folders_without_records_are_refused(tmp_path):
    """With the folder and the command that would fill it."""
    with pytest.raises(RecordError, match=r"no plan\.json"):
        experiment_table(read_records(tmp_path))
    write_records(
        tmp_path, "resnet18-powerlaw", seeds=1, lost={("alice", 0): "missing"}, methods=["alice"]
    )
    with pytest.raises(RecordError, match="none of its 1 planned runs has begun"):
        experiment_table(read_records(tmp_path))
