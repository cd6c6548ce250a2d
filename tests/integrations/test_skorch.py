"""skorch passes closures, so Alice measures there; the recipe of the docs does the rest."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainer_cases import (
    BATCH,
    OPTIONS,
    alice,
    assert_close,
    assert_same,
    by_hand,
    dataset,
    loader,
    noisy_network,
    seed,
)

pytest.importorskip("skorch")

import skorch
from skorch.callbacks import Callback

from paper import paper_alice

PAGE = Path(__file__).parents[2] / "docs" / "in_your_trainer.md"


def recipe() -> dict[str, Any]:
    """What the page tells to paste, but for the use of it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (block,) = [block for block in blocks if "class AliceNet" in block]
    space: dict[str, Any] = {"__name__": __name__}
    exec(block.partition("\n\nnet = ")[0], space)
    return space


PASTED = recipe()
AliceNet, CenterStep = PASTED["AliceNet"], PASTED["CenterStep"]


class Seeds(Callback):
    """The seed of every step."""

    def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
        self.step = 0

    def on_batch_begin(self, net: Any, training: bool = False, **kwargs: Any) -> None:
        seed(self.step)
        self.step += 1


def fitted(batches: int = 8, **options: Any) -> skorch.NeuralNet:
    """A net after one epoch, in order, without validation."""
    x, y = dataset(batches).tensors
    net = AliceNet(
        noisy_network(),
        optimizer=paper_alice,
        criterion=nn.MSELoss,
        max_epochs=1,
        batch_size=BATCH,
        lr=OPTIONS["lr"],
        optimizer__quick_steps=OPTIONS["quick_steps"],
        callbacks=[Seeds()],
        train_split=None,
        verbose=0,
        **options,
    )
    return net.fit(x, y)


def reference(batches: int = 8, **options: Any) -> tuple[nn.Module, Any]:
    """The same by hand."""
    model = noisy_network()
    optimizer = alice(model, **options)
    by_hand(model, optimizer, list(loader(batches)))
    return model, optimizer


def test_training_equals_the_loop_by_hand() -> None:
    """To the bit, with dropout and BatchNorm."""
    net = fitted()
    assert net.optimizer_.gradient_evaluations == 16
    assert_same((net.module_, net.optimizer_), reference())


def test_clipping_is_an_option_of_alice() -> None:
    """To the bit."""
    net = fitted(optimizer__max_grad_norm=0.05)
    assert_same((net.module_, net.optimizer_), reference(max_grad_norm=0.05))


def test_the_history_has_the_centers_losses() -> None:
    """Not those of a probe, which comes first."""
    losses = []
    model = noisy_network()
    optimizer = alice(model)
    for step, (x, y) in enumerate(loader(8)):
        seed(step)
        for _ in optimizer.evaluations():
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert fitted().history[-1, "batches", :, "train_loss"] == pytest.approx(losses)


def test_a_pickled_net_goes_on_to_the_bit() -> None:
    """With partial_fit, in the middle of the cadence."""
    x, y = dataset(3).tensors
    nets = [net := fitted(3), pickle.loads(pickle.dumps(net))]
    for net in nets:
        net.partial_fit(x, y)
    assert nets[0].optimizer_.gradient_evaluations == 3 + 1 + 3 + 1 + 3 + 1
    assert_close(nets[0].module_, nets[1].module_, 0.0)
    assert torch.equal(nets[0].module_[1].running_mean, nets[1].module_[1].running_mean)
