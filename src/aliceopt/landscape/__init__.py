"""Instruments for any model: which kind of curvature there is, where, and at what length."""

from .power_law import Exponent, PowerLaw, power_law, variation_exponent

__all__ = ["Exponent", "PowerLaw", "power_law", "variation_exponent"]
