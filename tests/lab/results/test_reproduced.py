"""The paper's claims about training get the verdict that kept results call for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rich")  # the lab's extra
pytest.importorskip("typer")
from typer.testing import CliRunner

from aliceopt import claims
from aliceopt.claims import Training
from aliceopt.cli import build
from aliceopt.lab.plans.plan import experiment_plan
from aliceopt.lab.results.exponents import late_cells
from aliceopt.lab.results.kept import Kept, add
from aliceopt.lab.results.kept_compare import as_filed
from aliceopt.lab.results.reproduced import _networks, judged
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
    assert reason.startswith("at the paper's scale, in tf32: alice better than adam by 0.41")
    assert "alice better than sgd-m by 0.68" in reason
    assert "(3 seeds)" in reason


def test_one_contrary_that_is_established_is_enough_not_to_reproduce_it(tmp_path):
    """Far better than SGD, and worse than Adam by .1 at every seed."""
    alice = runs("alice", [93.2, 93.31, 93.4], **PAPER)
    sgd = runs("sgd-m", [90.0, 90.1, 90.2], **PAPER)
    found, reason = verdict([*ADAM, *sgd, *alice], tmp_path)
    assert found == "not reproduced"
    assert "alice worse than adam by 0.097" in reason


def test_a_difference_within_its_interval_tells_nothing(tmp_path):
    """Its mean is .4, and its standard deviation as large."""
    alice = runs("alice", [93.7, 94.2, 93.5], **PAPER)
    found, reason = verdict([*ADAM, *SGD, *alice], tmp_path)
    assert found == "cannot tell"
    assert "alice better than adam by 0.40 \u00b1" in reason


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
    assert "alice better than adam by 5.70 (1 seed)" in reason
    assert "two seeds" in reason


def test_without_kept_results_the_command_that_makes_them_is_named(tmp_path):
    found, reason = judged(METHODS, tmp_path)
    assert found == "cannot tell"
    assert "aliceopt run resnet18-methods --scale paper" in reason
    found, reason = verdict(ADAM, tmp_path)
    assert (found, "no run is kept of alice, sgd-m" in reason) == ("cannot tell", True)


def test_results_that_do_not_count_are_told_from_none(tmp_path):
    """Those of other settings, and of other methods."""
    add(runs("adahessian", [90.0, 90.1], **PAPER), tmp_path)
    found, reason = judged(METHODS, tmp_path)
    assert (found, "none of its methods, settings" in reason) == ("cannot tell", True)


def test_a_run_that_diverged_is_named_and_nothing_is_told(tmp_path):
    alice = runs("alice", [95.0, None, 95.0], **PAPER)
    found, reason = verdict([*ADAM, *SGD, *alice], tmp_path)
    assert found == "cannot tell"
    assert reason.endswith("diverged: alice seed 1")


def test_a_run_that_diverged_at_a_seed_of_its_own_voids_nothing(tmp_path):
    alice = runs("alice", [93.7, 93.81, 93.92], **PAPER)
    lost = kept_run("resnet18-methods", "adam", 7, None, **PAPER)
    assert verdict([*ADAM, lost, *SGD, *alice], tmp_path)[0] == "reproduced"


def test_two_results_of_one_seed_tell_nothing(tmp_path):
    """Of settings that do not matter, so that both are as filed: who would choose?"""
    alice = runs("alice", [93.7, 93.81, 93.92], **PAPER)
    config = replace(alice[0].config, training=replace(alice[0].config.training, evaluations=7))
    twice = replace(alice[0], id="", final=80.0, config=config)
    found, reason = verdict([*ADAM, *SGD, *alice, twice], tmp_path)
    assert (found, "several results of seed 0" in reason) == ("cannot tell", True)
    partly = replace(alice[0].config.training, validation_batches=1)
    other = replace(twice, id="", config=replace(config, training=partly))
    assert as_filed([*alice, other]) == alice


def test_results_that_agree_by_their_rounding_establish_nothing(tmp_path):
    """Two images more at both of two seeds, where one is the smallest step: no spread at all."""
    adam = runs("adam", [93.30, 93.41], **PAPER)
    alice = runs("alice", [93.32, 93.43], **PAPER)
    one = Training("resnet18-methods", METHODS.pairs[:1])
    assert verdict([*adam, *alice, *runs("sgd-m", [93.31], **PAPER)], tmp_path, one)[0] == (
        "cannot tell"
    )


def test_runs_on_other_devices_are_left_out_and_counted(tmp_path):
    """The place of most runs of the claim's own methods counts, not of others in the file."""
    alice = runs("alice", [93.7, 93.81, 93.92], **PAPER)
    others = runs("alice-none", [80.0] * 9, **PAPER, device="another GPU")
    lone = kept_run("resnet18-methods", "alice", 5, 80.0, **PAPER, device="another GPU")
    found, reason = verdict([*ADAM, *SGD, *alice, *others, lone], tmp_path)
    assert found == "reproduced"
    assert reason.endswith("left out: 1 run on another device or in another precision")


TRANSFORMER = Training("tt-methods", (("alice-abs", "adam"),))


def transformer(adam: list[float], alice: list[float], **more: Any) -> list[Kept]:
    name = "tt-methods"
    return [*runs("adam", adam, name, **more), *runs("alice-abs", alice, name, **more)]


def test_of_losses_and_perplexities_lower_is_better(tmp_path):
    lines = transformer([21.8, 21.9, 22.0], [20.8, 20.93, 20.96], **PAPER)
    found, reason = verdict(lines, tmp_path, TRANSFORMER)
    assert found == "reproduced"
    assert "alice-abs better than adam by 1.00" in reason


def test_a_stand_in_says_what_it_shows_and_leaves_the_claim_open(tmp_path):
    small = transformer([50.0, 50.1, 50.2], [49.0, 49.13, 49.16])
    found, reason = verdict(small, tmp_path, TRANSFORMER)
    assert found == "cannot tell"
    steps = "wikitext-2: lab scale, 8,000 instead of 200,000 steps, in tf32"
    assert reason.startswith(f"on a stand-in only ({steps}), reproduced there: alice-abs better")
    large = transformer([21.8, 21.9, 22.0], [22.8, 22.93, 22.96], **PAPER)
    assert verdict(large, tmp_path, TRANSFORMER)[0] == "not reproduced"


def test_a_smaller_network_is_named(tmp_path):
    """At the scale of a CPU it is another one than the paper's."""
    _, reason = verdict(
        transformer([50.0, 50.1], [49.0, 49.2], scale="small"), tmp_path, TRANSFORMER
    )
    assert "(wikitext-2: small scale, 2,000 instead of 200,000 steps, " in reason
    assert "another network (layers 2, width 64, " in reason


def test_runs_with_other_settings_than_filed_do_not_count(tmp_path):
    """Another rate behind a method's name, or in its options."""
    alice = runs("alice@3e-2", [95.0, 95.1, 95.2], **PAPER)
    options = {**alice[0].config.options, "quick_steps": 0}
    others = [
        replace(x, id="", method="alice", config=replace(x.config, method="alice", options=options))
        for x in alice
    ]
    found, reason = verdict([*ADAM, *SGD, *alice, *others], tmp_path)
    assert (found, "no run is kept of alice" in reason) == ("cannot tell", True)


Law = tuple[float, float]
"""The last block's exponent and the others'."""


def exponents(
    *radii: Law, width: float = 0.05, final: float | None = 90.0, method: str = "alice"
) -> list[Kept]:
    """A kept run that measured these, at one radius or several.

    In the second half three moments; an interval of three numbers p, p + d and p - d is 2.484 d
    wide on either side.
    """
    told = []
    for epoch, off in ((0.0, 1.0), (20.0, 1.0), (25.0, -1.0), (40.0, 0.0)):
        for i, (last, others) in enumerate(radii):
            values = dict.fromkeys(BLOCKS, others) | {BLOCKS[-1]: last}
            laws = {n: {"exponent": p + off * width / 2.484} for n, p in values.items()}
            laws = {key: {"exponent": 3.0} for key in BLOCKS} if epoch == 0 else laws
            told.append({"epoch": epoch, "radius": 0.002 / 10**i, "blocks": laws})
            told.append({**told[-1], "held_out": True, "blocks": {}})  # judged by nobody
    return [kept_run("resnet18-powerlaw", method, 0, final, **PAPER, curve={"exponents": told})]


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (exponents((2.0, 1.5)), "reproduced"),
        (exponents((2.0, 2.1)), "not reproduced"),
        (exponents((1.5, 1.5)), "not reproduced"),
        (exponents((2.0, 1.97)), "cannot tell"),
        (exponents((2.1, 1.5), width=0.15), "cannot tell"),
        (exponents((2.1, 1.5), (2.0, 1.9), width=0.15), "reproduced"),  # each half at one of them
        (exponents((2.0, 1.5), (2.0, 2.1)), "not reproduced"),
        (exponents((2.0, 1.5), (1.5, 1.5)), "not reproduced"),
    ],
)
def test_exponents_are_judged_by_their_intervals_over_moments(lines, wanted, tmp_path):
    """Each half of the claim is established at one radius, and contradicted at none."""
    found, reason = verdict(lines, tmp_path, Training("resnet18-powerlaw"))
    assert found == wanted
    assert "1 network in the second half of training; at radius 0.002: initial conv" in reason


def test_an_interval_over_moments_is_students():
    (line,) = exponents((2.0, 1.5), width=0.1)
    (network,) = _networks([line])
    law = network.late(BLOCKS[0])
    assert (law.exponent, law.low, law.high) == pytest.approx((1.5, 1.4, 1.6), abs=1e-4)
    assert late_cells(network) == ["1.50 ± 0.10"] * 5 + ["2.00 ± 0.10"]


def test_exponents_of_unfinished_runs_or_without_numbers_tell_nothing(tmp_path):
    law = Training("resnet18-powerlaw")
    unfinished = exponents((2.0, 1.5), final=None)
    assert verdict(unfinished, tmp_path / "a", law)[0] == "cannot tell"
    (line,) = exponents((2.0, 1.5))
    line.curve["exponents"][-2]["blocks"]["stage 2"]["exponent"] = None
    found, reason = verdict([line], tmp_path / "b", law)
    assert (found, "stage 2 1.50, stage 3 1.50 ± 0.05" in reason) == ("cannot tell", True)


def test_every_network_counts_but_a_twin_is_only_told(tmp_path):
    law = Training("resnet18-powerlaw")
    (one,), (other,) = exponents((2.0, 1.5)), exponents((2.0, 2.5))
    config = replace(other.config, seed=1)
    found, reason = verdict([one, replace(other, id="", seed=1, config=config)], tmp_path, law)
    assert (found, "2 networks" in reason) == ("cannot tell", True)
    twin = exponents((2.0, 2.0), method="alice-gelu")
    found, reason = verdict([one, *twin], tmp_path / "twin", law)
    assert (found, "gelu twin at 0.002: 2.00 to 2.00 in all blocks" in reason) == (
        "reproduced",
        True,
    )


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
