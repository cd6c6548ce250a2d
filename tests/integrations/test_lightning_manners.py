"""Lightning's logs, metrics, averages and validation do not notice the probes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import get_ema_avg_fn

pytest.importorskip("lightning")

from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging

from aliceopt.integrations.lightning import AliceCallback
from lightning_cases import QUIET, Module, Recorder, fitted, reference, trainer
from trainer_cases import (
    alice,
    assert_close,
    assert_same,
    by_hand,
    loader,
    noisy_network,
    plain_network,
    run_example,
)

pytestmark = QUIET


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


def test_what_a_training_step_takes_out_of_its_batch_is_there_again() -> None:
    """Labels that are popped from a dictionary or a list, at every point of a step."""

    class Popping(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            y = batch.pop()
            return super().training_step([*batch, y], batch_idx)

    module = Popping()
    optimizer = fitted(module)
    assert_same((module.net, optimizer), reference())


def test_the_example_trains(capsys: pytest.CaptureFixture[str]) -> None:
    """In seconds, with half as many gradients again as steps."""
    run_example("lightning_trainer")
    out = capsys.readouterr().out
    assert "96 steps, 144 gradients" in out
    losses = [float(line.split("loss ")[1]) for line in out.splitlines() if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
