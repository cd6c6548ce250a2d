"""The report of a study or an experiment: one HTML file, and what every page of ours is made of."""

from aliceopt.lab.report.study import write_report

__all__ = ["write_report"]
