"""``aliceopt run``, ``table``, ``figure`` and ``list``, as a user types them."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")

from aliceopt.lab.data import generate
from aliceopt.lab.plans.plan import EXPERIMENTS, SCALES
from aliceopt.lab.records import read_plan, read_runs
from cli_cases import aliceopt, quick, smoke
from experiment_records import write_records

pytestmark = pytest.mark.usefixtures("own_folder")


def test_one_name_runs_a_family(tmp_path):
    """`aliceopt run pays`: all four, each in its own folder, with the same options."""
    few = ("--methods", "adamw", "--seeds", 1, "--set", "train.steps=2")
    result = smoke("pays", *few, "--out", tmp_path / "all")
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in (tmp_path / "all").iterdir())
    assert names == ["pays-gpt", "pays-resnet18", "pays-small-gpt", "pays-vit"]
    for name in names:
        (run,) = read_runs(tmp_path / "all" / name)
        assert (run.status, run.gradients) == ("finished", 2)
        assert f"report: {tmp_path / 'all' / name / 'report.html'}" in result.output


def test_a_family_goes_on_after_one_that_cannot_finish(tmp_path):
    """Every run of the first experiment diverges: the others are run, and the exit code tells."""
    few = ("--methods", "nesterov@1e30", "--seeds", 1, "--set", "train.steps=4")
    result = smoke("pays", *few, "--out", tmp_path / "all")
    assert result.exit_code == 1
    assert len(list((tmp_path / "all").glob("pays-*/report.html"))) == 4
    assert smoke("payz").exit_code == 2


def test_results_that_are_kept_are_not_made_again(tmp_path, monkeypatch):
    """What is left is said, and run; where nothing is, nothing is written. A folder must be one."""
    few = ("--methods", "adam", "--seeds", 2, "--out", tmp_path / "out", "--not-in")
    refused = smoke("resnet18-methods", *few, tmp_path / "typo")
    assert refused.exit_code == 2
    assert f"there is no folder '{tmp_path / 'typo'}'" in refused.output
    monkeypatch.setattr(
        "aliceopt.lab.results.kept.without_kept",
        lambda plan, folder, device: replace(plan, runs=plan.runs[2 - left :]) if device else plan,
    )
    left = 0
    result = smoke("resnet18-methods", *few, tmp_path)
    assert result.exit_code == 0, result.output
    assert f"{tmp_path} keeps 2 of 2 runs" in result.output
    assert not (tmp_path / "out" / "plan.json").exists()
    left = 1
    result = smoke("resnet18-methods", *few, tmp_path)
    assert result.exit_code == 0, result.output
    assert [(run.seed, run.status) for run in read_runs(tmp_path / "out")] == [(1, "finished")]


def test_only_this_machine_can_keep_to_whole_runs(tmp_path):
    """Rays and ranks are handed all runs at once; without an end there is nothing to keep to."""
    asked = ("resnet18-methods", "--out", tmp_path / "out", "--whole")
    refused = smoke(*asked, "--minutes", 1, "--launcher", "ray")
    assert refused.exit_code == 2
    assert "--whole is for --launcher local" in refused.output
    refused = smoke(*asked)
    assert refused.exit_code == 2
    assert "--whole needs --minutes" in refused.output


def test_a_family_goes_on_where_no_run_of_one_fits(tmp_path, monkeypatch):
    """Others may be shorter; what did not fit is told, and that it is missing by the exit code."""
    monkeypatch.setattr(
        "aliceopt.lab.training.pool._Queue._seconds", lambda self, run: 1e9 * run.seed
    )
    few = ("--methods", "adamw", "--seeds", 2, "--set", "train.steps=2", "--workers", 1)
    result = smoke("pays", *few, "--out", tmp_path / "all", "--minutes", 60, "--whole")
    assert result.exit_code == 1, result.output
    assert result.output.count("no run that is left would end in time") == 4
    assert len(list((tmp_path / "all").glob("pays-*/adamw/seed-0/records.jsonl"))) == 4


def test_a_family_shares_its_minutes(tmp_path, monkeypatch):
    """All have one end; once it is there nothing more is begun."""
    alone = SimpleNamespace(time=lambda: float("inf"))  # others look at the clock, too
    monkeypatch.setattr("aliceopt.cli.lab.time", alone)
    few = ("--methods", "adamw", "--seeds", 1, "--set", "train.steps=2", "--minutes", 1)
    result = smoke("pays", *few, "--out", tmp_path / "all")
    assert result.exit_code == 130
    assert "the time is up: pays-resnet18 has not begun" in result.output
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["pays-gpt"]


PAYS = ("--methods", "adamw,muon,ahead-2@0.01,ahead-2-net")
FEWER = {
    "pays-gpt": PAYS,
    "pays-resnet18": PAYS,
    "pays-vit": PAYS,
    "resnet18-methods": ("--seeds", 1, "--methods", "adam,adahessian,alice"),
    "resnet18-naq": ("--seeds", 1, "--methods", "full-glass,full-abs,naq-glass,naq-abs"),
    "tt-limit": ("--seeds", 1),
    "vit-naq": ("--seeds", 1),
}
"""Of experiments that take long; the others run whole, with two seeds."""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_from_nothing_to_its_report(name, tmp_path):
    """`aliceopt run X --scale smoke`: records, table, figure, report, and the promised gradients.

    Figure 1's measurements are promised too, but are no gradients of the training. The experiments
    on whether it pays share their methods: one of them runs all.
    """
    result = smoke(name, *FEWER.get(name, ()))
    assert result.exit_code == 0, result.output
    folder = tmp_path / "runs" / f"{name}-smoke"
    plan, runs = read_plan(folder), read_runs(folder)
    assert {run.status for run in runs} == {"finished"}
    for run, promised in zip(runs, plan.runs, strict=True):
        law = run.config["training"]["power_law"]
        measured = len(run.power_law) * (1 + 2 * law["directions"]) if law else 0
        assert run.gradients + measured == promised.gradients
        assert len(run.evaluations) == 4
        assert "generated" in run.start["data"]
    assert "generated" in result.output
    assert "not comparable" in " ".join(result.output.split())
    assert (folder / "figures" / f"{name}.png").stat().st_size > 10_000
    assert "<html" in (folder / "report.html").read_text()[:300].lower()
    assert f"report: runs/{name}-smoke/report.html" in result.output

    result = aliceopt("table", name, "--scale", "smoke", "--json", tmp_path / "table.json")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "table.json").read_text())
    drawn = tmp_path / "again.svg"
    result = aliceopt("figure", name, "--scale", "smoke", "--out", drawn)
    assert result.exit_code == 0, result.output
    assert "<svg" in drawn.read_text()


def test_the_list_has_every_experiment_and_scale():
    """With a cost each."""
    result = aliceopt("list")
    assert result.exit_code == 0
    for word in (*EXPERIMENTS, *SCALES):
        assert word in result.output


def test_a_dry_run_prints_the_plan_and_leaves_nothing(tmp_path):
    """Not even a folder; the cost is that of the plan: 6 steps of 6 and 10 gradients, 2 seeds."""
    result = smoke("resnet18-methods", "--methods", "adam, alice", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "in all 4 runs, 2 seeds, 32 gradient evaluations" in result.output
    assert "probe_radius=0.005" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_common_options_once_and_settings_in_words():
    """Nothing of it is Python or JSON; data that is not there is told, with how to get it."""
    result = aliceopt("run", "resnet18-methods", "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.output.count("probe_radius=0.005") == 1
    assert "every alice, also: betas=[0.9, 0.999]" in result.output
    assert "10 epochs of 500 batches; batch size 100; tf32" in result.output
    assert "learning rate multiplied by 0.1 at 88.9% of the run" in result.output
    assert "{" not in result.output
    assert "5,000" in result.output
    assert "aliceopt data get cifar10" in result.output
    assert "a small cifar10 will be generated" in smoke("resnet18-methods", "--dry-run").output


@pytest.mark.parametrize("command", ["table", "figure"])
def test_table_and_figure_look_for_records_alike(command, tmp_path):
    """In --records DIR, else at the scale; if there are none, those of other scales are named."""
    none = aliceopt(command, "resnet18-methods")
    assert none.exit_code == 2
    said = "no records in 'runs/resnet18-methods-lab': make some with aliceopt run resnet18-methods"
    assert f"aliceopt: {said} (--scale smoke: a run of seconds), or name them" in none.stderr
    clone = "; those of the documentation are in the folder results of a clone (--records)\n"
    assert none.stderr.endswith(clone)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "pays-gpt.jsonl").touch()  # in a clone one need not look for another
    assert aliceopt(command, "resnet18-methods").stderr.endswith("or name them with --records\n")
    quick = aliceopt(command, "resnet18-methods", "--scale", "smoke").stderr
    assert "aliceopt run resnet18-methods --scale smoke, or name" in quick
    write_records(tmp_path / "runs/resnet18-methods-smoke", "resnet18-methods", "smoke")
    elsewhere = aliceopt(command, "resnet18-methods")
    assert elsewhere.exit_code == 2
    assert "resnet18-methods-lab'; there are some at --scale smoke" in elsewhere.stderr
    assert aliceopt(command, "resnet18-methods", "--scale", "smoke").exit_code == 0
    given = ("--records", "runs/resnet18-methods-smoke")
    result = aliceopt(command, "resnet18-methods", *given)
    assert result.exit_code == 0, result.output
    other = aliceopt(command, "tt-limit", *given)
    assert other.exit_code == 2
    assert "holds the records of 'resnet18-methods', not of 'tt-limit'" in other.stderr
    missing = aliceopt(command, "tt-limit", "--records", "nowhere")
    assert missing.exit_code == 2
    assert "no records in 'nowhere': it has no plan.json" in missing.stderr


def test_given_data_is_used_and_checked_before_anything_runs(tmp_path):
    """A truncated file is refused by name and reason, and no run begins."""
    sets = generate.write("cifar10", tmp_path / "sets", size=100)
    assert quick("--data", sets).exit_code == 0
    path = sets / "cifar-10-batches-bin/data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-5])
    result = quick("--data", sets, "--out", tmp_path / "other")
    assert result.exit_code == 2
    assert "data_batch_2.bin" in result.output
    assert "truncated" in result.output
    assert not (tmp_path / "other").exists()


def test_missing_data_says_where_it_was_looked_for_and_how_to_get_it(tmp_path):
    """At lab scale nothing is generated."""
    result = aliceopt("run", "resnet18-methods", "--device", "cpu")
    assert result.exit_code == 2
    assert str(tmp_path / "none") in result.output
    assert "aliceopt data get cifar10" in result.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "resnet"), "no experiment 'resnet'"),
        (("run", "tt-limit", "--scale", "huge"), "no scale 'huge' of tt-limit; there is paper"),
        (("run", "tt-limit", "--scale", "smoke", "--set", "x=1"), "there is no 'x'"),
        (("run", "tt-limit", "--scale", "smoke", "--methods", "x"), "no method 'x'"),
        (("run", "tt-limit", "--scale", "smoke", "--methods", ","), "--methods names none"),
        (
            ("run", "tt-limit", "--scale", "smoke", "--set", "methods.a/b={optimizer='adam'}"),
            "a method's name must do as the name of a folder, got 'a/b'",
        ),
        (("run", "tt-limit", "--scale", "smoke", "--data", "nowhere"), "no folder 'nowhere'"),
        (("run", "tt-limit", "--scale", "smoke", "--device", "tpu"), "--device must be auto"),
        (("run", "tt-limit", "--scale", "smoke", "--device", "cuda:99"), "CUDA devices here"),
        (("run", "tt-limit", "--scale", "smoke", "--workers", "0"), "--workers must be"),
        (("run", "tt-limit", "--scale", "smoke", "--seeds", "0"), "seeds must be"),
        (("compress", "--seeds", "0"), "seeds must be a whole number from 1 to 10,000, got 0"),
        (("compress", "--seeds", ","), "seeds must be different whole numbers >= 0, got []"),
        (("table", "tt-limit"), "no records in 'runs/tt-limit-lab'"),
        (("table", "tt"), "no experiment 'tt'"),
        (("figure", "tt-limit"), "no records in 'runs/tt-limit-lab'"),
        (("figure", "tt"), "there is no figure 'tt'"),
        (("figure", "tt-limit", "--scale", "huge"), "no scale 'huge' of tt-limit; there is paper"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(arguments, said):
    """On standard error, exit status 2, no traceback."""
    result = aliceopt(*arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("aliceopt: ")


@pytest.mark.parametrize(
    "command", [("run", "tt-limit", "--scale", "smoke"), ("study",), ("run", "pays")]
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_device_that_is_not_there_is_refused_before_anything_is_planned(
    command, more, monkeypatch, tmp_path
):
    """A dry run of it would promise what cannot be run."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("aliceopt.lab.plans.plan.plan_of", pytest.fail)
    result = aliceopt(*command, "--device", "cuda", *more)
    assert result.exit_code == 2, result.output
    assert result.stderr == "aliceopt: --device cuda: there are 0 CUDA devices here\n"
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_is_told_and_the_exit_status_says_so(monkeypatch):
    """Brackets in the text of an error are only text."""
    monkeypatch.setattr(
        "aliceopt.lab.training.train.build_problem",
        lambda config, seed: (_ for _ in ()).throw(RuntimeError("no [/room] left")),
    )
    result = quick()
    assert result.exit_code == 1, result.output
    assert "failed: RuntimeError: no [/room] left" in result.output
    assert "not finished: Adam seed 0 (failed); the same command with --resume" in result.output


def test_an_interrupt_before_anything_finished_is_still_clean(monkeypatch, tmp_path):
    """Exit 130 and the missing runs named; there is nothing yet to make a report of."""

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("aliceopt.lab.training.launch.train", interrupted)
    result = quick()
    assert result.exit_code == 130, result.output
    assert "not finished: Adam seed 0 (missing)" in result.output
    assert "report:" not in result.output
    assert not (tmp_path / "runs/resnet18-methods-smoke/report.html").exists()


def test_tensorboard_that_is_not_there_is_told_before_anything_runs(monkeypatch, tmp_path):
    """With what to install."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = quick("--tensorboard")
    assert result.exit_code == 2
    assert 'pip install "aliceopt[lab]"' in result.stderr
    assert not (tmp_path / "runs/resnet18-methods-smoke/plan.json").exists()
