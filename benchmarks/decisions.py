"""Does a study decide rightly? Whole studies of problems whose truth is known, counted.

    python -m benchmarks.decisions
    python -m benchmarks.decisions --problem tie --studies 100

A study is run as ``aliceopt study`` runs it, but for the report: four methods (Alice with no term
and with "abs", NAQ steps; Adam; SGD with momentum), rates tuned, five seeds, 64 or 96 steps a run.
Each study has other data and starts from other points. `benchmarks.planted` has the problems:

- newton: Alice with "abs" wins. The decision is right if it is chosen, and established to be better
  than every other method.
- spread: the same, but results spread over powers of ten, so that only their ratios can tell.
- logs: the same again, with the logarithm of the loss as a metric of its own.
- sgd: as newton, for SGD with momentum.
- tie: no method differs from another. The decision is right if none is claimed to be worse than
  the best.

The exit status is 1 if a problem is decided rightly less often than it should be: every time where
there is a winner, in nine of ten studies where there is none.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.special import betaincinv

from aliceopt.lab.plans.study import study_plan
from aliceopt.lab.records import RunRecord, read_runs
from aliceopt.lab.results.finding import Finding, find
from aliceopt.lab.results.tuning import tuned
from aliceopt.lab.spec import Plan
from aliceopt.lab.training.pool import Local, execute

from . import report
from .planted import PROBLEMS

__all__ = ["carried_out", "interval", "is_right", "main"]

CHOICES: dict[str, Any] = {
    "terms": ("none", "abs"),
    "steps": ("naq",),
    "baselines": ("adam", "sgd-m"),
}
COLUMNS = ("problem", "studies", "right", "wanted", "95% interval", "s a study", "truth")


def carried_out(problem: str, number: int, folder: Path, **choices: Any) -> Finding:
    """The finding of one study of a planted problem, with its records in ``folder``.

    ``choices`` are arguments of `study_plan`, beside or instead of `CHOICES`.
    """
    file = folder / f"{problem}_{number}.py"
    file.write_text(
        "from benchmarks.planted import PROBLEMS\n\n\n"
        f"def problem():\n    return PROBLEMS[{problem!r}].make({number})\n"
    )
    study = study_plan(f"{file}:problem", **CHOICES | choices)
    place, here = folder / file.stem, Local(workers=1)

    def carry_out(tuning: Plan) -> list[RunRecord]:
        execute(tuning, place / "tuning", here, resume=True)
        return read_runs(place / "tuning", tuning)

    plan = tuned(study, place, carry_out)
    execute(plan, place, here)
    return find(plan, read_runs(place, plan))


def is_right(finding: Finding, winner: str | None) -> bool:
    """Whether the winner was chosen and established; without one, whether nothing was."""
    best = [c for c in finding.comparisons if c.question == "best"]
    claims = [c.verdict == "better" for c in best]
    if winner is None:
        return bool(best) and not any(claims)
    return finding.choice == winner and bool(best) and all(claims)


def interval(right: int, studies: int) -> tuple[float, float]:
    """Clopper and Pearson's: shares that make so many right, or more, or fewer, no rarer than 2.5%.

    >>> tuple(round(share, 3) for share in interval(20, 20))
    (0.832, 1.0)
    """
    wrong = studies - right
    low = betaincinv(right, wrong + 1, 0.025) if right else 0.0
    high = betaincinv(right + 1, wrong, 0.975) if wrong else 1.0
    return float(low), float(high)


def measure(problem: str, studies: int) -> tuple[bool, list[str]]:
    """Whether so many studies were right often enough, and a row of the table."""
    planted = PROBLEMS[problem]
    wrong = 0
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(studies):
            finding = carried_out(problem, number, Path(folder))
            if not is_right(finding, planted.winner):
                wrong += 1
                print(f"{problem}, study {number}: {finding.decision}", file=sys.stderr)
    seconds = (time.perf_counter() - begun) / studies
    right, wanted = studies - wrong, studies - int(planted.spare * studies)
    low, high = interval(right, studies)
    numbers = [str(studies), str(right), str(wanted), f"{low:.1%} to {high:.1%}", f"{seconds:.1f}"]
    return right >= wanted, [problem, *numbers, planted.winner or "a tie"]


# ---- command line -------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--studies", type=int, default=20, help="of each problem")
    parser.add_argument("--problem", choices=tuple(PROBLEMS), help="default: all of them")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 if decisions were right less often than they should be."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.studies < 1:
        parser.error(f"--studies must be a whole number >= 1, got {args.studies}")
    found = [measure(name, args.studies) for name in ([args.problem] if args.problem else PROBLEMS)]
    header = report.environment(torch.device("cpu"))
    print(report.text(header, report.table(COLUMNS, [row for _, row in found])))
    return int(not all(enough for enough, _ in found))


if __name__ == "__main__":
    sys.exit(main())
