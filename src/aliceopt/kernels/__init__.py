"""The optimizer's device work: one oracle (`eager`), one backend, two kernel sources."""

from .backend import Backends, MultiTensorBackend
from .base import Backend, Round
from .choice import IMPLEMENTATIONS
from .eager import EagerBackend

__all__ = ["IMPLEMENTATIONS", "Backend", "Backends", "EagerBackend", "MultiTensorBackend", "Round"]
