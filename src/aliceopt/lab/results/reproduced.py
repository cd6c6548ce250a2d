"""The paper's claims about training, judged by the results that are kept of its experiments.

A claim says that one method ends better than another, for one pair of methods or several. Each pair
is compared seed by seed, and its interval corrected for the number of pairs (Holm). If every one is
established the claim is reproduced; if the contrary of any one is, it is not; anything else, the
lack of seeds included, cannot be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from aliceopt.claims.registry import Training, Verdict
from aliceopt.lab.plan import experiment_plan
from aliceopt.lab.results.kept import Kept, read_kept
from aliceopt.lab.results.kept_compare import as_filed, difference
from aliceopt.lab.results.paired import ALPHA, Paired, holm
from aliceopt.lab.words import counted

PAPER, STAND_IN = "paper", "lab"
"""Scales, the second where nothing is kept of the first."""

NEAR_TWO = 0.2
"""An exponent this close to 2 is near 2."""


class Difference(NamedTuple):
    """How much better the first of two methods ended, at every seed that both have a result of."""

    first: str
    second: str
    metric: str
    by_seed: Paired

    def told(self, level: float) -> str:
        """Like ``alice over adam +0.31 ± 0.12 (4 seeds)``."""
        seeds = counted(len(self.by_seed.differences), "seed")
        said = difference(self.by_seed, self.metric, level)
        return f"{self.first} over {self.second} {said} ({seeds})"


def judged(training: Training, folder: Path) -> tuple[Verdict, str]:
    """The verdict on a claim by the kept results of a folder, and its reason."""
    lines = _comparable(as_filed(read_kept(folder / f"{training.experiment}.jsonl")))
    if not lines:
        command = f"aliceopt run {training.experiment} --scale {PAPER}"
        return "cannot tell", f"no result is kept of {training.experiment}: {command}"
    verdict, reason = _by_exponents(lines) if not training.pairs else _by_pairs(training, lines)
    return verdict, f"{_where(lines[0])}: {reason}"


def _comparable(lines: Sequence[Kept]) -> list[Kept]:
    """Those of the paper's scale if there are any, on the device and in the precision of most."""
    scale = PAPER if any(line.scale == PAPER for line in lines) else STAND_IN
    places = Counter((x.device, x.precision) for x in lines if x.scale == scale)
    place = max(places, key=lambda key: places[key], default=None)
    return [x for x in lines if x.scale == scale and (x.device, x.precision) == place]


def _where(line: Kept) -> str:
    """Like ``at the paper's scale, in bf16``, or how a stand-in differs."""
    if line.scale == PAPER:
        return f"at the paper's scale, in {line.precision}"
    theirs = experiment_plan(line.experiment, PAPER, read=False, check=False)
    ours = experiment_plan(line.experiment, line.scale, read=False, check=False)
    steps = theirs.runs[0].steps
    said = f"{line.steps:,} steps instead of {steps:,}"
    return f"on a stand-in ({ours.data}, {said}, in {line.precision})"


def _by_pairs(training: Training, lines: Sequence[Kept]) -> tuple[Verdict, str]:
    runs: dict[str, dict[int, Kept]] = {}
    for line in lines:
        runs.setdefault(line.method, {})[line.seed] = line
    names = dict.fromkeys(name for pair in training.pairs for name in pair)
    if missing := [name for name in names if name not in runs]:
        return "cannot tell", f"no run is kept of {', '.join(missing)}"
    diverged = [x.label for name in names for x in runs[name].values() if x.final is None]
    found = [_difference(pair, runs) for pair in training.pairs]
    if diverged or not all(found):
        what = f"{', '.join(diverged)} diverged" if diverged else "methods have no seed in common"
        return "cannot tell", what
    pairs = [pair for pair in found if pair is not None]
    if min(len(pair.by_seed.differences) for pair in pairs) < 2:
        said = "; ".join(pair.told(ALPHA) for pair in pairs)
        return "cannot tell", f"{said}; two seeds of each are needed at least"
    corrected, levels = holm([pair.by_seed.p for pair in pairs])
    said = "; ".join(pair.told(level) for pair, level in zip(pairs, levels, strict=True))
    signs = [
        (p <= ALPHA) * (1 if pair.by_seed.mean > 0 else -1)
        for pair, p in zip(pairs, corrected, strict=True)
    ]
    if min(signs) < 0:
        return "not reproduced", said
    return ("reproduced" if min(signs) > 0 else "cannot tell"), said


def _difference(pair: tuple[str, str], runs: Mapping[str, Mapping[int, Kept]]) -> Difference | None:
    """The pair's, in the direction that is better; None without a common seed."""
    first, second = (runs[name] for name in pair)
    metric = next(iter(first.values())).metric
    differences = []
    for seed in sorted(first.keys() & second.keys()):
        mine, its = first[seed].final, second[seed].final
        if mine is not None and its is not None:
            differences.append(mine - its if first[seed].better == "higher" else its - mine)
    return Difference(*pair, metric, Paired(tuple(differences))) if differences else None


def _by_exponents(lines: Sequence[Kept]) -> tuple[Verdict, str]:
    """Of every block at the end of training: intervals over directions, every run counts."""
    ends = [line.curve["exponents"][-1]["blocks"] for line in lines if line.curve.get("exponents")]
    if not ends:
        return "cannot tell", "no exponents are kept"
    *others, last = ends[0]
    low = min(blocks[last]["low"] for blocks in ends)
    high = max(blocks[last]["high"] for blocks in ends)
    above = [n for n in others if min(blocks[n]["low"] for blocks in ends) >= 2]
    unsure = [n for n in others if max(blocks[n]["high"] for blocks in ends) >= 2]
    said = "; ".join(
        f"{name} {blocks[name]['exponent']:.2f} ({blocks[name]['low']:.2f} to "
        f"{blocks[name]['high']:.2f})"
        for blocks in ends
        for name in blocks
    )
    if above or low > 2 + NEAR_TWO or high < 2 - NEAR_TWO:
        return "not reproduced", said
    near = low >= 2 - NEAR_TWO and high <= 2 + NEAR_TWO
    return ("reproduced" if near and not unsure else "cannot tell"), said
