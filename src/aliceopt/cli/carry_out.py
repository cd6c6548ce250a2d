"""What the commands do with a plan: check, show, carry out, and report what came of it."""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from aliceopt.cli.live import Live
from aliceopt.lab.data import generate
from aliceopt.lab.plans import plan as planning
from aliceopt.lab.plans.plan import PlanError, settings_of
from aliceopt.lab.plans.study import Study, seconds_of
from aliceopt.lab.problems.problem import load_data, model_for
from aliceopt.lab.provenance import device_name
from aliceopt.lab.records import ENDED, RecordError, Records, read_found, read_records
from aliceopt.lab.results.numbers import NONE
from aliceopt.lab.spec import LabProblem, Plan
from aliceopt.lab.terminal import new_table, stdout_console
from aliceopt.lab.training.launch import Launcher, NoneFits, Setting
from aliceopt.lab.training.outstanding import outstanding, threads_each
from aliceopt.lab.training.pace import known_paces, measured_paces
from aliceopt.lab.training.pool import Local
from aliceopt.lab.training.stopping import terms_as_interrupts
from aliceopt.lab.typed import Count, Positive, checked
from aliceopt.lab.words import counted, rounded

LAUNCHERS = ("local", "ray")
"""Who may be asked to train the runs."""


def check_launcher(launcher: str, device: str, workers: int | None) -> None:
    """Refuse what cannot train here, before anything is planned or read."""
    if launcher not in LAUNCHERS:
        raise PlanError(f"--launcher must be one of {', '.join(LAUNCHERS)}; got {launcher!r}")
    if workers is not None:
        checked(Count, workers, "--workers")
    if launcher == "local" and not _under_torchrun():
        devices(device)


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


@contextlib.contextmanager
def launched(
    launcher: str, device: str, workers: int | None, *, whole: bool = False
) -> Iterator[Launcher]:
    """Whoever is to train the runs, as `check_launcher` let pass; under torchrun all its ranks."""
    if whole and (launcher != "local" or _under_torchrun()):
        raise PlanError("--whole is for --launcher local, without torchrun: others begin all runs")
    if _under_torchrun():
        from aliceopt.lab.training.ranks import together

        yield together(launcher, device, workers)
    elif launcher == "ray":
        from aliceopt.integrations.ray import connected

        with connected(device, workers) as cluster:
            yield cluster
    else:
        yield Local(devices(device), workers, whole)


def paces(study: Study, device: str, workers: int | None) -> dict[str, float]:
    """Seconds a step of every method here, by timing a few with the threads a run will have."""
    local = Local(devices(device), workers)
    threads = threads_each(local, len(study.final.runs))
    return measured_paces(study, local.devices[0], threads)


def lasting(
    study: Study, launcher: str, device: str, workers: int | None, folder: Path | None
) -> Study:
    """The study with as many steps as fit into the seconds of its budget, by timing a few first.

    A study that goes on in ``folder`` keeps the paces it began with. With another budget it is the
    study as it was.
    """
    seconds = seconds_of(study.final.budget)
    if seconds is None:
        return study
    if launcher != "local" or _under_torchrun():
        raise PlanError(
            "--budget in seconds times steps in this process, and neither torchrun nor --launcher "
            "ray trains there: choose steps or gradients"
        )
    known = {} if folder is None else known_paces(folder)
    if set(study.final.methods) - set(known):
        known = {**paces(study, device, workers), **known}
    return study.lasting(known, seconds)


def threads_before(folder: Path) -> int | None:
    """The threads that runs in a folder began with on a CPU; None if none has begun."""
    there = read_found(folder) if (folder / "plan.json").exists() else []
    return next((run.ran.training.threads for run in there if run.ran is not None), None)


def place_here(
    runs: int, threads: int | None, launcher: str, device: str, workers: int | None
) -> tuple[str | None, int | None]:
    """The device that records of so many runs will name, and the threads of each on a CPU.

    None, None: others decide.
    """
    if launcher != "local" or _under_torchrun():
        return None, None
    local = Local(devices(device), workers)
    threads = threads or threads_each(local, runs)
    return device_name(torch.device(local.devices[0]), threads), threads


def ends_at(minutes: float | None) -> float | None:
    """When the time will be up, as `Setting` has it."""
    return None if minutes is None else time.time() + 60 * checked(Positive, minutes, "--minutes")


def setting_of(
    folder: Path,
    resume: bool,
    tensorboard: bool,
    deadline: float | None = None,
    threads: int | None = None,
) -> Setting:
    """Refuses TensorBoard where it is not there, before anything is deleted or run."""
    if tensorboard:
        importlib.import_module("torch.utils.tensorboard")
    return Setting(folder, resume, tensorboard, deadline, threads)


def carry_out(
    plan: Plan, launcher: Launcher, setting: Setting, *, title: str = ""
) -> tuple[Records, bool]:
    """Run what is left of a plan, showing how it goes; False if it was interrupted."""
    plan = replace(plan, command=command())
    left = outstanding(plan, setting.folder, resume=setting.resume)
    console = stdout_console()
    if title:
        console.print(f"{title}: {counted(len(left.runs), 'run')}")
    finished = True
    try:
        with terms_as_interrupts(), Live(plan, console, left.runs) as live:
            left.launch(launcher, setting, live)
    except KeyboardInterrupt as why:
        console.print(f"{str(why) or 'interrupted'}: what is finished is kept")
        finished = isinstance(why, NoneFits)
    return read_records(setting.folder, plan), finished


def command() -> str:
    """The command as it would be given to an empty folder."""
    again = ("--resume", "--overwrite")
    return shlex.join(["aliceopt", *(word for word in sys.argv[1:] if word not in again)])


def devices(device: str) -> list[str]:
    """The devices that a name means; auto: every GPU, or the CPU."""
    count = torch.cuda.device_count()
    if device == "auto":
        return [f"cuda:{i}" for i in range(count)] or ["cpu"]
    if device == "cpu":
        return ["cpu"]
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise PlanError(f"--device must be auto, cpu, cuda or cuda:N; got {device!r}")
    if int(number or 0) >= count:
        raise PlanError(f"--device {device}: there are {counted(count, 'CUDA device')} here")
    return [f"cuda:{number or 0}"]


def missing(records: Records) -> list[str]:
    """The runs that have no end: interrupted, failed, or never begun."""
    return [f"{r.label} seed {r.seed} ({r.status})" for r in records.runs if r.status not in ENDED]


# ---- data --------------------------------------------------------------------------------------


def data_root(
    experiment: str, scale: str, given: Path | None, folder: Path, *, make: bool = True
) -> Path | None:
    """The folder to read data from.

    At smoke scale small sets are generated where none is given, if they are to be made.
    """
    settings = settings_of(experiment, scale)  # refuses a name or scale that there is not
    if given is not None:
        if not given.is_dir():
            raise PlanError(f"--data: there is no folder {str(given)!r}")
        return given.resolve()
    if scale != "smoke" or not make:
        return None
    return generate.write(settings["data"]["name"], (folder / "data").resolve())


def with_data(plan: Plan) -> Plan:
    """The plan with a note of its data; a bad file or model is told of before any run."""
    assert isinstance(plan.problem, LabProblem)
    loaded = load_data(plan.problem)
    with torch.device("meta"):  # without any weights
        model_for(loaded, plan.problem.model)
    return replace(plan, generated=loaded.generated, data_note=loaded.note)


# ---- showing -----------------------------------------------------------------------------------


def print_experiments() -> None:
    """Names, what they are, and their cost at each scale."""
    largest, others = " or ".join(planning.SCALES[:2]), planning.SCALES[2:]
    table = new_table("experiment", "what", "reference", largest, *others, words=3)
    table.columns[0].no_wrap = True  # names are to be typed
    for name in planning.EXPERIMENTS:
        scales = planning.scales_of(name)
        plans = {s: planning.experiment_plan(name, s, read=False, check=False) for s in scales}
        costs = [rounded(plans[s].gradients) if s in plans else NONE for s in others]
        about, most = settings_of(name, scales[0]), rounded(plans[scales[0]].gradients)
        table.add_row(name, about["title"], about.get("paper", "").split(":")[0], most, *costs)
    stdout_console().print(table)
    print("Costs are gradient evaluations at each scale. Run one: aliceopt run NAME --scale smoke")
    print("aliceopt run pays: all four of pays-..., one after the other.")


def print_experiment(records: Records) -> None:
    """An experiment's table beside the paper's, its figure, and its report.

    Of kept results the table alone: nothing is written beside them.
    """
    from aliceopt.lab.figures import draw_experiment
    from aliceopt.lab.report import write_report
    from aliceopt.lab.results.table import print_table

    if records.folder.is_file():
        print_table(records, stdout_console())
        return
    drawn = None
    with contextlib.suppress(RecordError):  # nothing finished yet: no figure
        drawn = draw_experiment(records)
    write_report(records)  # before anything is printed, which may fail: into a closed pipe, say
    console = stdout_console()
    print_table(records, console)
    if drawn is not None:
        console.print(f"figure: {drawn}", markup=False, soft_wrap=True)


def print_study(records: Records) -> None:
    """A study's table and finding, and its report."""
    from aliceopt.lab.report import write_report
    from aliceopt.lab.results.table import print_summary

    write_report(records)  # first, as above
    print_summary(records.plan, records.runs, stdout_console())
