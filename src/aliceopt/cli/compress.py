"""``aliceopt compress``: which weights can go."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from aliceopt.cli import carry_out, options
from aliceopt.cli.folders import check_not_both, clear_networks, delete
from aliceopt.cli.lab import seeds_of, split_names
from aliceopt.cli.lock import locked
from aliceopt.cli.refusal import say, told
from aliceopt.lab.plans.plan import EXPERIMENTS, PlanError, checked_seeds
from aliceopt.lab.spec import Run
from aliceopt.lab.terminal import stdout_console
from aliceopt.lab.training.stopping import terms_as_interrupts
from aliceopt.trained.compress import records
from aliceopt.trained.compress.rows import ROWS, Ask
from aliceopt.trained.compress.survey import compress_network
from aliceopt.trained.compress.table import asked_tables, print_tables
from aliceopt.trained.network import (
    check_new,
    check_same,
    network_of,
    problem_name,
    problem_run,
    twin_run,
)

SHARES = "0.5,0.7,0.8,0.9"

Problem = Annotated[
    str | None,
    typer.Argument(
        callback=options.or_digits,
        help="An experiment with a method adamw (aliceopt list), or file.py:function as for "
        "aliceopt study; by default digits, a small convnet.",
    ),
]
Twin = Annotated[
    str | None,
    typer.Option(
        help="Train and prune the network with this activation in the place of its own, from the "
        "same start: gelu, silu, relu2, leaky or relu."
    ),
]
Sparsity = Annotated[
    str | None,
    typer.Option(help="Shares of the weights to be removed, by commas.", show_default=SHARES),
]
Criteria = Annotated[
    str | None,
    typer.Option(
        help="By commas; by default all there are. curvature@1e-3 is one at another radius of "
        "its probes."
    ),
]
Gradients = Annotated[int, typer.Option(help="That every criterion may take, all rounds together.")]
Rounds = Annotated[
    int, typer.Option(help="Remove in so many rounds, with new scores for what is left.")
]
Structure = Annotated[str, typer.Option(help="unstructured, or 2:4: two of every four neighbours.")]
Finetune = Annotated[float, typer.Option(help="Epochs of training with the masks on.")]
Layers = Annotated[
    float | None,
    typer.Option(
        help="Also remove this share of every layer alone, and print what was predicted and what "
        "it cost."
    ),
]
Checkpoint = Annotated[Path | None, typer.Option(help="Weights instead of training: a state dict.")]


def compress(
    problem: Problem = None,
    twin: Twin = None,
    sparsity: Sparsity = None,
    criteria: Criteria = None,
    gradients: Gradients = 300,
    rounds: Rounds = 1,
    structure: Structure = "unstructured",
    finetune: Finetune = 0.0,
    layers: Layers = None,
    checkpoint: Checkpoint = None,
    seeds: options.Seeds = "1",
    scale: options.Scale = "lab",
    data: options.Data = None,
    precision: options.Precision = None,
    out: options.Out = None,
    device: options.Device = "auto",
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
) -> None:
    """Compare criteria of pruning on a trained network, at equal gradients.

    Trains the network with AdamW first, unless weights are given, and keeps it in the folder for
    the next time, whatever is asked then. Ends with a table of validation losses, a decision, a
    report and, for every sparsity, the pruned network whose loss is lowest.
    """
    with told():
        from aliceopt.trained.compress.report import write_compression_report

        shares = _numbers(sparsity or ("0.5" if structure == "2:4" else SHARES))
        named = split_names(criteria)
        chosen = tuple(ROWS if named is None else named)
        ask = Ask(shares, chosen, gradients, finetune, rounds, structure, layers)
        name = problem_name(problem)
        at = name if twin is None else f"{name}+{twin}"
        folder = Path("runs") / f"compress-{at}" if out is None else out
        place = carry_out.devices(device)[0]
        with locked(folder):
            numbers = checked_seeds(seeds_of(seeds))
            if problem in EXPERIMENTS:
                data = carry_out.data_root(problem, scale, data, folder)
            how: dict[str, Any] = {"scale": scale, "data": data, "precision": precision}
            runs = [problem_run(problem, seed, **how) for seed in numbers]
            if twin is not None:
                runs = [twin_run(run, twin) for run in runs]
            _check_old(folder, runs, checkpoint, ask, resume, overwrite)
            finished = _carry_out(folder, runs, place, checkpoint, (name, scale), ask)
            lines = records.read_folder(folder)
            print_tables(asked_tables(lines, ask), stdout_console())
            if lines:
                say(f"report: {write_compression_report(folder, carry_out.command())}")
            say(f"networks and records: {folder}")
    if not finished:
        raise typer.Exit(130)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--sparsity takes numbers by commas, like 0.5,0.7; got {text!r}"
        ) from None


def _check_old(
    folder: Path,
    runs: list[Run],
    checkpoint: Path | None,
    ask: Ask,
    resume: bool,
    overwrite: bool,
) -> None:
    """Results that are asked for and there already are kept, or made anew, as the user says.

    So is a network that is another one, with all that was made of it.
    """
    if overwrite:
        check_not_both(resume)
    others = []
    for run in runs:
        try:
            check_same(run, folder, checkpoint)
        except PlanError:
            if not overwrite:
                raise
            others.append(run)
    records.check_alike(folder, runs[0], but=[run.seed for run in others])
    for run in others:
        check_new(run, checkpoint)
    clear_networks([(folder, run) for run in others], checkpoint)
    if others and not records.read_folder(folder):  # none is left that they were made of
        delete(folder.glob("pruned-*.pt"))
    asked_for = partial(records.asked_for, ask)
    for run in runs:
        old = sum(map(asked_for, records.read_run(folder, run)))
        if old and overwrite:
            records.forget(folder, run, asked_for)
        elif old and not resume:
            raise ValueError(
                f"{str(folder)!r} has {old} of these results for seed {run.seed} already: "
                "--resume goes on behind them, --overwrite makes them anew"
            )


def _carry_out(
    folder: Path,
    runs: list[Run],
    place: str,
    checkpoint: Path | None,
    names: tuple[str, str],
    ask: Ask,
) -> bool:
    """Make what is missing, seed by seed; False if it was interrupted."""
    try:
        with terms_as_interrupts():
            for run in runs:
                network = network_of(run, folder, torch.device(place), checkpoint)
                for said in compress_network(network, run, folder, names, ask):
                    say(f"seed {run.seed}: {said}")
    except KeyboardInterrupt:
        say("interrupted: what is finished is kept, and the same command with --resume goes on")
        return False
    return True
