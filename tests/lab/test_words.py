"""Settings in words: nothing of Python or JSON is left, and nothing is left out."""

from dataclasses import asdict

import pytest

from aliceopt.lab.plan import EXPERIMENTS, experiment_plan, scales_of
from aliceopt.lab.spec import Schedule
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
def test_a_schedule_reads_the_same_with_and_without_its_defaults(schedule, words):
    """Plans have what was set, records have every field."""
    whole = asdict(schedule)
    usual = asdict(Schedule())
    assert schedule_in_words(whole) == words
    assert schedule_in_words({k: v for k, v in whole.items() if v != usual[k]}) == words


def test_methods_with_a_schedule_of_their_own_are_named():
    """And only those."""
    own = {"A": {"shape": "cosine"}, "B": asdict(Schedule("cosine")), "C": {"warmup": 0.1}}
    said = training_in_words({"steps": 1, "schedule": {"shape": "cosine"}}, own)
    other = "for C: rising over the first 10% of the run, then constant"
    assert said == f"1 step; learning rate falling to zero along a cosine ({other})"


@pytest.mark.parametrize(
    ("name", "scale"), [(name, scale) for name in EXPERIMENTS for scale in scales_of(name)]
)
def test_every_experiments_training_is_said_in_words(name, scale):
    """Whatever it sets; what has no words of its own is a name and a value."""
    training = experiment_plan(name, scale, read=False).document["training"]
    said = training_in_words({**training, "capture": False, "threads": None})
    assert not set("{}[]_=\"'") & set(said)
    assert "learning rate " in said
    assert said.endswith("capture false")
    assert ("exponents measured with radius 0.002, directions 4" in said) is (
        name == "resnet18-powerlaw"
    )
