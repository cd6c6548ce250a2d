"""The report of a study or an experiment: one HTML file that explains itself."""

from aliceopt.lab.report.page import write_report

__all__ = ["write_report"]
