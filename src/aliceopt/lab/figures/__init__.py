"""Illustrations of the paper, computed from real kinks and real gradients rather than sketched."""

from aliceopt.lab.figures.glass import draw_glass
from aliceopt.lab.figures.relu import draw_relu
from aliceopt.lab.figures.theorem1 import draw_theorem1

__all__ = ["draw_glass", "draw_relu", "draw_theorem1"]
