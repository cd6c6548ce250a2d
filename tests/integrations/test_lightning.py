"""Lightning with `AliceCallback` trains as the loop by hand, and logs as if nothing happened."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import get_ema_avg_fn

from trainer_cases import (
    alice,
    assert_close,
    assert_same,
    by_hand,
    loader,
    noisy_network,
    plain_network,
    run_example,
    seed,
)

pytest.importorskip("lightning")

import lightning.pytorch as pl
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins import MixedPrecision
from torchmetrics import MeanMetric

from aliceopt import Alice
from aliceopt.integrations.lightning import AliceCallback

# Lightning's own, raised whatever we do.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*GPU available but not used"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
]


class Module(pl.LightningModule):
    """A network with a loss that is logged, a metric that is gathered, and hooks that count."""

    def __init__(self, net: nn.Module | None = None, make=alice, **options: Any):
        super().__init__()
        self.net = noisy_network() if net is None else net
        self.make, self.options = make, options
        self.mean = MeanMetric()
        self.losses: list[float] = []
        self.calls: list[str] = []

    def configure_optimizers(self) -> Any:
        return self.make(self.net, **self.options)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            seed(batch_idx // self.trainer.accumulate_grad_batches)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.calls.append("training_step")
        self.mean(loss)
        self.log("loss", loss, on_epoch=True)
        self.log_dict({"mean": self.mean}, on_epoch=True, on_step=False)
        if self.logger is not None:
            self.logger.log_metrics({"direct": loss.item()})
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.calls.append("on_before_optimizer_step")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(float(outputs["loss"]) * self.trainer.accumulate_grad_batches)


def trainer(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    """As silent as a Trainer can be, for one epoch unless told."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    kept = {"max_epochs": 1, "accelerator": "cpu", "enable_checkpointing": False}
    return pl.Trainer(callbacks=list(callbacks), **{**quiet, **kept, **options})


def fitted(module: Module, batches: int = 8, *callbacks: pl.Callback, **options: Any) -> Alice:
    """The optimizer after a fit with the callback."""
    run = trainer(AliceCallback(), *callbacks, **options)
    run.fit(module, loader(batches))
    return run.optimizers[0]


def reference(batches: int = 8, *, net=noisy_network, accumulate=1, autocast=False, **options):
    """The same by hand."""
    model = net()
    optimizer = alice(model, **options)
    data = list(loader(batches))
    by_hand(model, optimizer, data, accumulate=accumulate, autocast=autocast)
    return model, optimizer


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


class Recorder(Logger):
    """Keeps what is logged."""

    name, version = "recorder", 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append(metrics)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def of(self, name: str) -> list[float]:
        return [row[name] for row in self.rows if name in row]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_only_the_center_is_logged(accumulate: int) -> None:
    """Losses, epoch means, metrics, direct use of the logger, and hooks before the step."""
    module, log = Module(), Recorder()
    options = {"accumulate_grad_batches": accumulate, "log_every_n_steps": 1}
    fitted(module, logger=log, **options)
    assert len(module.losses) == 8
    torch.testing.assert_close(log.of("direct"), module.losses)
    mean = sum(module.losses) / 8
    assert log.of("loss_epoch") == pytest.approx([mean])
    assert log.of("mean") == pytest.approx([mean])
    assert module.calls.count("on_before_optimizer_step") == 8 // accumulate
    assert module.calls.count("training_step") == 16


def test_telemetry_reaches_the_logger() -> None:
    """Every so many steps, groups and blocks."""
    log = Recorder()
    run = trainer(AliceCallback(telemetry_every=2, depth=1), logger=log, log_every_n_steps=1)
    run.fit(Module(), loader(8))
    assert log.of("alice/gradient_evaluations") == [4, 8, 12, 16]
    assert all(0 <= share <= 1 for share in log.of("alice/0/at_upper"))
    with pytest.raises(ValueError, match="got -1"):
        AliceCallback(telemetry_every=-1)


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


def test_without_the_callback_lightnings_closure_is_evaluated() -> None:
    """It measures, to the bit; hooks and logs have it three times."""
    module, run = Module(), trainer()
    run.fit(module, loader(8))
    assert_same((module.net, run.optimizers[0]), reference())
    assert module.calls.count("on_before_optimizer_step") == 16


def test_without_the_callback_dropped_micro_batches_are_warned_of() -> None:
    """Lightning's closure has the last one only."""
    with pytest.warns(UserWarning, match="dropped: accumulate micro-batches inside"):
        trainer(accumulate_grad_batches=2).fit(Module(), loader(4))


def test_other_optimizers_train_as_before() -> None:
    """The callback lets them alone, clipping included."""

    def adam(net: nn.Module, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(net.parameters())

    results = []
    for callbacks in ([], [AliceCallback()]):
        module = Module(make=adam)
        trainer(*callbacks, gradient_clip_val=0.05).fit(module, loader(4))
        results.append(module.net)
    assert_close(*results, 0.0)


class Drawing(Module):
    """Asks for its batches itself."""

    def training_step(self, dataloader_iter: Any) -> Any:
        raise AssertionError("never called")


@pytest.mark.filterwarnings("ignore:.*`dataloader_iter`")
def test_what_cannot_be_driven_is_refused() -> None:
    """A step that draws its own batches, and the Trainer of the other package."""
    with pytest.raises(TypeError, match=r"write training_step\(batch, batch_idx\)"):
        fitted(Drawing())
    with pytest.raises(TypeError, match=r"got builtins: import lightning.pytorch instead"):
        AliceCallback().setup(object(), Module(), "fit")


class Validated(Module):
    """Remembers the weights that validation saw."""

    def __init__(self) -> None:
        super().__init__(plain_network())  # validation draws random numbers of its own
        self.seen: list[list[torch.Tensor]] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append([p.clone() for p in self.net.parameters()])


def test_validation_within_a_window_sees_the_position() -> None:
    """And changes nothing."""
    module = Validated()
    run = trainer(
        AliceCallback(), accumulate_grad_batches=2, val_check_interval=1, num_sanity_val_steps=0
    )
    run.fit(module, loader(4), loader(1))
    assert len(module.seen) == 4
    start = plain_network().parameters()
    assert all(torch.equal(a, b) for a, b in zip(module.seen[0], start, strict=True))
    assert_same((module.net, run.optimizers[0]), reference(4, net=plain_network, accumulate=2))


def test_averaged_weights_are_averages_of_positions() -> None:
    """Lightning's WeightAveraging reads the parameters at the end of a batch."""
    averaging = WeightAveraging(avg_fn=get_ema_avg_fn(0.5))
    module = Module()
    fitted(module, 4, averaging)
    model = noisy_network()
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=get_ema_avg_fn(0.5))
    by_hand(model, alice(model), list(loader(4)), after=lambda: average.update_parameters(model))
    assert_close(module.net, average.module, 0.0)


def test_stochastic_weight_averaging_renews_statistics_at_the_average() -> None:
    """Its last pass makes no gradient, so there is nothing to look ahead for."""
    module = Module()
    swa = StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1, annealing_epochs=1)
    run = trainer(AliceCallback(), swa, max_epochs=3)
    run.fit(module, loader(4))
    renewed = copy.deepcopy(module.net)
    torch.optim.swa_utils.update_bn(list(loader(4)), renewed)
    torch.testing.assert_close(renewed[1].running_mean, module.net[1].running_mean)
    assert run.optimizers[0].gradient_evaluations == 24


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_a_training_step_that_returns_none_is_skipped() -> None:
    """Lightning's way to leave a batch out; here one of two micro-batches."""

    class Skipping(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) if batch_idx % 2 else None

        def on_train_batch_end(self, *args: Any) -> None:
            pass

    module = Skipping()
    optimizer = fitted(module, 4, accumulate_grad_batches=2)
    assert optimizer.gradient_evaluations == 4


def test_the_example_trains(capsys: pytest.CaptureFixture[str]) -> None:
    """In seconds, with half as many gradients again as steps."""
    run_example("lightning_trainer")
    out = capsys.readouterr().out
    assert "96 steps, 144 gradients" in out
    losses = [float(line.split("loss ")[1]) for line in out.splitlines() if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
