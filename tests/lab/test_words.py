"""Settings in words: nothing of Python or JSON is left, and nothing is left out."""

from dataclasses import replace

import pytest

from aliceopt.lab.plans.plan import EXPERIMENTS, experiment_plan, scales_of
from aliceopt.lab.spec import PlannedTraining, Schedule
from aliceopt.lab.words import schedule_in_words, training_in_words


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule(), "constant"),
        (Schedule("linear"), "falling to zero along a line"),
        (Schedule("drops", drops=(0.5,), gamma=0.2), "multiplied by 0.2 at 50% of the run"),
        (Schedule("drops"), "constant"),
        (Schedule(warmup=0.125), "rising over the first 12.5% of the run, then constant"),
    ],
)
def test_a_schedule_is_said_in_words(schedule, words):
    """What its shape does not use is not told."""
    assert schedule_in_words(schedule) == words


def test_methods_with_a_schedule_of_their_own_are_named():
    """And only those."""
    own = {"A": Schedule("cosine"), "B": Schedule("cosine"), "C": Schedule(warmup=0.1)}
    training = PlannedTraining(steps=1, batches=3, evaluations=1, schedule=Schedule("cosine"))
    other = "for C: rising over the first 10% of the run, then constant"
    assert training_in_words(training, own) == (
        f"1 step; float32; learning rate falling to zero along a cosine ({other}); 1 evaluation; "
        "50 records of the training loss"
    )


@pytest.mark.parametrize(
    ("name", "scale"), [(name, scale) for name in EXPERIMENTS for scale in scales_of(name)]
)
def test_every_experiments_training_is_said_in_words(name, scale):
    """Whatever it sets; what has no words of its own is a name and a value."""
    training = experiment_plan(name, scale, read=False).training
    said = training_in_words(replace(training, capture=False), {})
    assert not set("{}[]_=\"'") & set(said)
    assert "learning rate " in said
    assert "; capture false" in said
    measured = training.power_law
    assert ("exponents measured " in said) is (measured is not None)
    if measured is not None:
        numbers = [*(place.radius for place in measured.places), measured.directions]
        numbers += measured.batch_sizes or ()
        assert all(f" {number:g} " in said for number in numbers)
        assert ("held-out" in said) is bool(measured.held_out)
