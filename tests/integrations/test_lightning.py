"""Lightning with `AliceCallback` trains as the loop by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("lightning")

import lightning.pytorch as pl
from lightning.fabric import Fabric
from lightning.pytorch.plugins import MixedPrecision

from aliceopt.integrations.lightning import AliceCallback
from lightning_cases import QUIET, Module, fitted, reference, trainer
from trainer_cases import (
    alice,
    assert_close,
    assert_same,
    by_hand,
    loader,
    noisy_network,
    plain_network,
    seed,
)

pytestmark = QUIET


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_equals_the_loop_by_hand(accumulate: int) -> None:
    """To the bit, with dropout and BatchNorm, all micro-batches at all points."""
    module = Module()
    optimizer = fitted(module, accumulate_grad_batches=accumulate)
    steps = 8 // accumulate
    assert optimizer.gradient_evaluations == 4 * steps // 2
    assert_same((module.net, optimizer), reference(accumulate=accumulate))


def test_accumulation_equals_one_large_batch() -> None:
    """To rounding."""
    module = Module(plain_network())
    fitted(module, accumulate_grad_batches=2)
    model = plain_network()
    by_hand(model, alice(model), list(loader(8, size=16)))
    assert_close(module.net, model)


def test_a_last_window_that_is_shorter_is_stepped_on() -> None:
    """Lightning divides by the full window's size; the micro-batches all count."""
    module = Module()
    optimizer = fitted(module, batches=5, accumulate_grad_batches=2)
    assert optimizer.gradient_evaluations == 3 + 1 + 3
    assert not module.net[0].weight.grad.isnan().any()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_trainers_clipping_is_done_by_alice(accumulate: int) -> None:
    """As max_grad_norm, to the bit; the Trainer gets its setting back."""
    module, run = (
        Module(),
        trainer(AliceCallback(), gradient_clip_val=0.05, accumulate_grad_batches=accumulate),
    )
    run.fit(module, loader(8))
    clipped = reference(accumulate=accumulate, max_grad_norm=0.05)
    assert_same((module.net, run.optimizers[0]), clipped)
    assert run.gradient_clip_val == 0.05


def test_a_run_that_fails_gives_the_clipping_back() -> None:
    """So that the next run with this Trainer clips."""

    class Failing(Module):
        def training_step(self, *args: Any) -> Any:
            raise ArithmeticError("now")

    run = trainer(AliceCallback(), gradient_clip_val=0.05)
    with pytest.raises(ArithmeticError, match="now"):
        run.fit(Failing(), loader(2))
    assert run.gradient_clip_val == 0.05


def test_an_optimizers_own_clipping_wins() -> None:
    """Over the Trainer's."""
    module = Module(max_grad_norm=0.05)
    optimizer = fitted(module, gradient_clip_val=10.0)
    assert_same((module.net, optimizer), reference(max_grad_norm=0.05))


def test_clipping_by_value_is_refused() -> None:
    """It would fake curvature."""
    with pytest.raises(ValueError, match=r"'norm', got 0\.05 by value"):
        fitted(Module(), gradient_clip_val=0.05, gradient_clip_algorithm="value")


def test_resuming_continues_to_the_bit(tmp_path) -> None:
    """From a checkpoint in the middle of the cadence, schedule included."""

    def scheduled(net: nn.Module, **options: Any) -> Any:
        optimizer = alice(net, quick_steps=2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    whole, first, second = (Module(make=scheduled) for _ in range(3))
    full = trainer(AliceCallback(), max_epochs=2)
    full.fit(whole, loader(4))
    half = trainer(AliceCallback())
    half.fit(first, loader(4))
    half.save_checkpoint(tmp_path / "half.ckpt")
    rest = trainer(AliceCallback(), max_epochs=2)
    rest.fit(second, loader(4), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert rest.global_step == full.global_step == 8
    assert_same((second.net, rest.optimizers[0]), (whole.net, full.optimizers[0]))


def test_bfloat16_autocast_equals_the_loop_by_hand() -> None:
    """To the bit."""
    module = Module()
    optimizer = fitted(module, precision="bf16-mixed")
    assert_same((module.net, optimizer), reference(autocast=True))


def half_precision(scale: float) -> dict[str, Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)], "gradient_clip_val": 0.5}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_half_precision_steps_through_the_scaler(accumulate: int) -> None:
    """Near the step in float32, with clipping after unscaling."""
    module = Module(plain_network())
    optimizer = fitted(module, accumulate_grad_batches=accumulate, **half_precision(64.0))
    model, there = reference(net=plain_network, accumulate=accumulate, max_grad_norm=0.5)
    assert optimizer.gradient_evaluations == there.gradient_evaluations
    assert_close(module.net, model, 0.02)


def test_half_precision_skips_a_step_that_overflows() -> None:
    """Nothing moves and nothing counts until the scale has come down."""
    module = Module(plain_network())
    optimizer = fitted(module, batches=1, **half_precision(2.0**60))
    assert optimizer.gradient_evaluations == 0
    assert_close(module.net, plain_network(), 0.0)


class Manual(Module):
    """The loop of the guide inside training_step."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        optimizer = self.optimizers()
        for _ in optimizer.evaluations():
            self.manual_backward(nn.functional.mse_loss(self.net(x), y))
        optimizer.step()

    def on_train_batch_end(self, *args: Any) -> None:
        pass


@pytest.mark.parametrize("callbacks", [[], [AliceCallback()]])
def test_manual_optimization_equals_the_loop_by_hand(callbacks: list[pl.Callback]) -> None:
    """With the wrapped optimizer that Lightning hands out, with the callback or without."""
    module, run = Manual(), trainer(*callbacks)
    run.fit(module, loader(8))
    assert_same((module.net, run.optimizers[0]), reference())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_fabric_equals_the_loop_by_hand(precision: str, tmp_path: Any) -> None:
    """With the wrapped optimizer that `setup` returns, and its state saved and loaded."""
    fabric = Fabric(accelerator="cpu", precision=precision)
    net = noisy_network()
    model, optimizer = fabric.setup(net, alice(net))
    for step, (x, y) in enumerate(loader(8)):
        seed(step)
        for _ in optimizer.evaluations():
            fabric.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
    expected = reference(autocast=precision == "bf16-mixed")
    assert_close(net, expected[0], 0.0)
    assert optimizer.gradient_evaluations == 16
    fabric.save(tmp_path / "state.ckpt", {"optimizer": optimizer})
    other = fabric.setup_optimizers(alice(noisy_network()))
    fabric.load(tmp_path / "state.ckpt", {"optimizer": other})
    assert other.gradient_evaluations == 16
