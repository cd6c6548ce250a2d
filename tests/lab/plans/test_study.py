"""``aliceopt study``: the grid, its budget, and problems of the user's own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

import torch
from torch import nn

from aliceopt import Alice
from aliceopt.cli.folders import clear
from aliceopt.lab import records
from aliceopt.lab.optimizers.methods import make_method
from aliceopt.lab.plans.plan import PlanError
from aliceopt.lab.plans.study import (
    BASELINES,
    GRID_TERMS,
    TUNING_SEEDS,
    study_plan,
)
from aliceopt.lab.problems.problem import ProblemError
from aliceopt.lab.records import Journal, read_plan, read_runs
from aliceopt.lab.results.numbers import show_seconds
from aliceopt.trained.network import problem_name
from lab_cases import TINY, aliceopt, all_events, tiny, write_problem

pytestmark = pytest.mark.usefixtures("own_folder")


# ---- through to the report ---------------------------------------------------------------------


def test_a_tiny_study_goes_through_to_its_report(tmp_path):
    """Three rates a method, then two seeds at the best: table, finding, figures, report."""
    result = tiny("--tune", 3)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "runs/study-digits"
    tuning, plan = read_plan(folder / "tuning"), read_plan(folder)
    assert len(tuning.runs) == plan.tuned.runs
    assert {run.seed for run in tuning.runs} == set(TUNING_SEEDS)
    assert not set(TUNING_SEEDS) & set(plan.seeds)
    assert {run.status for run in read_runs(folder)} == {"finished"}
    assert [run.method for run in read_runs(folder)] == ["naq-none", "naq-glass", "adam"] * 2
    for key, chosen in plan.tuned.chosen.items():
        means = {t.lr: sum(t.finals) for t in chosen.tried if len(t.finals) == 2}
        assert means[chosen.lr] == min(means.values())
        assert plan.methods[key].options["lr"] == chosen.lr
    for run, promised in zip(read_runs(folder), plan.runs, strict=True):
        assert run.gradients == promised.gradients
    page = (folder / "report.html").read_text()
    assert "Adam" in page
    assert "report: runs/study-digits/report.html" in result.output
    again = tiny("--tune", 3)
    assert again.exit_code == 2
    assert "already holds records" in again.output
    kept = all_events(folder)
    assert tiny("--tune", 3, "--resume").exit_code == 0
    assert all_events(folder) == kept
    clear(folder)
    assert list(folder.iterdir()) == []


def test_all_methods_of_a_seed_start_alike_and_see_the_same_batches(tmp_path):
    """The first evaluation, before any step, is one number a seed."""
    assert tiny("--tune", 1).exit_code == 0
    starts = {}
    for run in read_runs(tmp_path / "runs/study-digits"):
        starts.setdefault(run.seed, set()).add(run.evaluations[0]["loss"])
    assert [len(values) for values in starts.values()] == [1, 1]
    assert starts[0] != starts[1]


@pytest.mark.parametrize("resume", [False, True])
def test_journals_are_read_when_a_study_begins_and_when_it_ends(resume, monkeypatch):
    """And at no other time: table, finding, report and exit code share what was read."""
    grid = ("study", "--terms", "", "--baselines", "adam", "--seeds", 1, "--epochs", 0.1)
    command = (*grid, "--tune", 1, "--workers", 1, "--device", "cpu")
    if resume:
        assert aliceopt(*command).exit_code == 0
    read, seen = records._read_run, []

    def counted(path, run):
        seen.append(path.relative_to("runs/study-digits"))
        return read(path, run)

    monkeypatch.setattr(records, "_read_run", counted)
    assert aliceopt(*command, *(["--resume"] if resume else [])).exit_code == 0
    assert seen == [Path("adam/seed-0/records.jsonl")] * 2


def test_a_study_does_not_go_on_with_less_than_it_has(tmp_path):
    """A method or a seed that has ended would be lost to the report; one that failed may go."""
    grid = ("study", "--terms", "", "--epochs", 0.2, "--tune", 1, "--workers", 1, "--device", "cpu")
    both = ("--baselines", "adam,sgd-m")
    assert aliceopt(*grid, *both, "--seeds", 2).exit_code == 0
    folder = tmp_path / "runs/study-digits"
    before = all_events(folder)
    less = [("--baselines", "adam", "--seeds", 2), (*both, "--seeds", 1)]
    for fewer, lost in zip(less, ("SGD-M", "Adam seed 1; SGD-M seed 1"), strict=True):
        result = aliceopt(*grid, *fewer, "--resume")
        assert result.exit_code == 2
        assert f"also holds results of {lost} that this command leaves out" in result.stderr
        assert (all_events(folder), len(read_plan(folder).runs)) == (before, 4)
    assert aliceopt(*grid, *both, "--seeds", 3, "--resume").exit_code == 0
    assert before.items() <= all_events(folder).items()
    for seed in range(3):
        journal = Journal(folder / f"sgd-m/seed-{seed}/records.jsonl")
        journal.write("end", status="failed", reason="its disk was full")
        journal.close()
    assert aliceopt(*grid, "--baselines", "adam", "--seeds", 3, "--resume").exit_code == 0


def test_records_of_an_untuned_study_are_refused_before_rates_are_tuned(tmp_path):
    """Hours of tuning would be lost to the refusal."""
    assert tiny("--tune", 1).exit_code == 0
    before = all_events(tmp_path / "runs/study-digits")
    refused = tiny("--tune", 3)
    assert refused.exit_code == 2
    assert "already holds records of 6 runs" in refused.output
    assert not (tmp_path / "runs/study-digits/tuning").exists()
    assert all_events(tmp_path / "runs/study-digits") == before


def test_more_seeds_make_no_run_anew(tmp_path):
    """Seeds that have not begun have no rate that could be another."""
    few = ("study", "--terms", "", "--baselines", "adam", "--epochs", 0.2, "--tune", 3)
    few = (*few, "--workers", 1, "--device", "cpu", "--seeds")
    assert aliceopt(*few, 1).exit_code == 0
    before = all_events(tmp_path / "runs/study-digits")
    more = aliceopt(*few, 2, "--resume")
    assert more.exit_code == 0, more.output
    assert "made anew" not in more.output
    assert before.items() <= all_events(tmp_path / "runs/study-digits").items()


def test_the_default_may_be_named(tmp_path):
    """As folders and tables do; the folder is the same."""
    shown = aliceopt("study", "digits", "--dry-run", "--terms", "", "--baselines", "adam")
    assert shown.exit_code == 0, shown.output
    assert "digits" in shown.output
    for other in ("landscape", "compress"):
        refused = aliceopt(other, "digits", "--device", "nosuch")
        assert "--device must be auto, cpu, cuda or cuda:N" in refused.output


def test_a_terminal_that_cannot_say_a_name_loses_nothing(tmp_path):
    """Greek in latin-1: the report is there, and the table with a mark in the name's place."""
    (tmp_path / "λ.py").write_text(Path(write_problem(tmp_path)).read_text())
    grid = ("--terms", "", "--baselines", "adam", "--tune", "1")
    size = (*grid, "--seeds", "1", "--epochs", "1", "--device", "cpu")
    done = subprocess.run(
        [sys.executable, "-m", "aliceopt.cli", "study", "--problem", "λ.py:problem", *size],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
        encoding="latin-1",
    )
    assert done.returncode == 0, done.stderr
    assert "?.py:problem: validation accuracy" in done.stdout
    assert "report: runs/study-?/report.html" in done.stdout
    assert "λ.py:problem" in (tmp_path / "runs/study-λ/report.html").read_text(encoding="utf-8")


def test_the_report_is_there_whatever_becomes_of_the_table(tmp_path, monkeypatch):
    """It is printed last: a closed pipe or a strict encoding costs no report."""

    def closed(*arguments):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("aliceopt.lab.results.table.print_summary", closed)
    assert tiny("--tune", 1).exit_code != 0
    assert (tmp_path / "runs/study-digits/report.html").exists()


def test_a_problem_that_returns_the_wrong_thing_is_told_what_is_missing(tmp_path):
    """Before anything runs, in one sentence."""
    (tmp_path / "half.py").write_text(
        "import torch\ndef problem():\n    return {'model': torch.nn.Linear(2, 2)}\n"
    )
    result = tiny("--problem", "half.py:problem")
    assert result.exit_code == 2
    assert "half.py:problem: returned a dictionary; missing: loss, train, validation" in (
        result.stderr
    )
    assert not (tmp_path / "runs").exists()


def test_the_batch_size_of_the_plan_is_that_of_the_problem(tmp_path):
    """Every report states it."""
    file = write_problem(tmp_path)
    plan = study_plan(f"{file}:problem", tune=1, **TINY).final
    assert plan.training.batch_size == 8
    assert plan.training.batches == 5


# ---- the grid ----------------------------------------------------------------------------------


def test_the_default_asks_about_alice_its_look_ahead_its_terms_and_every_baseline():
    """Six terms with accelerated steps, Alice in two ways, eight baselines; AdamW only once."""
    assert GRID_TERMS == ("none", "glass", "abs", "glass+abs", "rms", "signed")
    others = (
        "adam", "adamw", "nadamw", "sgd-m", "nesterov", "adahessian", "schedule-free", "muon"
    )  # fmt: skip
    assert ("alice", "alice-curvature", *others) == BASELINES
    methods = study_plan().final.methods
    alice = {k: (m.terms, m.step) for k, m in methods.items() if m.family == "alice"}
    assert alice.pop("alice") == (None, None)
    assert alice.pop("alice-curvature") == ("glass+abs", None)
    assert sorted(alice.values()) == sorted((t, "naq") for t in GRID_TERMS)
    assert [key for key, m in methods.items() if m.family == "baseline"] == list(others)
    asked = study_plan(steps=["naq", "full"], baselines=[]).final.methods
    assert len(asked) == 2 * len(GRID_TERMS)


def test_alice_without_its_look_ahead_is_adamw():
    """So that what is left between the two is the look-ahead, and nothing else."""
    plan = study_plan(terms=[], baselines=["alice", "alice-plain", "adamw"], tune=1, seeds=1).final
    trained = {}
    for key, about in plan.methods.items():
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        method = make_method(about.optimizer, model, about.options, seed=0)

        def loss_of(inputs, targets, model=model):
            return nn.functional.mse_loss(model(inputs), targets)

        step = method.bind(loss_of, (None, None), capture=False)
        for _ in range(5):
            step(torch.ones(4, 3), torch.zeros(4, 2))
        trained[key] = model.weight.detach().clone()
    assert torch.allclose(trained["alice-plain"], trained["adamw"], rtol=1e-5)
    assert not torch.allclose(trained["alice"], trained["adamw"], rtol=1e-3)


def test_alice_as_it_comes_has_its_own_defaults():
    """And neither the grid's limit nor its terms."""
    run = study_plan(terms=[], baselines=["alice"], seeds=1).final.methods["alice"]
    method = make_method(run.optimizer, nn.Linear(2, 2), run.options, seed=0)
    (group,) = method.optimizers[0].param_groups
    plain = Alice(nn.Linear(2, 2).parameters(), lr=run.options["lr"]).param_groups[0]
    assert {k: group[k] for k in plain if k not in ("params", "quick_steps")} == {
        k: v for k, v in plain.items() if k not in ("params", "quick_steps")
    }


def test_baselines_may_be_left_out_and_terms_too():
    """Not both."""
    assert set(study_plan(baselines=[], terms=["rms"]).final.methods) == {"naq-rms"}
    assert set(study_plan(terms=[], baselines=["adam"]).final.methods) == {"adam"}
    with pytest.raises(PlanError, match="nothing to compare"):
        study_plan(terms=[], baselines=[])


def test_muon_is_left_out_where_no_parameter_is_a_matrix(tmp_path):
    """Unless it was asked for: then that is told."""
    path = tmp_path / "kernels.py"
    path.write_text(
        "import torch\n"
        "def problem():\n"
        "    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten())\n"
        "    data = torch.ones(8, 1, 3, 3), torch.zeros(8, dtype=torch.long)\n"
        "    return model, torch.nn.functional.cross_entropy, data, data\n"
    )
    assert "muon" not in study_plan(f"{path}:problem").final.methods
    with pytest.raises(ProblemError, match="Muon needs parameters that are matrices"):
        study_plan(f"{path}:problem", baselines=["muon"])


def test_a_method_may_have_a_schedule_of_its_own():
    """Schedule-free keeps its rate, all others follow the cosine; the warm-up is everyone's."""
    plan = study_plan().final
    schedules = {method: plan.schedule_of(method) for method in plan.methods}
    shapes = {method: schedule.shape for method, schedule in schedules.items()}
    assert shapes.pop("schedule-free") == "constant"
    assert set(shapes.values()) == {"cosine"}
    assert len({schedule.warmup for schedule in schedules.values()}) == 1


def test_rates_follow_what_bounds_the_steps():
    """One rate given is that of NAQ; full steps, which go ten times as far, get a tenth."""
    study = study_plan(lr=0.5, limit="adam", terms=["rms"], steps=["naq", "full"])
    methods = study.final.methods
    assert methods["naq-rms"].options["lr"] == 0.5
    assert methods["full-rms"].options["lr"] == pytest.approx(0.05)
    assert methods["naq-rms"].options["limit"] == "adam"
    assert "limit" not in methods["adam"].options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": "seconds"}, "--budget must be steps, gradients or .* like 60s, got 'seconds'"),
        ({"budget": "0s"}, "--budget .* got '0s'"),
        ({"budget": "-3s"}, "--budget .* got '-3s'"),
        ({"budget": "9s", "epochs": 2}, "--epochs and --budget 9s both say how long a run is"),
        ({"limit": "none"}, "--limit must be .* got 'none'"),
        ({"tune": 0}, "--tune must be a whole number that is 1 or from 3 to 15, got 0"),
        ({"tune": 2}, "--tune .* got 2"),
        ({"terms": ["glas"]}, "no term 'glas': did you mean 'glass'"),
        ({"steps": ["half"]}, "no kind of step 'half'"),
        ({"baselines": ["adamx"]}, "no baseline 'adamx': did you mean 'adam"),
        ({"baselines": ["adamW"]}, "no baseline 'adamW': did you mean 'adamw'"),
        ({"seeds": 0}, "--seeds must be a whole number from 1 to 1,000 .*, got 0"),
        ({"seeds": 1001}, r"\(seeds from 1000 on choose learning rates\), got 1001"),
        ({"epochs": 0}, "--epochs must be a number > 0, got 0"),
        ({"epochs": float("inf")}, "--epochs must be .* got inf"),
        ({"epochs": float("nan")}, "--epochs must be .* got nan"),
        ({"quick_steps": -1}, "--quick-steps must be a whole number >= 0, got -1"),
        ({"quick_steps": -1, "budget": "gradients"}, "--quick-steps must be .* got -1"),
        ({"lr": -0.1}, "--lr must be a number > 0, got -0.1"),
        ({"lr": float("nan")}, "--lr must be a number > 0, got nan"),
        ({"target": float("inf")}, "--target must be a number that is finite, got inf"),
        ({"precision": "fp8"}, "--precision must be one of float32, tf32, bf16; got 'fp8'"),
        ({"problem": "nothing"}, "a problem is .* got 'nothing'$"),
        ({"problem": "x.py"}, "a problem is .* got 'x.py'; perhaps x.py:problem"),
    ],
)
def test_bad_options_are_refused_by_name_and_value(options, said):
    """While the plan is made."""
    with pytest.raises(ValueError, match=said):
        study_plan(**options)


def test_the_command_refuses_in_one_sentence():
    """Exit 2, no traceback."""
    ray = ("--budget", "9s", "--launcher", "ray")
    for arguments in (("--budget", "time"), ("--terms", "glas"), ("--quick-steps", -2), ray):
        result = aliceopt("study", *arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith("aliceopt: ")
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_dry_run_costs_both_parts_and_writes_nothing(tmp_path):
    """Three rates of three methods at two seeds, then two seeds of each."""
    result = tiny("--tune", 3, "--dry-run")
    assert result.exit_code == 0
    assert re.search(r"first 18 runs, 468 gradient evaluations, about [\d.]+ s or", result.output)
    assert "learning rate: 3 to 3 around the one above" in result.output
    assert re.search(r"then 6 runs, 2 seeds, 156 gradient ev.*, about [\d.]+ s\n", result.output)
    assert "in all 24 runs, 624 gradient evaluations, about " in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_for_a_cluster_needs_none_of_its_devices(monkeypatch):
    """Steps are timed on what is here."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(
        "aliceopt.cli.carry_out.measured_paces",
        lambda study, device, threads: dict.fromkeys(
            study.final.methods, 0.5 if device == "cpu" else 9
        ),
    )
    result = tiny("--tune", 1, "--dry-run", "--launcher", "ray", "--device", "cuda")
    assert result.exit_code == 0, result.output
    steps = sum(run.steps for run in study_plan(**TINY, seeds=2, tune=1).final.runs)
    assert f"about {show_seconds(0.5 * steps)}" in result.output


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (None, "digits"),
        ("mine.py:problem", "mine"),
        ("/some/where/mine.py:f", "mine"),
        ("package.module:f", "package.module"),
    ],
)
def test_a_study_has_a_folder_of_its_own(problem, name):
    """Named after the file or module."""
    assert problem_name(problem) == name


def test_the_problem_is_an_argument_and_the_old_option_means_the_same(tmp_path):
    """The option's folder goes on with the argument; both at once are refused by their values."""
    mine = f"{write_problem(tmp_path)}:problem"
    assert tiny("--problem", mine, "--tune", 1).exit_code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    before = all_events(folder)
    assert tiny(mine, "--tune", 1, "--resume").exit_code == 0
    assert all_events(folder) == before
    refused = tiny(mine, "--problem", "other.py:f")
    assert refused.exit_code == 2
    assert (
        refused.stderr == f"aliceopt: two problems: {mine!r} and --problem other.py:f; choose one\n"
    )
