"""The paper's numbers, each measured anew and given a verdict.

    from aliceopt import claims
    for result in claims.run(claims.CLAIMS, claims.Context(seed=0)):
        print(result.claim.id, result.verdict)

`CLAIMS` holds them all, in the order of the paper. A verdict follows from the numbers alone:
change a formula in `aliceopt.theory`, or in Alice itself, and the claims that rest on it fail.
"""

from . import (
    bounds,
    estimators,
    excursions,
    glass,
    kernels,
    look_ahead,
    networks,
    optimizer,
    practice,
    restricted,
    smooth,
    training,
)
from .registry import (
    DEFAULT_SAMPLES,
    LEAST_SAMPLES,
    MOST_SAMPLES,
    Claim,
    Context,
    Measurement,
    Result,
    Training,
    Verdict,
    judge,
    run,
    select,
)

__all__ = [
    "CLAIMS",
    "DEFAULT_SAMPLES",
    "LEAST_SAMPLES",
    "MOST_SAMPLES",
    "Claim",
    "Context",
    "Measurement",
    "Result",
    "Training",
    "Verdict",
    "judge",
    "run",
    "select",
]

CLAIMS: tuple[Claim, ...] = (
    *glass.CLAIMS,
    *networks.CLAIMS,
    *smooth.CLAIMS,
    *kernels.CLAIMS,
    *restricted.CLAIMS,
    *estimators.CLAIMS,
    *bounds.CLAIMS,
    *excursions.CLAIMS,
    *look_ahead.CLAIMS,
    *practice.CLAIMS,
    *optimizer.CLAIMS,
    *training.CLAIMS,
)
