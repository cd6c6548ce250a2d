"""Claims about training, judged by the results that are kept of the paper's experiments.

A claim says that one method ends better than another, for one pair of methods or several. Each pair
is compared seed by seed, with an interval that is corrected for the number of pairs (Holm). If all
differences are established the claim is reproduced; if the contrary of one is, it is not; anything
else cannot be told. So much at the paper's scale. Where nothing is kept of it a smaller scale
stands in: then the reason says what that shows, but about the paper's it cannot be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from aliceopt.claims.registry import Training, Verdict
from aliceopt.lab.plans.plan import experiment_plan
from aliceopt.lab.results.deviations import changed
from aliceopt.lab.results.exponents import NEAR, Series, by_place, late_cells
from aliceopt.lab.results.kept import Kept, read_kept
from aliceopt.lab.results.kept_compare import as_filed, difference
from aliceopt.lab.results.numbers import MINUS
from aliceopt.lab.results.paired import ALPHA, Paired, holm, resolution
from aliceopt.lab.words import counted

PAPER, STAND_INS = "paper", ("lab", "small")
"""Scales; each where nothing is kept of those before it."""

CANNOT: Verdict = "cannot tell"


class Pair(NamedTuple):
    """How much better the first of two methods ended, at every seed that both have a result of."""

    first: str
    second: str
    metric: str
    gains: Paired

    @property
    def seeds(self) -> int:
        """How many there are."""
        return len(self.gains.differences)

    def told(self, level: float = ALPHA) -> str:
        """Like ``alice better than adam by 0.31 ± 0.12 (4 seeds)``."""
        word = "worse" if self.gains.mean < 0 else "better"
        size = difference(self.gains, self.metric, level).lstrip(f"+{MINUS}")
        seeds = counted(self.seeds, "seed")
        return f"{self.first} {word} than {self.second} by {size} ({seeds})"


def judged(training: Training, folder: Path) -> tuple[Verdict, str]:
    """The verdict on a claim by the kept results of a folder, and its reason."""
    kept = read_kept(folder / f"{training.experiment}.jsonl")
    names = {name for pair in training.pairs for name in pair}
    lines = [line for line in as_filed(kept) if not names or line.method in names]
    scale = next((s for s in (PAPER, *STAND_INS) if any(x.scale == s for x in lines)), None)
    if scale is None:
        what = "none of its methods, settings as filed and scales" if kept else "nothing"
        command = f"aliceopt run {training.experiment} --scale {PAPER}"
        return CANNOT, f"of {training.experiment} {what} is kept: {command}"
    mine, left_out = _comparable([line for line in lines if line.scale == scale])
    verdict, reason = _by_pairs(training, mine) if names else _by_exponents(mine)
    reason += left_out
    if scale == PAPER:
        return verdict, f"at the paper's scale, in {mine[0].precision}: {reason}"
    shown = "" if verdict == CANNOT else f", {verdict} there"
    return CANNOT, f"{_stand_in(mine[0])}{shown}: {reason}"


def _comparable(lines: Sequence[Kept]) -> tuple[list[Kept], str]:
    """Those of the device and precision that most have, and what is said of the others."""
    places = Counter((line.device, line.precision) for line in lines)
    place = max(places, key=lambda key: places[key])
    mine = [line for line in lines if (line.device, line.precision) == place]
    left = len(lines) - len(mine)
    said = f"; left out: {counted(left, 'run')} on another device or in another precision"
    return mine, said if left else ""


def _stand_in(line: Kept) -> str:
    """Like ``on a stand-in only (cifar10: lab scale, 20 instead of 60 epochs, in bf16)``."""
    paper, ours = (
        experiment_plan(line.experiment, scale, methods=[line.method], read=False, check=False)
        for scale in (PAPER, line.scale)
    )
    said = [f"{line.scale} scale", *changed(ours, paper), f"in {line.precision}"]
    return f"on a stand-in only ({ours.data}: {', '.join(said)})"


def _by_pairs(training: Training, lines: Sequence[Kept]) -> tuple[Verdict, str]:
    runs: dict[str, dict[int, Kept]] = {}
    for line in lines:
        if line.seed in runs.setdefault(line.method, {}):
            return CANNOT, f"{line.method} has several results of seed {line.seed}"
        runs[line.method][line.seed] = line
    if missing := [name for pair in training.pairs for name in pair if name not in runs]:
        return CANNOT, f"no run is kept of {', '.join(dict.fromkeys(missing))}"
    finals = [line.final for line in lines if line.final is not None]
    pairs = []
    for first, second in training.pairs:
        common = sorted(runs[first].keys() & runs[second].keys())
        both = [(runs[first][seed], runs[second][seed]) for seed in common]
        if lost := [f"{x.method} seed {x.seed}" for two in both for x in two if x.final is None]:
            return CANNOT, f"diverged: {', '.join(lost)}"
        if not both:
            return CANNOT, f"{first} and {second} have no seed in common"
        gains = Paired(tuple(_gain(*two) for two in both), resolution(finals))
        pairs.append(Pair(first, second, lines[0].metric, gains))
    if min(pair.seeds for pair in pairs) < 2:
        return CANNOT, f"{'; '.join(pair.told() for pair in pairs)}; two seeds are needed at least"
    corrected, levels = holm([pair.gains.p for pair in pairs])
    reason = "; ".join(pair.told(level) for pair, level in zip(pairs, levels, strict=True))
    established = [p <= ALPHA for p in corrected]
    better = [pair.gains.mean > 0 for pair in pairs]
    if any(sure and not up for sure, up in zip(established, better, strict=True)):
        return "not reproduced", reason
    return ("reproduced" if all(established) else CANNOT), reason


def _gain(first: Kept, second: Kept) -> float:
    """Of the first run over the second, in the direction that is better."""
    assert first.final is not None
    assert second.final is not None
    gain = first.final - second.final
    return gain if first.better == "higher" else -gain


def _by_exponents(lines: Sequence[Kept]) -> tuple[Verdict, str]:
    """Of all blocks of trained networks, by their intervals at every radius of the usual batch.

    The last block is near 2, and the others are below: each must be established at one radius, and
    contradicted at none. Activation twins are told, not judged.
    """
    told = [line for line in lines if line.curve.get("exponents") and line.final is not None]
    own = [line for line in told if line.config.problem.twin is None]
    if not own:
        return CANNOT, "no finished run has exponents"
    networks = _networks(own)
    said = [f"{counted(len(own), 'network')} in the second half of training"]
    said += [f"at radius {one.place.radius:g}: {_in_words(one)}" for one in networks]
    for activation in dict.fromkeys(line.config.problem.twin for line in told):
        if activation is not None:
            twins = _networks([line for line in told if line.config.problem.twin == activation])
            said += [f"{activation} twin at {x.place.radius:g}: {_range(x)}" for x in twins]
    found = [(_is_near_two(one), _are_below_two(one)) for one in networks]
    halves = list(zip(*found, strict=True))
    if any(False in half for half in halves):
        return "not reproduced", "; ".join(said)
    return ("reproduced" if all(True in half for half in halves) else CANNOT), "; ".join(said)


def _networks(lines: Sequence[Kept]) -> list[Series]:
    """Their exponents on training batches of the usual size, radius by radius."""
    measured = [by_place(line.curve["exponents"]) for line in lines]
    return [
        Series("", "", place, [found[place] for found in measured if place in found])
        for place in measured[0]
        if (place.batch_size, place.held_out) == (None, False)
    ]


def _is_near_two(network: Series) -> bool | None:
    """Of the last block: whether its interval is within `NEAR` of 2 or outside; else None."""
    law = network.late(network.blocks[-1])
    if law.low is None or law.high is None:
        return None
    if law.low > 2 + NEAR or law.high < 2 - NEAR:
        return False
    return True if max(law.high - 2, 2 - law.low) <= NEAR else None


def _are_below_two(network: Series) -> bool | None:
    """Of the other blocks: whether all intervals are below 2, or one is above; else None."""
    laws = [network.late(block) for block in network.blocks[:-1]]
    if any(law.low is not None and law.low >= 2 for law in laws):
        return False
    return True if all(law.high is not None and law.high < 2 for law in laws) else None


def _in_words(network: Series) -> str:
    """Like ``initial convolution 1.42 ± 0.11, ...``."""
    cells = zip(network.blocks, late_cells(network), strict=True)
    return ", ".join(f"{block} {cell}" for block, cell in cells)


def _range(network: Series) -> str:
    """Like ``1.98 to 2.01 in all blocks``."""
    laws = [network.late(block).exponent for block in network.blocks]
    told = [p for p in laws if p is not None]
    return f"{min(told):.2f} to {max(told):.2f} in all blocks" if told else "not to be told"
