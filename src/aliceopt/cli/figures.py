"""``aliceopt figure``: the paper's illustrations, and the figures of its experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aliceopt.cli.folders import default_folder
from aliceopt.cli.refusal import needs_lab, refuse

ILLUSTRATIONS = ("glass", "relu", "theorem1")


def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="Figure 2 (glass), Figure 3 (relu), Theorem 1 on real networks (theorem1, a "
            "minute), or an experiment that was run (see aliceopt list)."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write, .png, .svg or .pdf; the default is out/NAME.png, and for an "
            "experiment figures/NAME.png among its records."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the glass or the networks; relu has none.")
    ] = 0,
    scale: Annotated[str, typer.Option(help="Of an experiment: paper, lab or smoke.")] = "lab",
    records: Annotated[
        Path | None, typer.Option(help="Of an experiment: the folder of its records.")
    ] = None,
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
    path = out
    try:
        if name in EXPERIMENTS:
            folder = default_folder(name, scale) if records is None else records
            written = figures.draw_experiment(folder, out)
        else:
            path = Path("out") / f"{name}.png" if out is None else out
            written = _illustration(name, path, seed)
    except ValueError as error:
        refuse(error)
    except OSError as error:
        refuse(f"cannot write {str(path)!r}: {error.strerror}")
    typer.echo(str(written))


def _illustration(name: str, path: Path, seed: int) -> Path:
    from aliceopt.lab import figures

    if name == "glass":
        return figures.draw_glass(path, seed=seed)
    if name == "theorem1":
        return figures.draw_theorem1(path, seed=seed)
    return figures.draw_relu(path)
