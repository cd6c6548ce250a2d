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
from .window import clip_by_itself

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
        super().__init__(*args, **kwargs)
        check_distributed(self.accelerator)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """An Alice on the model's parameters, unless one was given."""
        args = self.args
        if self.optimizer is None:
            trained = self.model if model is None else model
            decaying = set(self.get_decay_parameter_names(trained))
            groups: list[dict[str, Any]] = [
                {"params": [], "weight_decay": args.weight_decay},
                {"params": [], "weight_decay": 0.0},
            ]
            for name, param in trained.named_parameters():
                if param.requires_grad:
                    groups[name not in decaying]["params"].append((name, param))
            options = {
                "lr": args.learning_rate,
                "betas": (args.adam_beta1, args.adam_beta2),
                "eps": args.adam_epsilon,
                "model": trained,
                **self._alice_options,
            }
            self._made = Alice([group for group in groups if group["params"]], **options)
            self.optimizer = self._made
        elif self._alice_options and _alice(self.optimizer) is not self._made:
            raise ValueError(
                f"alice={self._alice_options} is for the optimizer that AliceTrainer makes, but "
                "one was given by optimizers=: set the options there"
            )
        inner = _alice(self.optimizer)
        if args.max_grad_norm and args.max_grad_norm > 0:
            clip_by_itself(inner, args.max_grad_norm)
        return self.optimizer

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
        try:
            for center in self.optimizer.evaluations():
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
