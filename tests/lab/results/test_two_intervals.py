"""Two methods that are compared in two families have two intervals: it is said where they stand."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

from aliceopt.lab.plans.study import study_plan
from aliceopt.lab.report import write_report
from aliceopt.lab.results.comparisons import Comparison, asked_twice
from aliceopt.lab.results.finding import find
from aliceopt.lab.spec import Plan
from study_cases import grid_plan, in_memory, invented_results, write_folder

NAMES = ["alice", "alice-plain", "alice-curvature", "adamw"]
ASIDE = (
    " Curvature is also among the comparisons with the best of 4 methods, where the interval is "
    "another."
)


def own_plan(*names: str) -> Plan:
    return study_plan(terms=[], baselines=list(names), seeds=4, tune=1).final


def invented(plan: Plan) -> dict[tuple[str, int], float]:
    """Curvature best by a little, then look-ahead alone."""
    gains = {"alice": -0.5, "alice-curvature": -0.6}
    return invented_results(plan, gains, base=2.0, noise=0.02)


def width(c: Comparison) -> float:
    low, high = c.ends
    return high - low


def test_the_finding_says_which_of_its_intervals_is_another_with_the_best() -> None:
    """Of the part whose pair is also one with the best, and of no other."""
    plan = own_plan(*NAMES)
    finding = find(plan, in_memory(plan, invented(plan)))
    (best,) = asked_twice(finding.comparisons)
    own = next(c for c in finding.comparisons if c.question == "curvature")
    assert {best.first, best.second} == {own.first, own.second} == {"alice", "alice-curvature"}
    assert width(best) > width(own) > 0
    assert finding.worth.startswith("Look-ahead: ")
    assert finding.worth.endswith(ASIDE)


def test_of_two_methods_one_interval_is_enough() -> None:
    """The best of two allows for no more than the question does."""
    plan = own_plan("alice", "adamw")
    finding = find(plan, in_memory(plan, invented(plan)))
    assert [c.question for c in finding.comparisons] == ["ahead", "best"]
    assert asked_twice(finding.comparisons) == []
    assert "another" not in finding.worth


def test_the_report_says_it_below_the_forest_and_in_the_table(tmp_path: Path) -> None:
    """By the method's name; in the table by what every interval was corrected with."""
    plan = own_plan(*NAMES)
    write_folder(tmp_path, plan, invented(plan))
    page = html.unescape(write_report(tmp_path).read_text(encoding="utf-8"))
    assert (
        "These intervals allow for the best having been picked from 4 methods; for its own sake, "
        "Alice (as it comes) has another." in page
    )
    name = r"Alice, with curvature to Alice \(as it comes\)</th>"
    cells = [
        re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(f"{name}(.*)</tr>", page)
    ]
    assert [row[4] for row in cells] == ["2 of Alice's parts", "3 with the best"]
    own, best = ([float(end) for end in row[2].split(" to ")] for row in cells)
    assert best[1] - best[0] > own[1] - own[0]


def test_a_term_that_is_compared_with_the_best_is_told_too() -> None:
    """Where the best method is a term's own none: in the evidence, behind the term's interval."""
    plan = grid_plan(4, terms=("none", "glass"), baselines=("adam",))
    results = invented_results(plan, {"alice-none-naq": 3.0}, noise=0.05)
    finding = find(plan, in_memory(plan, results))
    assert finding.evidence["twice"] == [
        "glass with NAQ steps is also among the comparisons with the best of 5 methods, where the "
        "interval is another."
    ]


def test_a_report_without_such_a_pair_says_nothing(tmp_path: Path) -> None:
    """A grid whose best is a baseline: no term is compared with it."""
    plan = grid_plan(3, terms=("none", "glass"), baselines=("adam", "muon"))
    plan = replace(plan, title="a grid")
    write_folder(tmp_path, plan, invented_results(plan, {"muon": 2.0}))
    assert "for its own sake" not in write_report(tmp_path).read_text(encoding="utf-8")
