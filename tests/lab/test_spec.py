"""A run, its schedule and its moments as plain values."""

import json
import math

import pytest

from aliceopt.lab.spec import Run, Schedule, Training


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
    training = Training(steps)
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
    assert Training(5, validation_batches=None).validation_batches is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"precision": "fp16"}, "precision .* 'fp16'"),
        ({"power_law": 5}, "power_law .* 5"),
        ({"power_law": {"directions": 2}}, "power_law .* radius"),
    ],
)
def test_other_bad_values_are_refused(values, said):
    """By name and value."""
    with pytest.raises(ValueError, match=said):
        Training(5, **values)


def test_a_run_comes_back_from_json():
    """Through as_dict, a JSON text and from_dict: equal, tuples included."""
    training = Training(
        9,
        schedule=Schedule("drops", warmup=0.25, drops=(0.5, 0.75), gamma=0.3),
        precision="bf16",
        validation_batches=4,
        power_law={"radius": 0.1, "directions": 2},
    )
    problem = {"model": {"name": "mlp", "hidden": [4, 5]}, "data": {"name": "digits"}}
    run = Run("alice", "Alice", "alice", {"lr": 0.1, "betas": [0.9, 0.99]}, 3, problem, training)
    assert Run.from_dict(json.loads(json.dumps(run.as_dict()))) == run


def test_labels_and_unknown_keys_do_not_stop_reading():
    """Records may say more about a run than a Run holds."""
    run = Run("a", "A", "adam", {}, 0, {"function": "x.py:f"}, Training(3))
    assert Run.from_dict({**run.as_dict(), "remark": "later"}) == run
