"""A LightningModule that logs, counts and can be compared, and a Trainer that is silent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("lightning")

import lightning.pytorch as pl
from lightning.pytorch.loggers.logger import Logger
from torchmetrics import MeanMetric

from aliceopt import Alice
from aliceopt.integrations.lightning import AliceCallback
from trainer_cases import alice, by_hand, loader, noisy_network, seed

QUIET = [
    # Lightning's own, raised whatever we do.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*GPU available but not used"),
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
