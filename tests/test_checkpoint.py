"""Stop anywhere, resume anywhere: bit for bit the same run; and refuse what cannot fit."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from aliceopt import Alice
from contract_cases import (
    FEW_OPTIONS,
    IDS,
    LR,
    OPTIONS,
    closure_for,
    counts,
    make,
    memory,
    network,
    run_loop,
    same,
    train,
    values,
)
from paper import paper_alice

few_cases = pytest.mark.parametrize("options", FEW_OPTIONS, ids=range(len(FEW_OPTIONS)))

SCRIPT = '''
"""Train for some steps, from a checkpoint if there is one, then save and die at once."""
import os, sys
import torch
from torch import nn
from aliceopt import PAPER, Alice

path, first, last, hessian = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1)
)
options = {**PAPER, "lr": 0.02, "hessian": hessian, "weight_decay": 0.01}
optimizer = Alice(model.named_parameters(), model=model, **options)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=30)
if first > 0:
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    torch.set_rng_state(saved["random"])
for step in range(first, last):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 6, generator=generator)
    def closure():
        loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
        loss.backward()
        return loss
    optimizer.step(closure)
    scheduler.step()
torch.save({
    "model": model.state_dict(), "optimizer": optimizer.state_dict(),
    "scheduler": scheduler.state_dict(), "random": torch.get_rng_state(),
}, path)
os._exit(0)
'''


def run_script(folder: Path, name: str, first: int, last: int, hessian: str) -> dict:
    """Run the script in a process of its own and read what it saved."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    arguments = [str(folder / name), str(first), str(last), hessian]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(script), *arguments], check=True, env=environment)
    return torch.load(folder / name, weights_only=True)


def test_a_killed_run_resumed_in_a_new_process_ends_bit_identical(tmp_path):
    """Stopped after step 7 of 20, between two measurements; dropout, BatchNorm and schedule."""
    whole = run_script(tmp_path, "whole.pt", 0, 20, "signed")
    stopped = run_script(tmp_path, "parts.pt", 0, 7, "signed")
    assert stopped["optimizer"]["param_groups"][0]["cadence"] % 4 == 3
    resumed = run_script(tmp_path, "parts.pt", 7, 20, "signed")
    assert same(dict(whole["model"]), dict(resumed["model"]))
    assert same(whole["optimizer"]["state"], resumed["optimizer"]["state"])
    assert torch.equal(whole["random"], resumed["random"])


def through_a_file(optimizer: Alice, path: Path) -> dict:
    torch.save(optimizer.state_dict(), path)
    return torch.load(path, weights_only=True)


@few_cases
@pytest.mark.parametrize("stop", range(1, 6))
def test_every_phase_of_the_cycle_resumes_bit_identical(options, stop, tmp_path):
    """Right after a measuring step, between quick ones, right before the next measuring one."""
    model, optimizer = make(options)
    train(model, optimizer, 0, stop)
    twin = network(seed=8)
    twin.load_state_dict(model.state_dict())
    second = paper_alice(twin.parameters(), **{"lr": LR, **options})
    second.load_state_dict(through_a_file(optimizer, tmp_path / "checkpoint.pt"))
    train(model, optimizer, stop, stop + 6)
    train(twin, second, stop, stop + 6)
    assert same(values(model), values(twin))
    assert same(memory(optimizer), memory(second))


@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
def test_checkpoints_hold_nothing_but_tensors_and_plain_values(options, tmp_path):
    """So that torch.load(weights_only=True) reads them, and reads them back exactly."""
    model, optimizer = make(options)
    train(model, optimizer, 0, 2)
    assert same(optimizer.state_dict(), through_a_file(optimizer, tmp_path / "checkpoint.pt"))


# ---- precision of what is loaded --------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_loading_keeps_the_state_of_a_low_precision_parameter_exact(dtype):
    """Torch would cast float32 state to bf16; it must come back in every bit."""
    model, optimizer = make({}, dtype=dtype)
    train(model, optimizer, 0, 5)
    twin, second = make({}, dtype=dtype)
    twin.load_state_dict(model.state_dict())
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    assert same(memory(optimizer), memory(second))
    assert second.state[twin[0].weight]["grad_avg"].dtype == wanted
    train(model, optimizer, 5, 10)
    train(twin, second, 5, 10)
    assert same(values(model), values(twin))
    assert same(memory(optimizer), memory(second))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        (torch.float64, torch.float16),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_dtype_is_converted_to_state_precision(old, new):
    """Averages arrive in the new parameter's state precision, rounded at most once."""
    model, optimizer = make({}, dtype=old)
    train(model, optimizer, 0, 5)
    twin, second = make({}, dtype=new)
    second.load_state_dict(optimizer.state_dict())
    precision = torch.float64 if new == torch.float64 else torch.float32
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        for name in ("probe_center", "grad_avg", "grad_sq", "glass_density", "hess"):
            wanted = optimizer.state[p][name].to(precision)
            assert same(second.state[q][name], wanted)
    train(twin, second, 5, 10)
    assert all(torch.isfinite(p).all() for p in twin.parameters())


def test_a_float32_checkpoint_gives_a_bf16_model_its_master_weights():
    """After the load, steps below one bf16 ulp must add up as in a run that began in bf16."""
    source, p = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    first, second = (
        paper_alice([q], lr=2.0**-10, lr_min=1.0, step_fraction=1.0) for q in (source, p)
    )
    first.step(lambda: source.sum().backward())
    second.load_state_dict(first.state_dict())
    for _ in range(16):
        second.step(lambda: p.sum().backward())
    # Every step is 1/1024, a quarter of the distance to the next bf16 number below 1.
    assert p.tolist() == pytest.approx([1 - 16 / 1024] * 4, abs=2.0**-9)


def test_counters_stay_on_the_cpu_in_double_precision():
    """Wherever the parameter lives, reading them must not wait for a device."""
    model, optimizer = make({}, dtype=torch.bfloat16)
    train(model, optimizer, 0, 2)
    _, second = make({}, dtype=torch.bfloat16)
    second.load_state_dict(optimizer.state_dict())
    for state in second.state.values():
        for name in ("step", "topography_weight"):
            assert state[name].dtype == torch.float64
            assert state[name].device.type == "cpu"


# ---- refusals ---------------------------------------------------------------------------------


def two_groups(widths: tuple[int, int], **options) -> Alice:
    a, b = (nn.Parameter(torch.ones(n)) for n in widths)
    optimizer = paper_alice([{"params": [a]}, {"params": [b]}], lr=LR, **options)
    optimizer.step(lambda: (a.square().sum() + b.square().sum()).backward())
    return optimizer


def one_group(*widths: int, **options) -> Alice:
    params = [nn.Parameter(torch.ones(n)) for n in widths]
    optimizer = paper_alice(params, lr=LR, **options)
    optimizer.step(lambda: sum(p.square().sum() for p in params).backward())
    return optimizer


REFUSED = {
    "shape": (
        lambda: one_group(3, 4),
        lambda: one_group(3, 5),
        r"parameter 1 has shape \(4,\).*\(5,\)",
    ),
    "groups": (lambda: two_groups((3, 4)), lambda: one_group(3, 4), r"2 parameter groups.* 1"),
    "count": (
        lambda: one_group(3, 4),
        lambda: one_group(3),
        r"group 0 has 2 parameters in the checkpoint, 1 in",
    ),
    "hessian": (
        lambda: one_group(3, hessian="rms"),
        lambda: one_group(3, hessian="signed"),
        r"group 0 measured hessian='rms'.*hessian='signed'",
    ),
    "no hessian": (
        lambda: one_group(3, hessian="none"),
        lambda: one_group(3),
        r"hessian='none'.*hessian='abs'",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_fit_is_refused_with_what_differs_and_changes_nothing(kind):
    """The optimizer keeps state, options and counters, and goes on."""
    build_saved, build_mine, message = REFUSED[kind]
    saved, mine = build_saved().state_dict(), build_mine()
    before = memory(mine)
    with pytest.raises(ValueError, match=message):
        mine.load_state_dict(saved)
    assert same(memory(mine), before)
    params = [p for group in mine.param_groups for p in group["params"]]
    mine.step(lambda: sum(p.square().sum() for p in params).backward())
    assert counts(mine)[:2] == (1, 1)


def test_other_options_come_from_the_checkpoint():
    """As in torch: lr, betas, glass, cadence, seed are what the run was using."""
    saved = one_group(3, seed=7, glass=False, betas=(0.5, 0.9), quick_steps=5).state_dict()
    mine = one_group(3)
    mine.load_state_dict(saved)
    group = mine.param_groups[0]
    assert (group["seed"], group["glass"], group["quick_steps"]) == (7, False, 5)
    assert tuple(group["betas"]) == (0.5, 0.9)


# ---- in the middle of things ------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_state_dict_inside_a_loop_puts_the_parameters_at_mu(rounds):
    """The checkpoint is that of the last finished step, and so are the weights saved with it."""
    model, optimizer = make({})
    train(model, optimizer, 0, 4)
    rest, state = values(model), memory(optimizer)
    with pytest.raises(RuntimeError, match="given up"):  # noqa: PT012, the loop is the claim
        for i in optimizer.evaluations():
            closure_for(model, 4)()
            if i + 1 == rounds:
                saved = optimizer.state_dict()
                assert same(values(model), rest)
    _, second = make({}, seed=1)
    second.load_state_dict(saved)
    assert same(memory(second), state)
    train(model, optimizer, 4, 6)
    fresh, third = make({})
    train(fresh, third, 0, 6)
    assert same(values(model), values(fresh))


def test_state_dict_between_loop_and_step_is_that_of_mu_and_the_step_goes_on():
    """A checkpoint there is legal and does not disturb the step that follows."""
    model, optimizer = make({})
    train(model, optimizer, 0, 4)
    rest, state = values(model), memory(optimizer)
    run_loop(model, optimizer, 4)
    saved = copy.deepcopy(optimizer.state_dict())
    assert same(values(model), rest)
    optimizer.step()
    twin, second = make({})
    second.load_state_dict(saved)
    assert same(memory(second), state)
    train(twin, third := paper_alice(twin.parameters(), lr=LR), 0, 5)
    assert same(values(model), values(twin))
    assert same(memory(optimizer), memory(third))


def test_loading_ends_a_loop_that_is_still_open():
    """The parameters are back at mu before anything is loaded."""
    model, optimizer = make({})
    train(model, optimizer, 0, 4)
    saved, rest = copy.deepcopy(optimizer.state_dict()), values(model)
    kept = optimizer.evaluations()
    next(kept)
    optimizer.load_state_dict(saved)
    assert same(values(model), rest)
    with pytest.raises(RuntimeError, match="given up"):
        next(kept)
