"""Figures of the paper: illustrations from real kinks and gradients, experiments from records."""

from aliceopt.lab.figures.experiment import draw_experiment
from aliceopt.lab.figures.glass import draw_glass
from aliceopt.lab.figures.relu import draw_relu
from aliceopt.lab.figures.theorem1 import draw_theorem1

__all__ = ["draw_experiment", "draw_glass", "draw_relu", "draw_theorem1"]
