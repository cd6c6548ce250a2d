"""The paper's illustrations, computed from real kinks and real gradients rather than sketched."""

from aliceopt.lab.figures.glass import draw_glass
from aliceopt.lab.figures.relu import draw_relu

__all__ = ["draw_glass", "draw_relu"]
