"""Results that the repository keeps: nothing twice, nothing lost, nothing that is no record."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aliceopt.cli.kept_table import kept_rows, mean_and_half
from aliceopt.lab.records import Journal, RecordError, run_folder, write_plan
from aliceopt.lab.results.kept import Kept, add, gather, read_kept, without_kept
from aliceopt.lab.results.kept_compare import as_filed
from aliceopt.lab.typed import to_json
from aliceopt.trained.compress import kept as kept_compression
from experiment_records import write_records

pytest.importorskip("typer")
from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.lab.plans.plan import experiment_plan

NAME = "resnet18-methods"
COMMITTED = Path(__file__).parents[3] / "results"
DEVICE = "NVIDIA H200"
FIELDS = list(Kept.__dataclass_fields__)


def write_run(
    folder, method="adam", seed=0, *, final=93.0, status="finished", sharing=1, **changes
):
    """A run as the loop records it; ``changes`` are those of its plan."""
    plan = experiment_plan(
        NAME, "paper", read=False, seeds=[seed], methods=[method], root=Path("/disk"), **changes
    )
    write_plan(folder, plan)
    run = plan.run(*plan.runs)
    journal = Journal(run_folder(folder, method, seed) / "records.jsonl")
    journal.write(
        "start",
        run={"method": method, "label": run.label, "seed": seed},
        config=to_json(run),
        versions={"torch": "2.11"},
        device=DEVICE,
        parameters=7,
        batches=500,
        data="50,000 images",
        time=f"2026-11-1{seed}",
        **({"sharing": sharing} if sharing > 1 else {}),
    )
    where = {}
    for epoch in (45, 90):
        where = {"step": 500 * epoch, "epoch": epoch, "gradients": 500 * epoch, "seconds": 1.0}
        journal.write("train", **where, loss=1 / epoch, lr=0.1)
        journal.write("evaluation", **where, loss=0.5, metric=final - 90 + epoch)
    if status != "interrupted":
        metric = final if status == "finished" else None
        journal.write("end", **where, status=status, reason="", metric=metric, best=final)
    journal.close()
    return folder


def results(*arguments):
    return CliRunner().invoke(build(), ["results", *map(str, arguments)])


def test_a_line_holds_all_that_its_number_needs_and_no_folder(tmp_path):
    """Settings, versions, device, date, precision, costs and the curve, keys in one order."""
    write_run(tmp_path / "runs", precision="bf16")
    result = results("add", tmp_path / "runs", "--to", tmp_path / "kept")
    assert result.exit_code == 0, result.output
    assert "1 run added" in result.output
    (text,) = (tmp_path / "kept" / f"{NAME}.jsonl").read_text().splitlines()
    line = json.loads(text)
    assert list(line) == FIELDS
    assert "/disk" not in text
    assert line["id"].startswith(f"{NAME}/paper/adam/bf16/seed-0/")
    assert (line["final"], line["gradients"], line["device"]) == (93.0, 45_000, DEVICE)
    assert line["precision"] == line["config"]["training"]["precision"] == "bf16"
    assert line["curve"]["epoch"] == [45, 90]
    assert line["curve"]["metric"] == [48.0, 93.0]
    assert line["curve"]["training"]["loss"] == [0.0222222, 0.0111111]


def test_seconds_of_a_run_that_shared_its_gpu_are_not_kept(tmp_path):
    """A mean is that of the runs that were alone; without one there is a dash."""
    lines = []
    for seed, sharing in ((0, 4), (1, 1)):
        found, _ = gather(write_run(tmp_path / str(seed), seed=seed, sharing=sharing))
        lines += found
    shared, alone = lines
    assert (shared.seconds, shared.curve["seconds"]) == (None, [None, None])
    assert (alone.seconds, alone.curve["seconds"]) == (1.0, [1.0, 1.0])
    add(lines, tmp_path)
    assert read_kept(tmp_path / f"{NAME}.jsonl") == lines
    assert [row["seconds"] for row in kept_rows(lines)] == [1.0]
    assert [row["seconds"] for row in kept_rows([shared])] == [None]
    results("add", tmp_path / "1", "--to", tmp_path / "kept", "--shared")  # whose GPU had others
    (told,) = read_kept(tmp_path / "kept" / f"{NAME}.jsonl")
    assert told == replace(alone, seconds=None, curve=alone.curve | {"seconds": [None, None]})


def test_adding_twice_changes_no_byte(tmp_path):
    """Whatever the order; runs of methods that the last plan does not name count too."""
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    write_run(runs, "sgd-m", 1)
    write_run(runs, "adam", 0)
    assert "2 runs added" in results("add", runs, "--to", kept).output
    path = kept / f"{NAME}.jsonl"
    before = path.read_bytes()
    assert "0 runs added, 2 there already" in results("add", runs, "--to", kept).output
    assert results("add", path, "--to", tmp_path / "other").exit_code == 0
    assert path.read_bytes() == before == (tmp_path / "other" / path.name).read_bytes()


def test_a_run_with_other_numbers_is_refused_unless_it_may_replace(tmp_path):
    """The sentence names both; nothing is written, not even what would be new."""
    kept = tmp_path / "kept"
    results("add", write_run(tmp_path / "first", final=93.0), "--to", kept)
    again = write_run(tmp_path / "again", final=92.5)
    write_run(again, seed=1)
    result = results("add", again, "--to", kept)
    assert result.exit_code == 2
    assert "93" in result.stderr
    assert "92.5" in result.stderr
    assert "--overwrite" in result.stderr
    assert [line.final for line in read_kept(kept / f"{NAME}.jsonl")] == [93.0]
    result = results("add", again, "--to", kept, "--overwrite")
    assert "1 run added, 1 replaced" in result.output
    assert [line.final for line in read_kept(kept / f"{NAME}.jsonl")] == [92.5, 93.0]


def test_a_rerun_with_the_same_results_is_the_same_run(tmp_path):
    """Made at another time: left as kept, with a sentence; --overwrite takes its date."""
    kept = tmp_path / "kept"
    path = kept / f"{NAME}.jsonl"
    results("add", write_run(tmp_path / "runs"), "--to", kept)
    before = json.loads(path.read_text())
    later = {**before, "date": "2031-02-03T04:05:06", "seconds": 9.5, "versions": {"torch": "9"}}
    later["curve"] = {**before["curve"], "seconds": [4.5, 9.5]}
    (tmp_path / "later.jsonl").write_text(json.dumps(later) + "\n")
    result = results("add", tmp_path / "later.jsonl", "--to", kept)
    assert result.exit_code == 0, result.stderr
    assert "made again with the same results, so left as kept: 1" in result.output
    assert json.loads(path.read_text()) == before
    worse = {**later, "curve": {**later["curve"], "loss": [9.0, 9.0]}}
    (tmp_path / "later.jsonl").write_text(json.dumps(worse) + "\n")
    refused = results("add", tmp_path / "later.jsonl", "--to", kept)
    assert refused.exit_code == 2
    assert "they differ in curve.loss: --overwrite" in " ".join(refused.stderr.split())
    (tmp_path / "later.jsonl").write_text(json.dumps(later) + "\n")
    result = results("add", tmp_path / "later.jsonl", "--to", kept, "--overwrite")
    assert "0 runs added, 1 replaced" in result.output
    assert json.loads(path.read_text()) == later


@pytest.mark.parametrize("without", ["kept", "new"])
def test_a_column_that_one_version_did_not_keep_makes_no_other_run(without, tmp_path):
    """The same results of another date, of which one line has no losses of the training."""
    (line,) = gather(write_run(tmp_path / "runs"))[0]
    short = {name: column for name, column in line.curve.items() if name != "training"}
    before = replace(line, curve=short, date="2031-02-03T04:05:06")
    first, second = (before, line) if without == "kept" else (line, before)
    add([first], tmp_path)
    assert [done.again for done in add([second], tmp_path)] == [1]
    assert read_kept(tmp_path / f"{NAME}.jsonl") == [first]


def test_another_precision_is_another_run(tmp_path):
    """Both are kept, and stand in rows of their own."""
    kept = tmp_path / "kept"
    for precision in ("tf32", "bf16"):
        results("add", write_run(tmp_path / precision, precision=precision), "--to", kept)
    lines = read_kept(kept / f"{NAME}.jsonl")
    assert len({line.id for line in lines}) == 2
    assert [row["precision"] for row in kept_rows(lines)] == ["bf16", "tf32"]


def test_what_has_not_ended_is_left_out_and_what_diverged_is_kept(tmp_path):
    """A mean over those that went well alone would lie."""
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1, status="diverged")
    write_run(tmp_path, seed=2, status="interrupted")
    lines, left = gather(tmp_path)
    assert [line.status for line in lines] == ["finished", "diverged"]
    assert left == ["Adam seed 2 (interrupted)"]
    (row,) = kept_rows(lines)
    assert (row["finished"], row["seeds"], row["mean"], row["half"]) == (1, 2, 93.0, None)


def test_generated_data_and_studies_are_refused(tmp_path):
    """Neither is a result of the paper's experiments."""
    plan = write_records(tmp_path, NAME, "smoke", seeds=1, generated=True)
    with pytest.raises(RecordError, match="generated data"):
        gather(tmp_path)
    write_plan(tmp_path, replace(plan, kind="study"))
    with pytest.raises(RecordError, match="holds a study"):
        gather(tmp_path)


def test_the_table_shows_mean_interval_costs_and_precision(tmp_path):
    """Three seeds with a deviation of 1: half of the interval is 4.303 / sqrt(3)."""
    for seed, final in enumerate((92.0, 93.0, 94.0)):
        write_run(tmp_path / "runs", seed=seed, final=final, precision="bf16")
    results("add", tmp_path / "runs", "--to", tmp_path / "kept")
    result = results("show", NAME, "--from", tmp_path / "kept")
    assert result.exit_code == 0, result.output
    (row,) = [text for text in result.output.splitlines() if text.strip().startswith("Adam")]
    assert row.split() == ["Adam", "3", "93.00", "\u00b1", "2.48", "45,000", "1.0", "s", "bf16"]
    assert "Precision: bf16: bfloat16 autocast" in result.output
    assert DEVICE in result.output
    missing = results("show", "tt-limit", "--from", tmp_path / "kept")
    assert missing.exit_code == 2
    assert "no results of 'tt-limit'" in missing.stderr


def test_settings_that_differ_are_never_averaged(tmp_path):
    """Two rates of one method are two rows, told apart."""
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", seed=1, sets=["methods.adam.lr=0.01"])
    lines = [line for part in ("a", "b") for line in gather(tmp_path / part)[0]]
    rows = kept_rows(lines)
    assert [row["seeds"] for row in rows] == [1, 1]
    assert len({row["label"] for row in rows}) == 2


def test_a_rate_behind_a_methods_name_is_the_same_rate_in_its_options(tmp_path):
    """Seeds of both are averaged, under the name that tells it."""
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "adam@0.001", 1)
    lines = [line for part in ("a", "b") for line in gather(tmp_path / part)[0]]
    (row,) = kept_rows(lines)
    assert (row["seeds"], row["label"]) == (2, "Adam, lr 0.001")
    write_run(tmp_path / "c", "adam@1e-3", 1, final=97.0)  # a seed that ran twice
    (row,) = kept_rows([*lines, *gather(tmp_path / "c")[0]])
    assert (row["seeds"], row["mean"]) == (2, 95.0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"device": None}, "device must be text, got None"),
        ({"seconds": "long"}, "seconds must be a number, got 'long'"),
        ({"final": None}, "status 'finished' with final None"),
        ({"status": "failed"}, "status must be finished or diverged, got 'failed'"),
        ({"seed": 5}, "is not that of its settings"),
        ({"curve": {}}, "curve"),
        ({"config": {}}, "config.method is missing"),
        ({"weights": []}, "weights is not known"),
    ],
)
def test_a_line_that_is_no_record_is_refused(tmp_path, change, told):
    """By name, whatever is wrong with it; and it cannot be added."""
    (line,), _ = gather(write_run(tmp_path))
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({**to_json(line), **change}) + "\n")
    with pytest.raises(RecordError, match=rf"line 1 of .*lines\.jsonl': .*{told}"):
        gather(path)


def test_a_line_that_lacks_something_is_refused(tmp_path):
    """Every field is needed."""
    (line,), _ = gather(write_run(tmp_path))
    path = tmp_path / "lines.jsonl"
    for name in FIELDS:
        path.write_text(json.dumps({k: v for k, v in to_json(line).items() if k != name}) + "\n")
        with pytest.raises(RecordError, match=f"{name} is missing"):
            read_kept(path)


def test_a_run_of_another_version_is_not_kept(tmp_path):
    """Its settings would be guesses."""
    place = run_folder(write_run(tmp_path), "adam", 0) / "records.jsonl"
    place.write_text(place.read_text().replace('"precision"', '"accuracy"'))
    with pytest.raises(RecordError, match="the records of Adam seed 0 are of another version"):
        gather(tmp_path)


def test_the_mean_of_one_has_no_interval():
    """Its uncertainty is not zero but unknown."""
    assert mean_and_half([93.0]) == (93.0, None)


def test_every_committed_line_is_a_record_and_files_are_as_add_writes_them(tmp_path):
    """No number without its record; an empty folder has none, and that is fine."""
    for path in sorted(COMMITTED.glob("*.jsonl")):
        pruned = path.name.startswith(kept_compression.PREFIX)
        lines = kept_compression.read_kept_compression(path) if pruned else read_kept(path)
        assert lines, f"{path.name} is empty: delete it"
        told = [line if pruned else to_json(line) for line in lines]
        name = "problem" if pruned else "experiment"
        assert {line[name] for line in told} == {path.stem.removeprefix("compress-")}
        assert len({line["id"] for line in told}) == len(lines)
        (kept_compression.add if pruned else add)(lines, tmp_path)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert not [path.name for path in COMMITTED.glob("*") if path.suffix not in (".jsonl", ".md")]


def left(folder, device="NVIDIA H200", **asked):
    plan = experiment_plan(NAME, "paper", read=False, root=Path("/elsewhere"), **asked)
    runs = without_kept(plan, folder, device=device).runs
    return [(run.method, run.seed) for run in runs]


def test_runs_that_are_kept_need_not_be_made_again(tmp_path):
    """Of the same settings, scale, precision and device; wherever the data lies."""
    for seed in (0, 2):
        lines, _ = gather(write_run(tmp_path / str(seed), seed=seed, precision="bf16"))
        add(lines, tmp_path)
    asked = {"methods": ["adam", "sgd-m"], "seeds": 3, "precision": "bf16"}
    missing = [("sgd-m", 0), ("adam", 1), ("sgd-m", 1), ("sgd-m", 2)]
    assert left(tmp_path, **asked) == left(tmp_path, None, **asked) == missing
    assert len(left(tmp_path, "cpu (x86_64, 1 thread)", **asked)) == 6
    assert len(left(tmp_path, **{**asked, "precision": None})) == 6
    assert len(left(tmp_path, sets=["methods.adam.lr=0.002"], **asked)) == 6
    assert left(tmp_path, **{**asked, "methods": ["adam@1e-3"]}) == [("adam@1e-3", 1)]
    assert len(left(tmp_path / "nothing", **asked)) == 6


PAYS = ("pays-gpt", "pays-resnet18", "pays-small-gpt", "pays-vit")


def test_all_of_the_committed_runs_as_filed_are_found():
    """A field that a plan has gained since would make every kept run look like another one."""
    for name, scale in ((NAME, "paper"), *((name, "lab") for name in PAYS)):
        lines = as_filed([x for x in read_kept(COMMITTED / f"{name}.jsonl") if x.scale == scale])
        alone = {x.method: x for x in lines if x.seed == 0 and x.status == "finished"}
        assert alone
        for method, line in alone.items():
            plan = experiment_plan(
                name, scale, read=False, seeds=1, methods=[method], precision=line.precision
            )
            assert not without_kept(plan, COMMITTED, device=line.device).runs, line.id
