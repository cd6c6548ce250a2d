"""``aliceopt run``, ``table`` and ``list``: the paper's experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aliceopt import __version__
from aliceopt.cli.folders import check_not_both, clear, default_folder
from aliceopt.cli.refusal import needs_lab, refuse

if TYPE_CHECKING:
    from aliceopt.lab.plan import Plan

Out = Annotated[Path | None, typer.Option(help="Folder for records, figures and report.")]
Device = Annotated[
    str, typer.Option(help="auto, cpu, cuda or cuda:N; auto takes every GPU there is.")
]
Workers = Annotated[
    int | None, typer.Option(help="Runs at once; the default is one a GPU, or one a CPU core.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the records in the folder.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete the folder's old records.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan and its cost, run nothing.")
]


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


def run(
    experiment: Annotated[str, typer.Argument(help="See aliceopt list.")],
    scale: Annotated[
        str,
        typer.Option(
            help="paper (days), lab (minutes to hours on one GPU) or smoke (seconds on a CPU)."
        ),
    ] = "lab",
    seeds: Annotated[int | None, typer.Option(help="How many seeds.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one value, like train.epochs=10; repeat for more."),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these methods, separated by commas.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the data sets. Without it, smoke makes small data of its own and the "
            "others look where aliceopt data where says."
        ),
    ] = None,
    out: Out = None,
    device: Device = "auto",
    workers: Workers = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    tensorboard: TensorBoard = False,
    dry_run: DryRun = False,
) -> None:
    """Run one of the paper's experiments, then print its table beside the paper's."""
    from aliceopt.lab import carry_out
    from aliceopt.lab.plan import experiment_plan

    folder = default_folder(experiment, scale) if out is None else out
    with carry_out.told(refuse, needs_lab):
        root_folder = carry_out.data_root(experiment, scale, data, folder, make=not dry_run)
        plan = experiment_plan(
            experiment,
            scale,
            seeds=seeds,
            sets=set_ or [],
            methods=split_names(methods),
            root=root_folder,
        )
        if dry_run:
            carry_out.print_plan(plan)
            return
        carry_out.check_data(plan)
        if overwrite:
            check_not_both(resume)
            clear(folder, plan.document)
        how = carry_out.How(device, workers, resume, tensorboard)
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
    experiment: Annotated[str, typer.Argument(help="See aliceopt list.")],
    scale: Annotated[str, typer.Option(help="paper, lab or smoke.")] = "lab",
    out: Annotated[Path | None, typer.Option(help="The folder of the records.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the table to this file.")
    ] = None,
) -> None:
    """Print an experiment's min, median and max over seeds beside the paper's."""
    from aliceopt.lab import carry_out
    from aliceopt.lab.results.table import experiment_table

    folder = default_folder(experiment, scale) if out is None else out
    with carry_out.told(refuse, needs_lab):
        carry_out.check_experiment(experiment, scale)
        carry_out.print_experiment(folder)
        if json_file is not None:
            content: dict[str, Any] = experiment_table(folder)
            json_file.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def list_() -> None:
    """List the paper's experiments."""
    from aliceopt.lab import carry_out

    carry_out.print_experiments()
