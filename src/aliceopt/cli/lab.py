"""``aliceopt run``, ``table``, ``figure`` and ``list``: the paper's experiments, and ours."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from aliceopt import __version__
from aliceopt.cli import options
from aliceopt.cli.folders import check_not_both, clear, default_folder, experiment_records
from aliceopt.cli.refusal import needs_lab, refuse, say, told

if TYPE_CHECKING:
    from aliceopt.lab.records import Records
    from aliceopt.lab.spec import Plan


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"aliceopt {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Compare optimizers on your model, rerun the paper of Alice, check its theory."""


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
    experiment: options.Experiments,
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
    whole: options.Whole = False,
    not_in: options.NotIn = None,
    tune: options.TuneFirst = None,
    dry_run: options.DryRun = False,
) -> None:
    """Run an experiment, then print its table, beside the paper's if it is one of the paper's."""
    from aliceopt.lab.plans.plan import FAMILIES

    if whole and minutes is None:
        refuse("--whole needs --minutes: without an end every run fits")
    if tune is not None and (tune < 3 or overwrite or set_):
        refuse(
            "--tune takes the most rates of a method, at least 3, and goes on with what there is, "
            "with settings as filed: leave out --overwrite and --set"
        )
    asked = _Asked(
        seeds=seeds,
        sets=set_,
        methods=methods,
        precision=precision,
        data=data,
        by_whom=(launcher, device, workers),
        resume=resume,
        overwrite=overwrite,
        tensorboard=tensorboard,
        whole=whole,
        not_in=not_in,
        tune=tune,
        dry_run=dry_run,
    )
    names = FAMILIES.get(experiment, (experiment,))
    begun, codes = time.monotonic(), [0]
    for name in names:
        place = out / name if out is not None and len(names) > 1 else out
        left = None if minutes is None else minutes - (time.monotonic() - begun) / 60
        if left is not None and left <= 0 and name != names[0]:
            say(f"the time is up: {name} has not begun")
            codes.append(130)
            break
        try:
            _run_one(name, scale, place, asked, left)
        except typer.Exit as stopped:  # what is missing or has diverged; the others go on
            codes.append(stopped.exit_code)
        if codes[-1] in (2, 130):
            break
    if any(codes):
        raise typer.Exit(max(codes))


class _Asked(NamedTuple):
    """What is run otherwise than the experiment says, and how."""

    seeds: str | None
    sets: list[str] | None
    methods: str | None
    precision: str | None
    data: Path | None
    by_whom: tuple[str, str, int | None]
    resume: bool
    overwrite: bool
    tensorboard: bool
    whole: bool
    not_in: Path | None
    tune: int | None
    dry_run: bool


def _run_one(name: str, scale: str, out: Path | None, asked: _Asked, minutes: float | None) -> None:
    from aliceopt.cli import carry_out, preview
    from aliceopt.cli.lock import locked
    from aliceopt.lab.plans.plan import experiment_plan, settings_of

    folder = default_folder(name, scale) if out is None else out
    with told(), contextlib.ExitStack() as stack:
        settings_of(name, scale)  # refuses a name or scale that there is not
        carry_out.check_launcher(*asked.by_whom)
        if not asked.dry_run:
            stack.enter_context(locked(folder))
        planned = partial(
            experiment_plan,
            name,
            scale,
            sets=asked.sets or [],
            precision=asked.precision,
            root=carry_out.data_root(name, scale, asked.data, folder, make=not asked.dry_run),
        )
        plan = planned(seeds=seeds_of(asked.seeds), methods=split_names(asked.methods))
        if asked.not_in is not None and not asked.not_in.is_dir():
            raise ValueError(f"--not-in: there is no folder {str(asked.not_in)!r}")
        if asked.tune is not None:
            _run_tuned(plan, folder, asked, minutes, planned)
            return
        if asked.not_in is not None:
            plan = _without_kept(plan, asked.not_in, asked)
            if not plan.runs:
                return
        if asked.dry_run:
            preview.print_plan(plan)
            return
        plan = carry_out.with_data(plan)
        trainer = stack.enter_context(carry_out.launched(*asked.by_whom, whole=asked.whole))
        how = carry_out.How(trainer, asked.resume, asked.tensorboard, minutes)
        if asked.overwrite:  # last, when nothing is left that could be refused
            check_not_both(asked.resume)
            clear(folder, plan)
        records, finished = carry_out.carry_out(plan, folder, how)
        if finished or any(run.status != "missing" for run in records.runs):
            carry_out.print_experiment(records)
    end(records, finished)


def _run_tuned(
    plan: Plan, folder: Path, asked: _Asked, minutes: float | None, planned: Callable[..., Plan]
) -> None:
    """Run what a comparison of the plan's methods lacks, round by round, and print it."""
    from aliceopt.cli import carry_out, preview
    from aliceopt.cli.results import print_compared
    from aliceopt.lab.results.bracketing import has_run, rounds
    from aliceopt.lab.results.kept_compare import compare

    assert asked.tune is not None
    so_far = partial(has_run, plan, folder, asked.not_in, on_cpu=_on_cpu(asked))
    begun = time.monotonic()
    with carry_out.launched(*asked.by_whom, whole=asked.whole) as trainer:
        for part in rounds(plan, so_far, asked.tune, planned):
            if asked.dry_run:
                preview.print_plan(part)
                say("and what follows from these: rates beyond the best, then all seeds there")
                return
            left = None if minutes is None else minutes - (time.monotonic() - begun) / 60
            how = carry_out.How(trainer, True, asked.tensorboard, left)
            records, finished = carry_out.carry_out(carry_out.with_data(part), folder, how)
            if not finished or carry_out.missing(records):
                break
        else:
            finished, records = True, None
    if lines := so_far():
        to = "adamw" if "adamw" in plan.methods else next(iter(plan.methods))
        print_compared(compare(lines, to), to)
    if records is not None:
        end(records, finished)


def _on_cpu(asked: _Asked) -> bool | None:
    """Whether runs are trained on a CPU; None where others decide."""
    from aliceopt.cli import carry_out

    launcher, device, _ = asked.by_whom
    return None if launcher != "local" else carry_out.devices(device) == ["cpu"]


def _without_kept(plan: Plan, folder: Path, asked: _Asked) -> Plan:
    from aliceopt.lab.results.kept import without_kept

    left = without_kept(plan, folder, on_cpu=_on_cpu(asked))
    say(f"{folder} keeps {len(plan.runs) - len(left.runs)} of {len(plan.runs)} runs")
    return left


def end(records: Records, finished: bool) -> None:
    """Say where the report is, and what is missing; exit 130 if interrupted."""
    from aliceopt.cli import carry_out

    report = records.folder / "report.html"
    if report.exists():
        say(f"report: {report}")
    missing = carry_out.missing(records)
    if missing:
        listed = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if missing[6:] else "")
        say(f"not finished: {listed}; the same command with --resume goes on")
    if not finished:
        raise typer.Exit(130)
    if missing:
        raise typer.Exit(1)
    if all(run.status == "diverged" for run in records.runs):
        say("every run diverged: is a number in the data not finite, or the rate too high?")
        raise typer.Exit(1)


def table(
    experiment: options.Experiment,
    scale: options.RecordsScale = "lab",
    records: options.Records = None,
    json_file: options.Json = None,
) -> None:
    """Print an experiment's min, median and max over seeds beside the paper's."""
    from aliceopt.cli import carry_out
    from aliceopt.lab.results.table import experiment_table
    from aliceopt.lab.writing import writing

    with told():
        found = experiment_records(experiment, scale, records)
        carry_out.print_experiment(found)
        if json_file is not None:
            content = experiment_table(found)
            with writing(json_file):
                json_file.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


ILLUSTRATIONS = ("glass", "relu", "theorem1")


def figure(
    name: options.Figure,
    out: options.FigureFile = None,
    seed: options.FigureSeed = 0,
    scale: options.RecordsScale = "lab",
    records: options.Records = None,
) -> None:
    """Draw an illustration from real kinks and gradients, or an experiment from its records."""
    from aliceopt.lab.plans.plan import EXPERIMENTS
    from aliceopt.lab.words import meant

    if name not in ILLUSTRATIONS + EXPERIMENTS:
        refuse(f"there is no figure {name!r}{meant(name, ILLUSTRATIONS + EXPERIMENTS)}")
    try:
        from aliceopt import illustrations
        from aliceopt.lab.figures import draw_experiment
    except ImportError as error:
        refuse(needs_lab(error.name))
    path = Path("out") / f"{name}.png" if out is None else out
    try:
        if name == "glass":
            written = illustrations.draw_glass(path, seed=seed)
        elif name == "theorem1":
            written = illustrations.draw_theorem1(path, seed=seed)
        elif name == "relu":
            written = illustrations.draw_relu(path)
        else:
            written = draw_experiment(experiment_records(name, scale, records), out)
    except ValueError as error:
        refuse(error)
    say(written)


def list_() -> None:
    """List the experiments: the paper's, and ours."""
    from aliceopt.cli import carry_out

    carry_out.print_experiments()
