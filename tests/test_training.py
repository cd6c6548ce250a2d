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
from paper import paper_alice

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


@pytest.mark.parametrize("lr", [1e-3, 3e-3, 1e-2])
def test_the_defaults_end_below_adam_at_its_own_rate(
    lr: float, digits: tuple[Tensor, Tensor]
) -> None:
    """At the same learning rate, the mean training loss of five seeds."""

    def mean_loss(make: Factory) -> float:
        return sum(final_loss(make, seed, digits) for seed in SEEDS) / len(SEEDS)

    adam = mean_loss(lambda m: torch.optim.Adam(m.parameters(), lr=lr))
    assert mean_loss(lambda m: Alice(m.parameters(), lr=lr, model=m)) <= adam


@pytest.mark.parametrize("seed", SEEDS)
def test_curvature_with_a_fixed_limit_beats_that_adam(
    seed: int, digits: tuple[Tensor, Tensor]
) -> None:
    """Where curvature rules the step, the same lr ends below Adam(1e-3) on every seed."""
    adam = final_loss(lambda m: torch.optim.Adam(m.parameters(), lr=1e-3), seed, digits)
    alice = final_loss(lambda m: paper_alice(m.parameters(), limit="fixed"), seed, digits)
    assert alice < adam


def test_the_quickstart_trains_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The example reaches 95% held-out accuracy with one gradient a step."""
    example = Path(__file__).parent.parent / "examples" / "quickstart.py"
    assert len(example.read_text().splitlines()) <= 40
    with torch.random.fork_rng():
        runpy.run_path(str(example), run_name="__main__")
    out = capsys.readouterr().out
    accuracy = float(out.split("step 400")[1].split("accuracy ")[1].split("%")[0])
    assert accuracy > 95
    assert out.endswith("400 gradients\n")
