"""What runs came to: summaries, comparisons, the finding, and tables."""

from aliceopt.lab.results.comparisons import Comparison, compare
from aliceopt.lab.results.finding import Finding, find
from aliceopt.lab.results.summary import MethodSummary, Summary, summarize
from aliceopt.lab.results.table import experiment_table, print_summary, print_table

__all__ = [
    "Comparison",
    "Finding",
    "MethodSummary",
    "Summary",
    "compare",
    "experiment_table",
    "find",
    "print_summary",
    "print_table",
    "summarize",
]
