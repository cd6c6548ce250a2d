"""Records that are there: who may write beside them, and what --overwrite deletes."""

import json
import sys

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")

from aliceopt.cli.folders import clear
from aliceopt.lab.plans.plan import experiment_plan
from aliceopt.lab.records import Journal, read_plan, read_runs, write_plan
from aliceopt.lab.typed import to_json
from cli_cases import quick

pytestmark = pytest.mark.usefixtures("own_folder")


def test_a_folder_with_records_is_not_written_to_without_a_word(tmp_path):
    """Refused; finished with --resume; begun anew with --overwrite."""
    assert quick().exit_code == 0
    place = tmp_path / "runs/resnet18-methods-smoke"
    records = place / "adam/seed-0/records.jsonl"
    before = records.read_text()
    result = quick()
    assert result.exit_code == 2
    assert "already holds records of 1 run: --resume" in result.output
    assert records.read_text() == before
    assert quick("--resume").exit_code == 0
    assert records.read_text() == before
    result = quick("--resume", "--set", "methods.adam.lr=0.5")
    assert result.exit_code == 2
    assert "made with other settings (lr 0.001, now 0.5)" in result.output
    (place / "adam/notes.txt").write_text("mine")
    result = quick("--overwrite", "--set", "methods.adam.lr=0.5")
    assert result.exit_code == 0
    assert read_runs(place)[0].config["options"]["lr"] == 0.5
    assert (place / "adam/notes.txt").read_text() == "mine"


def test_overwriting_deletes_what_the_plan_names_and_nothing_else(tmp_path):
    """Files of the user's stay, also inside our folders; without a plan nothing is deleted."""
    assert quick("--out", tmp_path / "out").exit_code == 0
    out = tmp_path / "out"
    mine = [out / "notes.txt", out / "figures/own.png", out / "other/seed-0/records.jsonl"]
    mine += [out / "adam/seed-0/thoughts.md"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    data = sorted((out / "data").rglob("*"))
    clear(out)
    assert all(path.read_text() == "mine" for path in mine)
    assert sorted((out / "data").rglob("*")) == data
    assert not (out / "plan.json").exists()
    assert not (out / "report.html").exists()
    assert not (out / "adam/seed-0/records.jsonl").exists()
    assert not (out / "figures/resnet18-methods.png").exists()
    clear(out)
    clear(tmp_path / "nowhere")
    assert (out / "notes.txt").exists()


@pytest.mark.parametrize(
    ("method", "seed", "name", "precious"),
    [
        ("../mine", 0, "resnet18-methods", "mine/seed-0/records.jsonl"),
        ("..", 0, "resnet18-methods", "seed-0/records.jsonl"),
        ("adam", "0/../../../mine", "resnet18-methods", "mine/records.jsonl"),
        ("adam", 0, "../../mine/*", "mine/thoughts.md"),
    ],
)
def test_overwriting_deletes_nothing_outside_the_folder(method, seed, name, precious, tmp_path):
    """Whatever names a plan.json from elsewhere holds: a method's, a seed's, its own.

    A name that is no folder's is passed over, and the command begins anew.
    """
    assert quick("--out", "out").exit_code == 0
    plan = to_json(read_plan(tmp_path / "out"))
    run, about = plan["runs"][0], plan["methods"]["adam"]
    plan |= {"runs": [{**run, "method": method, "seed": seed}], "methods": {method: about}}
    (tmp_path / "out/plan.json").write_text(json.dumps({**plan, "name": name}))
    path = tmp_path / precious
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    result = quick("--out", "out", "--overwrite")
    assert path.read_text() == "mine"
    assert result.exit_code == 0, result.output
    assert list(read_plan(tmp_path / "out").methods) == ["adam"]


def test_somebody_elses_plan_is_left_alone(tmp_path):
    """A plan.json that is not ours is neither deleted nor written over."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "out/plan.json"
    path.write_text('{"name": "a holiday"}')
    for more in ((), ("--resume",), ("--overwrite",)):
        result = quick("--out", tmp_path / "out", *more)
        assert result.exit_code == 2
        assert "is not a plan of aliceopt (kind is missing): choose another" in result.stderr
        assert path.read_text() == '{"name": "a holiday"}'


def begun(folder):
    """A plan in a folder of which one run has begun, without training any."""
    plan = experiment_plan("resnet18-methods", "smoke", methods=["adam"], seeds=1, read=False)
    write_plan(folder, plan)
    journal = Journal(folder / "adam/seed-0/records.jsonl")
    journal.write("start", config={"seed": 0}, run={})
    journal.close()
    return plan


def test_a_plan_of_another_version_can_be_overwritten(tmp_path):
    """Refused otherwise, with the field and the way out; runs that only it names go too."""
    out = tmp_path / "out"
    plan = begun(out)
    content = to_json(plan) | {"tuned": {"seed": 1000, "rates": 3}}
    content["runs"][0]["method"] = "old-adam"
    (out / "adam").rename(out / "old-adam")
    (out / "plan.json").write_text(json.dumps(content))
    result = quick("--out", out)
    assert result.exit_code == 2
    assert "(tuned.seed is not known; there is seeds" in result.stderr
    assert "--overwrite" in result.stderr
    assert (out / "old-adam/seed-0/records.jsonl").exists()
    clear(out, plan)
    assert not (out / "old-adam").exists()
    assert not (out / "plan.json").exists()


@pytest.mark.parametrize("runs", [None, {"adam": [0]}, ["adam", 3]])
def test_a_plan_that_lists_its_runs_otherwise_can_be_overwritten(runs, tmp_path):
    """It is ours by its kind, whatever a version before wrote behind it."""
    out = tmp_path / "out"
    content = to_json(begun(out))
    content.pop("runs")
    content |= {} if runs is None else {"runs": runs}
    (out / "plan.json").write_text(json.dumps(content))
    assert quick("--out", out).exit_code == 2
    assert quick("--out", out, "--overwrite").exit_code == 0


def test_runs_that_chose_rates_go_also_where_no_plan_names_them(tmp_path):
    """Of the new plan's methods; a tuning without its plan would be refused for ever."""
    plan = begun(tmp_path)
    for name in ("adam-rate+1", "adam-rate-0", "sgd-rate+1", "adam-mine"):
        Journal(tmp_path / "tuning" / name / "seed-1000/records.jsonl").close()
    clear(tmp_path, plan)
    assert sorted(path.name for path in (tmp_path / "tuning").iterdir()) == [
        "adam-mine",
        "sgd-rate+1",
    ]


def test_records_without_a_plan_can_be_overwritten(tmp_path):
    """They are refused otherwise, and the refusal says that --overwrite helps."""
    out = tmp_path / "out"
    plan = begun(out)
    (out / "plan.json").unlink()
    assert "--overwrite to begin anew" in quick("--out", out).stderr
    clear(out, plan)
    assert not (out / "adam").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--minutes", -1), "--minutes must be a number > 0, got -1"),
        (("--tensorboard",), "needs torch.utils.tensorboard, which is not installed"),
        (("--set", "model.name=lenet"), "model must be one of resnet18, vit, "),
        (("--set", "model.name={}"), "model must be one of resnet18, vit, "),
        (("--set", "model.depth=3"), "(its options: {'width': 4, 'depth': 3})"),
    ],
)
def test_what_is_refused_deletes_nothing(more, said, tmp_path, monkeypatch):
    """Not even with --overwrite: records go when nothing is left to refuse."""
    begun(tmp_path / "out")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = quick("--out", tmp_path / "out", "--overwrite", *more)
    assert result.exit_code == 2
    assert said in result.stderr
    assert (tmp_path / "out/adam/seed-0/records.jsonl").exists()
    assert (tmp_path / "out/plan.json").exists()


def test_overwriting_leaves_no_empty_folders(tmp_path):
    """Only the generated data, which is used again."""
    out = tmp_path / "out"
    assert quick("--out", out, "--tensorboard").exit_code == 0
    assert list((out / "adam/seed-0").glob("events.out.tfevents*"))
    clear(out)
    assert [path.name for path in out.iterdir()] == ["data"]
