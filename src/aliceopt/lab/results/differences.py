"""A comparison in words: by how much, how sure, and what would tell more."""

from __future__ import annotations

from aliceopt.lab.results.comparisons import Comparison
from aliceopt.lab.results.summary import Summary
from aliceopt.lab.words import counted

__all__ = ["difference", "largest", "says_nothing"]


def difference(c: Comparison, summary: Summary) -> str:
    """The first compared to the second.

    One of: ``better by 0.4 points (95% interval 0.1 to 0.7)``; ``better by 0.4 points, which 3
    seeds cannot establish``; ``no difference larger than 0.5 points``; ``equal``; or that the
    seeds are too few. Losses are ``1.8 times lower`` instead, or ``12% lower``.
    """
    if c.gain == 0 and not c.high:
        return "equal"
    if c.verdict in ("better", "worse") and c.low is not None and c.high is not None:
        return c.scale.said_with(c.gain, c.low, c.high)
    seeds = counted(c.seeds, "seed")
    if c.verdict != "no difference seen":
        return f"{c.scale.said(c.gain)}, which {seeds} cannot establish"
    if says_nothing(c, summary):
        return f"{seeds} are too few to tell"
    return f"no difference larger than {largest([c])}"


def largest(comparisons: list[Comparison]) -> str:
    """The largest difference that the intervals leave possible."""
    reach = max(max(abs(c.low or 0.0), abs(c.high or 0.0)) for c in comparisons)
    return comparisons[0].scale.size(reach)


def says_nothing(c: Comparison, summary: Summary) -> bool:
    """Whether the interval reaches further than all results together."""
    lows = [s.low for s in summary.methods if s.low is not None]
    highs = [s.high for s in summary.methods if s.high is not None]
    if c.low is None or c.high is None:
        return False
    return (c.high - c.low) / 2 > abs(c.scale.gain(max(highs), min(lows))) > 0
