"""What the finding says of coordinates where the rate, not curvature, bounds the step."""

import pytest

from aliceopt.lab.results.finding import find
from study_cases import grid_plan, in_memory, invented_results


@pytest.mark.parametrize(("share", "hardly"), [(0.5, False), (0.97, True)])
def test_it_says_how_often_the_bound_decided_instead_of_curvature(share, hardly) -> None:
    """Means over training of each combination; where all are above nine tenths, what to do."""
    plan = grid_plan(2)
    runs = in_memory(plan, invented_results(plan))
    for run in runs:
        own = 1.0 if run.method == "alice-glass-naq" else share
        run.telemetry = [
            {"groups": [{"at_upper": own, "step_norm": 1.0}]},
            {"groups": [{"at_upper": 1.0, "step_norm": 0.0}]},  # the end of a schedule
        ]
    said, *rest = find(plan, runs).evidence["bound"]
    assert f"bounds the step: {share:.0%} (" in said
    assert said.endswith("to 100% (glass with NAQ steps).")
    assert bool(rest) == hardly
    assert all("could hardly act" in line for line in rest)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (("none", "abs"), "bounds the step: 85% (abs with NAQ steps)."),
        (("none", "abs", "glass"), "bounds the step: 85%."),
    ],
)
def test_one_share_of_bounds_is_said_once(terms, said) -> None:
    """Not "from 85% (abs) to 85% (abs)"."""
    plan = grid_plan(2, terms=terms)
    runs = in_memory(plan, invented_results(plan))
    for run in runs:
        if run.method.endswith("naq"):
            run.telemetry = [{"groups": [{"at_upper": 0.85, "step_norm": 1.0}]}]
    (line,) = find(plan, runs).evidence["bound"]
    assert line.endswith(said)


def test_without_telemetry_nothing_is_said_of_bounds() -> None:
    plan = grid_plan(2)
    assert "bound" not in find(plan, in_memory(plan, invented_results(plan))).evidence
