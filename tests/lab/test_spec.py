"""A run, its schedule and its moments as plain values."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from aliceopt.lab.spec import LabProblem, PowerLaw, Run, Schedule, Training, UserProblem
from aliceopt.lab.typed import FieldError, from_json, to_json


def test_a_constant_schedule_is_one_everywhere():
    """Also at the first and the last step."""
    assert [Schedule().factor(k, 10) for k in range(10)] == [1.0] * 10


@pytest.mark.parametrize("steps", [1, 7, 100, 5000])
def test_cosine_is_half_a_period_of_the_cosine(steps):
    """(1 + cos(pi t)) / 2 with t = step / steps: 1 at the start, nearly 0 at the last step."""
    schedule = Schedule("cosine")
    for step in {0, steps // 2, steps - 1}:
        wanted = (1 + math.cos(math.pi * step / steps)) / 2
        assert schedule.factor(step, steps) == pytest.approx(wanted, abs=1e-12)
    assert schedule.factor(0, steps) == 1.0
    assert schedule.factor(steps - 1, steps) > 0


def test_linear_falls_to_zero_just_after_the_last_step():
    """Step k of n has factor 1 - k / n."""
    assert [Schedule("linear").factor(k, 4) for k in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_drops_multiply_from_their_share_on():
    """Epoch 80 of 90 is share 0.8889; two drops multiply twice."""
    once = Schedule("drops", drops=(0.5,))
    assert [once.factor(k, 4) for k in range(4)] == [1, 1, 0.1, 0.1]
    twice = Schedule("drops", drops=(0.25, 0.5), gamma=0.5)
    assert [twice.factor(k, 4) for k in range(4)] == [1, 0.5, 0.25, 0.25]
    paper = Schedule("drops", drops=(0.8889,))
    changes = [k for k in range(1, 45_000) if paper.factor(k, 45_000) < paper.factor(k - 1, 45_000)]
    assert len(changes) == 1
    assert changes[0] / 500 == pytest.approx(80, abs=0.01)


def test_a_warm_up_rises_in_equal_steps_and_is_never_zero():
    """A tenth of 100 steps: 0.1, 0.2, ... 1.0, then 1."""
    factors = [Schedule(warmup=0.1).factor(k, 100) for k in range(12)]
    assert factors == pytest.approx([0.1 * (k + 1) for k in range(10)] + [1.0, 1.0])


def test_a_warm_up_multiplies_the_shape():
    """The rise and the fall are factors of each other."""
    both, fall = Schedule("linear", warmup=0.5), Schedule("linear")
    for k in range(8):
        assert both.factor(k, 8) == pytest.approx(fall.factor(k, 8) * min(1, (k + 1) / 4))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"shape": "exponential"}, "'exponential'"),
        ({"warmup": 1.0}, "1.0"),
        ({"warmup": -0.1}, "-0.1"),
        ({"warmup": math.nan}, "nan"),
        ({"shape": "drops", "drops": (0.5, 1.0)}, r"\(0.5, 1.0\)"),
        ({"shape": "drops", "drops": (80,)}, "80"),
    ],
)
def test_a_bad_schedule_is_refused_by_its_value(values, named):
    """The message has the value and the range."""
    with pytest.raises(ValueError, match=named):
        Schedule(**values)


@pytest.mark.parametrize("steps", [1, 2, 7, 50, 101])
@pytest.mark.parametrize("times", [1, 3, 20, 50, 1000])
def test_moments_are_as_many_as_asked_and_the_last_step_is_one(steps, times):
    """No more than there are steps; gaps differ by at most one step."""
    training = Training(steps=steps)
    moments = [k for k in range(1, steps + 1) if training.due(k, times)]
    assert len(moments) == min(times, steps)
    assert moments[-1] == steps
    gaps = [b - a for a, b in zip([0, *moments], moments, strict=False)]
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("name", ["steps", "evaluations", "validation_batches", "logs", "threads"])
@pytest.mark.parametrize("value", [0, -3, 1.5, True, "ten"])
def test_a_bad_count_is_refused_by_name_and_value(name, value):
    """None is right for validation_batches only, where it means all."""
    with pytest.raises(ValueError, match=f"{name} must be a whole number >= 1, got {value!r}"):
        Training(**{"steps": 5, name: value})
    assert Training(steps=5, validation_batches=None).validation_batches is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"precision": "fp16"}, "precision .* 'fp16'"),
        ({"power_law": 5}, "power_law must be a table, got 5"),
        ({"telemetry": 1}, "telemetry must be true or false, got 1"),
    ],
)
def test_other_bad_values_are_refused(values, said):
    """By name and value."""
    with pytest.raises(ValueError, match=said):
        Training(steps=5, **values)


def test_a_run_comes_back_from_json():
    """Through a JSON text: equal, tuples included."""
    training = Training(
        steps=9,
        schedule=Schedule("drops", warmup=0.25, drops=(0.5, 0.75), gamma=0.3),
        precision="bf16",
        validation_batches=4,
        power_law=PowerLaw(radius=0.1, directions=2),
    )
    problem = LabProblem({"name": "convnet", "widths": [4, 5]}, {"name": "digits"}, 8)
    run = Run("alice", "Alice", "alice", {"lr": 0.1, "betas": [0.9, 0.99]}, 3, problem, training)
    for other in (run, replace(run, problem=UserProblem("x.py:f", "abc", twin="gelu"))):
        assert from_json(Run, json.loads(json.dumps(to_json(other)))) == other


def test_what_json_did_not_have_it_does_not_get():
    """Runs are known by the digest of it, so a field that is not used must not stand there."""
    run = Run("a", "A", "adam", {}, 0, UserProblem("x.py:f"), Training(steps=3))
    assert to_json(run)["problem"] == {"function": "x.py:f"}
    assert to_json(run)["training"]["validation_batches"] is None


KEPT = sorted((Path(__file__).parents[2] / "results").glob("pays-*.jsonl"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_kept_runs_are_read_and_written_back_to_the_letter(path):
    """What is committed stays readable, and the same settings keep their digest."""
    for line in path.read_text(encoding="utf-8").splitlines():
        config = json.loads(line)["config"]
        assert to_json(from_json(Run, config)) == config


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"remark": "later"}, "run.remark is not known; there is method, label"),
        ({"seed": None}, "run.seed must be a whole number, got None"),
        ({"seed": True}, "run.seed must be a whole number, got True"),
        ({"label": 5}, "run.label must be text, got 5"),
        ({"options": [1]}, r"run.options must be a table, got \[1\]"),
        ({"training": 7}, "run.training must be a table, got 7"),
        ({"training": {}}, "run.training.steps is missing"),
        ({"training": {"steps": 0}}, "run.training.steps must be a whole number >= 1, got 0"),
        ({"training": {"steps": 3, "precision": "fp8"}}, "run.training.precision must be one of"),
        (
            {"training": {"steps": 3, "schedule": {"drops": [0.5, "x"]}}},
            r"run.training.schedule.drops\[1\] must be a number, got 'x'",
        ),
        (
            {"training": {"steps": 3, "schedule": {"warmup": 2}}},
            "run.training.schedule.warmup is a share of the run, from 0 to 1; got 2",
        ),
        ({"training": {"steps": 3, "power_law": {}}}, "run.training.power_law.radius is missing"),
        ({"problem": {"model": {}, "data": {}}}, "run.problem.batch_size is missing"),
        (
            {"problem": {"model": {"name": "convnet"}, "data": {}, "batch_size": 8}},
            "run.problem.data.name is missing",
        ),
        ({"problem": {"fuction": "x.py:f"}}, "run.problem.fuction is not known"),
        ({"problem": {"function": "x.py:f" * 20, "twin": 5}}, "run.problem.twin must be text"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_of_its_field(change, said):
    """Unknown, missing, of the wrong type, or out of range, at any depth."""
    run = Run("a", "A", "adam", {}, 0, UserProblem("x.py:f"), Training(steps=3))
    with pytest.raises(FieldError, match=said):
        from_json(Run, {**to_json(run), **change}, "run")
    with pytest.raises(FieldError, match=r"run.seed is missing"):
        from_json(Run, {k: v for k, v in to_json(run).items() if k != "seed"}, "run")
