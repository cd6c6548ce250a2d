"""What test_dcp.py looks at: one training, saved by four processes and gone on with by fewer.

``python dcp_worker.py OUT`` reads torch once and forks for every group of processes. Every process
takes the gradient of the whole batch, so the mean over 4, 2 or 1 of them is exact, and so every bit
may agree.
"""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

from aliceopt import Alice

sys.path.insert(0, str(Path(__file__).parents[1]))  # pytest reads this file without running it
sys.path.insert(0, str(Path(__file__).parent))

from dist_worker import batch, gathered_state, network, parameters, sharded

from paper import paper_alice

SAVED, STEPS = 3, 8
OPTIONS = {"plain": StateDictOptions(), "flat": StateDictOptions(flatten_optimizer_state_dict=True)}


@contextmanager
def group(rank: int, world: int, out: Path) -> Iterator[None]:
    """A group of so many processes; none for one."""
    if world == 1:
        yield
        return
    meeting = f"file://{out / f'meeting-{world}'}"
    dist.init_process_group(
        "gloo",
        init_method=meeting,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


def begun(world: int) -> tuple[Any, Alice]:
    """A model, in shards if there are several processes, and its optimizer."""
    model = network(torch.float32)
    model = sharded(model) if world > 1 else model
    return model, paper_alice(model.parameters(), 0.05, model=model, quick_steps=1)


def advance(model: Any, optimizer: Alice, steps: range) -> None:
    """Measuring and quick steps by turns, on the whole batch in every process."""
    for step in steps:
        x, y = batch(step, torch.float32)
        optimizer.step(lambda x=x, y=y: (model(x) - y).square().mean().backward())


def outcome(optimizer: Alice) -> dict[str, Any]:
    """All that a run comes to."""
    counts = ("cadence", "measuring_count", "quick_count")
    return {
        "parameters": parameters(optimizer),
        "state": gathered_state(optimizer),
        "counts": [optimizer.param_groups[0][name] for name in counts],
    }


def saved(out: Path, world: int) -> dict[str, Any]:
    """The whole run, with checkpoints on the way."""
    model, optimizer = begun(world)
    advance(model, optimizer, range(SAVED))
    for name, options in OPTIONS.items():
        weights, state = get_state_dict(model, optimizer, options=options)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=out / name)
    advance(model, optimizer, range(SAVED, STEPS))
    return {"straight": outcome(optimizer)}


def resumed(out: Path, world: int) -> dict[str, Any]:
    """The rest of it, from each of the checkpoints."""
    found = {}
    for name, options in OPTIONS.items():
        model, optimizer = begun(world)
        weights, state = get_state_dict(model, optimizer, options=options)
        there = {"model": weights, "optimizer": state}
        dcp.load(there, checkpoint_id=out / name)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=there["model"],
            optim_state_dict=there["optimizer"],
            options=options,
        )
        advance(model, optimizer, range(SAVED, STEPS))
        found[name] = outcome(optimizer)
    return found


def work(rank: int, world: int, out: Path) -> None:
    """One process of a group."""
    torch.set_num_threads(1)
    with group(rank, world, out):
        found = saved(out, world) if world == 4 else resumed(out, world)
        if rank == 0:
            torch.save(found, out / f"{world}.pt")


def main() -> None:
    """Four processes, then two, then one."""
    out = Path(sys.argv[1])
    context = multiprocessing.get_context("fork")
    for world in (4, 2, 1):
        processes = [context.Process(target=work, args=(rank, world, out)) for rank in range(world)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit(f"of {world} processes: {[process.exitcode for process in processes]}")


if __name__ == "__main__":
    warnings.filterwarnings("error", "no curvature has been measured")
    main()
