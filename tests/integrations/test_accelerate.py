"""Accelerate with `prepare` trains as the loop by hand, also through `accumulate` and a scaler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

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

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.utils import DistributedType, ProjectConfiguration

from aliceopt import Alice
from aliceopt.integrations.accelerate import AcceleratedAlice, adopt, prepare


@pytest.fixture(autouse=True)
def one_accelerator_a_test() -> Any:
    """Accelerate keeps its state in the class."""
    yield
    Accelerator().free_memory()
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()


class Run:
    """A training with Accelerate that can be stopped and looked at."""

    def __init__(self, *, net=noisy_network, scale=None, options=None, batches=8, **kwargs: Any):
        self.accelerator = Accelerator(cpu=True, **kwargs)
        if scale is not None:
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.net = net()
        optimizer = alice(self.net, **(options or {}))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        self.model, self.optimizer, self.loader, self.scheduler = prepare(
            self.accelerator, self.net, optimizer, loader(batches), scheduler
        )

    @property
    def result(self) -> tuple[nn.Module, Alice]:
        return self.net, self.optimizer.optimizer

    def train(self, first: int = 0, last: int = 100, weight: float = 1.0) -> Run:
        accelerator, model, optimizer = self.accelerator, self.model, self.optimizer
        every = accelerator.gradient_accumulation_steps
        for i, (x, y) in enumerate(self.loader):
            if not first <= i < last:
                continue
            if i % every == 0:
                seed(i // every)
            with accelerator.accumulate(model):
                for _ in optimizer.evaluations():
                    accelerator.backward(weight * nn.functional.mse_loss(model(x), y))
                optimizer.step()
                self.scheduler.step()
                optimizer.zero_grad()
        return self


def reference(*, net=noisy_network, accumulate: int = 1, autocast: bool = False, **options: Any):
    """The same by hand."""
    model = net()
    optimizer = alice(model, **options)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    by_hand(model, optimizer, list(loader(8)), accumulate=accumulate, autocast=autocast)
    return model, optimizer


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_equals_the_loop_by_hand(accumulate: int) -> None:
    """To the bit, with dropout and BatchNorm, all micro-batches at all points."""
    run = Run(gradient_accumulation_steps=accumulate).train()
    assert run.optimizer.gradient_evaluations == 16 // accumulate
    assert_same(run.result, reference(accumulate=accumulate))
    assert run.optimizer.telemetry().measuring_steps == 4 // accumulate


def test_accumulation_equals_one_large_batch() -> None:
    """To rounding."""
    run = Run(net=plain_network, gradient_accumulation_steps=2).train()
    model = plain_network()
    by_hand(model, alice(model), list(loader(8, size=16)))
    assert_close(run.net, model)


def test_clipping_is_an_option_of_alice() -> None:
    """To the bit; clipping between the evaluations and the step is warned of."""
    run = Run(options={"max_grad_norm": 0.05}).train()
    assert_same(run.result, reference(max_grad_norm=0.05))
    for _ in run.optimizer.evaluations():
        run.accelerator.backward(run.model(torch.ones(8, 4)).square().sum())
    run.accelerator.clip_grad_norm_(run.model.parameters(), 0.05)
    with pytest.warns(UserWarning, match="max_grad_norm"):
        run.optimizer.step()


def test_bfloat16_equals_the_loop_by_hand() -> None:
    """To the bit."""
    run = Run(mixed_precision="bf16").train()
    close, _ = reference(autocast=True)
    assert_close(run.net, close, 0.0)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_half_precision_says_when_a_step_was_skipped(accumulate: int) -> None:
    """A scale that overflows comes down, skipping steps and the scheduler's; then it trains."""
    run = Run(net=plain_network, scale=2.0**127, gradient_accumulation_steps=accumulate)
    run.train(last=accumulate, weight=1e3)
    assert run.optimizer.step_was_skipped
    assert run.accelerator.optimizer_step_was_skipped
    assert run.optimizer.gradient_evaluations == 0
    assert_close(run.net, plain_network(), 0.0)
    run.accelerator.scaler.update(2.0**10)
    run.train(first=accumulate, last=2 * accumulate)
    assert not run.optimizer.step_was_skipped
    assert run.optimizer.gradient_evaluations == 3
    assert run.scheduler.scheduler.last_epoch == 1


def test_a_scaler_that_does_not_overflow_changes_nothing() -> None:
    """A power of two is exact in float32."""
    assert_same(Run(scale=2.0**8).train().result, reference())


@pytest.mark.filterwarnings("ignore:.*weights_only")
def test_a_saved_state_continues_to_the_bit(tmp_path: Any) -> None:
    """save_state and load_state in the middle of the cadence."""
    first = Run(options={"quick_steps": 2}).train(last=4)
    first.accelerator.save_state(tmp_path / "state")
    second = Run(options={"quick_steps": 2})
    second.accelerator.load_state(tmp_path / "state")
    second.train(first=4)
    assert_same(second.result, Run(options={"quick_steps": 2}).train().result)


def test_the_plain_wrapper_takes_quick_steps() -> None:
    """accelerator.prepare alone: one gradient a step, as after any plain backward."""
    accelerator, net = Accelerator(cpu=True), noisy_network()
    model, optimizer, batches = accelerator.prepare(
        net, alice(net, hessian="none", glass=False), loader(4)
    )
    for step, (x, y) in enumerate(batches):
        seed(step)
        accelerator.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.optimizer.gradient_evaluations == 4


def test_engines_that_take_steps_themselves_are_refused() -> None:
    """With what to use instead."""
    engine = SimpleNamespace(distributed_type=DistributedType.DEEPSPEED)
    with pytest.raises(ValueError, match=r"distributed_type DEEPSPEED .* use DDP or FSDP2"):
        prepare(engine, alice(noisy_network()))


def test_only_an_alice_can_be_adopted() -> None:
    """The error names what came, and the remedy; adopting twice is harmless."""
    accelerator, net = Accelerator(cpu=True, project_config=ProjectConfiguration()), noisy_network()
    other = accelerator.prepare(torch.optim.Adam(net.parameters()))
    with pytest.raises(TypeError, match=r"got AcceleratedOptimizer around Adam: call prepare"):
        adopt(other)
    with pytest.raises(TypeError, match=r"got Alice around NoneType: call prepare"):
        adopt(alice(net))
    mine = prepare(accelerator, alice(net))
    assert isinstance(mine, AcceleratedAlice)
    assert adopt(mine) is mine


def test_the_example_trains(capsys: pytest.CaptureFixture[str]) -> None:
    """In seconds, with half as many gradients again as steps."""
    run_example("accelerate_loop")
    out = capsys.readouterr().out
    assert "96 steps, 144 gradients" in out
    losses = [float(line.split("loss ")[1]) for line in out.splitlines() if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
