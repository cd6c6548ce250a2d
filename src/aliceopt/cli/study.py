"""``aliceopt study`` and ``aliceopt new-problem``."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from pathlib import Path

from aliceopt.cli import carry_out, options, preview
from aliceopt.cli.folders import check_not_both, clear, clear_retuned
from aliceopt.cli.lab import end, split_names
from aliceopt.cli.lock import locked
from aliceopt.cli.refusal import refuse, say, told
from aliceopt.cli.templates import missing_package, write_template
from aliceopt.lab.plans.study import Study, study_plan
from aliceopt.lab.problems.problem import how_to_get
from aliceopt.lab.records import Records, RunRecord
from aliceopt.lab.results.tuning import tuned
from aliceopt.lab.spec import Plan
from aliceopt.lab.training.launch import Launcher, Setting
from aliceopt.lab.training.outstanding import outstanding, refuse_fewer
from aliceopt.trained.network import problem_name


def study(
    problem: options.Problem = None,
    terms: options.Terms = None,
    steps: options.Steps = None,
    baselines: options.Baselines = None,
    seeds: options.StudySeeds = None,
    epochs: options.Epochs = None,
    tune: options.Tune = 7,
    limit: options.Limit = "fixed",
    lr: options.Rate = None,
    quick_steps: options.QuickSteps = None,
    budget: options.Budget = "steps",
    target: options.Goal = None,
    precision: options.Precision = None,
    out: options.Out = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    launcher: options.Launcher = "local",
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    tensorboard: options.TensorBoard = False,
    dry_run: options.DryRun = False,
    problem_option: options.ProblemOption = None,
) -> None:
    """Find out what to train a model on its data with.

    Trains the same model with Alice, without its look-ahead, with every
    curvature term, and with baselines, over several seeds, and ends with a
    table, a finding in plain words and a report to open in a browser.
    """
    if problem is not None and problem_option is not None:
        refuse(f"two problems: {problem!r} and --problem {problem_option}; choose one")
    problem = options.or_digits(problem_option if problem is None else problem)
    folder = Path("runs") / f"study-{problem_name(problem)}" if out is None else out
    with told(), contextlib.ExitStack() as stack:
        carry_out.check_launcher(launcher, device, workers)
        stack.enter_context(contextlib.nullcontext() if dry_run else locked(folder))
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
            precision=precision,
        )
        plan = carry_out.lasting(plan, launcher, device, workers, folder if resume else None)
        if dry_run:
            here = device if launcher == "local" else "auto"  # its devices are a cluster's
            preview.print_study(plan, plan.final.paces or carry_out.paces(plan, here, workers))
            return
        trainer = stack.enter_context(carry_out.launched(launcher, device, workers))
        setting = carry_out.setting_of(folder, resume, tensorboard)
        records, finished = _carry_out(plan, trainer, setting, overwrite)
    end(records, finished)


def _carry_out(
    plan: Study, trainer: Launcher, setting: Setting, overwrite: bool
) -> tuple[Records, bool]:
    """Tune the rates, train with them, and report; what is there is gone on with, if it may be."""
    folder, resume = setting.folder, setting.resume
    if overwrite:  # last, when nothing is left that could be refused
        check_not_both(resume)
        clear(folder, plan.final)
    refuse_fewer(plan.final, folder)  # before rates are tuned for less,
    if plan.most > 1 and not resume:
        outstanding(plan.final, folder, resume=False)  # or beside what is there
    rounds = itertools.count()  # each but the first goes on from the last

    def tune(tuning: Plan) -> list[RunRecord]:
        """Unless all runs have ended nothing is chosen, and the command ends here."""
        again = resume or next(rounds) > 0
        here = replace(setting, folder=folder / "tuning", resume=again)
        records, finished = carry_out.carry_out(
            tuning, trainer, here, title="tuning learning rates"
        )
        if not finished or carry_out.missing(records):
            say("stopped while tuning learning rates; what was tried is kept")
            end(records, finished)
        return records.runs

    final = tuned(plan, folder, tune)
    anew = clear_retuned(final, folder) if resume and plan.most > 1 else []
    if anew:
        say(f"another learning rate is best now, so made anew: {', '.join(anew)}")
    records, finished = carry_out.carry_out(final, trainer, setting)
    carry_out.print_study(records)
    return records, finished


def new_problem(path: options.NewProblem, kind: options.Kind = "spirals") -> None:
    """Write a problem of your own to start from: it runs as it is."""
    try:
        write_template(path, kind)
    except ValueError as error:
        refuse(error)
    say(f"wrote {path}: edit it, then run aliceopt study {path}:problem")
    if (package := missing_package(kind)) is not None:
        say(f"it needs {package}, which is not installed{how_to_get(package)}")
