"""``aliceopt figure``: the paper's illustrations, and the figures of its experiments."""

from __future__ import annotations

from pathlib import Path

from aliceopt.cli import options
from aliceopt.cli.folders import experiment_records
from aliceopt.cli.refusal import needs_lab, refuse, say

ILLUSTRATIONS = ("glass", "relu", "theorem1")


def figure(
    name: options.Figure,
    out: options.FigureFile = None,
    seed: options.FigureSeed = 0,
    scale: options.RecordsScale = "lab",
    records: options.Records = None,
) -> None:
    """Draw an illustration from real kinks and gradients, or an experiment from its records."""
    from aliceopt.lab.plan import EXPERIMENTS

    if name not in ILLUSTRATIONS + EXPERIMENTS:
        known = ", ".join(ILLUSTRATIONS + EXPERIMENTS)
        refuse(f"there is no figure {name!r}; there is {known}")
    try:
        from aliceopt.lab import figures
    except ImportError as error:
        refuse(needs_lab(error.name))
    try:
        if name in EXPERIMENTS:
            written = figures.draw_experiment(experiment_records(name, scale, records), out)
        else:
            path = Path("out") / f"{name}.png" if out is None else out
            written = _illustration(name, path, seed)
    except ValueError as error:
        refuse(error)
    say(written)


def _illustration(name: str, path: Path, seed: int) -> Path:
    from aliceopt.lab import figures

    if name == "glass":
        return figures.draw_glass(path, seed=seed)
    if name == "theorem1":
        return figures.draw_theorem1(path, seed=seed)
    return figures.draw_relu(path)
