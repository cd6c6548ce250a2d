"""What is said of pruned networks: the criterion to use, and whether its lead is real."""

import io
import math

import pytest

pytest.importorskip("rich")

from rich.console import Console

from aliceopt.trained.compress.rows import PREDICTED, LayerIncrease, Result
from aliceopt.trained.compress.table import (
    calibration_rows,
    compression_rows,
    decision,
    difference_rows,
    groups_of,
    lead,
    print_tables,
)


def test_a_lead_is_established_only_if_seeds_agree():
    """Differences of .10, .12, .14 do; of -.2, .0, .5 do not."""

    def results(**losses: list[float]) -> list[Result]:
        return [
            Result(name, 0.5, seed, loss, 0.0)
            for name, values in losses.items()
            for seed, loss in enumerate(values)
        ]

    losses = {"curvature": [1.0, 1.0, 1.0], "point": [1.01, 1.01, 1.01]}
    (said,) = decision(results(**losses, fisher=[1.10, 1.12, 1.14]))
    assert said.startswith(
        "50%: h over a radius: h w\u00b2, loss 1.000; best that does not measure curvature: "
        "Fisher: F w\u00b2, 1.120"
    )
    assert said.endswith("(difference 0.120 \u00b1 0.050, established)")
    (said,) = decision(results(curvature=[1.0, 1.0, 1.0], fisher=[0.8, 1.0, 1.5]))
    assert said.endswith("not established)")
    (said,) = decision(results(**losses, fisher=[0.9, 0.9, 0.9]))
    assert "; best that measures curvature: h over a radius: h w\u00b2, 1.000 (" in said


def test_a_lead_says_if_the_contrary_is_established():
    losses = {"curvature": [1.0, 1.1, 1.2], "point": [1.2, 1.31, 1.4], "fisher": [1.0, 1.3, 1.0]}
    results = [
        Result(name, 0.5, seed, loss, 0.0)
        for name, values in losses.items()
        for seed, loss in enumerate(values)
    ]
    assert lead(results, "curvature", "point", 0.5).endswith(", established")
    assert lead(results, "point", "curvature", 0.5).endswith(", the contrary established")
    assert lead(results, "curvature", "fisher", 0.5).endswith(", not established")
    assert lead(results, "fisher", "curvature", 0.5).endswith(", not established")
    lost = [*results[1:], Result("curvature", 0.5, 0, math.nan, 0.0)]
    assert lead(lost, "curvature", "point", 0.5).startswith("a loss is not finite")
    assert difference_rows(lost, [("curvature", "point")])[1][1] == "\u2013"
    none = [r for r in lost if r.criterion != "point"]
    assert decision(none)[0].endswith("(a loss is not finite: no difference is established)")


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_loses_no_name_and_no_digit(width):
    names = ("magnitude-refit", "curvature", "free")
    results = [
        Result(n, s, 0, 0.5 + s, 90.0, 300, 1.0) for n in names for s in (0.5, 0.7, 0.8, 0.9)
    ]
    rows = compression_rows(results, "accuracy")
    console = Console(width=width, record=True, file=io.StringIO())
    print_tables([("losses", rows, [])], console)
    said = console.export_text()
    for cell in (cell for row in rows for cell in row):
        assert all(word in said for word in cell.split() if word != "gradients"), cell
    assert max(map(len, said.splitlines())) <= width


def test_a_metric_that_is_no_percentage_has_the_digits_of_a_loss():
    """An absolute error of .5651 is not .6; percentages keep their one decimal."""
    told = [Result("magnitude", 0.5, 0, 0.49512, 0.5651), Result("none", 0.0, 0, 0.4, 0.4449)]

    def cells(metric: str) -> list[str]:
        return [row[1] for row in compression_rows(told, metric)[1:]]

    assert cells("absolute_error") == ["0.400 / 0.445", "0.495 / 0.565"]
    assert cells("accuracy") == ["0.400 / 0.4", "0.495 / 0.6"]
    assert cells("loss") == ["0.400", "0.495"]


def test_seconds_are_averaged_over_results_that_have_any():
    """Two of three were timed, of another criterion none was."""
    timed = [
        Result("curvature", 0.5, seed, 1.0, 0.0, 300, s) for seed, s in enumerate([2, 4, None])
    ]
    untimed = [Result("magnitude", 0.5, 0, 1.0, 0.0, 0, None)]
    seconds = {row[0]: row[-2] for row in compression_rows([*timed, *untimed], "loss")}
    assert seconds["h over a radius: h w\u00b2"] == "3.0 s"
    assert seconds["magnitude"] == "\u2013"
    (head, *_), others = compression_rows(untimed, "loss"), compression_rows(timed, "loss")
    assert head == ["criterion", "\u221250%", "gradients", "seeds"]  # no column of dashes
    assert others[0] == ["criterion", "\u221250%", "gradients", "seconds", "seeds"]
    assert all(len(row) == 4 for row in compression_rows(untimed, "loss"))


def test_a_table_tells_the_loss_of_the_whole_networks_that_it_has_pruned() -> None:
    """Of three that were trained, two were pruned in rounds: their mean is 1.5, that of all 3."""
    told = [Result("none", 0.0, seed, loss, 0.0) for seed, loss in enumerate((1.0, 2.0, 6.0))]
    told += [Result("magnitude", 0.5, seed, 9.0, 0.0) for seed in range(3)]
    told += [Result("magnitude", 0.5, seed, 9.0, 0.0, rounds=3) for seed in range(2)]
    groups = {group.rounds: results for group, results in groups_of(told).items()}
    whole = {rounds: compression_rows(mine, "loss")[1] for rounds, mine in groups.items()}
    assert whole[1][:2] == ["none removed", "3.000"]
    assert whole[3][:2] == ["none removed", "1.500"]


def test_means_over_other_seeds_are_told_apart() -> None:
    """Which seeds stand in the table where rows differ, and a sentence says so."""

    def results(name: str, *seeds: int) -> list[Result]:
        return [Result(name, 0.5, seed, 1.0 + seed, 0.0) for seed in seeds]

    told = [*results("curvature", 0, 1, 2, 5), *results("fisher", 3, 4)]
    assert [row[-1] for row in compression_rows(told, "loss")[2:]] == ["2: 3 to 4", "4: 0 to 2, 5"]
    *said, note = decision(told)
    assert said[0].endswith("(no seed in common: no difference is established)")
    assert note.startswith("Not all criteria have the same seeds")
    told = [*results("curvature", 3, 4), *results("fisher", 3, 4)]
    assert [row[-1] for row in compression_rows(told, "loss")[2:]] == ["2", "2"]
    assert len(decision(told)) == 1
    more = [Result("fisher", share, 5, 1.0, 0.0) for share in (0.7, 0.8)]
    assert [row[-1] for row in compression_rows([*told, *more], "loss")[2:]] == [
        "3 to 4 (50%); 5 (70%, 80%)",
        "2: 3 to 4",
    ]


def test_predictions_are_worth_their_order_and_their_size() -> None:
    """Spearman's coefficient over layers, and the median ratio where the loss rose at all."""

    def layers(measured: list[float]) -> list[LayerIncrease]:
        return [
            LayerIncrease(f"layer{i}", rise, dict.fromkeys(PREDICTED, i + 1.0))
            for i, rise in enumerate(measured)
        ]

    one = layers([10.0, 30.0, 20.0])
    assert [row[:2] for row in calibration_rows({0: one})[1:]] == [
        ["rank correlation", "0.50"],
        ["median of predicted / measured", "0.1"],
    ]
    both = {0: one, 1: layers([1.0, 2.0, 6.0])}
    assert [row[:2] for row in calibration_rows(both)[1:]] == [
        ["rank correlation, 2 networks", "0.75 (0.50 to 1.00)"],
        ["median of predicted / measured, 2 networks", "0.55 (0.1 to 1)"],
    ]
    assert calibration_rows({0: one[:2]})[1][1] == "nan"  # two layers have no order to speak of
    assert calibration_rows({0: layers([-3.0, -1.0, -2.0])})[2][1] == "nan"
