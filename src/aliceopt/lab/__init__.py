"""Train, compare, and learn which curvature matters.

Rooms, each of which imports only from those above it::

    spec, typed, records, ...   what is run and what is left of it, in plain values; words, files
    data, models                what networks learn from, and networks
    optimizers                  one way to drive Alice and all that it is compared to
    problems                    a model, its data and a measure of success, of the lab or a user's
    plans                       experiments and studies: which runs there are, nothing left open
    training                    the loop, and the processes that it runs in
    results, figures, report    numbers, pictures of them, pages
"""

from aliceopt.lab.problems.problem import Problem

__all__ = ["Problem"]
