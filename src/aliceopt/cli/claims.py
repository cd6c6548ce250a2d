"""``aliceopt claims``: measure the paper's numbers anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from aliceopt.cli.options import KEPT
from aliceopt.cli.refusal import refuse, say, told


def claims(
    only: Annotated[
        list[str] | None,
        typer.Option(help="Test only this claim, or all whose id begins so; repeat for more."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of every experiment.")] = 0,
    samples: Annotated[
        int | None, typer.Option(help="Scale of the Monte-Carlo sizes; the default is 20000.")
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Folder of the kept results that claims about training go by.")
    ] = KEPT,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the verdicts to this file.")
    ] = None,
) -> None:
    """Measure the paper's numbers anew; exit 1 if theory and measurement disagree anywhere."""
    from aliceopt import claims as package
    from aliceopt.claims import table
    from aliceopt.cli.folders import of_a_clone
    from aliceopt.lab.results.reproduced import judged
    from aliceopt.lab.terminal import stdout_console

    samples = package.DEFAULT_SAMPLES if samples is None else samples
    least, most = package.LEAST_SAMPLES, package.MOST_SAMPLES
    try:
        chosen = package.select(package.CLAIMS, only or [])
    except ValueError as error:
        refuse(f"--only: {error}")
    if seed < 0:
        refuse(f"--seed must be a whole number >= 0, got {seed}")
    if not least <= samples <= most:
        refuse(f"--samples must be a whole number from {least} to {most}, got {samples}")
    if json_file is not None:
        _require_writable(json_file)
    context = package.Context(seed, samples, lambda training: judged(training, results))
    with told():
        found = table.run_with_progress(chosen, context)
    table.print_results(found, stdout_console())
    trained = any(claim.training is not None for claim in chosen)
    if trained and (clone := of_a_clone(results, "--results")):
        say(f"no results are kept in {str(results)!r}: {clone}", err=True)
    if json_file is not None:
        records = table.as_records(found, context)
        _write(json_file, json.dumps(records, indent=2, allow_nan=False) + "\n")
    if any(result.verdict == "failed" for result in found):
        raise typer.Exit(1)


def _require_writable(path: Path) -> None:
    """Refuse now what could not be written after the run."""
    existed = path.exists()
    _write(path, "", "a")
    if not existed:
        path.unlink()


def _write(path: Path, text: str, mode: str = "w") -> None:
    from aliceopt.lab.writing import WriteError, writing

    try:
        with writing(path), path.open(mode) as file:
            file.write(text)
    except WriteError as error:
        refuse(f"--json: {error}")
