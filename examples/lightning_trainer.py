"""Alice in Lightning: a small network on made-up data, with accumulation and clipping."""

import warnings

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from aliceopt import Alice
from aliceopt.integrations.lightning import AliceCallback


class Regression(LightningModule):
    """Two hidden layers; nothing but `configure_optimizers` knows of Alice."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
        self.net = nn.Sequential(*sizes)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Called at every point of a step, logged at the center only."""
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def on_train_epoch_end(self) -> None:
        """Print what was logged."""
        print(f"epoch {self.current_epoch}: loss {self.trainer.callback_metrics['loss']:.4f}")

    def configure_optimizers(self) -> Alice:
        """The one line."""
        return Alice(self.named_parameters(), lr=3e-3, glass=True, hessian="abs", model=self)


warnings.filterwarnings("ignore", message=".*does not have many workers")
seed_everything(0)
x = torch.randn(1024, 8)
y = x[:, :1] * x[:, 1:2] + x[:, 2:3].abs()
trainer = Trainer(
    max_epochs=6,
    accelerator="cpu",
    callbacks=[AliceCallback()],
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Regression(), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))
report = trainer.optimizers[0].telemetry()
print(f"{trainer.global_step} steps, {report.gradient_evaluations} gradients")
