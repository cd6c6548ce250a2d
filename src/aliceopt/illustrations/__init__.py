"""Pictures of the theory, from real kinks and gradients: Figures 2 and 3, Theorem 1 on networks."""

from aliceopt.illustrations.glass import draw_glass
from aliceopt.illustrations.relu import draw_relu
from aliceopt.illustrations.theorem1 import draw_theorem1

__all__ = ["draw_glass", "draw_relu", "draw_theorem1"]
