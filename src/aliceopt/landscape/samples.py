"""What the gradients of one probe say of every coordinate: one sample of each term.

With random signs t and gradients on both sides, at ``x +- lambda t``, and at the center::

    x = (g+ - g-) / (2 lambda)                                    H t, averaged over the way

========== ================================== =================================================
rms        ``x^2``                            square of the size of a row of the Hessian
abs        ``|x|``                            its size, by the mean
signed     ``t x``                            the diagonal, unbiased
free       ``(g+ - g0)(g0 - g-)/lambda^2``    a row's square, to which single kinks add nothing
glass      ``(2/lambda)((g+ + g-)/2 - g0)^2`` density of gradient jumps
========== ================================== =================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["checked_terms", "samples"]


def checked_terms(terms: str | Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """One or more different ones of those that are known."""
    wanted = (terms,) if isinstance(terms, str) else tuple(terms)
    for term in wanted:
        if term not in known:
            raise ValueError(f"terms must be some of {', '.join(known)}; got {term!r}")
    if not wanted or len(set(wanted)) < len(wanted):
        raise ValueError(f"terms must be one or more different ones, got {terms!r}")
    return wanted


def samples(
    terms: Sequence[str],
    signs: Callable[[], Tensor],
    far: Tensor,
    plus: Tensor,
    minus: Tensor,
    center: Sequence[Tensor],
) -> dict[str, Tensor]:
    """One sample of some terms at distance ``far``; zero where a coordinate could not move.

    ``plus`` and ``minus`` are overwritten. Without "signed" no ``signs`` are asked for; ``center``
    may be empty for the first three terms.
    """
    inverse = torch.where(far > 0, 1 / far, 0.0)
    found = {}
    if "free" in terms:
        found["free"] = (plus - center[0]).mul_(center[0] - minus).mul_(inverse.square())
    if "glass" in terms:
        bent = (plus + minus).mul_(0.5).sub_(center[0])
        found["glass"] = bent.square_().mul_(inverse).mul_(2)
    if any(term in terms for term in ("rms", "abs", "signed")):
        x = plus.sub_(minus).mul_(inverse).mul_(0.5)
        if "rms" in terms:
            found["rms"] = x.square()
        if "signed" in terms:
            found["signed"] = x * signs()
        if "abs" in terms:
            found["abs"] = x.abs_()
    return found
