"""Numbers of pages that come from kept results, and are written there by a command.

A page holds a place for a number or a table, a comment of HTML that says what belongs there::

    <!-- results: compare pays-gpt -->...<!-- end -->            a table of all methods
    <!-- results: difference pays-gpt ahead-1_5 -->...<!-- end -->  to AdamW, with its interval
    <!-- results: gain pays-gpt ahead-1_5 nadamw-steady -->...      its size, to another method
    <!-- results: final pays-gpt ahead-1_5 -->...                   the mean of the final metric
    <!-- results: mean pays-gpt adamw@8e-3 -->...                   likewise, at that rate
    <!-- results: seconds pays-gpt ahead-1_5 -->...                 of a run
    <!-- results: runs pays-gpt -->...                              how many are kept
    <!-- results: paper resnet18-methods/paper -->...      min, median and max beside the paper's
    <!-- results: exponents resnet18-powerlaw/paper -->    of gradient variations, block by block
    <!-- results: verdicts table -->...                    on its claims about training; or counts
    <!-- results: compress pays-gpt rounds=3 -->...        losses of pruned networks, by criterion
    <!-- results: compress-radii pays-gpt -->...           the same, by the probes' radius
    <!-- results: compress-layers pays-gpt 0.5 -->...      what predictions by layer are worth
    <!-- results: compress-lead pays-gpt refit wanda 0.7 -->...   how much lower a loss is
    <!-- results: compress-differences digits both:curvature -->...   of losses, by share removed

``pays-gpt/long`` is the experiment at another scale than lab, and ``digits+gelu`` the activation
twin of a network that was pruned. What stands between the comments is replaced; a page without them
is left as it is.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean

from aliceopt.claims import CLAIMS
from aliceopt.claims.registry import OF_TRAINING
from aliceopt.lab.records import RecordError
from aliceopt.lab.results import kept_compare
from aliceopt.lab.results.exponents import late_cells, series_of
from aliceopt.lab.results.kept import Kept, mean_seconds, read_kept
from aliceopt.lab.results.kept_compare import Compared, difference
from aliceopt.lab.results.kept_records import kept_records
from aliceopt.lab.results.numbers import MINUS, show_seconds, signed
from aliceopt.lab.results.reproduced import judged
from aliceopt.lab.results.table import method_cells, method_rows
from aliceopt.lab.words import meant
from aliceopt.trained.compress.kept import page_kinds

_PLACE = re.compile(r"(<!-- results: (?P<what>.*?) -->)(?P<old>.*?)(<!-- end -->)", re.DOTALL)


def fill(text: str, folder: Path) -> str:
    """The page with every place filled from the kept results of a folder."""
    for place in text.split("<!-- results: ")[1:]:
        if "<!-- end -->" not in place:  # else what stands before the next end would be lost
            raise RecordError(f"<!-- results: {place.partition('-->')[0]}--> has no <!-- end -->")

    def written(place: re.Match[str]) -> str:
        kind, *names = place["what"].split()
        if kind not in _KINDS or not names:
            raise RecordError(
                f"{place[0].partition('-->')[0]}-->: one of {', '.join(_KINDS)} and the name of an "
                "experiment stand there"
            )
        try:
            inspect.signature(_KINDS[kind]).bind(folder, *names)
        except TypeError as error:
            raise RecordError(f"{place[1]}: {error}") from error
        return f"{place[1]}{_KINDS[kind](folder, *names)}{place[4]}"

    return _PLACE.sub(written, text)


def _rows(folder: Path, name: str, to: str = "adamw") -> list[Compared]:
    experiment, _, scale = name.partition("/")
    return kept_compare.compare_kept(folder, experiment, scale or "lab", to)


def _row(folder: Path, name: str, method: str, to: str = "adamw") -> Compared:
    rows = {row.method: row for row in _rows(folder, name, to)}
    if method not in rows:
        raise RecordError(f"no kept run of method {method!r}{meant(method, rows)}")
    return rows[method]


def _lines(folder: Path, name: str) -> list[Kept]:
    experiment, _, scale = name.partition("/")
    lines = read_kept(folder / f"{experiment}.jsonl")
    return [line for line in lines if line.scale == (scale or "lab")]


def _table(folder: Path, name: str, to: str = "adamw") -> str:
    return _markdown(kept_compare.HEAD, [row.cells() for row in _rows(folder, name, to)])


def _difference(folder: Path, name: str, method: str, to: str = "adamw") -> str:
    row = _row(folder, name, method, to)
    return difference(row.paired, row.metric)


def _gain(folder: Path, name: str, method: str, to: str = "adamw") -> str:
    row = _row(folder, name, method, to)
    line = next(iter(row.runs.values()))
    better = row.paired is not None and (row.paired.mean > 0) == (line.better == "higher")
    if not better:
        raise RecordError(f"{method!r} of {name!r} gains nothing over {to!r}: write difference")
    return difference(row.paired, row.metric).lstrip(f"+{MINUS}")


def _final(folder: Path, name: str, method: str) -> str:
    return _row(folder, name, method).cells()[3]


def _mean(folder: Path, name: str, method: str) -> str:
    lines = kept_compare.as_filed(_lines(folder, name))
    mine = [line for line in lines if line.method == method]
    finals = [line.final for line in mine if line.final is not None]
    if not mine or len(finals) < len(mine):
        raise RecordError(f"no kept run of {method!r} of {name!r}, or one that diverged")
    return signed(fmean(finals), kept_compare.PLACES[mine[0].metric])


def _seconds(folder: Path, name: str, method: str) -> str:
    return show_seconds(mean_seconds(_row(folder, name, method).runs.values()))


def _runs(folder: Path, name: str) -> str:
    lines = _lines(folder, name)
    if not lines:
        raise RecordError(f"no results of {name!r} in {str(folder)!r}")
    return str(len(lines))


def _paper(folder: Path, name: str) -> str:
    """An experiment's rows beside the paper's."""
    experiment, _, scale = name.partition("/")
    records = kept_records(folder / f"{experiment}.jsonl", experiment, scale or "lab")
    head = ("method", "ours: min / median / max", "the paper's", "seeds", "gradients", "time")
    return _markdown(
        head, method_cells(method_rows(records.plan, records.runs), records.plan.metric)
    )


def _exponents(folder: Path, name: str) -> str:
    """Of every trained network at every place, with half of their 95% interval over moments."""
    experiment, _, scale = name.partition("/")
    records = kept_records(folder / f"{experiment}.jsonl", experiment, scale or "lab")
    series = series_of(records.plan, records.runs)
    if not series:
        raise RecordError(f"no kept run of {name!r} has exponents")
    head = ("network", "measured on", *series[0].blocks)
    return _markdown(head, [(one.label, str(one.place), *late_cells(one)) for one in series])


def _verdicts(folder: Path, form: str) -> str:
    """On every claim about training, and why; or how many have which."""
    found = [(c, *judged(c.training, folder)) for c in CLAIMS if c.training is not None]
    if form == "counts":
        counts = Counter(verdict for _, verdict, _ in found)
        return ", ".join(f"{counts[verdict]} {verdict}" for verdict in OF_TRAINING)
    if form != "table":
        raise RecordError(f"verdicts {form}: table or counts stands there")
    rows = [
        (f"`{c.id}` ({c.place})", c.statement, c.paper, f"**{verdict}**: {why}")
        for c, verdict, why in found
    ]
    return _markdown(("claim", "what it says", "the paper's numbers", "verdict"), rows)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, apart from the comments around it."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


_KINDS: dict[str, Callable[..., str]] = {
    "compare": _table,
    "difference": _difference,
    "gain": _gain,
    "final": _final,
    "mean": _mean,
    "seconds": _seconds,
    "runs": _runs,
    "paper": _paper,
    "exponents": _exponents,
    "verdicts": _verdicts,
    **page_kinds,
}
