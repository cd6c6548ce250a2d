"""``aliceopt compress``: which weights can go."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from aliceopt.cli import options
from aliceopt.cli.lab import seeds_of, split_names
from aliceopt.cli.refusal import needs_lab, refuse, say


def compress(
    problem: Annotated[
        str | None,
        typer.Argument(
            help="An experiment with a method adamw (aliceopt list), or file.py:function as "
            "for aliceopt study; by default a small convnet on digits."
        ),
    ] = None,
    sparsity: Annotated[
        str, typer.Option(help="Shares of the weights to be removed, by commas.")
    ] = "0.5,0.7,0.8,0.9",
    criteria: Annotated[
        str | None, typer.Option(help="By commas; by default all there are.")
    ] = None,
    gradients: Annotated[int, typer.Option(help="That every criterion may take.")] = 300,
    finetune: Annotated[int, typer.Option(help="Epochs of training with the masks on.")] = 0,
    layers: Annotated[
        float | None,
        typer.Option(
            help="Also remove this share of every layer alone, and print what was predicted and "
            "what it cost."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Weights instead of training: a state dict.")
    ] = None,
    seeds: options.Seeds = "1",
    scale: options.Scale = "lab",
    data: options.Data = None,
    precision: options.Precision = None,
    out: options.Out = None,
    device: options.Device = "auto",
) -> None:
    """Compare criteria of pruning on a trained network, at equal gradients.

    Trains the network with AdamW first, unless weights are given, and keeps it in the folder for
    the next time. Ends with a table of validation losses, a decision, a figure and, for every
    sparsity, the pruned network whose loss is lowest.
    """
    import torch

    from aliceopt.lab import carry_out
    from aliceopt.lab.calibration import calibrate
    from aliceopt.lab.compression import ROWS, check, compare, network_of, problem_run
    from aliceopt.lab.lock import locked
    from aliceopt.lab.results.compression_table import calibration_table
    from aliceopt.lab.terminal import stdout_console

    name = "digits" if problem is None else problem.rpartition(":")[0].rpartition("/")[2] or problem
    folder = Path("runs") / f"compress-{name.removesuffix('.py')}" if out is None else out
    with carry_out.told(refuse, needs_lab), locked(folder):
        shares = _numbers(sparsity)
        if layers is not None and not 0 < layers < 1:
            raise ValueError(f"--layers must be a number in (0, 1), got {layers!r}")
        which = seeds_of(seeds)
        place = torch.device(carry_out.devices(device)[0])
        chosen = split_names(criteria) or list(ROWS)
        check(chosen, shares, gradients, finetune)
        keeper, console = _Keeper(folder), stdout_console()
        found: list[Any] = []
        numbers = which if isinstance(which, list) else list(range(which or 1))
        for seed in numbers:
            run = problem_run(problem, seed, scale=scale, data=data, precision=precision)
            network = network_of(run, folder, place, checkpoint)
            asked = {"criteria": chosen, "gradients": gradients, "finetune": finetune}
            for result in compare(network, seed, shares, **asked, keep=keeper):  # type: ignore[arg-type]
                found.append(result)
                say(
                    f"seed {seed}: {result.criterion} {100 * result.sparsity:g}%: "
                    f"loss {result.loss:.4f}"
                )
            if layers is not None:
                console.print(
                    f"rise of the loss, {100 * layers:g}% of a layer removed, seed {seed}"
                )
                console.print(calibration_table(calibrate(network, seed, layers, gradients)))
        _tell(found, network.problem.measure.name, folder, console)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--sparsity takes numbers by commas, like 0.5,0.7; got {text!r}"
        ) from None


class _Keeper:
    """Keeps the network of lowest loss at every sparsity in the folder, its masks made final."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.best: dict[float, float] = {}

    def __call__(self, result: Any, model: Any) -> None:
        if not result.loss < self.best.get(result.sparsity, float("inf")):
            return
        from torch.nn.utils import prune

        from aliceopt.compress import weights_of
        from aliceopt.lab.records import save_checkpoint

        self.best[result.sparsity] = result.loss
        for weight in weights_of(model).values():
            if weight.mask is not None:
                prune.remove(weight.layer, "weight")
        path = self.folder / f"pruned-{100 * result.sparsity:g}.pt"
        save_checkpoint(path, model.state_dict())


def _tell(found: list[Any], metric: str, folder: Path, console: Any) -> None:
    from aliceopt.lab.results.compression_table import compression_table, decision, draw_compression
    from aliceopt.lab.words import counted
    from aliceopt.lab.writing import writing

    lines = "".join(json.dumps(asdict(result)) + "\n" for result in found)
    with writing(folder / "compression.jsonl"):
        (folder / "compression.jsonl").write_text(lines, encoding="utf-8")
    shown = "validation loss" if metric == "loss" else f"validation loss / {metric}"
    seeds = counted(len({r.seed for r in found}), "seed")
    console.print(f"{shown} by share of weights removed, {seeds}", style="bold")
    console.print(compression_table(found, metric))
    for line in decision(found):
        console.print(line)
    say(f"figure: {draw_compression(found, folder / 'compression.png')}")
    say(f"networks and records: {folder}")
