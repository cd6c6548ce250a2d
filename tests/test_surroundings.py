"""What a program has set around the optimizer: torch's default device, torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice

Step = Callable[[], Any]
forms = pytest.mark.parametrize("implementation", ["eager", "compiled"])


def prepared(**options: Any) -> tuple[nn.Module, Alice, Step]:
    """A small network, its optimizer and a closure."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(8, 3)
    optimizer = Alice(
        model.parameters(), lr=0.1, model=model, hessian="abs", glass=True, quick_steps=1, **options
    )

    def closure() -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return model, optimizer, closure


def weights(model: nn.Module) -> list[Tensor]:
    return [param.detach() for param in model.parameters()]


@forms
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1}], ids=str)
def test_the_default_device_is_not_ours(implementation: str, options: dict[str, Any]) -> None:
    """Counters and sums stay on the CPU; "meta" stands for any other device here."""
    found = []
    for device in ("meta", "cpu"):
        model, optimizer, closure = prepared(implementation=implementation, **options)
        with torch.device(device):
            for _ in range(4):
                optimizer.step(closure)
                optimizer.telemetry()
                optimizer.load_state_dict(optimizer.state_dict())
        found.append(weights(model))
    assert all(map(torch.equal, *found))


@forms
@pytest.mark.parametrize("way", ["closure", "loop"])
@pytest.mark.filterwarnings("ignore")  # torch's, about what it cannot trace
def test_a_compiled_training_step_is_the_same_step(implementation: str, way: str) -> None:
    """Whoever traces counts of references would add to them: that part is left as it is."""
    found = []
    for compiled in (True, False):
        torch._dynamo.reset()
        model, optimizer, closure = prepared(implementation=implementation)

        def by_closure(optimizer: Alice = optimizer, closure: Step = closure) -> None:
            optimizer.step(closure)

        def by_loop(optimizer: Alice = optimizer, closure: Step = closure) -> None:
            for _ in optimizer.evaluations():
                closure()
            optimizer.step()

        step = by_closure if way == "closure" else by_loop
        step = torch.compile(step, backend="eager") if compiled else step
        for _ in range(5):
            step()
        found.append(weights(model))
    torch.testing.assert_close(*found)
