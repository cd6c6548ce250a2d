"""The page "In your trainer": its lines run, and what it says of OneCycleLR is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aliceopt import Alice
from paper import paper_alice
from trainer_cases import loader, noisy_network

PAGE = (Path(__file__).parents[2] / "docs" / "in_your_trainer.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
OWN = PAGE.partition("\n## Lightning")[0]
LOOPS = re.findall(r"```python\n(.*?)```", OWN, flags=re.DOTALL)


def names() -> dict[str, Any]:
    """What the lines for loops of one's own take for granted."""
    model = noisy_network()
    optimizer = paper_alice(model.named_parameters(), model=model)
    maker, critic = nn.Linear(64, 4), nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    x, y = next(iter(loader(1)))
    return {
        "torch": torch,
        "Alice": Alice,
        "OneCycleLR": torch.optim.lr_scheduler.OneCycleLR,
        "model": model,
        "params": model.parameters(),
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10),
        "scaler": torch.amp.GradScaler("cpu"),
        "loss_fn": nn.functional.mse_loss,
        "loader": list(loader(4)),
        "micro_batches": list(loader(2)),
        "maker": maker,
        "critic": critic,
        "steps": 10,
        "x": x,
        "y": y,
    }


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_block_is_python(block: str) -> None:
    """So that pasting it is no more than that."""
    ast.parse(block)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.filterwarnings("ignore:.*torch.cuda.*not available")
@pytest.mark.filterwarnings("ignore:no curvature has been measured")
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("block", LOOPS, ids=range(len(LOOPS)))
def test_loops_of_ones_own_run(block: str) -> None:
    """And train: whatever has a loop in it moves the parameters of an Alice."""
    space = names()
    moving = "maker" if "maker" in block else "model"
    before = [p.clone() for p in space[moving].parameters()]
    if "critic" in block:
        space["loader"] = [x for x, _ in space["loader"]]
    exec(block, space)
    if "step()" in block or "scaler.step" in block:
        after = space[moving].parameters()
        assert not any(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_one_cycle_scales_the_step_through_beta1() -> None:
    """By 1.5 at beta1 = .85 and .5 at .95; not with a given fraction, nor without cycling."""

    def fractions(cycle: bool, **options: Any) -> list[float]:
        param = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = paper_alice([param], glass=False, hessian="none", **options)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1.0, total_steps=601, cycle_momentum=cycle
        )
        moved = []
        for _ in range(600):
            before, param.grad = param.item(), torch.ones_like(param)
            optimizer.look_ahead()
            optimizer.step()
            moved.append((before - param.item()) / optimizer.param_groups[0]["lr"])
            scheduler.step()
        return moved[100:]  # a bias correction with cycled betas is not quite one

    cycled = fractions(True, step_fraction=None)
    assert (min(cycled), max(cycled)) == pytest.approx((0.05, 0.15), rel=0.01)
    for fixed in (fractions(False, step_fraction=None), fractions(True, step_fraction=1.0)):
        assert max(fixed) == pytest.approx(min(fixed), rel=0.01)
