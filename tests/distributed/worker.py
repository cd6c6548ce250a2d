"""What two processes do at once for test_distributed.py.

``python worker.py OUT INIT_METHOD [NAME...]``, with RANK and WORLD_SIZE set, runs the named
scenarios (all, if none is named) and saves what came out, as plain tensors and numbers, in OUT.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from aliceopt import Alice
from aliceopt.signs import block_signs, sign_key
from aliceopt.site import Draw, Site, signs_of

sys.path.insert(0, str(Path(__file__).parents[1]))  # pytest reads this file without running it
sys.path.insert(0, str(Path(__file__).parent))

from dist_worker import (
    MEASURED,
    RUNS,
    WORLD,
    Result,
    Run,
    advance,
    alice,
    backward,
    batch,
    copied,
    gathered_state,
    mine,
    network,
    parameters,
    sharded,
    train,
    validation,
    wrapped,
)

from paper import paper_alice

FSDP = Run("fsdp")


def shard_signs() -> Result:
    """Signs of local shards, and of the same places in the whole, for several placements."""
    line, square = init_device_mesh("cpu", (WORLD,)), init_device_mesh("cpu", (1, WORLD))
    cases = [(line, [Shard(0)]), (line, [Shard(1)]), (line, [Replicate()])]
    cases += [(square, [Replicate(), Shard(0)]), (square, [Shard(0), Shard(1)])]
    got, expected = [], []
    for shape in [(5, 7), (1, 6), (64, 33)]:
        for mesh, placements in cases:
            param = nn.Parameter(distribute_tensor(torch.zeros(shape), mesh, placements))
            got.append(signs_of(Site.of(param, 3, {}), Draw(seed=11, step=5)))
            expected.append(part_of(block_signs(sign_key(11, 5, 3), shape), placements[-1]))
    return {"got": got, "expected": expected}


def part_of(tensor: Tensor, placement: Any) -> Tensor:
    """This process's part, by torch's own rule: chunks, then nothing."""
    if not isinstance(placement, Shard):
        return tensor
    chunks = list(tensor.chunk(WORLD, placement.dim))
    return [*chunks, tensor.narrow(placement.dim, 0, 0)][dist.get_rank()]


def mixed_precision() -> Result:
    """A few steps with bfloat16 forward and backward over float32 shards."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(Run("fsdp", torch.float32, {"mp_policy": policy}, steps=8))


def low_precision() -> Result:
    """A few steps of bfloat16 shards, with their float32 masters."""
    return train(Run("fsdp", torch.bfloat16, steps=8))


def without_resharding() -> Result:
    """A short FSDP2 run with the resharding and the check behind it switched off."""
    with contextlib.ExitStack() as stack:
        for name in ("alice.reshard", "probe.reshard", "probe.check_seen"):
            stack.enter_context(mock.patch(f"aliceopt.{name}", create=True))
        return train(Run("fsdp", steps=6))


# ---- checkpoints ------------------------------------------------------------------------------


def resumed(save: Callable[..., Any], load: Callable[..., Any], into: Run = FSDP) -> Result:
    """Ten steps, against six, a checkpoint into fresh objects, and four."""
    model = wrapped(FSDP)
    optimizer = alice(model, probe_radius=0.02)
    for step in range(10):
        if step == 6:
            checkpoint = save(model, optimizer)
        advance(model, optimizer, FSDP, step)
    other = wrapped(into)
    again = alice(other, probe_radius=0.02)
    load(other, again, checkpoint)
    for step in range(6, 10):
        advance(other, again, into, step)
    return {"straight": parameters(optimizer), "resumed": parameters(again)}


def plain_checkpoint(place: Callable[[Tensor], Tensor] = lambda value: value) -> Result:
    """Through state_dict and load_state_dict; ``place`` lays the optimizer's tensors out anew."""

    def save(model: nn.Module, optimizer: Alice) -> Any:
        state = copied(optimizer.state_dict())
        for entries in state["state"].values():
            entries.update({name: place(value) for name, value in entries.items()})
        return copied(model.state_dict()), state

    def load(model: nn.Module, optimizer: Alice, checkpoint: Any) -> None:
        model.load_state_dict(checkpoint[0])
        optimizer.load_state_dict(checkpoint[1])

    return resumed(save, load)


def replicated_checkpoint() -> Result:
    """The same with the state of every shard in every process, as a DTensor."""
    whole = [Replicate()]
    return plain_checkpoint(
        lambda v: v.redistribute(placements=whole) if isinstance(v, DTensor) else v
    )


def torch_checkpoint(into: Run = FSDP, **options: Any) -> Result:
    """Through torch.distributed.checkpoint's state dicts."""
    chosen = StateDictOptions(**options)

    def save(model: nn.Module, optimizer: Alice) -> Any:
        model_state = copied(get_model_state_dict(model, options=chosen))
        return model_state, copied(get_optimizer_state_dict(model, optimizer, options=chosen))

    def load(model: nn.Module, optimizer: Alice, checkpoint: Any) -> None:
        set_model_state_dict(model, checkpoint[0], options=chosen)
        set_optimizer_state_dict(model, optimizer, checkpoint[1], options=chosen)

    return resumed(save, load, into)


# ---- traps ------------------------------------------------------------------------------------


def refusals() -> Result:
    """What Alice says to placements and models under which it could not be right."""
    mesh, zeros = init_device_mesh("cpu", (WORLD,)), torch.zeros(4, 3)
    said = {}

    def ask(name: str, params: Any, model: nn.Module | None) -> None:
        try:
            paper_alice(params, model=model)
            said[name] = None
        except ValueError as error:
            said[name] = str(error)

    for name, placement in (("partial", Partial()), ("strided", _StridedShard(0, split_factor=2))):
        param = nn.Parameter(DTensor.from_local(zeros, mesh, [placement], run_check=False))
        ask(name, [param], nn.Linear(3, 4))
    model = sharded(network(torch.float32))
    ask("no model", model.parameters(), None)
    ask("part of the model", model.parameters(), model[0])
    ask("the model", model.parameters(), model)
    model(torch.zeros(1, 4))
    ask("unsharded", model.parameters(), model)
    old = FullyShardedDataParallel(
        network(torch.float32), use_orig_params=True, device_id=torch.device("cpu")
    )
    ask("fsdp1", old.parameters(), old)
    return said


def partial_gradients() -> Result:
    """A replicated weight on a batch in shards: autograd leaves its gradient as partial sums."""

    def outcome(lay_out: Callable[[Tensor, Any], Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1).double()
        for name, param in list(model.named_parameters()):
            setattr(model, name, nn.Parameter(lay_out(param.detach(), Replicate())))
        optimizer = alice(model, max_grad_norm=0.5)
        for step in range(6):
            x, y = (lay_out(part, Shard(0)) for part in batch(step, torch.float64))
            optimizer.step(lambda x=x, y=y: (model(x) - y).square().mean().backward())
        return parameters(optimizer)

    mesh = init_device_mesh("cpu", (WORLD,))
    spread = outcome(lambda tensor, placement: distribute_tensor(tensor, mesh, [placement]))
    return {"without": outcome(lambda tensor, _: tensor), "with": spread}


def disturbed(disturb: Callable[..., None], run: Run) -> Result:
    """Four steps left alone, against four with ``disturb(model, optimizer)`` before the third."""

    def outcome(act: Callable[..., None]) -> tuple[list[Tensor], float]:
        model = wrapped(run)
        optimizer = alice(model)
        for step in range(4):
            if step == 2:
                act(model, optimizer)
                loss = validation(model, run)
                act(model, optimizer)
            optimizer.step(lambda step=step: backward(model, run, step))
        return parameters(optimizer), loss

    alone, after = outcome(lambda *_: None), outcome(disturb)
    return {"without": alone[0], "with": after[0], "losses": [alone[1], after[1]]}


class Interrupted(Exception):
    """Raised inside a forward pass."""


def interruption(run: Run) -> Result:
    """Steps that raise in their second forward, between the first layers and the last."""

    def break_off(model: nn.Module, optimizer: Alice) -> None:
        calls = []

        def interrupt(*_: Any) -> None:
            calls.append(None)
            if len(calls) == 2:
                raise Interrupted

        handle = model[3].register_forward_pre_hook(interrupt)
        with contextlib.suppress(Interrupted):
            optimizer.step(lambda: backward(model, run, 2))
        handle.remove()

    return disturbed(break_off, run)


def pending_gather() -> Result:
    """The root is still gathering its old weights when a step begins."""

    def gather(model: nn.Module, _: Alice) -> None:
        model.reshard()
        model.unshard(async_op=True)

    return disturbed(gather, FSDP)


def plain_loop(run: Run) -> Result:
    """Six steps by a plain backward, against the loop over evaluations; validation in between."""
    options = {"hessian": "none", "glass": False, "step_fraction": 1.0, "lookahead": 2.0}

    def outcome(plain: bool) -> tuple[list[Tensor], list[float]]:
        model, losses = wrapped(run), []
        optimizer = alice(model, **options)
        for step in range(6):
            optimizer.zero_grad()
            for _ in range(1) if plain else optimizer.evaluations():
                backward(model, run, step)
            losses.append(float(optimizer._probe is not None and not optimizer._probe.at_rest))
            optimizer.step()
            model.eval()
            losses.append(validation(model, run))
            model.train()
        return parameters(optimizer), losses

    loop, plain = outcome(False), outcome(True)
    away = plain[1][::2]
    return {"without": loop[0], "with": plain[0], "losses": [loop[1][1::2], plain[1][1::2], away]}


def local_gradients() -> Result:
    """One measuring step: its state, and each evaluation's gradient of this process's part."""
    model, alone = wrapped(FSDP), network(torch.float64)
    optimizer = alice(model)
    found = []

    def evaluate() -> None:
        for here, there in zip(alone.parameters(), parameters(optimizer), strict=True):
            here.data.copy_(there)
        x, y = (mine(part, FSDP) for part in batch(0, torch.float64))
        loss = (alone(x) - y).square().mean()
        found.append(list(torch.autograd.grad(loss, list(alone.parameters()))))
        backward(model, FSDP, 0)

    optimizer.step(evaluate)
    return {"gradients": found, "state": gathered_state(optimizer)}


def overflow() -> Result:
    """A GradScaler's step in which one gradient in one process's shard overflows, on one side."""
    run = Run("fsdp", torch.float32)
    model = wrapped(run)
    optimizer, scaler = alice(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = parameters(optimizer)
    x, y = (mine(part, run) for part in batch(0, run.dtype))
    for round_ in optimizer.evaluations(scaler=scaler):
        scaler.scale((model(x) - y).square().mean()).backward()
        if round_ == 0 and dist.get_rank() == 0:
            next(model.parameters()).grad.to_local()[0, 0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    counts = [optimizer.param_groups[0][name] for name in ("measuring_count", "quick_count")]
    moved = [bool((a != b).any()) for a, b in zip(parameters(optimizer), before, strict=True)]
    return {"counts": counts, "moved": moved, "scale": scaler.get_scale()}


SCENARIOS: dict[str, Callable[[], Result]] = {
    "shard signs": shard_signs,
    "mixed precision": mixed_precision,
    "low precision": low_precision,
    "without resharding": without_resharding,
    "plain checkpoint": plain_checkpoint,
    "replicated checkpoint": replicated_checkpoint,
    "sharded checkpoint": torch_checkpoint,
    "full checkpoint": lambda: torch_checkpoint(full_state_dict=True, broadcast_from_rank0=True),
    "flat checkpoint": lambda: torch_checkpoint(flatten_optimizer_state_dict=True),
    "one process checkpoint": lambda: torch_checkpoint(Run(), full_state_dict=True),
    "refusals": refusals,
    "partial gradients": partial_gradients,
    "interruption": lambda: interruption(FSDP),
    "interrupted accumulation": lambda: interruption(Run("fsdp", accumulate=True)),
    "pending gather": pending_gather,
    "plain ddp": lambda: plain_loop(Run("ddp")),
    "plain ddp accumulate": lambda: plain_loop(Run("ddp", accumulate=True)),
    "plain fsdp": lambda: plain_loop(FSDP),
    "plain fsdp accumulate": lambda: plain_loop(Run("fsdp", accumulate=True)),
    "local gradients": local_gradients,
    "overflow": overflow,
    **MEASURED,
}


def attempt(scenario: Callable[[], Result]) -> Result:
    """What came out, or why nothing did: the other scenarios still run."""
    try:
        return scenario()
    except Exception:
        return {"error": traceback.format_exc()}


def references(names: list[str]) -> dict[str, Result]:
    """The runs of one process, taken before there is any other."""
    done: dict[str, Result] = {}
    for name in names:
        run = RUNS[name].reference()
        if str(run) not in done:
            done[str(run)] = attempt(lambda run=run: train(run))
    return {name: done[str(RUNS[name].reference())] for name in names}


def main() -> None:
    """Run, and save one file a process."""
    out, init_method, *names = sys.argv[1:]
    names = names or [*RUNS, *SCENARIOS]
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    # Torch takes an empty step, with lr 0, to see what a checkpoint must hold.
    warnings.filterwarnings("error", "no curvature has been measured")
    runs = [name for name in names if name in RUNS]
    expected = references(runs) if rank == 0 else {}
    dist.init_process_group(
        "gloo",
        init_method=init_method,
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=60),
    )
    results = {name: attempt(lambda name=name: train(RUNS[name])) for name in runs}
    results |= {name: attempt(SCENARIOS[name]) for name in names if name in SCENARIOS}
    torch.save({"results": results, "references": expected}, Path(out) / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
