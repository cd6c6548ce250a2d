"""What a landscape says, in sentences for somebody who has not read the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aliceopt.lab.words import counted
from aliceopt.landscape import Estimate, Rungs
from aliceopt.landscape.rungs import SATURATED
from aliceopt.trained.landscape.presets import PRESETS
from aliceopt.trained.landscape.survey import View
from aliceopt.trained.landscape.table import Lines, at_small_end, exponents_along, within

__all__ = ["reading", "reading_along"]

EXPONENT = (
    "The exponent p says how the square of the gradient's change grows with the distance moved: 2 "
    "where the gradient changes smoothly, as a Hessian has it, and 1 where it changes by jumps at "
    "the kinks of activations like ReLU. Many such jumps together are called glass. Behind every p "
    "stands its 95% interval."
)
_ORDER = ("glass", "smooth", "undecided", "nothing")
_FEW = 3
"""Of so many blocks every number is said; of more their range."""


def reading(views: Sequence[View]) -> list[str]:
    """What was found and what it means; how to read it; then every network, and the twins.

    The first network is compared with every other, on the same batches at the same radius.
    """
    first = {view.part: view for view in views if view.network == views[0].network}
    others = views[len(first) :]
    told = [meaning(list(first.values())), EXPONENT, *map(_found, views)]
    return told + [_compared(first[view.part], view) for view in others]


def meaning(views: Sequence[View]) -> str:
    """Of one network on all kinds of batches: which curvature it has, and what follows from it."""
    glass, smooth, undecided = (_with(views, verdict) for verdict in _ORDER[:3])
    told = [(view, rungs) for view in views for rungs in view.ladder.blocks.values()]
    verdict = next(v for v in _ORDER if any(rungs.verdict == v for _, rungs in told))
    starts = [view.ladder.radii[r.start] for view, r in told if r.verdict == verdict]
    radius = _range(starts, ".2g")
    if glass:
        return (
            f"There is glass in {_listed(glass)}: where every weight moves by {radius}, the "
            "gradient jumps there at many kinks, which the Hessian at a point does not see. Alice "
            "measures them with `glass=True`; whether that pays in training, `aliceopt study` "
            "tells."
        )
    if undecided:
        more = "`--preset thorough` takes more of each"
        if views[0].ladder.directions >= PRESETS["thorough"].directions:
            more = "a larger `--batch-size` meets more kinks"
        return (
            f"No glass is established, and in {_listed(undecided)} none is excluded: these radii, "
            f"directions and batches cannot tell; {more}. Exponents above 2 ask for a smaller "
            "`--radius`."
        )
    if smooth:
        where = "every block" if not _with(views, "nothing") else _listed(smooth)
        return (
            f"The network is smooth in {where}: where every weight moves by {radius}, its "
            "gradient changes as its Hessian says, and Alice's `glass=True` would find nothing to "
            "measure."
        )
    return "Nothing can be said: the gradient changed in no block, or was not finite."


def _with(views: Sequence[View], verdict: str) -> list[str]:
    """Blocks of which this was found, and on which batches, where not on all."""
    found: dict[str, list[str]] = {}
    for view in views:
        for name, rungs in view.ladder.blocks.items():
            if rungs.verdict == verdict:
                found.setdefault(name, []).append(view.part)
    every = [view.part for view in views]
    return [
        name if parts == every else f"{name} (on {parts[0]} batches)"
        for name, parts in found.items()
    ]


def _found(view: View) -> str:
    """Verdicts of one network on one kind of batches, each with its numbers."""
    by_verdict: dict[str, dict[str, Rungs]] = {}
    for name, rungs in view.ladder.blocks.items():
        by_verdict.setdefault(rungs.verdict, {})[name] = rungs
    said = " ".join(_of_verdict(v, by_verdict[v], view) for v in _ORDER if v in by_verdict)
    who = _called(view)
    where = f"{who[0].upper()}{who[1:]}, on {view.part} batches of {view.batch_size:,}"
    return f"{where}: {said[0].lower()}{said[1:]}"


def _of_verdict(verdict: str, blocks: dict[str, Rungs], view: View) -> str:
    """One sentence for all blocks of which the same was found."""
    where = f"In {_listed(list(blocks))}"
    if verdict == "nothing":
        return f"{where} the gradient did not change, or was not finite."
    exponents = _exponents([at_small_end(rungs) for rungs in blocks.values()])
    if verdict == "smooth":
        return f"{where} the gradient changes smoothly: p is {exponents}."
    if verdict == "undecided":
        return f"{where} it cannot be told: p is {exponents}."
    shares = [100 * min(1.0, rungs.glass_share[rungs.start].value) for rungs in blocks.values()]
    moved = min(view.ladder.radii[rungs.start] for rungs in blocks.values())
    return (
        f"{where} there is glass: p is {exponents}, and where every weight moves by {moved:.2g}, "
        f"{_range(shares, '.0f')}% of the gradient's change is jumps."
    )


def _compared(mine: View, other: View) -> str:
    """In which blocks another network has another exponent, and what that shows."""
    apart, unknown = [], 0
    for name, rungs in mine.ladder.blocks.items():
        there = other.ladder.blocks[name]
        at = min(max(rungs.start, there.start), len(rungs.exponents) - 1)
        a, b = rungs.exponents[at], there.exponents[at]
        unknown += any(math.isnan(end) for p in (a, b) for end in (p.low, p.high))
        if a.high < b.low or b.high < a.low:
            apart.append(f"{name}, where p is {within(b)} instead of {within(a)}")
    blocks = counted(len(mine.ladder.blocks), "block")
    begin = f"On {mine.part} batches {_called(other)}"
    if not apart and unknown:
        return (
            f"{begin} cannot be compared with {_called(mine)} in {unknown} of {blocks}, for want "
            "of intervals, and differs in none of the others."
        )
    if not apart:
        return (
            f"{begin} has the exponents of {_called(mine)} in all of {blocks}, within their "
            "intervals: nothing is shown to come from the activation."
        )
    due = "the activation alone, as all weights are the same"
    if other.network.endswith("trained"):
        due = "the activation, or from the weights that training with it found"
    return (
        f"{begin} has other exponents than {_called(mine)}, by more than their intervals, in "
        f"{len(apart)} of {blocks}: {'; '.join(apart)}. What differs comes from {due}."
    )


def reading_along(lines: Lines) -> list[str]:
    """A sentence or two a kind of batches: where every block began, where it ended, what changed.

    None without lines.
    """
    said = []
    for part in dict.fromkeys(line["part"] for line in lines):
        mine = [line for line in lines if line["part"] == part]
        first, last = (exponents_along(line) for line in (mine[0], mine[-1]))
        moved = [f"in {name} from {within(first[name])} to {within(p)}" for name, p in last.items()]
        fell = [name for name, p in last.items() if p.high < first[name].low]
        glassy = [name for name in fell if last[name].value > SATURATED]
        below = [name for name in fell if name not in glassy]
        rose = [name for name, p in last.items() if p.low > first[name].high]
        told = [f"fell, towards glass, in {_listed(glassy)}"] if glassy else []
        told += [f"fell below what glass has in {_listed(below)}"] if below else []
        told += [f"rose in {_listed(rose)}"] if rose else []
        beyond = f"By more than its intervals it {' and '.join(told)}."
        none = "In no block did it change by more than its intervals."
        said.append(
            f"While the network trained, on {part} batches, p went {_listed(moved)} between the "
            f"start and step {mine[-1]['step']:,}. {beyond if told else none}"
        )
    return said


# ---- words -------------------------------------------------------------------------------------


def _called(view: View) -> str:
    return f"the network {view.network}" if view.network == "as trained" else f"its {view.network}"


def _listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _exponents(found: Sequence[Estimate]) -> str:
    """Each with its interval; of many their range."""
    if len(found) <= _FEW:
        return _listed([within(p) for p in found])
    return _range([p.value for p in found], ".2f")


def _range(values: Sequence[float], digits: str) -> str:
    low, high = f"{min(values):{digits}}", f"{max(values):{digits}}"
    return low if low == high else f"{low} to {high}"
