"""``aliceopt run``, ``table``, ``figure`` and ``list``: the paper's experiments, and ours."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
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
    if whole and minutes is None:
        refuse("--whole needs --minutes: without an end every run fits")
    if tune is not None and (tune < 3 or overwrite or set_):
        refuse(
            "--tune takes the most rates of a method, at least 3, and goes on with what there is, "
            "with settings as filed: leave out --overwrite and --set"
        )
    asked = _Asked(
        scale=scale,
        seeds=seeds,
        sets=set_,
        methods=methods,
        precision=precision,
        data=data,
        by_whom=(launcher, device, workers),
        resume=resume,
        overwrite=overwrite,
        tensorboard=tensorboard,
        minutes=minutes,
        whole=whole,
        not_in=not_in,
        tune=tune,
        dry_run=dry_run,
    )
    _run_all(experiment, out, asked)


class _Asked(NamedTuple):
    """What is run otherwise than the experiment says, and how."""

    scale: str
    seeds: str | None
    sets: list[str] | None
    methods: str | None
    precision: str | None
    data: Path | None
    by_whom: tuple[str, str, int | None]
    resume: bool
    overwrite: bool
    tensorboard: bool
    minutes: float | None
    whole: bool
    not_in: Path | None
    tune: int | None
    dry_run: bool


def _run_all(experiment: str, out: Path | None, asked: _Asked) -> None:
    """One experiment, or all of a family, one after the other, until the time is up."""
    from aliceopt.cli import carry_out
    from aliceopt.lab.plans.plan import FAMILIES

    with told():
        deadline = carry_out.ends_at(asked.minutes)
    names, codes = FAMILIES.get(experiment, (experiment,)), [0]
    for name in names:
        if deadline is not None and name != names[0] and time.time() >= deadline:
            say(f"the time is up: {name} has not begun")
            codes.append(130)
            break
        default = default_folder(name, asked.scale)
        folder = default if out is None else out if len(names) == 1 else out / name
        try:
            _run_one(name, folder, asked, deadline)
        except typer.Exit as stopped:  # what is missing or has diverged; the others go on
            codes.append(stopped.exit_code)
        if codes[-1] in (2, 130):
            break
    if any(codes):
        raise typer.Exit(max(codes))


def _run_one(name: str, folder: Path, asked: _Asked, deadline: float | None) -> None:
    """Plan the rounds that are asked for, carry out one after the other, and print what came."""
    from aliceopt.cli import carry_out
    from aliceopt.cli.lock import locked
    from aliceopt.lab.plans.plan import settings_of
    from aliceopt.lab.training.outstanding import threads_each

    records, finished = None, True
    with told(), contextlib.ExitStack() as stack:
        settings_of(name, asked.scale)  # refuses a name or scale that there is not
        carry_out.check_launcher(*asked.by_whom)
        if not asked.dry_run:
            stack.enter_context(locked(folder))
        planned = _planner(name, folder, asked)
        plan = planned(seeds=seeds_of(asked.seeds), methods=split_names(asked.methods))
        # Where runs are tuned three of each method come first.
        runs = len(plan.runs) if asked.tune is None else 3 * len(plan.methods)
        begun = None if asked.overwrite else carry_out.threads_before(folder)
        device, threads = carry_out.place_here(runs, begun, *asked.by_whom)
        rounds = _rounds(plan, folder, asked, device, planned)
        if asked.dry_run:
            _preview(next(rounds, None), tuned=asked.tune is not None)
            return
        trainer = stack.enter_context(carry_out.launched(*asked.by_whom, whole=asked.whole))
        threads = threads or begun or threads_each(trainer, runs)
        resume = asked.resume or asked.tune is not None
        setting = carry_out.setting_of(folder, resume, asked.tensorboard, deadline, threads)
        for part in map(carry_out.with_data, rounds):
            if asked.overwrite:  # last, when nothing is left that could be refused
                check_not_both(asked.resume)
                clear(folder, part)
            records, finished = carry_out.carry_out(part, trainer, setting)
            if not finished or carry_out.missing(records):
                break
        if asked.tune is not None:
            best = _print_tuned(plan, folder, asked.not_in, device, planned)
            if best and finished and not (records and carry_out.missing(records)):
                records = best  # all there is, not the last round alone
        elif records and (finished or any(run.status != "missing" for run in records.runs)):
            carry_out.print_experiment(records)
    if records is not None:
        end(records, finished)


def _planner(name: str, folder: Path, asked: _Asked) -> Callable[..., Plan]:
    """Makes plans of an experiment, as the user changed it, from methods and seeds."""
    from aliceopt.cli import carry_out
    from aliceopt.lab.plans.plan import experiment_plan

    return partial(
        experiment_plan,
        name,
        asked.scale,
        sets=asked.sets or [],
        precision=asked.precision,
        root=carry_out.data_root(name, asked.scale, asked.data, folder, make=not asked.dry_run),
    )


def _preview(first: Plan | None, *, tuned: bool) -> None:
    from aliceopt.cli import preview

    if first is None:
        say("nothing is lacking")
        return
    preview.print_plan(first)
    if tuned:
        say("and what follows from these: rates beyond the best, then all seeds there")


def _rounds(
    plan: Plan, folder: Path, asked: _Asked, device: str | None, planned: Callable[..., Plan]
) -> Iterator[Plan]:
    """What is to be run: the plan, without what is kept; or rates first, by what came of them."""
    from aliceopt.cli import bracketing
    from aliceopt.lab.results import kept

    kept_in = asked.not_in
    if kept_in is not None and not kept_in.is_dir():
        raise ValueError(f"--not-in: there is no folder {str(kept_in)!r}")
    if asked.tune is not None:
        if kept_in is not None and device is None:
            raise ValueError(
                "--tune with --not-in compares with runs of the same device, which neither "
                "torchrun nor --launcher ray tells beforehand: leave out --not-in"
            )
        so_far = partial(bracketing.has_run, plan, folder, kept_in, device=device)
        return bracketing.rounds(plan, so_far, asked.tune, planned)
    if kept_in is not None:
        left = kept.without_kept(plan, kept_in, device=device)
        say(f"{kept_in} keeps {len(plan.runs) - len(left.runs)} of {len(plan.runs)} runs")
        plan = left
    return iter([plan] if plan.runs else [])


def _print_tuned(
    plan: Plan, folder: Path, kept: Path | None, device: str | None, planned: Callable[..., Plan]
) -> Records | None:
    """The runs that count, as of any experiment, and every method beside one of them."""
    from aliceopt.cli import carry_out
    from aliceopt.cli.bracketing import at_best, has_run
    from aliceopt.cli.results import print_compared
    from aliceopt.lab.records import read_records, write_plan
    from aliceopt.lab.results.kept_compare import by_rate, compare

    lines = has_run(plan, folder, kept, device=device)
    records, best = None, at_best(plan, folder, lines, planned)
    if best is not None:
        best = replace(carry_out.with_data(best), command=carry_out.command())
        write_plan(folder, best)
        records = read_records(folder, best)
        carry_out.print_experiment(records)
    tried = by_rate(lines)
    if (to := next((m for m in ("adamw", *plan.methods) if m in tried), None)) is not None:
        print_compared(compare(lines, to), to)
    return records


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
