"""Instruments for any model: which kind of curvature there is, where, and at what length."""

from .joint import JointCurvature, joint_curvature
from .power_law import Exponent, PowerLaw, power_law, variation_exponent

__all__ = [
    "Exponent",
    "JointCurvature",
    "PowerLaw",
    "joint_curvature",
    "power_law",
    "variation_exponent",
]
