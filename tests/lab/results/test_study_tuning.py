"""A study's learning rates: how they are chosen, and what becomes of a tuning that stopped."""

import contextlib
import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")


from aliceopt.cli.folders import clear
from aliceopt.lab.plans.study import TUNING_SEEDS, rate_at, study_plan
from aliceopt.lab.records import Journal, read_plan, read_runs, run_folder
from aliceopt.lab.results.tuning import START, choice, tuned, wanted
from aliceopt.lab.spec import TriedRate
from lab_cases import TINY, aliceopt, all_events, tiny, write_problem, write_tuning

pytestmark = pytest.mark.usefixtures("own_folder")
FIRST, SECOND = TUNING_SEEDS


def one_method(*more):
    """A study of two seeds of Adam, tuned, from the command line."""
    return tiny("--terms", "", "--tune", 3, *more)


def search(end, most=15):
    """The runs of a search in which a place and a seed end so, and what is chosen."""
    ends = {place: {FIRST: end(place, FIRST)} for place in START}
    while more := wanted(ends, most):
        assert not any(seed in ends.get(place, {}) for place, seed in more)
        for place, seed in more:
            ends.setdefault(place, {})[seed] = end(place, seed)
    assert sorted(ends) == list(range(min(ends), max(ends) + 1))
    assert len(ends) <= most
    return ends, choice(ends)


def test_rates_are_half_a_decade_apart_around_the_usual():
    """Two of them multiply to ten; the middle one is exactly the usual."""
    rates = [rate_at(0.02, place) for place in range(-2, 3)]
    assert rates[2] == 0.02
    assert [b / a for a, b in itertools.pairwise(rates)] == pytest.approx([10**0.5] * 4)


@pytest.mark.parametrize("best", range(-5, 6))
def test_a_valley_is_found_wherever_it_is(best):
    """Its bottom is inside, tried at both seeds with its neighbours, and no further than needed."""
    ends, found = search(lambda place, seed: (abs(place - best), 0.0))
    assert found == best
    assert sorted(ends) == list(range(min(-1, best - 1), max(1, best + 1) + 1))
    assert [p for p in sorted(ends) if len(ends[p]) == 2] == [best - 1, best, best + 1]


@given(seed=st.integers(0, 10**6), most=st.integers(3, 15))
def test_whatever_the_noise_the_choice_is_inside_or_the_limit_was_reached(seed, most):
    """It is the best mean of those with both seeds, and its neighbours have both."""
    ends, found = search(lambda place, s: (random.Random(hash((seed, place, s))).random(), 0), most)
    means = {p: sum(r for r, _ in e.values()) / 2 for p, e in ends.items() if len(e) == 2}
    assert means[found] == min(means.values())
    around = {found - 1, found, found + 1}
    assert around <= set(means) if len(ends) < most else around & set(ends) <= set(means)


@pytest.mark.parametrize(
    ("end", "most", "tried", "found"),
    [
        (lambda p, s: (-p, 0), 5, range(-1, 4), 3),  # better and better: the limit
        (lambda p, s: (math.inf, math.inf), 4, range(-2, 2), -2),  # all diverged: the lowest
        (lambda p, s: (-p if p < 3 else math.inf, 0), 9, range(-1, 4), 2),  # the edge of stability
        (lambda p, s: (0, abs(p - 1)), 9, range(-1, 3), 1),  # equal results: by the loss
        (lambda p, s: (abs(p) if s == FIRST else 3 * abs(p - 1), 0), 9, range(-1, 3), 1),
        (lambda p, s: (math.inf if (p, s) == (0, SECOND) else abs(p), 0), 9, range(-2, 2), -1),
    ],
)
def test_what_a_search_ends_with(end, most, tried, found):
    """In the last two a second seed moves the choice to the edge, and the grid grows there."""
    ends, chosen = search(end, most)
    assert (sorted(ends), chosen) == (list(tried), found)


@pytest.mark.parametrize("higher", [False, True])
def test_the_plan_says_what_was_tried_and_what_it_took(higher, tmp_path):
    """The template's metric is accuracy. The rate chosen is that of every run of the study."""
    problem = f"{write_problem(tmp_path)}:problem" if higher else None
    study = study_plan(problem, tune=4, **{**TINY, "terms": []})
    sign = 1 if higher else -1
    plans, plan = write_tuning(
        study, tmp_path, lambda m, place, seed: None if place > 2 else (sign * place, 0.1)
    )
    assert [len(plan.runs) for plan in plans] == [3, 4, 6]
    rates = [rate_at(study.final.methods["adam"].lr, place) for place in range(-1, 3)]
    about = plan.tuned
    assert (about.runs, about.seconds, about.gradients) == (6, 6.0, 6)
    chosen = about.chosen["adam"]
    assert (chosen.lr, chosen.edge) == (rates[3], True)
    finals = [[-sign], [0], [sign] * 2, [2 * sign] * 2]
    assert chosen.tried == [TriedRate(*pair) for pair in zip(rates, finals, strict=True)]
    assert {plan.run(run).options["lr"] for run in plan.runs} == {rates[3]}


@pytest.mark.parametrize(
    ("higher", "zero", "one"),
    [
        (False, (1e-3, 1.0), (2e-3, 0.9)),  # the second seed's losses alone decide their mean
        (True, (0.9, 0.1), (0.7, 0.28)),  # accuracies have no ratios
    ],
)
def test_rates_are_chosen_on_the_scale_of_the_comparison(higher, zero, one, tmp_path):
    """Losses by the mean of logarithms, accuracies by their own: each alone would choose 1."""
    problem = f"{write_problem(tmp_path)}:problem" if higher else None
    study = study_plan(problem, tune=3, **{**TINY, "terms": []})
    ends = {0: zero, 1: one}

    def end(method, place, seed):
        worst = (0.0, 0.0) if higher else (2.0, 2.0)
        return ends.get(place, worst)[TUNING_SEEDS.index(seed)], 0.1

    _, plan = write_tuning(study, tmp_path, end)
    assert plan.tuned.chosen["adam"].lr == study.final.methods["adam"].lr
    if higher:
        assert math.prod(one) > math.prod(zero)
    else:
        assert sum(one) < sum(zero)


@pytest.mark.parametrize(("loss", "place"), [((1e-3, 1.0), 0), ((0.0, 1.0), 1)])
def test_equal_results_are_told_apart_by_the_scale_of_their_losses(loss, place, tmp_path):
    """By ratio where all are positive; a zero has no ratio, and the mean itself decides."""
    study = study_plan(f"{write_problem(tmp_path)}:problem", tune=3, **{**TINY, "terms": []})
    losses = {0: loss, 1: (2e-3, 0.9)}

    def end(method, place, seed):
        return 0.5, losses.get(place, (2.0, 2.0))[TUNING_SEEDS.index(seed)]

    _, plan = write_tuning(study, tmp_path, end)
    assert plan.tuned.chosen["adam"].lr == rate_at(study.final.methods["adam"].lr, place)


def test_a_tuning_goes_on_with_exactly_what_is_missing(tmp_path):
    """Wherever it was left: the plans together are those of a tuning that was not."""
    study = study_plan(tune=7, **{**TINY, "terms": []})

    class Stopped(Exception):
        """Left here."""

    for stop in range(8):
        left = iter(range(stop))

        def end(method, place, seed, left=left):
            if next(left, None) is None:
                raise Stopped
            return abs(place - 2), 0.1

        folder = tmp_path / str(stop)
        with contextlib.suppress(Stopped):
            write_tuning(study, folder, end)
        (*_, last), plan = write_tuning(study, folder, lambda m, p, seed: (abs(p - 2), 0.1))
        names = [(run.method, run.seed) for run in last.runs]
        assert sorted(names) == sorted(
            [(f"adam-rate{p:+d}", FIRST) for p in range(-1, 4)]
            + [(f"adam-rate{p:+d}", SECOND) for p in range(1, 4)]
        )
        (first,), again = write_tuning(study, folder, pytest.fail)
        assert (first.runs, again) == (last.runs, plan)


def test_a_higher_limit_goes_on_from_what_was_tried(tmp_path):
    """As the finding of a method at the edge suggests."""

    def end(method, place, seed):
        return abs(place - 4), 0.1

    few = study_plan(tune=4, **{**TINY, "terms": []})
    (*_, last), plan = write_tuning(few, tmp_path, end)
    assert plan.tuned.chosen["adam"].edge
    more = study_plan(tune=8, **{**TINY, "terms": []})
    (first, *_), plan = write_tuning(more, tmp_path, end)
    assert first.runs == last.runs
    chosen = plan.tuned.chosen["adam"]
    assert (chosen.lr, chosen.edge) == (rate_at(more.final.methods["adam"].lr, 4), False)


def test_one_rate_needs_no_tuning(tmp_path):
    """The usual rate, and the plan says that nothing was tuned."""
    study = study_plan(tune=1, **TINY)
    plan = tuned(study, tmp_path, pytest.fail)
    assert (plan, plan.tuned) == (study.final, False)


# ---- a tuning that stopped ----------------------------------------------------------------------


def test_an_interrupted_tuning_can_be_overwritten(tmp_path, monkeypatch):
    """Though there is no plan of the study yet; exit 130, and no report is promised."""

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("aliceopt.lab.training.launch.train", interrupted)
        result = one_method()
    assert result.exit_code == 130, result.output
    assert "not finished" in result.output
    assert "report:" not in result.output
    folder = tmp_path / "runs/study-digits/tuning"
    journal = Journal(run_folder(folder, "adam-rate-1", FIRST) / "records.jsonl")
    journal.write("start", config={}, run={})
    journal.close()
    assert "already holds" in one_method().output
    clear(tmp_path / "runs/study-digits")
    assert not folder.exists()


def test_a_study_interrupted_after_its_tuning_is_still_clean(tmp_path, monkeypatch):
    """Nothing of the study has begun: exit 130, what is missing is named."""
    from aliceopt.lab.training import launch

    real = launch.train

    def interrupted(run, *arguments, **options):
        if run.seed not in TUNING_SEEDS:
            raise KeyboardInterrupt
        return real(run, *arguments, **options)

    monkeypatch.setattr(launch, "train", interrupted)
    result = one_method()
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
    result = aliceopt(*command, "--workers", 1, "--resume")
    assert result.exit_code == 0, result.output
    assert {run.status for run in read_runs(folder / "tuning")} == {"finished"}
    assert {run.status for run in read_runs(folder)} == {"finished"}


def test_a_tuning_that_comes_out_otherwise_makes_its_methods_anew(tmp_path):
    """A run that is made again may do so. Other methods' records stay as they are."""
    both = ("--baselines", "adam,sgd-m")
    assert one_method(*both).exit_code == 0
    folder = tmp_path / "runs/study-digits"
    before = all_events(folder)
    chosen = read_plan(folder).tuned.chosen["adam"]
    rates = [tried.lr for tried in chosen.tried]
    for seed in TUNING_SEEDS:
        name = f"adam-rate{rates.index(chosen.lr) - 1:+d}"
        path = run_folder(folder / "tuning", name, seed) / "records.jsonl"
        if path.exists():
            journal = Journal(path, path.stat().st_size)
            journal.write("end", status="finished", reason="", metric=1e9)
            journal.close()
    result = one_method(*both, "--resume")
    assert result.exit_code == 0, result.output
    assert "another learning rate is best now, so made anew: Adam\n" in result.output
    (rate,) = {run.config["options"]["lr"] for run in read_runs(folder) if run.method == "adam"}
    assert rate in set(rates) - {chosen.lr}
    after = all_events(folder)
    assert {key for key in before if before[key] != after[key]} == {"adam/seed-0", "adam/seed-1"}
