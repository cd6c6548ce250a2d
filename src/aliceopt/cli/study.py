"""``aliceopt study`` and ``aliceopt new-problem``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aliceopt.cli.folders import check_not_both, clear
from aliceopt.cli.lab import (
    Device,
    DryRun,
    Out,
    Overwrite,
    Resume,
    TensorBoard,
    Workers,
    end,
    split_names,
)
from aliceopt.cli.refusal import needs_lab, refuse


def study(
    problem: Annotated[
        str | None,
        typer.Option(
            help="Your own problem, package.module:function or file.py:function, a function "
            "without arguments that returns model, loss, train and validation data (start from "
            "aliceopt new-problem). The default is a small convnet on scikit-learn's digits."
        ),
    ] = None,
    terms: Annotated[
        str | None,
        typer.Option(
            help="Curvature terms, by commas, of none, glass, abs, glass+abs, rms, signed, "
            "glass+signed; the default is all but the last."
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="naq (accelerated), full (quasi-Newton), or both: naq,full.")
    ] = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            help="By commas, of adam, adamw, sgd-m, nesterov, adahessian, schedule-free, muon; "
            "default all; '' for none."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds; the default is 5.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the training data.")] = None,
    tune: Annotated[
        int, typer.Option(help="Learning rates to try for every method; 1 takes the usual one.")
    ] = 3,
    limit: Annotated[str, typer.Option(help="What bounds Alice's steps: fixed or adam.")] = "fixed",
    lr: Annotated[
        float | None,
        typer.Option(help="Alice's rate for naq, or the middle one to try; full's is lower."),
    ] = None,
    quick_steps: Annotated[
        int | None, typer.Option(help="Alice's steps with one gradient between those with three.")
    ] = None,
    budget: Annotated[
        str, typer.Option(help="What all methods get the same number of: steps or gradients.")
    ] = "steps",
    target: Annotated[
        float | None, typer.Option(help="Metric to reach; the default is computed and stated.")
    ] = None,
    out: Out = None,
    device: Device = "auto",
    workers: Workers = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    tensorboard: TensorBoard = False,
    dry_run: DryRun = False,
) -> None:
    """Find out which curvature terms help to train a model on its data.

    Trains the same model with every term and step of Alice and with baselines, over several
    seeds, and ends with a table, a finding in plain words and a report to open in a browser.
    """
    from aliceopt.lab import carry_out
    from aliceopt.lab.study import study_folder, study_plan, tuned

    folder = study_folder(problem) if out is None else out
    how = carry_out.How(device, workers, resume, tensorboard)
    with carry_out.told(refuse, needs_lab):
        plan = study_plan(
            problem,
            terms=split_names(terms),
            steps=split_names(steps),
            baselines=split_names(baselines),
            seeds=seeds,
            epochs=epochs,
            lr=lr,
            quick_steps=quick_steps,
            limit=limit,
            budget=budget,
            target=target,
            tune=tune,
        )
        if dry_run:
            carry_out.print_plan(plan.final, plan.tuning)
            return
        if overwrite:
            check_not_both(resume)
            clear(folder, plan.final.document, plan.tuning.document if plan.tuning else None)
        finished = plan.tuning is None or carry_out.carry_out(
            plan.tuning, folder / "tuning", how, title="tuning learning rates"
        )
        final = tuned(plan, folder) if finished else plan.final
        finished = finished and carry_out.carry_out(final, folder, how)
        carry_out.print_study(final, folder, target)
    end(final, folder, finished)


def new_problem(
    path: Annotated[Path, typer.Argument(help="The Python file to write, like my_problem.py.")],
) -> None:
    """Write a problem of your own to start from: it runs as it is."""
    from aliceopt.lab.problem import ProblemError, write_template

    try:
        write_template(path)
    except ProblemError as error:
        refuse(error)
    typer.echo(f"wrote {path}: edit it, then run aliceopt study --problem {path}:problem")
