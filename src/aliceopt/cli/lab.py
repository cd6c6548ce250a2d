"""``aliceopt run``, ``table`` and ``list``: the paper's experiments, and ours."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aliceopt import __version__
from aliceopt.cli import options
from aliceopt.cli.folders import check_not_both, clear, default_folder, records_folder
from aliceopt.cli.refusal import needs_lab, refuse

if TYPE_CHECKING:
    from aliceopt.lab.plan import Plan


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"aliceopt {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Alice measures curvature: compare it, rerun its paper, check its theory."""


def split_names(names: str | None) -> list[str] | None:
    """Names that were separated by commas."""
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def seeds_of(seeds: str | None) -> int | list[int] | None:
    """How many, or which.

    >>> seeds_of("3"), tuple(seeds_of("0,4")), tuple(seeds_of("5,"))
    (3, (0, 4), (5,))
    """
    if seeds is None:
        return None
    try:
        which = [int(part) for part in seeds.split(",") if part.strip()]
    except ValueError:
        raise ValueError(
            f"--seeds takes how many, like 3, or which by commas, like 0,4; got {seeds!r}"
        ) from None
    return which if "," in seeds else which[0] if which else []


def run(
    experiment: options.Experiment,
    scale: options.Scale = "lab",
    seeds: options.Seeds = None,
    set_: options.Set = None,
    methods: options.Methods = None,
    precision: options.Precision = None,
    data: options.Data = None,
    out: options.Out = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    launcher: options.Launcher = "local",
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    tensorboard: options.TensorBoard = False,
    minutes: options.Minutes = None,
    dry_run: options.DryRun = False,
) -> None:
    """Run an experiment, then print its table, beside the paper's if it is one of the paper's."""
    asked = {name: value for name, value in locals().items() if name not in ("experiment", "out")}
    from aliceopt.lab import carry_out, preview
    from aliceopt.lab.lock import locked
    from aliceopt.lab.plan import FAMILIES, experiment_plan

    if experiment in FAMILIES:
        for name in FAMILIES[experiment]:
            run(name, out=None if out is None else out / name, **asked)
        return
    folder = default_folder(experiment, scale) if out is None else out
    with carry_out.told(refuse, needs_lab), contextlib.ExitStack() as stack:
        carry_out.check_experiment(experiment, scale)
        if not dry_run:
            stack.enter_context(locked(folder))
        root_folder = carry_out.data_root(experiment, scale, data, folder, make=not dry_run)
        plan = experiment_plan(
            experiment,
            scale,
            seeds=seeds_of(seeds),
            sets=set_ or [],
            methods=split_names(methods),
            precision=precision,
            root=root_folder,
        )
        if dry_run:
            preview.print_plan(plan)
            return
        carry_out.check_data(plan)
        if overwrite:
            check_not_both(resume)
            clear(folder, plan.document)
        trainer = stack.enter_context(carry_out.launched(launcher, device, workers))
        how = carry_out.How(trainer, resume, tensorboard, minutes)
        finished = carry_out.carry_out(plan, folder, how)
        if finished or carry_out.begun(folder):
            carry_out.print_experiment(folder)
    end(plan, folder, finished)


def end(plan: Plan, folder: Path, finished: bool) -> None:
    """Say where the report is, and what is missing; exit 130 if interrupted."""
    from aliceopt.lab import carry_out

    if (folder / "report.html").exists():
        typer.echo(f"report: {folder / 'report.html'}")
    missing = carry_out.missing(plan, folder)
    if missing:
        listed = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if missing[6:] else "")
        typer.echo(f"not finished: {listed}; the same command with --resume goes on")
    if not finished:
        raise typer.Exit(130)
    if missing:
        raise typer.Exit(1)
    if carry_out.all_diverged(plan, folder):
        typer.echo("every run diverged: is a number in the data not finite, or the rate too high?")
        raise typer.Exit(1)


def table(
    experiment: options.Experiment,
    scale: options.RecordsScale = "lab",
    records: options.Records = None,
    json_file: options.Json = None,
) -> None:
    """Print an experiment's min, median and max over seeds beside the paper's."""
    from aliceopt.lab import carry_out
    from aliceopt.lab.results.table import experiment_table

    with carry_out.told(refuse, needs_lab):
        folder = records_folder(experiment, scale, records)
        carry_out.print_experiment(folder)
        if json_file is not None:
            content: dict[str, Any] = experiment_table(folder)
            json_file.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def list_() -> None:
    """List the experiments: the paper's, and ours."""
    from aliceopt.lab import carry_out

    carry_out.print_experiments()
