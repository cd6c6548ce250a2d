"""Figures of the paper, drawn from simulation and measurement."""
