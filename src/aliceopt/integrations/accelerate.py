"""Alice with Hugging Face Accelerate: three gradients where `accumulate` expects one.

::

    model, optimizer, loader, scheduler = prepare(accelerator, model, optimizer, loader, scheduler)
    for x, y in loader:
        with accelerator.accumulate(model):
            for _ in optimizer.evaluations():
                accelerator.backward(loss_fn(model(x), y))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..alice import Alice
from .window import Window

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
except ImportError as error:
    raise ImportError(
        "aliceopt.integrations.accelerate needs Accelerate: pip install 'aliceopt[accelerate]'"
    ) from error

__all__ = ["AcceleratedAlice", "adopt", "check_distributed", "prepare"]


class AcceleratedAlice(AcceleratedOptimizer):
    """Accelerate's optimizer around an Alice, made by `prepare` or `adopt`.

    Steps and zeroing follow ``accumulate`` as with any optimizer, and ``step_was_skipped`` is right
    under fp16 too.
    """

    optimizer: Alice
    _window: Window

    def evaluations(self) -> Iterator[bool]:
        """Rounds of one micro-batch; True for the one at the center, which comes last.

        Whether the step is due after it, ``accumulate`` knows.
        """
        yield from self._window.evaluations(
            self.optimizer, last=self.gradient_state.sync_gradients, scaler=self.scaler
        )

    def step(self, closure: Any = None) -> None:
        """Step if this micro-batch completes a window, through the GradScaler if there is one."""
        before = self.optimizer.gradient_evaluations
        super().step(closure)
        if self.scaler is not None and self.gradient_state.sync_gradients:
            # A GradScaler leaves the skipping to Alice, so that `step` is called in any case.
            self._is_overflow = self.optimizer.gradient_evaluations == before

    @property
    def gradient_evaluations(self) -> int:
        """Gradients evaluated by the steps taken so far."""
        return self.optimizer.gradient_evaluations

    def telemetry(self, *args: Any, **kwargs: Any) -> Any:
        """What the last step did; see `aliceopt.Alice.telemetry`."""
        return self.optimizer.telemetry(*args, **kwargs)


def prepare(accelerator: Accelerator, *objects: Any, **kwargs: Any) -> Any:
    """``accelerator.prepare(...)``, with every Alice among the objects adopted."""
    check_distributed(accelerator)
    prepared = accelerator.prepare(*objects, **kwargs)
    for item in prepared if isinstance(prepared, tuple) else (prepared,):
        if isinstance(item, AcceleratedOptimizer) and isinstance(item.optimizer, Alice):
            adopt(item)
    return prepared


def adopt(optimizer: AcceleratedOptimizer) -> AcceleratedAlice:
    """Make a prepared optimizer around an Alice an `AcceleratedAlice`, in place.

    In place, because the accelerator and its schedulers hold on to the object.
    """
    inner = getattr(optimizer, "optimizer", None)
    if not isinstance(optimizer, AcceleratedOptimizer) or not isinstance(inner, Alice):
        raise TypeError(
            "adopt() takes what accelerator.prepare() made of an Alice, got "
            f"{type(optimizer).__name__} around {type(inner).__name__}: call "
            "prepare(accelerator, ..., optimizer) instead"
        )
    if not isinstance(optimizer, AcceleratedAlice):
        optimizer.__class__ = AcceleratedAlice
        optimizer._window = Window()
    return optimizer


def check_distributed(accelerator: Accelerator) -> None:
    """Refuse engines that take gradients and steps into their own hands."""
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind in ("DEEPSPEED", "MEGATRON_LM"):
        raise ValueError(
            f"distributed_type {kind} computes gradients and steps inside its own engine, where "
            "Alice cannot ask for three: use DDP or FSDP2 (fsdp_version 2)"
        )
