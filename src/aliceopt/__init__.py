"""aliceopt: the optimizer Alice, the theory it rests on, and instruments to check both."""

from . import theory

__all__ = ["theory"]

__version__ = "0.1.0"
