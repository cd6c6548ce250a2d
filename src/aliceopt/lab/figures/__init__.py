"""Figures of experiments and studies, from their records."""

from aliceopt.lab.figures.experiment import draw_experiment

__all__ = ["draw_experiment"]
