"""A study's learning rates: how they are chosen, and what becomes of a tuning that stopped."""

import itertools

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")


from aliceopt.cli.folders import clear
from aliceopt.lab.records import Journal, read_plan, read_runs, run_folder
from aliceopt.lab.study import TUNING_SEED, rates_around, study_plan, tuned
from lab_cases import TINY, aliceopt, all_events, tiny, write_problem, write_tuning

pytestmark = pytest.mark.usefixtures("own_folder")


def test_rates_are_half_a_decade_apart_around_the_middle():
    """Two of them multiply to ten; the middle one is exactly the usual."""
    assert rates_around(0.02, 1) == [0.02]
    rates = rates_around(0.02, 5)
    assert rates[2] == 0.02
    assert [b / a for a, b in itertools.pairwise(rates)] == pytest.approx([10**0.5] * 4)


@pytest.mark.parametrize(
    ("outcomes", "best", "edge"),
    [
        ([(0.5, 0.5), (0.2, 0.2), (0.4, 0.4)], 1, False),
        ([(0.1, 0.1), (0.2, 0.2), (0.4, 0.4)], 0, True),
        ([(0.5, 0.5), (0.4, 0.4), (0.3, 0.3)], 2, True),
        ([(0.5, 0.5), (0.4, 0.4), None], 1, False),
        ([(0.3, 0.9), (0.3, 0.7), (0.3, 0.8)], 1, False),
        ([(0.3, None), (0.3, 0.7), (0.3, 0.8)], 1, False),
        ([(None, None), (0.9, 0.9), None], 1, False),
        ([None, None, None], 0, True),
    ],
)
def test_the_best_rate_is_chosen_and_one_at_the_edge_is_marked(outcomes, best, edge, tmp_path):
    """By the metric, then by the loss; diverged runs never win; if all did, the smallest rate."""
    study = study_plan(tune=3, **{**TINY, "terms": []})
    write_tuning(study, tmp_path, {f"adam-rate-{i}": o for i, o in enumerate(outcomes)})
    plan = tuned(study, tmp_path)
    rates = rates_around(study.methods["adam"]["lr"], 3)
    chosen = plan.document["tuned"]["chosen"]["adam"]
    assert (chosen["lr"], chosen["edge"], chosen["tried"]) == (rates[best], edge, rates)
    assert plan.document["methods"]["adam"]["options"]["lr"] == rates[best]
    assert {run.options["lr"] for run in plan.runs} == {rates[best]}


def test_a_higher_metric_wins_where_higher_is_better(tmp_path):
    """The template's is accuracy."""
    file = write_problem(tmp_path)
    study = study_plan(f"{file}:problem", tune=2, **{**TINY, "terms": []})
    write_tuning(study, tmp_path, {"adam-rate-0": (90.0, 0.1), "adam-rate-1": (91.0, 0.2)})
    rates = rates_around(study.methods["adam"]["lr"], 2)
    assert tuned(study, tmp_path).runs[0].options["lr"] == rates[1]


def test_one_rate_needs_no_tuning(tmp_path):
    """The usual rate, and the plan says that nothing was tuned."""
    study = study_plan(tune=1, **TINY)
    assert study.tuning is None
    assert tuned(study, tmp_path).document["tuned"] is False


# ---- a tuning that stopped ----------------------------------------------------------------------


def test_an_interrupted_tuning_can_be_overwritten(tmp_path, monkeypatch):
    """Though there is no plan of the study yet; exit 130, and no report is promised."""

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("aliceopt.lab.launch.train", interrupted)
        result = tiny("--tune", 2)
    assert result.exit_code == 130, result.output
    assert "not finished" in result.output
    assert "report:" not in result.output
    folder = tmp_path / "runs/study-digits/tuning"
    journal = Journal(run_folder(folder, "adam-rate-0", TUNING_SEED) / "records.jsonl")
    journal.write("start", config={}, run={})
    journal.close()
    assert "already holds" in tiny("--tune", 2).output
    clear(tmp_path / "runs/study-digits")
    assert not folder.exists()


def test_a_study_interrupted_after_its_tuning_is_still_clean(tmp_path, monkeypatch):
    """Nothing of the study has begun: exit 130, what is missing is named."""
    from aliceopt.lab import launch

    real = launch.train

    def interrupted(run, *arguments, **options):
        if run.seed != TUNING_SEED:
            raise KeyboardInterrupt
        return real(run, *arguments, **options)

    monkeypatch.setattr(launch, "train", interrupted)
    result = tiny("--tune", 2)
    assert result.exit_code == 130, result.output
    assert "not finished" in result.output


KILLED = """
import contextlib, multiprocessing, os, torch

def loss(outputs, targets):
    if multiprocessing.parent_process() is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink("victim")
            os._exit(9)
    return torch.nn.functional.cross_entropy(outputs, targets)

def problem():
    data = torch.arange(16.0).reshape(8, 2), torch.zeros(8, dtype=torch.long)
    return torch.nn.Linear(2, 2), loss, data, data
"""


def test_nothing_is_chosen_while_a_tuning_run_has_no_end(tmp_path):
    """Its worker was killed: exit 1, the run is named, and --resume makes it and goes on."""
    (tmp_path / "killed.py").write_text(KILLED)
    (tmp_path / "victim").touch()
    size = ("--terms", "", "--baselines", "adam", "--seeds", 1, "--tune", 3, "--device", "cpu")
    command = ("study", "--problem", "killed.py:problem", *size, "--workers", 2)
    result = aliceopt(*command)
    assert result.exit_code == 1, result.output
    assert "its process ended with exit code 9" in result.output
    assert "not finished: Adam, lr" in result.output
    folder = tmp_path / "runs/study-killed"
    assert not (folder / "plan.json").exists()
    result = aliceopt(*command, "--resume")
    assert result.exit_code == 0, result.output
    assert {run.status for run in read_runs(folder / "tuning")} == {"finished"}
    assert {run.status for run in read_runs(folder)} == {"finished"}


def test_a_tuning_that_comes_out_otherwise_makes_its_methods_anew(tmp_path):
    """A run that is made again may do so. Other methods' records stay as they are."""
    assert tiny("--tune", 2).exit_code == 0
    folder = tmp_path / "runs/study-digits"
    before = all_events(folder)
    chosen = read_plan(folder)["tuned"]["chosen"]["adam"]
    place = run_folder(
        folder / "tuning", f"adam-rate-{chosen['tried'].index(chosen['lr'])}", TUNING_SEED
    )
    journal = Journal(place / "records.jsonl", (place / "records.jsonl").stat().st_size)
    journal.write("end", status="finished", reason="", metric=1e9)
    journal.close()
    result = tiny("--tune", 2, "--resume")
    assert result.exit_code == 0, result.output
    assert "another learning rate is best now, so made anew: Adam\n" in result.output
    rates = {run.config["options"]["lr"] for run in read_runs(folder) if run.method == "adam"}
    assert rates == set(chosen["tried"]) - {chosen["lr"]}
    after = all_events(folder)
    assert {key for key in before if before[key] != after[key]} == {"adam/seed-0", "adam/seed-1"}
