"""Instruments for any model: which kind of curvature there is, where, and at what length."""

from .bounds import BoundCheck, bound_check
from .diagonals import Diagonals, diagonals, exact_diagonals
from .floor import Radii, choose_radii
from .joint import JointCurvature, joint_curvature
from .ladder import Ladder, ladder
from .power_law import Exponent, PowerLaw, power_law, variation_exponent
from .rungs import Rungs
from .slices import Cut, Slice, cut_together, slices
from .spread import Estimate
from .twins import Twin, twin

__all__ = [
    "BoundCheck",
    "Cut",
    "Diagonals",
    "Estimate",
    "Exponent",
    "JointCurvature",
    "Ladder",
    "PowerLaw",
    "Radii",
    "Rungs",
    "Slice",
    "Twin",
    "bound_check",
    "choose_radii",
    "cut_together",
    "diagonals",
    "exact_diagonals",
    "joint_curvature",
    "ladder",
    "power_law",
    "slices",
    "twin",
    "variation_exponent",
]
