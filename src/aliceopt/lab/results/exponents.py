"""Exponents of gradient variations, as runs measured them: by network, place, moment and block.

At one moment, of a network trained several times, exponents are medians over seeds, with the
extremes of their 95% intervals over directions. Seeds are those that finished; if none did, the
last moment is the last one that all of them reached. A trained network's exponents are means over
the second half of training, whose moments differ in weights, examples and directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from aliceopt.lab.records import RunRecord
from aliceopt.lab.results import numbers
from aliceopt.lab.results.summary import outcome
from aliceopt.lab.spec import Place, Plan
from aliceopt.landscape.spread import student

__all__ = ["Law", "Series", "by_place", "late_cells", "series_of"]

Event = Mapping[str, Any]
NEAR = 0.2
"""An exponent this close to 2 is near 2."""


@dataclass(frozen=True)
class Law:
    """A block's exponent at one moment; None where it could not be told."""

    epoch: float
    exponent: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.exponent is None:
            return numbers.NONE
        if self.low is None or self.high is None:
            return f"{self.exponent:.2f}"
        return f"{self.exponent:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Series:
    """What the runs of one method measured at one place; ``runs`` has the moments of each."""

    method: str
    label: str
    place: Place
    runs: Sequence[Sequence[Event]]

    @property
    def blocks(self) -> list[str]:
        """Their names, from the network's beginning to its end."""
        return list(self.runs[0][0]["blocks"])

    def law(self, block: str, moment: int = -1) -> Law:
        """Of a block at a moment that all runs have reached; the last of these unless told."""
        common = min(map(len, self.runs)) - 1
        events = [run[common if moment == -1 else moment] for run in self.runs]
        laws = [event["blocks"][block] for event in events if block in event["blocks"]]

        def told(key: str) -> list[float]:
            return [law[key] for law in laws if law.get(key) is not None]

        return Law(
            epoch=median(event["epoch"] for event in events),
            exponent=median(told("exponent")) if told("exponent") else None,
            low=min(told("low"), default=None),
            high=max(told("high"), default=None),
        )

    def late(self, block: str) -> Law:
        """Of a block in the second half of training: the mean of all moments and its interval."""
        end = max(run[-1]["epoch"] for run in self.runs)
        events = [event for run in self.runs for event in run if event["epoch"] >= end / 2]
        laws = [event["blocks"].get(block, {}).get("exponent") for event in events]
        told = [p for p in laws if p is not None]
        if len(told) < 2 or len(told) < len(laws):
            return Law(end, fmean(told) if told else None, None, None)
        half = float(student(len(told) - 1)) * stdev(told) / len(told) ** 0.5
        return Law(end, fmean(told), fmean(told) - half, fmean(told) + half)

    def rows(self) -> list[dict[str, Any]]:
        """One a block: its exponent first and last, beside what the paper expects of it.

        It expects the last block near 2 and the others below. ``as_expected`` judges the last
        measurement: within 0.2 of 2, or an interval that ends below 2.
        """
        rows = []
        for block in self.blocks:
            final, last = block == self.blocks[-1], self.law(block)
            p, most = last.exponent, last.exponent if last.high is None else last.high
            seen = None
            if p is not None and most is not None:
                seen = abs(p - 2) <= NEAR if final else most < 2
            rows.append(
                {
                    "block": block,
                    "first": vars(self.law(block, 0)),
                    "last": vars(last),
                    "expected": "near 2" if final else "below 2",
                    "as_expected": seen,
                    "seeds": len(self.runs),
                }
            )
        return rows


def by_place(events: Sequence[Event]) -> dict[Place, list[Event]]:
    """What one run measured, by where; the paper's place comes first."""
    found: dict[Place, list[Event]] = {}
    for event in events:
        where = event["radius"], event.get("batch_size"), event.get("held_out", False)
        found.setdefault(Place(*where), []).append(event)
    return found


def series_of(plan: Plan, runs: Sequence[RunRecord]) -> list[Series]:
    """Of every method, in the plan's order, and every place; none where nothing was measured."""
    series = []
    for key, method in plan.methods.items():
        measured = [run for run in runs if run.method == key and run.power_law]
        finished = [run for run in measured if outcome(run) == "finished"] or measured
        places = [by_place(run.power_law) for run in finished]
        for place in places[0] if places else ():
            mine = [found[place] for found in places if place in found]
            series.append(Series(key, method.label, place, mine))
    return series


def late_cells(series: Series) -> list[str]:
    """The exponents of a trained network in words, a block each, like ``1.26 ± 0.07``."""
    laws = [series.late(block) for block in series.blocks]
    return [
        str(law)
        if law.exponent is None or law.high is None
        else f"{law.exponent:.2f} ± {law.high - law.exponent:.2f}"
        for law in laws
    ]
