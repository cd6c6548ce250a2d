"""Reports: one HTML file each, of a study or experiment, a compression, a landscape."""

from aliceopt.lab.report.study import write_report

__all__ = ["write_report"]
