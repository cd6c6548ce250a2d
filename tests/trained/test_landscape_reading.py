"""A landscape in sentences: every number is the measured one, every verdict has its meaning."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from aliceopt.landscape import Estimate
from aliceopt.trained.landscape.presets import PRESETS
from aliceopt.trained.landscape.reading import EXPONENT, reading, reading_along

RADII = (0.0025, 0.005, 0.01)


def estimate(value: float, half: float = 0.05) -> Estimate:
    return Estimate(value, value - half, value + half, half / 4, half / 4)


def rungs(verdict: str, p: float, half: float = 0.05, share: float = 0.0, start: int = 0) -> Any:
    """Numbers of another radius are far off, so that none of them can be taken by mistake."""
    exponents = [estimate(9.0)] * 2
    exponents[start] = estimate(p, half)
    shares = [estimate(7.0)] * 3
    shares[start] = estimate(share)
    return SimpleNamespace(verdict=verdict, exponents=exponents, glass_share=shares, start=start)


def view(network: str, part: str, **blocks: Any) -> Any:
    ladder = SimpleNamespace(
        radii=RADII, directions=2, blocks={k.replace("_", " "): v for k, v in blocks.items()}
    )
    return SimpleNamespace(network=network, part=part, batch_size=1000, ladder=ladder)


TRAINED = view(
    "as trained",
    "held-out",
    first=rungs("glass", 1.25, share=0.746),
    second=rungs("glass", 1.4, share=1.07, start=1),
    third=rungs("undecided", 1.8, 0.4),
    last=rungs("smooth", 2.0, 0.02),
    unused=rungs("nothing", math.nan),
)


def test_what_was_found_stands_by_verdict_with_its_numbers() -> None:
    """Glass first, with the share of jumps, at most all of it; then smooth, undecided, nothing."""
    *_, said = reading([TRAINED])
    assert said == (
        "The network as trained, on held-out batches of 1,000: in first and second there is glass: "
        "p is 1.25 (1.20 to 1.30) and 1.40 (1.35 to 1.45), and where every weight moves by 0.0025, "
        "75 to 100% of the gradient's change is jumps. In last the gradient changes smoothly: p is "
        "2.00 (1.98 to 2.02). In third it cannot be told: p is 1.80 (1.40 to 2.20). In unused the "
        "gradient did not change, or was not finite."
    )


def test_of_many_blocks_the_range_is_said() -> None:
    blocks = {f"layer_{i}": rungs("smooth", 1.95 + i / 50) for i in range(5)}
    *_, said = reading([view("as trained", "training", **blocks)])
    assert said.endswith("layer 3 and layer 4 the gradient changes smoothly: p is 1.95 to 2.03.")


@pytest.mark.parametrize(
    ("views", "begins", "ends"),
    [
        (
            [TRAINED],
            "There is glass in first and second: where every weight moves by 0.0025 to 0.005, the ",
            "whether that pays in training, `aliceopt study` tells.",
        ),
        (
            [
                view("as trained", "training", a=rungs("smooth", 2.0), b=rungs("undecided", 1.9)),
                view("as trained", "held-out", a=rungs("smooth", 2.0), b=rungs("glass", 1.2)),
            ],
            "There is glass in b (on held-out batches): where every weight moves by 0.0025, ",
            "tells.",
        ),
        (
            [view("as trained", "training", a=rungs("smooth", 2.0), b=rungs("undecided", 1.9))],
            "No glass is established, and in b none is excluded: these radii, directions and ",
            "more of each. Exponents above 2 ask for a smaller `--radius`.",
        ),
        (
            [view("as trained", "training", a=rungs("smooth", 2.0), b=rungs("nothing", math.nan))],
            "The network is smooth in a: where every weight moves by 0.0025, its gradient ",
            "and Alice's `glass=True` would find nothing to measure.",
        ),
        (
            [view("as trained", "training", a=rungs("smooth", 2.0), b=rungs("smooth", 1.9))],
            "The network is smooth in every block: where every weight moves by 0.0025, its ",
            "measure.",
        ),
        (
            [view("as trained", "training", a=rungs("nothing", math.nan))],
            "Nothing can be said: ",
            "or was not finite.",
        ),
    ],
)
def test_it_begins_with_what_that_means(views: list[Any], begins: str, ends: str) -> None:
    """Of the network as trained, whatever twins are; then how to read the rest."""
    twin = view("gelu twin", views[0].part, **views[0].ladder.blocks)
    first, second, *_ = reading([*views, twin])
    assert first.startswith(begins)
    assert first.endswith(ends)
    assert second == EXPONENT


def test_of_many_directions_larger_batches_are_what_is_left() -> None:
    """The thorough preset is not recommended to whom it has just failed."""
    seen = view("as trained", "training", b=rungs("undecided", 1.9))
    seen.ladder.directions = PRESETS["thorough"].directions
    assert "cannot tell; a larger `--batch-size` meets more kinks." in reading([seen])[0]


def test_a_twin_is_compared_block_by_block_at_the_larger_of_both_starts() -> None:
    """Only where intervals are apart; trained twins have other weights, too."""
    mine = view("as trained", "training", a=rungs("glass", 1.2), b=rungs("smooth", 2.0))
    there = {"a": rungs("smooth", 2.01), "b": rungs("smooth", 1.97)}
    *_, said = reading([mine, view("gelu twin", "training", **there)])
    assert said == (
        "On training batches its gelu twin has other exponents than the network as trained, by "
        "more than their intervals, in 1 of 2 blocks: a, where p is 2.01 (1.96 to 2.06) instead of "
        "1.20 (1.15 to 1.25). What differs comes from the activation alone, as all weights are the "
        "same."
    )
    *_, said = reading([mine, view("gelu twin, trained", "training", **there)])
    assert said.endswith("the activation, or from the weights that training with it found.")
    later = {"a": rungs("smooth", 9.02, start=1), "b": rungs("smooth", 1.97)}  # a's other rung is 9
    *_, said = reading([mine, view("gelu twin", "training", **later)])
    assert said == (
        "On training batches its gelu twin has the exponents of the network as trained in all of 2 "
        "blocks, within their intervals: nothing is shown to come from the activation."
    )


def test_along_the_training_what_fell_and_what_rose_is_told() -> None:
    """From the first line of a kind of batches to its last, block by block."""

    def line(step: int, part: str, **exponents: float) -> dict[str, Any]:
        blocks = {
            name: {"start": 0, "exponents": [vars(estimate(p))]} for name, p in exponents.items()
        }
        return {"step": step, "part": part, "blocks": blocks}

    lines = [
        line(0, "training", a=1.9, b=1.5, c=2.0),
        line(8, "training", a=1.0, b=1.0, c=1.0),
        line(1600, "training", a=1.3, b=1.7, c=2.04),
    ]
    (said,) = reading_along(lines)
    assert said == (
        "While the network trained, on training batches, p went in a from 1.90 (1.85 to 1.95) to "
        "1.30 (1.25 to 1.35), in b from 1.50 (1.45 to 1.55) to 1.70 (1.65 to 1.75) and in c from "
        "2.00 (1.95 to 2.05) to 2.04 (1.99 to 2.09) between the start and step 1,600. By more than "
        "its intervals it fell, towards glass, in a and rose in b."
    )
    (beyond,) = reading_along([line(0, "training", a=1.1, b=1.9), line(8, "training", a=0.4, b=1)])
    assert beyond.endswith("it fell, towards glass, in b and fell below what glass has in a.")
    (still,) = reading_along([line(0, "held-out", a=1.9), line(9, "held-out", a=1.91)])
    assert still.endswith("In no block did it change by more than its intervals.")
    assert reading_along([]) == []


def test_without_intervals_nothing_is_said_to_be_the_same() -> None:
    """One batch and one direction have none."""
    mine = view("as trained", "training", a=rungs("glass", 1.1, math.nan))
    other = view("gelu twin", "training", a=rungs("smooth", 2.0, math.nan))
    *_, said = reading([mine, other])
    assert "cannot be compared with the network as trained in 1 of 1 block" in said
