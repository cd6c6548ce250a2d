"""Train, compare, and learn which curvature matters."""

from aliceopt.lab.problem import Problem

__all__ = ["Problem"]
