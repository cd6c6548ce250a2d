"""aliceopt: the optimizer Alice, the theory it rests on, and instruments to check both."""

from . import theory
from .alice import Alice

__all__ = ["Alice", "theory"]

__version__ = "0.1.0"
