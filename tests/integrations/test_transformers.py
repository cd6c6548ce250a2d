"""`AliceTrainer` trains as the loop by hand; the plain Trainer takes quick steps."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from contract_cases import same
from trainer_cases import (
    BATCH,
    OPTIONS,
    alice,
    assert_close,
    by_hand,
    dataset,
    everything,
    loader,
    noisy_network,
    plain_network,
    run_example,
    seed,
)

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import Trainer, TrainerCallback, TrainingArguments

from aliceopt import PAPER, Alice
from aliceopt.integrations.transformers import AliceTrainer
from paper import paper_alice

TRAINERS = ("lr", "betas", "eps", "weight_decay")  # it has its own
QUICK = {k: v for k, v in PAPER.items() if k not in TRAINERS} | {"quick_steps": 1}
pytestmark = [pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")]


class Regression(nn.Module):
    """What a Trainer calls a model: keyword arguments in, a loss out."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


class Seeds(TrainerCallback):
    """The seed of every step, and what the Trainer logged."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        seed(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.losses += [logs["loss"]] if "loss" in logs else []


class InOrder(AliceTrainer):
    """Batches as the loop by hand has them."""

    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


class PlainInOrder(Trainer):
    """The same of the plain Trainer."""

    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def examples(batches: int = 8) -> list[dict[str, torch.Tensor]]:
    return [{"x": x, "labels": y} for x, y in dataset(batches)]


def arguments(tmp_path: Any, **options: Any) -> TrainingArguments:
    """One quiet epoch at a constant rate, without clipping."""
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    plain = {"lr_scheduler_type": "constant", "max_grad_norm": 0.0, "num_train_epochs": 1}
    size = {"per_device_train_batch_size": BATCH, "learning_rate": OPTIONS["lr"]}
    kept = {"remove_unused_columns": False, "logging_steps": 1, **quiet, **plain, **size}
    return TrainingArguments(output_dir=str(tmp_path), **{**kept, **options})


def trained(tmp_path: Any, net=noisy_network, kind=InOrder, alice=None, optimizers=None, **options):
    """The network, the Alice and the trainer after one epoch."""
    model = Regression(net())
    if optimizers is not None:
        extra: dict[str, Any] = {"optimizers": (optimizers(model), None)}
    else:
        extra = {"alice": {**QUICK, **(alice or {})}}
    seeds, resume = Seeds(), options.pop("resume", None)
    trainer = kind(
        model=model,
        args=arguments(tmp_path, **options),
        train_dataset=examples(),
        callbacks=[seeds],
        **extra,
    )
    trainer.train(resume_from_checkpoint=resume)
    return model.net, trainer.optimizer.optimizer, seeds


def reference(net=noisy_network, *, accumulate: int = 1, autocast: bool = False, **options: Any):
    """The same by hand; the Trainer has two groups, for weight decay, and so has this."""
    model = net()
    named = list(model.named_parameters())
    decaying = [(n, p) for n, p in named if not n.endswith("bias")]
    rest = [(n, p) for n, p in named if n.endswith("bias")]
    groups = [{"params": decaying}, {"params": rest, "weight_decay": 0.0}]
    optimizer = paper_alice(groups, model=model, **{**OPTIONS, **options})
    by_hand(model, optimizer, list(loader(8)), accumulate=accumulate, autocast=autocast)
    return model, optimizer


def assert_equal(a: Any, b: Any) -> None:
    """Weights and state to the bit; names of groups aside."""
    assert a[1].gradient_evaluations == b[1].gradient_evaluations
    one, other = everything(*a[:2]), everything(*b[:2])
    assert same(one["weights"], other["weights"])
    assert same(one["state"], other["state"])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_equals_the_loop_by_hand(tmp_path: Any, accumulate: int) -> None:
    """To the bit, with dropout and BatchNorm, all micro-batches at all points."""
    run = trained(tmp_path, gradient_accumulation_steps=accumulate)
    assert run[1].gradient_evaluations == 16 // accumulate
    assert_equal(run, reference(accumulate=accumulate))


def test_arguments_become_options(tmp_path: Any) -> None:
    """Weight decay where the Trainer has it, betas and eps; further options win."""
    given = {"weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.99, "adam_epsilon": 1e-6}
    net, optimizer, _ = trained(tmp_path, **given, alice={"eps": 1e-5})
    group = optimizer.param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.99), 1e-5, 0.1)
    expected = reference(weight_decay=0.1, betas=(0.8, 0.99), eps=1e-5)
    assert_equal((net, optimizer), expected)


def test_accumulation_equals_one_large_batch(tmp_path: Any) -> None:
    """To rounding."""
    net, _, _ = trained(tmp_path, net=plain_network, gradient_accumulation_steps=2)
    model = plain_network()
    by_hand(model, alice(model), list(loader(8, size=16)))
    assert_close(net, model)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_trainers_clipping_is_done_by_alice(tmp_path: Any, accumulate: int) -> None:
    """As max_grad_norm, to the bit."""
    run = trained(tmp_path, max_grad_norm=0.05, gradient_accumulation_steps=accumulate)
    assert_equal(run, reference(max_grad_norm=0.05, accumulate=accumulate))


def test_an_optimizer_of_ones_own_is_driven_and_keeps_its_clipping(tmp_path: Any) -> None:
    """And options for another are refused."""

    def mine(model: nn.Module) -> Alice:
        return alice(model, max_grad_norm=0.05)

    run = trained(tmp_path, optimizers=mine, max_grad_norm=1.0)
    model = noisy_network()
    by_hand(model, optimizer := alice(model, max_grad_norm=0.05), list(loader(8)))
    assert_equal(run, (model, optimizer))
    net, args = Regression(noisy_network()), arguments(tmp_path)
    trainer = AliceTrainer(net, args, alice={"seed": 1}, optimizers=(mine(net), None))
    with pytest.raises(ValueError, match=r"alice=\{'seed': 1\} is for the optimizer"):
        trainer.create_optimizer()


def test_a_trainer_may_train_twice(tmp_path: Any) -> None:
    """It goes on with the Alice that it made."""
    model, args = Regression(noisy_network()), arguments(tmp_path)
    trainer = InOrder(model, args, train_dataset=examples(), alice=QUICK)
    trainer.train()
    trainer.train()
    assert trainer.optimizer.gradient_evaluations == 32


def test_another_optimizer_is_refused(tmp_path: Any) -> None:
    """With the remedy."""
    with pytest.raises(TypeError, match=r"drives an Alice, got Adam: pass optimizers=\(Alice"):
        trained(tmp_path, optimizers=lambda model: torch.optim.Adam(model.parameters()))


def test_only_the_centers_loss_is_logged(tmp_path: Any) -> None:
    """Also by a compute_loss that logs."""
    inside: list[bool] = []

    class Logging(InOrder):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            inside.append(self.probing)
            self.log({"inside": 1.0})
            return super().compute_loss(*args, **kwargs)

    losses: list[float] = []
    model = Regression(noisy_network())
    optimizer = alice(model)
    for step, (x, y) in enumerate(loader(8)):
        seed(step)
        for _ in optimizer.evaluations():
            loss = model(x, y)["loss"]
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    _, _, seeds = trained(tmp_path, kind=Logging, optimizers=alice)
    assert seeds.losses == pytest.approx(losses)
    assert inside == [True, True, False, False] * 4


def test_bfloat16_equals_the_loop_by_hand(tmp_path: Any) -> None:
    """To the bit."""
    assert_equal(trained(tmp_path, bf16=True), reference(autocast=True))


def scaled_training(tmp_path: Any, scale: float, factor: float = 1.0, **options: Any) -> Any:
    """With a scaler as fp16 has it; fp16 itself needs a GPU."""
    model = Regression(noisy_network())
    args = arguments(tmp_path, **options)
    data = [{"x": row["x"], "labels": row["labels"] * factor} for row in examples()]
    trainer = InOrder(model, args, train_dataset=data, callbacks=[Seeds()], alice=QUICK)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    trainer.train()
    return trainer, model.net


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_scaler_that_does_not_overflow_changes_nothing(tmp_path: Any, accumulate: int) -> None:
    """A power of two is exact in float32, clipping included."""
    options = {"max_grad_norm": 0.05, "gradient_accumulation_steps": accumulate}
    trainer, net = scaled_training(tmp_path, 2.0**8, **options)
    expected = reference(max_grad_norm=0.05, accumulate=accumulate)
    assert_equal((net, trainer.optimizer.optimizer), expected)


def test_a_step_that_overflows_is_skipped_with_its_schedule(tmp_path: Any) -> None:
    """The Trainer asks the accelerator, which must know."""
    options = {"max_steps": 1, "lr_scheduler_type": "linear"}
    trainer, net = scaled_training(tmp_path, 2.0**127, factor=1e3, **options)
    assert trainer.optimizer.step_was_skipped
    assert trainer.lr_scheduler.last_epoch == 0
    assert trainer.optimizer.gradient_evaluations == 0
    assert_close(net, noisy_network(), 0.0)


def test_resuming_continues_to_the_bit(tmp_path: Any) -> None:
    """From a checkpoint in the middle of the cadence and of the epoch, schedule included."""
    options: dict[str, Any] = {"lr_scheduler_type": "linear", "alice": {"quick_steps": 2}}
    saving = {"save_strategy": "steps", "save_steps": 4}
    whole = trained(tmp_path / "whole", **options)
    trained(tmp_path / "parts", **options, **saving)
    rest = trained(tmp_path / "parts", **options, resume=str(tmp_path / "parts" / "checkpoint-4"))
    assert_equal(rest, whole)


def test_the_plain_trainer_takes_quick_steps(tmp_path: Any) -> None:
    """One gradient a step, clipped by the Trainer, as after any plain backward."""

    def quick(model: nn.Module) -> Alice:
        return alice(model, hessian="none", glass=False)

    run = trained(tmp_path, kind=PlainInOrder, optimizers=quick, max_grad_norm=0.05)
    assert run[1].gradient_evaluations == 8
    model = noisy_network()
    optimizer = quick(model)
    for step, (x, y) in enumerate(loader(8)):
        seed(step)
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
    assert_equal(run, (model, optimizer))


def test_the_plain_trainer_says_that_no_curvature_is_measured(tmp_path: Any) -> None:
    """If a curvature term is on."""
    with pytest.warns(UserWarning, match="no curvature has been measured"):
        trained(tmp_path, kind=PlainInOrder, optimizers=alice)


def test_the_example_trains(capsys: pytest.CaptureFixture[str]) -> None:
    """In seconds, with half as many gradients again as steps."""
    run_example("transformers_trainer")
    out = capsys.readouterr().out
    assert "48 steps, 72 gradients" in out
    losses = [float(loss) for loss in re.findall(r"'loss': '?([0-9.]+)", out)]
    assert losses[-1] < 0.8 * losses[0]
