"""Plain loops on a GPU, uncaptured and beside a captured step, and fp16 in the frameworks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aliceopt
from paper import paper_alice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

QUIET: dict[str, Any] = {"hessian": "none", "glass": False, "step_fraction": 1.0, "lookahead": 2.0}


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)]
    return nn.Sequential(*layers).cuda()


def batch(i: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(i)
    x = torch.randn(16, 4, generator=generator)
    return x.cuda(), (x[:, :1] * x[:, 1:2]).cuda()


def loss_of(model: nn.Module, i: int) -> Tensor:
    x, y = batch(i)
    return (model(x) - y).square().mean()


def test_a_plain_loop_equals_the_loop_over_evaluations() -> None:
    """With a validation in between; and after the move nothing waits for the device."""
    ends = []
    for plain in (False, True):
        model = network()
        optimizer = paper_alice(model.parameters(), model=model, **QUIET)
        torch.manual_seed(1)
        for i in range(6):
            optimizer.zero_grad()
            for _ in range(1) if plain else optimizer.evaluations():
                loss_of(model, i).backward()
            optimizer.step()
            loss_of(model.eval(), 99)
            model.train()
        ends.append([t.clone() for t in model.state_dict().values()])
    assert all(map(torch.equal, *ends))


def test_plain_forwards_beside_a_captured_step_leave_no_trace() -> None:
    """The recording pauses looking ahead, and a captured step takes the parameters home first."""
    ends = []
    for disturbed in (False, True):
        model = network()
        optimizer = paper_alice(model.parameters(), model=model, quick_steps=1)
        x, y = batch(0)

        def closure(model: nn.Module = model, x: Tensor = x, y: Tensor = y) -> Tensor:
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        step = aliceopt.capture(optimizer, closure, static_inputs=(x, y))
        for i in range(6):
            torch.manual_seed(i)
            if disturbed:
                kept = [b.clone() for b in model.buffers()]
                model(x)
                torch.manual_seed(i)
                with torch.no_grad():
                    for buffer, old in zip(model.buffers(), kept, strict=True):
                        buffer.copy_(old)
            step(*batch(i))
        ends.append([t.clone() for t in model.state_dict().values()])
    assert all(map(torch.equal, *ends))


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightning_in_half_precision(accumulate: int) -> None:
    """16-mixed with its scaler: the gradients that quick_steps says, close to the loop by hand."""
    pytest.importorskip("lightning")
    from lightning.pytorch.plugins import MixedPrecision

    from lightning_cases import Module, fitted
    from trainer_cases import alice, by_hand, loader, plain_network

    module = Module(plain_network())
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)  # does not overflow here
    options = {"plugins": [MixedPrecision("16-mixed", "cuda", scaler)], "devices": 1}
    optimizer = fitted(module, 8, accelerator="gpu", accumulate_grad_batches=accumulate, **options)
    steps = 8 // accumulate
    assert optimizer.gradient_evaluations == 2 * steps
    model = plain_network()
    by_hand(model, alice(model), list(loader(8, size=8 * accumulate)))
    for p, q in zip(module.net.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=0.05, atol=0.02)


def test_accelerate_in_half_precision() -> None:
    """A scale too large is skipped, said so, and counted by nobody; then it trains."""
    pytest.importorskip("accelerate")
    from accelerate import Accelerator
    from accelerate.utils import GradScalerKwargs

    from aliceopt.integrations.accelerate import prepare

    handler = GradScalerKwargs(init_scale=2.0**40)
    accelerator = Accelerator(mixed_precision="fp16", kwargs_handlers=[handler])
    model = network()
    optimizer = paper_alice(model.parameters(), model=model, quick_steps=1)
    model, optimizer = prepare(accelerator, model, optimizer)
    skipped = []
    for i in range(60):
        for _ in optimizer.evaluations():
            accelerator.backward(loss_of(model, i))
        optimizer.step()
        skipped.append(optimizer.step_was_skipped)
        optimizer.zero_grad()
    taken = skipped.count(False)
    assert skipped[0]
    assert 0 < taken < 60
    assert optimizer.optimizer.gradient_evaluations == 3 * ((taken + 1) // 2) + taken // 2
    assert all(p.isfinite().all() for p in model.parameters())
