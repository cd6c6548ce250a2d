"""Alice in Lightning: one callback, and automatic optimization takes three gradients where due.

::

    trainer = Trainer(callbacks=[AliceCallback()], gradient_clip_val=1.0)
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor

from ..alice import Alice
from .window import Window, clip_by_itself

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers.logger import DummyLogger
    from lightning.pytorch.loops.optimization.automatic import (
        Closure,
        ClosureResult,
        _AutomaticOptimization,
    )
    from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
    from torchmetrics import Metric
except ImportError as error:
    raise ImportError(
        "aliceopt.integrations.lightning needs Lightning: pip install 'aliceopt[lightning]'"
    ) from error

__all__ = ["AliceCallback"]


class AliceCallback(Callback):
    """Teaches a Trainer's automatic optimization the measuring steps of Alice.

    Each micro-batch is evaluated at every point of its step; only the evaluation at the center
    logs, updates metrics and is returned. ``gradient_clip_val`` is handed to Alice as
    ``max_grad_norm``, unless it has its own, and the Trainer does not clip. Other optimizers are
    driven as before, and so is manual optimization, where ``self.optimizers()`` has
    ``evaluations()``.

    Args:
        telemetry_every: steps between two reports of `aliceopt.Alice.telemetry` to the loggers,
            per group; 0: none.
        depth: also report every block of modules, as deep as this; None: groups only.
    """

    def __init__(self, telemetry_every: int = 50, depth: int | None = None):
        if telemetry_every < 0:
            raise ValueError(
                f"telemetry_every must be a number of steps >= 0, got {telemetry_every}"
            )
        self.telemetry_every = telemetry_every
        self.depth = depth
        self._reported = 0
        self._clip: float | int | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the seat of automatic optimization, before a checkpoint fills its counters."""
        if not isinstance(trainer, Trainer):
            raise TypeError(
                f"AliceCallback is for lightning.pytorch.Trainer, got {type(trainer).__module__}: "
                "import lightning.pytorch instead of pytorch_lightning"
            )
        loop = trainer.fit_loop.epoch_loop
        if stage == "fit" and not isinstance(loop.automatic_optimization, _Evaluating):
            progress = loop.automatic_optimization.optim_progress
            loop.automatic_optimization = _Evaluating(trainer)
            loop.automatic_optimization.optim_progress = progress

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hand clipping over; forget the window of a run that was broken off."""
        self._reported = trainer.global_step
        limit, alices = trainer.gradient_clip_val, _alices(trainer)
        if not pl_module.automatic_optimization or not alices:
            return
        if is_param_in_hook_signature(pl_module.training_step, "dataloader_iter", explicit=True):
            raise TypeError(
                "training_step(dataloader_iter) would draw another batch at each point of a step: "
                "write training_step(batch, batch_idx)"
            )
        trainer.fit_loop.epoch_loop.automatic_optimization.window = Window()
        if limit and trainer.gradient_clip_algorithm == "value":
            raise ValueError(
                f"gradient_clip_algorithm='value' would clip the three gradients of a step apart "
                f"and fake curvature: use gradient_clip_algorithm='norm', got {limit!r} by value"
            )
        if limit:
            for optimizer in alices:
                clip_by_itself(optimizer, limit)
            self._clip, trainer.gradient_clip_val = limit, None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give ``gradient_clip_val`` back to the Trainer."""
        if self._clip is not None:
            self._clip, trainer.gradient_clip_val = None, self._clip

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The same, where `teardown` is not called."""
        self.teardown(trainer, pl_module, "fit")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Report after every ``telemetry_every``-th step."""
        step = trainer.global_step
        due = self.telemetry_every > 0 and step % self.telemetry_every == 0
        if not due or step == self._reported or not trainer.loggers:
            return
        self._reported = step
        alices = _alices(trainer)
        for i, optimizer in enumerate(alices):
            prefix = "alice" if len(alices) == 1 else f"alice{i}"
            report = optimizer.telemetry(depth=self.depth or 1)
            parts = {f"{prefix}/group{k}": part for k, part in enumerate(report.groups)}
            if len(parts) == 1:
                parts = {prefix: report.groups[0]}
            if self.depth is not None:
                parts |= {f"{prefix}/{name}": part for name, part in report.blocks.items()}
            numbers = {f"{prefix}/gradient_evaluations": float(report.gradient_evaluations)}
            for name, part in parts.items():
                numbers |= {f"{name}/{key}": float(value) for key, value in vars(part).items()}
            # Not by self.log, which would repeat the numbers until the next report.
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.fit_loop.epoch_loop._batches_that_stepped)


class _Evaluating(_AutomaticOptimization):
    """Lightning's automatic optimization, with the rounds of Alice inside its closure."""

    def __init__(self, trainer: Trainer):
        super().__init__(trainer)
        self.window = Window()

    def _make_closure(self, kwargs: Any, optimizer: Any, batch_idx: int) -> Closure:
        closure = super()._make_closure(kwargs, optimizer, batch_idx)
        if not isinstance(optimizer, Alice) or self._skip_backward:
            return closure
        return _Rounds(closure, optimizer, self)

    def _optimizer_step(self, batch_idx: int, closure: Callable[[], Any]) -> None:
        """Evaluate first, so that what goes through all hooks to the optimizer makes no gradient.

        Hooks that run before the step then run once, after all evaluations.
        """
        if isinstance(closure, _Rounds):
            loss = closure()
            super()._optimizer_step(batch_idx, lambda: loss)
        elif self._skip_backward and _alices(self.trainer):
            closure()  # there is nothing to step with
        else:
            super()._optimizer_step(batch_idx, closure)

    def _training_step(self, kwargs: Any) -> ClosureResult:
        # What one evaluation takes out of its batch, as with pop("labels"), the next must find.
        kwargs = {
            name: copy.copy(value) if isinstance(value, MutableMapping | list) else value
            for name, value in kwargs.items()
        }
        # Without a backward pass (weight averaging renews BatchNorm statistics that way) there is
        # nothing to look ahead for.
        with torch.no_grad() if self._skip_backward else contextlib.nullcontext():
            return super()._training_step(kwargs)


class _Rounds(Closure):
    """Lightning's closure, called at every point: once as it is, the other times in silence."""

    def __init__(self, closure: Closure, optimizer: Alice, loop: _Evaluating):
        super().__init__(closure._step_fn, closure._backward_fn, closure._zero_grad_fn)
        self._optimizer = optimizer
        self._loop = loop

    def closure(self, *args: Any, **kwargs: Any) -> ClosureResult:
        trainer, result = self._loop.trainer, None
        last = not trainer.fit_loop._should_accumulate()
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        for center in self._loop.window.evaluations(self._optimizer, last=last, scaler=scaler):
            if center:
                result = super().closure(*args, **kwargs)
                continue
            with _silence(trainer), torch.enable_grad():
                loss = self._step_fn().closure_loss
                if loss is not None:
                    self._backward_fn(loss)
        return result


@contextlib.contextmanager
def _silence(trainer: Trainer) -> Iterator[None]:
    """Keep logs and metrics from noticing an evaluation.

    What a metric has gathered is in attributes and not in buffers. Metrics may share their states,
    so each is restored as the same object.
    """
    module, loggers = trainer.lightning_module, trainer.loggers
    metrics = [part for part in module.modules() if isinstance(part, Metric)]
    notes = ("_update_count", "_computed")
    states = [(m, name, getattr(m, name)) for m in metrics for name in m._defaults]
    others = [(m, name, getattr(m, name)) for m in metrics for name in notes]
    saved: list[Any] = [v.clone() if isinstance(v, Tensor) else list(v) for _, _, v in states]
    trainer.loggers = [DummyLogger() for _ in loggers]
    module.log = module.log_dict = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del module.log, module.log_dict
        trainer.loggers = loggers
        with torch.no_grad():
            for (_, _, value), content in zip(states, saved, strict=True):
                if isinstance(value, Tensor):
                    value.copy_(content)
                else:
                    value[:] = content
        for metric, name, value in states + others:
            setattr(metric, name, value)


def _alices(trainer: Trainer) -> list[Alice]:
    return [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, Alice)]
