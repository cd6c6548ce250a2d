"""Instruments for any model: which kind of curvature there is, where, and at what length."""

from .joint import JointCurvature, joint_curvature
from .ladder import Ladder, ladder
from .power_law import Exponent, PowerLaw, power_law, variation_exponent
from .rungs import Rungs
from .spread import Estimate

__all__ = [
    "Estimate",
    "Exponent",
    "JointCurvature",
    "Ladder",
    "PowerLaw",
    "Rungs",
    "joint_curvature",
    "ladder",
    "power_law",
    "variation_exponent",
]
