"""Alice trains: on scikit-learn's digits, against Adam, at equal steps."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from aliceopt import Alice

Factory = Callable[[nn.Module], torch.optim.Optimizer]
SEEDS = range(5)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def final_loss(make: Factory, seed: int, digits: tuple[Tensor, Tensor]) -> float:
    """Training loss after 400 steps of batch 128, the same batches for every optimizer."""
    images, labels = digits
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = make(model)
    draws = torch.Generator().manual_seed(seed)
    for _ in range(400):
        batch = torch.randint(len(images), (128,), generator=draws)

        def closure(batch: Tensor = batch) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            return loss

        optimizer.step(closure)
    with torch.no_grad():
        return nn.functional.cross_entropy(model(images), labels).item()


@pytest.mark.parametrize("seed", SEEDS)
def test_default_alice_keeps_up_with_the_adam_that_bounds_it(
    seed: int, digits: tuple[Tensor, Tensor]
) -> None:
    """At lr = 1e-2, phi = 0.1 it is bounded by Adam(1e-3): at most 1.25 times its training loss."""
    adam = final_loss(lambda m: torch.optim.Adam(m.parameters(), lr=1e-3), seed, digits)
    alice = final_loss(lambda m: Alice(m.parameters()), seed, digits)
    assert alice <= 1.25 * adam


@pytest.mark.parametrize("seed", SEEDS)
def test_curvature_with_a_fixed_limit_beats_that_adam(
    seed: int, digits: tuple[Tensor, Tensor]
) -> None:
    """Where curvature rules the step, the same lr ends below Adam(1e-3) on every seed."""
    adam = final_loss(lambda m: torch.optim.Adam(m.parameters(), lr=1e-3), seed, digits)
    alice = final_loss(lambda m: Alice(m.parameters(), limit="fixed"), seed, digits)
    assert alice < adam


def test_the_quickstart_trains_well_and_reports_its_bounds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The example reaches 95% held-out accuracy and prints a line about bounds per layer."""
    example = Path(__file__).parent.parent / "examples" / "quickstart.py"
    assert len(example.read_text().splitlines()) <= 40
    with torch.random.fork_rng():
        runpy.run_path(str(example), run_name="__main__")
    out = capsys.readouterr().out
    accuracy = float(out.split("step 400")[1].split("accuracy ")[1].split("%")[0])
    assert accuracy > 95
    assert out.count("at the upper bound") == 3
