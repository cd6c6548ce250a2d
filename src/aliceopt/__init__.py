"""aliceopt: the optimizer Alice, the theory it rests on, and instruments to check both."""

from . import theory
from .alice import Alice
from .capture import CapturedStep, capture
from .options import PAPER

__all__ = ["PAPER", "Alice", "CapturedStep", "capture", "theory"]

__version__ = "0.1.0"
