"""Fused forms of topography + step: one signature, one oracle."""

from .eager import Target, update_

__all__ = ["Target", "update_"]
