"""The optimizer's device work in several forms: one interface, one oracle (`eager`)."""

from .base import Backend, Job, Round
from .choice import IMPLEMENTATIONS, Backends
from .eager import EagerBackend

__all__ = ["IMPLEMENTATIONS", "Backend", "Backends", "EagerBackend", "Job", "Round"]
