"""``aliceopt landscape``: which kind of curvature a trained network has, block by block."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from aliceopt.cli import carry_out, options
from aliceopt.cli.folders import clear_networks, delete
from aliceopt.cli.lock import locked
from aliceopt.cli.refusal import refuse, say, told
from aliceopt.lab.plans.plan import EXPERIMENTS, PlanError
from aliceopt.lab.provenance import versions
from aliceopt.lab.spec import LabProblem, Run
from aliceopt.lab.terminal import stdout_console
from aliceopt.lab.training.clock import now
from aliceopt.lab.training.precision import in_words
from aliceopt.lab.training.stopping import terms_as_interrupts
from aliceopt.lab.words import counted, meant, settings_in_words
from aliceopt.lab.writing import replacing
from aliceopt.landscape.twins import check_swapped
from aliceopt.trained.landscape import table as tables
from aliceopt.trained.landscape.along import Along
from aliceopt.trained.landscape.presets import PARTS, PRESETS, Asked, Cost, cost_of
from aliceopt.trained.landscape.reading import reading, reading_along
from aliceopt.trained.landscape.safetensors import write_tensors
from aliceopt.trained.landscape.survey import View, check_fits, see
from aliceopt.trained.network import (
    Network,
    check_activation,
    check_new,
    check_same,
    checkpoint_run,
    network_of,
    problem_name,
    problem_run,
    twin_run,
    weights_of,
)


def landscape(
    source: options.Measured = None,
    preset: options.Preset = "standard",
    batch_size: options.BatchSize = None,
    blocks: options.Blocks = None,
    twin: options.Twin = None,
    train_twin: options.TrainTwin = False,
    batches: options.Batches = "both",
    radius: options.Radius = None,
    every: options.Every = None,
    between: options.Between = None,
    coordinates: options.Coordinates = False,
    exact: options.Exact = False,
    evaluating: options.Evaluating = False,
    method: options.TrainedBy = "adamw",
    checkpoint: options.Weights = None,
    scale: options.Scale = "lab",
    data: options.Data = None,
    precision: options.MeasuredIn = "float32",
    seed: options.Seed = 0,
    out: options.Out = None,
    device: options.Device = "auto",
    overwrite: options.OverwriteLandscape = False,
) -> None:
    """Measure which curvature a trained network has, glass or a Hessian, in every block.

    Says first how many gradients and losses that takes. Ends with a table, what it means in words,
    figures, and the numbers as JSON lines and safetensors. The network is trained first, unless
    weights are given, and kept in the folder for the next time. A landscape that is there already
    is replaced with --overwrite only.
    """
    name = _name(source) if twin is None else f"{_name(source)}+{twin}"
    folder = Path("runs") / f"landscape-{name}" if out is None else out
    with told(), locked(folder), _stoppable():
        _check(preset, batches, twin, train_twin)
        asked = Asked(
            preset=PRESETS[preset],
            batch_size=batch_size,
            blocks=int(blocks) if blocks is not None and blocks.isdecimal() else blocks,
            precision=precision,
            seed=seed,
            parts=PARTS if batches == "both" else (batches,),
            evaluating=evaluating,
            radius=radius,
            coordinates=coordinates,
            exact=exact,
            between=None if between is None else weights_of(between),
        )
        place = torch.device(carry_out.devices(device)[0])
        run, checkpoint = _origin(source, checkpoint, every, seed, scale, data, method, folder)
        along = None if every is None else Along(run, asked, every, folder, place, tell=say)
        other = twin_run(run, twin) if train_twin and twin is not None else None
        check_fits(run, asked)
        _check_old(folder, run, other, checkpoint, along, overwrite)
        _announce(preset, asked, 1 + (twin is not None) + train_twin, along)
        networks = _networks(run, other, folder, place, checkpoint, twin, along)
        lines = [] if along is None else along.lines()
        del along  # it has a network of its own
        views = _seen(networks, asked, place)
        _tell(views, lines, folder, _facts(source, run, asked, views, lines, place))


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    try:
        with terms_as_interrupts():
            yield
    except KeyboardInterrupt:
        refuse("stopped: what is finished is kept, and the same command goes on from there", 130)


def _name(source: str | None) -> str:
    if source is not None and source.endswith(".pt"):
        return "-".join(Path(source).resolve().parts[-4:-1])
    return problem_name(source)


def _check(preset: str, batches: str, twin: str | None, train_twin: bool) -> None:
    """Refuse what cannot be measured, before a network is trained for it."""
    if preset not in PRESETS:
        raise ValueError(f"--preset {preset!r} is no preset{meant(preset, PRESETS)}")
    if batches not in ("both", *PARTS):
        raise ValueError(f"--batches must be both, {' or '.join(PARTS)}; got {batches!r}")
    if train_twin and twin is None:
        raise ValueError("--train-twin needs --twin, the activation to train with")
    if twin is not None:
        check_activation(twin)


def _origin(
    source: str | None,
    checkpoint: Path | None,
    every: float | None,
    seed: int,
    scale: str,
    data: Path | None,
    method: str,
    folder: Path,
) -> tuple[Run, Path | None]:
    """Where the network comes from: how it is trained, or was, and weights to read instead."""
    if source is not None and source.endswith(".pt"):
        if checkpoint is not None:
            raise ValueError(f"two checkpoints: {source!r} and --checkpoint {checkpoint}")
        checkpoint = Path(source)
        run = checkpoint_run(checkpoint)
    else:
        if source in EXPERIMENTS:
            data = carry_out.data_root(source, scale, data, folder)
        run = problem_run(source, seed, scale=scale, data=data, method=method)
    if every is not None and checkpoint is not None:
        raise ValueError("--every looks on while a network trains: give a problem, no checkpoint")
    return run, checkpoint


RESULTS = ("landscape.jsonl", "along.jsonl", "landscape.safetensors", "report.html")
FIGURES = ("exponents-*", "shares", "bounds", "slices-*", "planes", "along")
_SUFFIXES = (".png", ".pdf")


def _check_old(
    folder: Path,
    run: Run,
    other: Run | None,
    checkpoint: Path | None,
    along: Along | None,
    overwrite: bool,
) -> None:
    """A landscape and networks that are there are kept, unless the user says otherwise.

    The old landscape goes once there is a new one, a network only if it is another than ``run`` or,
    beside it, the trained twin ``other``.
    """
    there = [name for name in RESULTS if (folder / name).exists()]
    if there and not overwrite:
        raise ValueError(
            f"{str(folder)!r} already holds {', '.join(there)}: --overwrite measures anew and "
            "replaces them (the trained network is used again), or choose another --out"
        )
    networks = [(run, folder, checkpoint)]
    networks += [] if other is None else [(other, _twin_folder(folder, other), None)]
    others: list[tuple[Path, Run]] = []
    for one, place, weights in networks:
        try:
            check_same(one, place, weights)
            if along is not None and one is run:
                along.check_network()
        except PlanError:
            if not overwrite:
                raise
            check_new(one, weights)
            others.append((place, one))
    clear_networks(others, checkpoint)


def _twin_folder(folder: Path, trained: Run) -> Path:
    return folder / f"twin-{trained.problem.twin}"


def _announce(preset: str, asked: Asked, count: int, along: Along | None) -> None:
    radii, directions, batches, *_ = asked.preset
    each = f"{radii} radii, {directions} directions, {counted(batches, 'batch', 'batches')}"
    say(
        f"{preset}: {cost_of(asked, count).in_words()} at most, for {counted(count, 'network')} on "
        f"{' and '.join(asked.parts)} batches ({each} of each kind)"
    )
    if asked.exact:
        say("besides, --exact takes a backward pass for every parameter on each of these batches")
    if along is not None:
        times = counted(len(along.steps), "time")
        say(f"before that, while it trains: {along.gradients:,} gradients at most, {times}")


def _networks(
    run: Run,
    other: Run | None,
    folder: Path,
    place: torch.device,
    checkpoint: Path | None,
    twin: str | None,
    along: Along | None,
) -> dict[str, Network]:
    networks = {"as trained": network_of(run, folder, place, checkpoint, watch=along)}
    if twin is not None:
        swapped = network_of(run, folder, place, checkpoint, twin)
        say(f"{twin} twin: {check_swapped(swapped.model)} in a pass")
        networks[f"{twin} twin"] = swapped
    if other is not None:
        networks[f"{twin} twin, trained"] = network_of(other, _twin_folder(folder, other), place)
    return networks


def _seen(networks: dict[str, Network], asked: Asked, place: torch.device) -> list[View]:
    def peak() -> float:
        """Of the device's memory so far, in GB; 0 for a CPU."""
        return torch.cuda.max_memory_allocated(place) / 1e9 if place.type == "cuda" else 0.0

    columns = (
        "gradients and losses",
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        "{task.description}",
    )
    views: list[View] = []
    peaks: list[float] = []
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)  # of the training
    console = stdout_console()
    begun = time.perf_counter()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task("", total=cost_of(asked, len(networks)).evaluations)

        def tick(instrument: str, *, gradient: bool) -> None:
            bars.update(task, advance=1, description=instrument)
            if not peaks:
                peaks.append(peak())

        for view in see(networks, asked, tick):
            console.print(f"{view.network}, {view.part} batches: {view.cost.in_words()}")
            views.append(view)
    said = f"measured in {time.perf_counter() - begun:.1f} s"
    if place.type == "cuda":
        said += f"; peak memory {peak():.2f} GB, of the first gradient {peaks[0]:.2f} GB"
    say(said)
    return views


def _facts(
    source: str | None,
    run: Run,
    asked: Asked,
    views: list[View],
    along: list[dict[str, Any]],
    place: torch.device,
) -> dict[str, str]:
    """How it was measured, for the report."""
    first = views[0]
    model = run.problem.model if isinstance(run.problem, LabProblem) else {}
    taken = Cost(*map(sum, zip(*(view.cost for view in views), strict=True)))
    before = sum(line["gradients"] for line in along)
    trained = f", {counted(before, 'gradient')} while it trained" if along else ""
    metrics = {view.network: f"loss {view.loss:.4g}, metric {view.metric:.4g}" for view in views}
    told = "; ".join(f"{name}: {said}" for name, said in metrics.items())
    counts = dict.fromkeys(f"{view.ladder.batches} of {view.part}" for view in views)
    radii = f"{first.ladder.radii[0]:.1e} to {first.ladder.radii[-1]:.1e}"
    return {
        "Problem": source or "A small convnet on digits",
        "Command": carry_out.command(),
        "Model": settings_in_words(model),
        "Trained by": f"{run.label}, {counted(run.training.steps, 'step')}, seed {run.seed}",
        "On validation data": told,
        "Batches": f"batches of {first.batch_size:,} examples, {' and '.join(counts)}",
        "Mode": "evaluation" if asked.evaluating else "training",
        "Radii": f"{radii}, {first.ladder.directions} directions a batch",
        "Precision": in_words(asked.precision),
        "Taken": f"{taken.in_words()}{trained}, and the gradients that chose the radii",
        "Device": str(place),
        "Versions": settings_in_words(versions()),
        "Date": now(),
    }


def _tell(
    views: list[View],
    along: list[dict[str, Any]],
    folder: Path,
    facts: dict[str, str],
) -> None:
    from aliceopt.trained.landscape.report import write_landscape_report  # which takes a second

    console = stdout_console()
    old = {folder / name for name in RESULTS}
    for name, suffix in itertools.product(FIGURES, _SUFFIXES):
        old.update((folder / "figures").glob(f"{name}{suffix}"))
    written = {"landscape.jsonl": tables.records(views)} | ({"along.jsonl": along} if along else {})
    for name, content in written.items():
        with replacing(folder / name) as beside:
            lines = "".join(json.dumps(line, allow_nan=False) + "\n" for line in content)
            beside.write_text(lines, encoding="utf-8")
    write_tensors(folder / "landscape.safetensors", tables.tensors(views))
    console.print(tables.landscape_table(views))
    for line in [*reading(views), *reading_along(along)]:
        console.print(f"{line}\n", markup=False, highlight=False)
    console.print(
        "How much the loss rises along a move, beyond its slope: how often by more than is "
        "predicted, and mean rise over mean prediction (1: right on average)"
    )
    console.print(tables.bounds_table(views))
    path, pictures = write_landscape_report(folder, views, facts, along)
    names = [*written, "landscape.safetensors"]
    drawn = {picture.path.with_suffix(suffix) for picture in pictures for suffix in _SUFFIXES}
    delete(old - drawn - {path, *(folder / name for name in names)})  # of the one before
    for picture in pictures:
        say(f"figure: {picture.path}")
    say(f"report: {path}")
    say(f"numbers: {', '.join(str(folder / name) for name in names)}")
