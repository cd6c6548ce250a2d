"""The work of ``aliceopt compress`` on one network after the other, with records as it goes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torch import nn
from torch.nn.utils import prune as torch_prune

from aliceopt.compress import weights_of
from aliceopt.lab import compression_records as records
from aliceopt.lab.calibration import calibrate
from aliceopt.lab.compression import Ask, Result, compare
from aliceopt.lab.network import Network
from aliceopt.lab.records import save_checkpoint
from aliceopt.lab.results.compression_table import (
    Group,
    Rows,
    calibration_rows,
    compression_rows,
    decision,
    group_of,
    groups_of,
    layer_rows,
    radius_rows,
)
from aliceopt.lab.spec import Run
from aliceopt.lab.words import counted

__all__ = ["asked_tables", "compress_network"]


def compress_network(
    network: Network,
    run: Run,
    folder: Path,
    told: tuple[str, str],
    ask: Ask,
) -> Iterator[str]:
    """Make what is asked for and not recorded yet; a sentence for each that was made.

    ``told`` are the names of the problem and its scale. The best network at every sparsity is kept
    beside the records.
    """
    there = records.results_of(records.read_folder(folder))
    done = {result.key for result in there if result.seed == run.seed}
    layers_left = ask.layers is not None and _layers_left(network.model, run, folder, ask)
    said = records.about(*told, run, network)
    keeper = _Keeper(folder, there)
    with contextlib.closing(records.journal_of(folder, run)) as journal:
        for result in compare(network, run.seed, ask, done=done, keep=keeper):
            records.keep_result(journal, said, result)
            yield f"{result.criterion} {100 * result.sparsity:g}%: loss {result.loss:.4f}"
        if ask.layers is not None and layers_left:
            found = calibrate(network, run.seed, ask.layers, ask.gradients)
            records.keep_layers(journal, said, found, ask.gradients)
            yield f"{counted(len(found.layers), 'layer')}: predicted and measured"


def _layers_left(model: nn.Module, run: Run, folder: Path, ask: Ask) -> bool:
    """Whether a layer that is asked for is not recorded; if so, the others are forgotten."""

    def asked_for(line: records.Line) -> bool:
        kind = "layer", ask.layers, ask.gradients
        return (line["event"], line["sparsity"], line["budget"]) == kind

    there = {line["layer"] for line in records.read_run(folder, run) if asked_for(line)}
    left = set(weights_of(model)) - there
    if left and there:  # a kill between two of their lines
        records.forget(folder, run, asked_for)
    return bool(left)


class _Keeper:
    """Keeps the network of lowest loss of every table and sparsity, its masks made final."""

    def __init__(self, folder: Path, there: Iterable[Result]):
        self.folder = folder
        self.best: dict[Path, float] = {}
        for result in there:
            path = self._path(result)
            if path.exists() and result.loss < self.best.get(path, float("inf")):
                self.best[path] = result.loss

    def _path(self, result: Result) -> Path:
        group = group_of(result)
        marks = ["-2-4"] if group.structure == "2:4" else []
        marks += [f"-rounds-{group.rounds}"] if group.rounds > 1 else []
        marks += [f"-finetune-{group.finetune:g}"] if group.finetune else []
        return self.folder / f"pruned-{100 * result.sparsity:g}{''.join(marks)}.pt"

    def __call__(self, result: Result, model: nn.Module) -> None:
        path = self._path(result)
        if not result.loss < self.best.get(path, float("inf")):
            return
        self.best[path] = result.loss
        for weight in weights_of(model).values():
            if weight.mask is not None:
                torch_prune.remove(weight.layer, "weight")
        save_checkpoint(path, model.state_dict())


Told = tuple[str, Rows, Sequence[str]]
"""A title, a table, and what to say below it."""


def asked_tables(lines: Sequence[records.Line], ask: Ask) -> list[Told]:
    """The tables of what was asked for, from the records of a folder."""
    results = records.results_of(lines)
    metric = lines[0]["metric_name"] if lines else "loss"
    shown = "validation loss" if metric == "loss" else f"validation loss / {metric}"
    group = Group(ask.structure, ask.rounds, ask.finetune, ask.gradients)
    mine = groups_of(results).get(group, [])
    told: list[Told] = []
    if mine:
        seeds = counted(len({r.seed for r in mine}), "seed")
        title = f"{shown} by share of weights removed, {group.in_words()}, {seeds}"
        told.append((title, compression_rows(mine, metric), decision(mine)))
    if curve := radius_rows(mine, metric):
        told.append((f"{shown} by radius of the probes", curve, []))
    found = {
        seed: one
        for (share, budget, seed), one in records.calibrations_of(lines).items()
        if (share, budget) == (ask.layers, ask.gradients)
    }
    for seed, one in found.items():
        title = f"rise of the loss, {100 * one.sparsity:g}% of a layer removed, seed {seed}"
        told.append((title, layer_rows(one), []))
    if found:
        told.append(("what the predictions are worth", calibration_rows(found), []))
    return told
