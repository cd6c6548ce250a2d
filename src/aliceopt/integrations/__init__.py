"""Alice inside training frameworks: one module a framework, none imported by the rest.

A framework's own loop takes one gradient a step. Each module here teaches it the three that a
measuring step needs; ``docs/in_your_trainer.md`` has the lines to paste.
"""
