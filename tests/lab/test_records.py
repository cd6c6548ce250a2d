"""Records survive kills, and are read as what they are."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aliceopt.lab import provenance, records
from aliceopt.lab.records import (
    Journal,
    RecordError,
    load_checkpoint,
    read_found,
    read_plan,
    read_runs,
    run_folder,
    save_checkpoint,
    write_plan,
)
from aliceopt.lab.spec import PlannedMethod, PlannedRun
from aliceopt.lab.typed import to_json
from aliceopt.lab.writing import WriteError
from study_cases import grid_plan

METHODS = {
    "adam": PlannedMethod("Adam", "baseline", "adam", {}),
    "alice": PlannedMethod("Alice", "alice", "alice", {}),
}
NAMED = (("adam", 0), ("adam", 1), ("alice", 0))
PLAN = grid_plan(methods=METHODS, runs=[PlannedRun(m, s, 1, 1) for m, s in NAMED])
WHERE = {"step": 4, "gradients": 6, "seconds": 0.5}


def begin(folder, method="adam", seed=0):
    journal = Journal(run_folder(folder, method, seed) / "records.jsonl")
    journal.write("start", run={"method": method}, config={"a": 1}, time="now")
    journal.write("train", **WHERE, loss=1.0)
    return journal


def test_a_plan_comes_back_and_is_never_half_written(tmp_path, monkeypatch):
    """What could not be written leaves the old plan as it was."""
    write_plan(tmp_path / "new", PLAN)
    assert read_plan(tmp_path / "new") == PLAN
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(WriteError, match=r"cannot write .*plan\.json': disk full"):
        write_plan(tmp_path / "new", replace(PLAN, name="other"))
    assert read_plan(tmp_path / "new") == PLAN


def test_a_folder_without_a_plan_is_named(tmp_path):
    """Also one whose plan is no JSON, or somebody else's."""
    with pytest.raises(RecordError, match=r"no records in .*nowhere"):
        read_plan(tmp_path / "nowhere")
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(RecordError, match=r"plan\.json' is not JSON .*: delete it, or"):
        read_plan(tmp_path)
    whole = to_json(PLAN)
    for other, said in (
        ([], "it must be a table"),
        ({"name": "a holiday"}, "kind is missing"),
        ({**whole, "kind": "holiday"}, "kind must be experiment or study or tuning"),
        ({**whole, "mood": 1}, "mood is not known; there is kind, name"),
        ({**whole, "methods": {"adam": 5}}, r"methods\.adam must be a table, got 5"),
        ({**whole, "methods": {}}, "runs has the method 'adam', which methods has not"),
        ({**whole, "runs": [{"method": "adam"}]}, r"runs\[0\]\.seed is missing"),
        ({**whole, "tuned": True}, "tuned must be "),
        ({**whole, "paces": {"adam": 0}}, r"paces\.adam must be a number > 0, got 0"),
    ):
        (tmp_path / "plan.json").write_text(json.dumps(other))
        wanted = rf"plan\.json' is not a plan of aliceopt \({said}"
        with pytest.raises(RecordError, match=wanted):
            read_plan(tmp_path)


def test_every_planned_run_is_read_in_order_with_its_state(tmp_path):
    """Finished, interrupted, and never begun."""
    write_plan(tmp_path, PLAN)
    journal = begin(tmp_path)
    journal.write("evaluation", **WHERE, loss=0.5, metric=90.0)
    journal.write("end", **WHERE, status="finished", reason="", metric=90.0, best=91.0)
    journal.close()
    begin(tmp_path, "alice").close()
    runs = read_runs(tmp_path)
    assert [(r.label, r.seed, r.status) for r in runs] == [
        ("Adam", 0, "finished"),
        ("Adam", 1, "missing"),
        ("Alice", 0, "interrupted"),
    ]
    assert (runs[0].final, runs[0].gradients, runs[0].seconds) == (90.0, 6, 0.5)
    assert (len(runs[0].training), len(runs[0].evaluations)) == (1, 1)
    assert runs[0].config == {"a": 1}
    assert runs[2].end is None


@pytest.mark.parametrize("status", ["diverged", "failed"])
def test_only_a_finished_run_has_a_result(tmp_path, status):
    """A failed run's end has no metric at all."""
    journal = begin(tmp_path)
    more = {"metric": 10.0} if status == "diverged" else {}
    journal.write("end", status=status, reason="why", **more)
    journal.close()
    run = read_runs(tmp_path, PLAN)[0]
    assert (run.status, run.final, run.end["reason"]) == (status, None, "why")


def test_all_that_has_begun_is_found_whatever_the_plan_names(tmp_path):
    """Also a run that failed before its first line; not one that has none, nor somebody's copy."""
    journal = Journal(run_folder(tmp_path, "alice", 0) / "records.jsonl")
    journal.write("end", status="failed", reason="no model", trace="")
    journal.close()
    Journal(run_folder(tmp_path, "sgd", 0) / "records.jsonl").close()
    for seed in (10, 2):
        begin(tmp_path, "adam", seed).close()
    copy = run_folder(tmp_path, "adam", 2).with_name("seed-2-before")
    copy.mkdir()
    (copy / "records.jsonl").write_text("{")
    found = [(run.method, run.label, run.seed, run.status) for run in read_found(tmp_path)]
    assert found == [
        ("adam", "adam", 2, "interrupted"),
        ("adam", "adam", 10, "interrupted"),
        ("alice", "alice", 0, "failed"),
    ]


def test_half_a_line_at_the_end_is_ignored_and_one_in_the_middle_is_not(tmp_path):
    """A kill can only tear the last line; anything else is damage, and is named."""
    begin(tmp_path).close()
    path = run_folder(tmp_path, "adam", 0) / "records.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"event": "end", "status": "fini')
    assert read_runs(tmp_path, PLAN)[0].status == "interrupted"
    path.write_text(whole + '{"event": "en\n' + whole)
    with pytest.raises(RecordError, match=r"line 3 of .*records\.jsonl' is not JSON"):
        read_runs(tmp_path, PLAN)


WHOLE = [
    {"event": "start", "run": {}, "config": {}},
    {"event": "evaluation", **WHERE, "loss": 0.5, "metric": 90.0},
    {"event": "end", "status": "finished", "metric": 90.0},
]


@pytest.mark.parametrize(
    ("number", "line", "said"),
    [
        (2, "5", "is no record"),
        (2, "{}", "is no record"),
        (1, "[]", "is no record"),
        (2, '{"event": ["end"]}', "is no record"),
        (1, '{"event": "start"}', "has no 'run'"),
        (1, '{"event": "start", "run": {}, "config": 3}', "has 3 for 'config'"),
        (1, json.dumps(WHOLE[2]), "is the first, and no run begins so"),
        (2, '{"event": "evaluation", "step": 4}', "has no 'gradients'"),
        (2, json.dumps({**WHOLE[1], "metric": "ninety"}), "has 'ninety' for 'metric'"),
        (3, '{"event": "end", "status": "finished"}', "has no 'metric'"),
        (3, '{"event": "end", "status": "fanished"}', "has 'fanished' for 'status'"),
        (2, b'{"event": "evaluati\xefn"}', "is not JSON"),
    ],
)
def test_a_damaged_line_is_named_with_what_to_do(number, line, said, tmp_path):
    """Neither a traceback nor believed; without the file the run counts as not begun."""
    lines = [json.dumps(event).encode() for event in WHOLE]
    lines[number - 1] = line if isinstance(line, bytes) else line.encode()
    path = run_folder(tmp_path, "adam", 0) / "records.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\n".join([*lines, b""]))
    with pytest.raises(RecordError) as told:
        read_runs(tmp_path, PLAN)
    assert f"line {number} of {str(path)!r} {said}" in str(told.value)
    assert "delete that file, and --resume makes the run anew" in str(told.value)
    path.unlink()
    assert read_runs(tmp_path, PLAN)[0].status == "missing"


def test_a_journal_is_cut_back_to_the_checkpoints_length(tmp_path):
    """What was written after a checkpoint, half a line included, is gone when it is reopened."""
    path = tmp_path / "run" / "records.jsonl"
    journal = Journal(path)
    journal.write("train", loss=1.0)
    length = journal.synced()
    journal.write("train", loss=2.0)
    journal.close()
    with path.open("a") as file:
        file.write('{"event": "tra')
    journal = Journal(path, length)
    journal.write("train", loss=3.0)
    journal.close()
    assert [json.loads(line)["loss"] for line in path.read_text().splitlines()] == [1.0, 3.0]


def test_lengths_are_bytes_also_after_reopening(tmp_path):
    """`synced` counts from the beginning of the file, names in any script included."""
    path = tmp_path / "records.jsonl"
    journal = Journal(path)
    journal.write("start", label="Адам, λ")
    assert journal.synced() == path.stat().st_size
    journal.close()
    again = Journal(path, path.stat().st_size)
    again.write("train", loss=0.5)
    assert again.synced() == path.stat().st_size
    again.close()


def test_numbers_that_json_cannot_say_become_null(tmp_path):
    """At any depth, in journals and plans."""
    journal = Journal(tmp_path / "records.jsonl")
    journal.write("train", loss=math.nan, deep={"a": [math.inf, (1.0, -math.inf)]})
    journal.close()
    event = json.loads((tmp_path / "records.jsonl").read_text())
    assert event == {"event": "train", "loss": None, "deep": {"a": [None, [1.0, None]]}}
    write_plan(tmp_path, replace(PLAN, target=math.nan))
    assert read_plan(tmp_path) == PLAN


def test_a_mirror_sees_every_event(tmp_path):
    """With the fields as they were written."""
    seen = []
    journal = Journal(tmp_path / "records.jsonl")
    journal.mirror = lambda event, fields: seen.append((event, fields))
    journal.write("train", loss=1.0)
    journal.close()
    assert seen == [("train", {"loss": 1.0})]


def test_a_checkpoint_is_the_old_one_or_the_new_one(tmp_path, monkeypatch):
    """A kill while writing leaves the old; leftovers do not disturb the next."""
    path = tmp_path / "checkpoint.pt"
    assert load_checkpoint(path) is None
    save_checkpoint(path, {"step": 1, "weights": torch.arange(3)})

    def killed(content, file):
        file.write(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(records.torch, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(path, {"step": 2})
    assert load_checkpoint(path)["step"] == 1
    save_checkpoint(path, {"step": 3})
    assert load_checkpoint(path) == {"step": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


class Trap:
    """Would write a file if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_checkpoint_cannot_run_code(tmp_path):
    """Pickled objects are refused with the file named, and not made."""
    torch.save({"model": Trap(tmp_path / "sprung")}, tmp_path / "checkpoint.pt")
    with pytest.raises(RecordError, match=r"cannot read the checkpoint .*checkpoint\.pt"):
        load_checkpoint(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "sprung").exists()


def flipped(path, at):
    """One bit of a file, changed."""
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_named_with_what_to_do(tmp_path):
    """Truncated, as after a copy that failed; a bit of the weights changed; no run at all."""
    path = tmp_path / "checkpoint.pt"
    weights = torch.full((1000,), 1.7)

    def cut():
        path.write_bytes(path.read_bytes()[:700])

    def changed():
        flipped(path, path.read_bytes().index(weights.numpy().tobytes()) + 1234)

    def replaced():
        torch.save([1, 2], path)

    def incomplete():
        torch.save({"weights": weights}, path)

    for damage in (cut, changed, replaced, incomplete):
        save_checkpoint(path, {"step": 1, "weights": weights})
        assert load_checkpoint(path, ["step"])["step"] == 1
        damage()
        with pytest.raises(RecordError, match=r"checkpoint\.pt' \(.*\): delete it") as told:
            load_checkpoint(path, ["step"])
        assert "\n" not in str(told.value)


def test_versions_name_what_made_the_numbers():
    """Package, Python, torch, numpy; the commit where there is one."""
    found = provenance.versions()
    assert set(found) == {"aliceopt", "commit", "python", "torch", "numpy"}
    assert found["torch"] == torch.__version__
