"""The paper's claims about training get the verdict that kept results call for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rich")  # the lab's extra
pytest.importorskip("typer")
from typer.testing import CliRunner

from aliceopt import claims
from aliceopt.claims import Training
from aliceopt.cli import build
from aliceopt.lab.plan import experiment_plan
from aliceopt.lab.results.kept import Kept, add
from aliceopt.lab.results.reproduced import judged
from experiment_records import BLOCKS, kept_run

METHODS = Training("resnet18-methods", (("alice", "adam"), ("alice", "sgd-m")))
PAPER: dict[str, Any] = {"scale": "paper"}


def runs(method: str, finals: list[float | None], name: str = "resnet18-methods", **more: Any):
    """Kept runs as the experiment is filed, one a seed, with these ends."""
    return [kept_run(name, method, seed, end, **more) for seed, end in enumerate(finals)]


ADAM = runs("adam", [93.3, 93.4, 93.5], **PAPER)
SGD = runs("sgd-m", [93.0, 93.1, 93.3], **PAPER)


def verdict(lines: list[Kept], folder: Path, training: Training = METHODS) -> tuple[str, str]:
    add(lines, folder)
    return judged(training, folder)


def test_a_claim_is_reproduced_if_every_difference_is_established(tmp_path):
    """The differences of the first pair are .40, .41, .42: Student's t of 41 standard errors."""
    alice = runs("alice", [93.7, 93.81, 93.92], **PAPER)
    found, reason = verdict([*ADAM, *SGD, *alice], tmp_path)
    assert found == "reproduced"
    assert reason.startswith("at the paper's scale, in tf32: alice over adam +0.41 \u00b1 0.0")
    assert "alice over sgd-m +0.68" in reason
    assert "(3 seeds)" in reason


def test_one_contrary_that_is_established_is_enough_not_to_reproduce_it(tmp_path):
    """Far better than SGD, and worse than Adam by .1 at every seed."""
    alice = runs("alice", [93.2, 93.31, 93.4], **PAPER)
    sgd = runs("sgd-m", [90.0, 90.1, 90.2], **PAPER)
    found, reason = verdict([*ADAM, *sgd, *alice], tmp_path)
    assert found == "not reproduced"
    assert "alice over adam \u22120.097" in reason


def test_a_difference_within_its_interval_tells_nothing(tmp_path):
    """Its mean is .4, and its standard deviation as large."""
    alice = runs("alice", [93.7, 94.2, 93.5], **PAPER)
    found, reason = verdict([*ADAM, *SGD, *alice], tmp_path)
    assert found == "cannot tell"
    assert "alice over adam +0.40 \u00b1" in reason


def test_intervals_are_corrected_for_the_number_of_pairs(tmp_path):
    """Differences .4, .5, .3 have p = .02: established alone, not as one of four."""
    name, terms = "resnet18-naq", ("glass", "abs", "glass-abs", "rms")
    lines = [
        run
        for term in terms
        for kind, ends in (("full", [90.0, 90.0, 90.0]), ("naq", [90.4, 90.5, 90.3]))
        for run in runs(f"{kind}-{term}", ends, name, **PAPER)
    ]
    pairs = tuple((f"naq-{term}", f"full-{term}") for term in terms)
    assert verdict(lines, tmp_path, Training(name, pairs[:1]))[0] == "reproduced"
    assert judged(Training(name, pairs), tmp_path)[0] == "cannot tell"


def test_one_seed_tells_nothing_however_large_the_difference(tmp_path):
    found, reason = verdict([*ADAM, *SGD, *runs("alice", [99.0], **PAPER)], tmp_path)
    assert found == "cannot tell"
    assert "alice over adam +5.70 (1 seed)" in reason
    assert "two seeds" in reason


def test_without_kept_results_the_command_that_makes_them_is_named(tmp_path):
    found, reason = judged(METHODS, tmp_path)
    assert found == "cannot tell"
    assert "aliceopt run resnet18-methods --scale paper" in reason
    found, reason = verdict(ADAM, tmp_path)
    assert (found, "no run is kept of alice, sgd-m" in reason) == ("cannot tell", True)


def test_a_run_that_diverged_is_named_and_nothing_is_told(tmp_path):
    alice = runs("alice", [95.0, None, 95.0], **PAPER)
    found, reason = verdict([*ADAM, *SGD, *alice], tmp_path)
    assert (found, "diverged" in reason) == ("cannot tell", True)


def test_of_losses_and_perplexities_lower_is_better(tmp_path):
    name, training = "tt-methods", Training("tt-methods", (("alice-abs", "adam"),))
    lines = [*runs("adam", [21.8, 21.9], name, **PAPER), *runs("alice-abs", [20.8, 20.9], name)]
    assert verdict(lines[:2], tmp_path, training)[0] == "cannot tell"
    better = runs("alice-abs", [20.8, 20.9], name, **PAPER)
    found, reason = verdict(better, tmp_path, training)
    assert found == "reproduced"
    assert "alice-abs over adam +1.00" in reason


def test_the_papers_scale_counts_before_a_stand_in_which_is_called_one(tmp_path):
    name, training = "tt-methods", Training("tt-methods", (("alice-abs", "adam"),))
    small = [*runs("adam", [50.0, 50.1], name), *runs("alice-abs", [49.0, 49.1], name)]
    found, reason = verdict(small, tmp_path, training)
    assert found == "reproduced"
    assert reason.startswith("on a stand-in (wikitext-2, 8,000 steps instead of 200,000, in tf32)")
    verdict(runs("adam", [21.8, 21.9], name, **PAPER), tmp_path, training)
    assert judged(training, tmp_path)[0] == "cannot tell"


def test_runs_with_other_settings_than_filed_do_not_count(tmp_path):
    """A rate behind a method's name makes it another method."""
    alice = runs("alice@3e-2", [95.0, 95.1, 95.2], **PAPER)
    found, reason = verdict([*ADAM, *SGD, *alice], tmp_path)
    assert (found, "no run is kept of alice" in reason) == ("cannot tell", True)


def exponents(last: float, others: float, width: float = 0.05) -> list[Kept]:
    """A kept run that ended with these exponents, the first block's and the last one's."""
    values = dict.fromkeys(BLOCKS, others) | {BLOCKS[-1]: last}
    blocks = {n: {"exponent": p, "low": p - width, "high": p + width} for n, p in values.items()}
    start = {n: {"exponent": 3.0, "low": 3.0, "high": 3.0} for n in BLOCKS}
    told = [{"epoch": 0.0, "blocks": start}, {"epoch": 40.0, "blocks": blocks}]
    return [kept_run("resnet18-powerlaw", "alice", 0, 90.0, **PAPER, curve={"exponents": told})]


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (exponents(2.0, 1.5), "reproduced"),
        (exponents(2.0, 2.1), "not reproduced"),
        (exponents(1.5, 1.5), "not reproduced"),
        (exponents(2.0, 1.97), "cannot tell"),
        (exponents(2.1, 1.5, width=0.15), "cannot tell"),
    ],
)
def test_exponents_are_judged_by_their_intervals_at_the_end(lines, wanted, tmp_path):
    found, reason = verdict(lines, tmp_path, Training("resnet18-powerlaw"))
    assert found == wanted
    assert "final layer" in reason


def test_every_claim_about_training_names_methods_that_its_experiment_has():
    for claim in claims.CLAIMS:
        if claim.training is not None:
            plan = experiment_plan(claim.training.experiment, "paper", read=False, check=False)
            assert {name for pair in claim.training.pairs for name in pair} <= set(plan.methods)
            assert bool(claim.training.pairs) == (plan.figure != "power_law")


def test_the_command_judges_by_the_folder_that_it_is_given(tmp_path):
    alice = runs("alice", [93.7, 93.81, 93.92], **PAPER)
    add([*ADAM, *SGD, *alice], tmp_path)
    command = ["claims", "--only", "fig6-resnet", "--results"]
    text = CliRunner().invoke(build(), [*command, str(tmp_path)]).stdout
    assert text.splitlines()[-1].endswith("1 reproduced, 0 not reproduced, 0 cannot tell")
    text = CliRunner().invoke(build(), [*command, str(tmp_path / "none")]).stdout
    assert text.splitlines()[-1].endswith("0 reproduced, 0 not reproduced, 1 cannot tell")
