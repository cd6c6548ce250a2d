"""Alice in Hugging Face's Trainer: three gradients inside ``training_step`` where they are due.

::

    trainer = AliceTrainer(model=model, args=TrainingArguments(...), train_dataset=data)
    trainer.train()
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..alice import Alice
from .window import Window

try:
    from transformers import Trainer
except ImportError as error:
    raise ImportError(
        "aliceopt.integrations.transformers needs Transformers and Accelerate: "
        "pip install 'aliceopt[transformers]'"
    ) from error

from .accelerate import adopt, check_distributed

__all__ = ["AliceTrainer"]


class AliceTrainer(Trainer):
    """A `transformers.Trainer` whose measuring steps take three gradients.

    Without ``optimizers=`` it makes an Alice from the arguments: ``learning_rate``,
    ``weight_decay`` (not on biases and norms, as Trainer does it), ``adam_beta1``, ``adam_beta2``,
    ``adam_epsilon`` and ``max_grad_norm``; ``alice`` has further options and wins over them.
    ``max_grad_norm`` is applied by Alice, to all gradients of a step with one factor, and never by
    the Trainer; an Alice of one's own keeps its own, if it has one.

    Every micro-batch of an accumulation window is evaluated at each point. ``probing`` is True
    while an evaluation's loss is not the one to log: `log` is silent then, and a ``compute_loss``
    that collects metrics should look at it.
    """

    optimizer: Any

    def __init__(self, *args: Any, alice: dict[str, Any] | None = None, **kwargs: Any):
        self.probing = False
        self._alice_options = dict(alice or {})
        self._made: Alice | None = None
        self._window = Window()
        super().__init__(*args, **kwargs)
        check_distributed(self.accelerator)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """An Alice on the model's parameters, unless one was given."""
        if self.optimizer is None:
            trained = self.model if model is None else model
            self.optimizer = self._made = Alice(self._groups(trained), **self._options(trained))
        elif self._alice_options and _alice(self.optimizer) is not self._made:
            raise ValueError(
                f"alice={self._alice_options} is for the optimizer that AliceTrainer makes, but "
                "one was given by optimizers=: set the options there"
            )
        self._take_over_clipping(_alice(self.optimizer))
        return self.optimizer

    def _groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The Trainer's two groups, with and without weight decay, with names."""
        decaying = set(self.get_decay_parameter_names(model))
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        parts = (
            ([(n, p) for n, p in trained if n in decaying], self.args.weight_decay),
            ([(n, p) for n, p in trained if n not in decaying], 0.0),
        )
        return [{"params": params, "weight_decay": decay} for params, decay in parts if params]

    def _options(self, model: nn.Module) -> dict[str, Any]:
        args = self.args
        return {
            "lr": args.learning_rate,
            "betas": (args.adam_beta1, args.adam_beta2),
            "eps": args.adam_epsilon,
            "model": model,
            **self._alice_options,
        }

    def _take_over_clipping(self, optimizer: Alice) -> None:
        limit = self.args.max_grad_norm
        if limit and limit > 0 and optimizer.defaults["max_grad_norm"] is None:
            for group in optimizer.param_groups:
                group["max_grad_norm"] = float(limit)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Called when the optimizer has met the accelerator."""
        adopt(self.optimizer)
        return super().create_scheduler(num_training_steps, optimizer)

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The Trainer's, once for each point of the step; the loss is the one at the center."""
        loss = torch.tensor(math.nan)
        rounds = self._window.evaluations(
            _alice(self.optimizer),
            last=self.accelerator.sync_gradients,
            scaler=self.accelerator.scaler,
        )
        try:
            for center in rounds:
                self.probing = not center
                loss = super().training_step(model, inputs, num_items_in_batch)
        finally:
            self.probing = False
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The Trainer's, but for what is logged from a probe."""
        if not self.probing:
            super().log(logs, *args, **kwargs)

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """The norm for the log; the clipping is left to Alice, which has all three gradients."""
        self.accelerator.unscale_gradients()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return self._clip_grad_norm(model) if grad_norm is None else grad_norm


def _alice(optimizer: Any) -> Alice:
    """The Alice in whatever the accelerator has put around it."""
    inner = optimizer
    while not isinstance(inner, Alice) and hasattr(inner, "optimizer"):
        inner = inner.optimizer
    if not isinstance(inner, Alice):
        raise TypeError(
            f"AliceTrainer drives an Alice, got {type(inner).__name__}: pass "
            "optimizers=(Alice(...), None), or none at all, or use transformers.Trainer"
        )
    return inner
