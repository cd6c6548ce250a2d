"""Kept results compared: rates by the tuning seed, differences by the others, and pages."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rich")

from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.cli.pages import fill
from aliceopt.lab.plans.plan import experiment_plan
from aliceopt.lab.plans.study import TUNING_SEED
from aliceopt.lab.records import RecordError
from aliceopt.lab.results.kept import Kept, add
from aliceopt.lab.results.kept_compare import as_filed, changes, compare
from experiment_records import kept_run

T2 = 4.302653  # Student's t, 97.5%, two degrees of freedom


def runs(method: str, finals: dict[int, float | None], **more: Any) -> list[Kept]:
    """Kept runs of the experiment as filed, with these ends by seed."""
    return [kept_run("pays-gpt", method, seed, final, **more) for seed, final in finals.items()]


ADAMW = [
    *runs("adamw@1e-3", {TUNING_SEED: 1.5}),
    *runs("adamw@2e-3", {TUNING_SEED: 1.4, 0: 1.40, 1: 1.42, 2: 1.44}),
    *runs("adamw@4e-3", {TUNING_SEED: 1.45}),
]
AHEAD = [
    *runs("ahead-1_5@2e-3", {TUNING_SEED: 1.3, 0: 1.35, 1: 1.38, 2: 1.38}),
    *runs("ahead-1_5@4e-3", {TUNING_SEED: 1.4, 0: 1.0}),
]


def test_a_method_is_called_as_its_experiment_calls_it_today():
    """Kept lines keep the label of their day; one that is filed no more goes by it."""
    (line,) = runs("ahead-1_5@4e-3", {0: 1.0})
    old = replace(line, label="ahead 1.5, lr 4e-3")
    assert (old.label, old.called) == ("ahead 1.5, lr 4e-3", "Alice (as it comes), lr 4e-3")
    assert [row.label for row in compare([*ADAMW, old])] == ["Alice (as it comes)", "AdamW"]
    gone = replace(old, id="", method="ahead-7", label="ahead 7")
    assert gone.called == "ahead 7"


def test_rates_are_chosen_at_the_tuning_seed_and_differences_taken_over_the_others():
    """A lucky run at another rate (1.0) changes nothing; the others' deviation is .01."""
    ahead, adamw = compare([*ADAMW, *AHEAD])
    assert (ahead.method, ahead.rate, ahead.at_edge) == ("ahead-1_5", 2e-3, True)
    assert (adamw.method, adamw.rate, adamw.at_edge) == ("adamw", 2e-3, False)
    assert ahead.paired is not None
    assert ahead.paired.differences == pytest.approx((-0.05, -0.04, -0.06))
    half = T2 * 0.01 / math.sqrt(3)
    assert ahead.cells()[:5] == (
        "Alice (as it comes)",
        "0.002 (edge)",
        "3",
        "1.370",
        f"\u22120.050 \u00b1 {half:.3f}",
    )
    assert adamw.paired is None


def test_a_method_with_the_tuning_seed_alone_says_so_and_has_no_difference():
    rows = {row.method: row for row in compare([*ADAMW, *runs("muon@4e-3", {TUNING_SEED: 1.2})])}
    assert rows["muon"].tuning_only
    assert rows["muon"].cells()[2:5] == ("1 (tuning)", "1.200", "\u2013")


def test_a_method_that_was_not_tuned_is_taken_at_the_rate_of_the_one_compared_with():
    """Not at its best: that would be chosen at the seeds that it is judged by."""
    net = [*runs("ahead-2@2e-3", {0: 1.5, 1: 1.5}), *runs("ahead-2@4e-3", {0: 1.0, 1: 1.0})]
    rows = {row.method: row for row in compare([*ADAMW, *net])}
    assert rows["ahead-2"].rate == 2e-3


def test_a_run_that_diverged_is_counted_and_not_averaged():
    lost = runs("ahead-2@2e-3", {TUNING_SEED: 1.5, 0: 1.5, 1: None, 2: 1.6})
    rows = {row.method: row for row in compare([*ADAMW, *lost])}
    assert rows["ahead-2"].cells()[2:5] == ("2 of 3", "1.550", "\u2013")


def test_what_cannot_be_compared_is_told():
    with pytest.raises(RecordError, match="no kept run of method 'lion'; there is adamw"):
        compare(ADAMW, "lion")
    with pytest.raises(RecordError, match="one experiment, scale, device and precision"):
        compare([*ADAMW, *runs("adamw@2e-3", {0: 1.0}, device="a CPU")])


def test_runs_with_other_settings_are_named_by_them_and_left_out():
    """Once nothing was clipped; a model of another width; a method that is gone."""
    (filed,) = runs("adamw@2e-3", {0: 1.4})
    assert changes(filed) == []
    config = filed.config
    bare = {k: v for k, v in config.options.items() if k != "max_grad_norm"}
    unclipped = replace(filed, config=replace(config, options=bare), id="")
    assert changes(unclipped) == ["no max_grad_norm"]
    for other, said in (
        (replace(config, problem=replace(config.problem, batch_size=7)), "batch_size 7"),
        (replace(config, training=replace(config.training, steps=7)), "steps 7"),
    ):
        assert changes(replace(filed, config=other, id="")) == [said]
    assert changes(replace(filed, method="lion@1e-3", id="")) == ["no longer filed"]
    assert as_filed([filed, unclipped]) == [filed]


def test_a_page_is_filled_and_filling_it_again_changes_nothing(tmp_path: Path):
    add([*ADAMW, *AHEAD], tmp_path)
    page = (
        "It gained <!-- results: gain pays-gpt ahead-1_5 -->?<!-- end --> nats,\n"
        "<!-- results: difference pays-gpt ahead-1_5 -->\n<!-- end -->, in all "
        "<!-- results: runs pays-gpt --><!-- end -->, to "
        "<!-- results: final pays-gpt adamw --><!-- end --> in "
        "<!-- results: seconds pays-gpt adamw --><!-- end -->, and at twice the rate to "
        "<!-- results: mean pays-gpt ahead-1_5@4e-3 --><!-- end -->.\n\n"
        "<!-- results: compare pays-gpt/lab adamw -->old<!-- end -->\n<!-- end -->"
    )
    filled = fill(page, tmp_path)
    assert (
        "gained <!-- results: gain pays-gpt ahead-1_5 -->0.050 \u00b1 0.025<!-- end --> nats"
        in filled
    )
    assert ">\u22120.050 \u00b1 0.025<" in filled
    assert "-->12<!-- end -->, to" in filled
    assert "-->1.420<!-- end -->" in filled
    assert "@4e-3 -->1.200<!-- end -->" in filled  # of 1.4 and 1.0
    assert "| method | lr | seeds | final | difference | gradients | seconds |\n| --- |" in filled
    assert "| AdamW | 0.002 | 3 | 1.420 | \u2013 |" in filled
    assert "old" not in filled
    assert fill(filled, tmp_path) == filled
    assert fill("nothing <!-- of ours -->", tmp_path) == "nothing <!-- of ours -->"


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("nonsense pays-gpt", "nonsense pays-gpt -->: one of compare"),
        ("runs", "the name of an experiment"),
        ("gain pays-gpt lion", "no kept run of method 'lion'"),
        ("gain pays-gpt adamw", "'adamw' of 'pays-gpt' gains nothing over 'adamw'"),
        ("gain pays-gpt ahead-3", "gains nothing"),
        ("mean pays-gpt adamw", "no kept run of 'adamw' of 'pays-gpt', or one that diverged"),
        ("difference pays-gpt", "missing a required argument: 'method'"),
        ("runs nosuch", "no results of 'nosuch'"),
        ("runs pays-gpt/long", "no results of 'pays-gpt/long'"),
        ("compare pays-vit", "no results of 'pays-vit' at scale lab"),
    ],
)
def test_a_place_that_cannot_be_filled_is_told_and_no_page_is_touched(tmp_path, place, told):
    add([*ADAMW, *runs("ahead-3@2e-3", {TUNING_SEED: 1.5, 0: 1.5, 1: 1.6})], tmp_path)
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text("<!-- results: runs pays-gpt -->?<!-- end -->")
    bad.write_text(f"<!-- results: {place} -->?<!-- end -->")
    asked = ["results", "fill", str(good), str(bad), "--from", str(tmp_path)]
    result = CliRunner().invoke(build(), asked)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())
    assert "-->?<!--" in good.read_text()


def test_a_place_without_an_end_is_told_and_nothing_is_swallowed(tmp_path: Path):
    """Otherwise the text up to the end of the next place would be replaced."""
    add(ADAMW, tmp_path)
    whole = "<!-- results: runs pays-gpt -->?<!-- end -->"
    for text in (f"<!-- results: runs pays-gpt -->? words {whole}", f"{whole} {whole[:-12]}"):
        with pytest.raises(RecordError, match="runs pays-gpt --> has no <!-- end -->"):
            fill(text, tmp_path)


def test_the_commands_print_and_write(tmp_path: Path):
    add([*ADAMW, *AHEAD], tmp_path)
    result = CliRunner().invoke(
        build(), ["results", "compare", "pays-gpt", "--from", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert "\u22120.050 \u00b1 0.025" in result.output
    page = tmp_path / "page.md"
    page.write_text("<!-- results: runs pays-gpt -->?<!-- end -->")
    for said in ("written", "as it was"):
        result = CliRunner().invoke(
            build(), ["results", "fill", str(page), "--from", str(tmp_path)]
        )
        assert said in result.output
    assert page.read_text() == "<!-- results: runs pays-gpt -->12<!-- end -->"


def test_the_filed_settings_are_those_of_the_plan():
    """The oracle of `changes`: a plan's own runs differ in nothing."""
    for run in experiment_plan("pays-resnet18", methods=["muon", "ahead-2@8e-3"], check=False).runs:
        line = kept_run("pays-resnet18", run.method, run.seed, 90.0)
        assert changes(line) == []
