"""Plain loops look ahead: a model's call in training mode finds its parameters at nu.

`Alice` with ``model=`` is told of every call of the model. One in training mode with gradients
enabled is the first half of a gradient, and takes the parameters to nu. There they stay,
through micro-batches and whatever else comes, until ``step()`` uses the gradients; a call in eval
mode, a ``state_dict`` or a ``load_state_dict`` sends them home before that.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

try:  # not public: without it torch.func refuses a model that looks ahead, as it did before
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside
except ImportError:
    from contextlib import nullcontext as outside  # type: ignore[assignment]

if TYPE_CHECKING:
    from .alice import Alice

__all__ = ["LookAhead", "standing_still"]


_EVERYBODY: weakref.WeakSet[LookAhead] = weakref.WeakSet()


class _Hook:
    """A hook that does nothing in a copy of the model: copies do not drive the optimizer.

    Pickled or copied, it sends the parameters home and becomes a function of the standard library
    that takes anything and returns None, so that a model saved whole can be loaded without this
    package.
    """

    def __init__(self, watcher: LookAhead, name: str):
        self.watcher = watcher
        self._name = name

    @torch.compiler.disable(  # type: ignore[untyped-decorator]
        reason="Alice(..., model=model) moves the parameters before a forward pass. With "
        "fullgraph=True give it the compiled module: model=torch.compile(model, fullgraph=True)"
    )
    def __call__(self, *args: Any) -> None:
        getattr(self.watcher, self._name)(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        self.watcher.come_home()
        return getattr, (contextlib.nullcontext(), "__exit__")


class LookAhead:
    """Tells an optimizer of its model's calls; holds both weakly.

    Of several that train the same parameters one looks ahead: the last that was made or stepped.
    """

    def __init__(self, optimizer: Alice, model: nn.Module | None):
        self._optimizer = weakref.ref(optimizer)
        roots = list(_callable(model)) if model is not None else []
        self._roots = [weakref.ref(root) for root in roots]
        self._known: tuple[Any, str, int] | None = None
        self.rival: weakref.ref[LookAhead] | None = None
        self._off = False
        self._handles: list[Any] = []
        weakref.finalize(optimizer, _remove, self._handles)
        self.claim()
        _EVERYBODY.add(self)
        for module in model.modules() if model is not None else ():
            home = _Hook(self, "come_home")
            self._handles.append(module.register_state_dict_pre_hook(home))
            self._handles.append(module.register_load_state_dict_pre_hook(home))
            _put_first(module.__dict__, "_state_dict_pre_hooks")
        for root in roots:
            # Before FSDP2's own, which gathers the parameters as they are then.
            enter, leave = _Hook(self, "enter"), _Hook(self, "leave")
            options = {"prepend": True, "with_kwargs": True}
            self._handles.append(root.register_forward_pre_hook(enter, **options))
            self._handles.append(root.register_forward_hook(leave, always_call=True))

    def claim(self) -> None:
        """Be the one that looks ahead for the optimizer's parameters."""
        self.rival = None
        for former in _of(self.params()):
            if former is not self:
                former.come_home()
                former.rival = weakref.ref(self)

    @property
    def is_silent(self) -> bool:
        """Whether somebody else decides where the parameters are."""
        if self.rival is not None and self.rival() is None:
            self.rival = None
        return self._off or self.rival is not None or torch.jit.is_tracing()

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A call begins; it counts if the parameters in it are ours."""
        optimizer = self._optimizer()
        if optimizer is None:
            self.stop()
        elif not self.is_silent and self._is_ours(module, optimizer):
            # A function that torch.func differentiates must not write to what it was not given.
            with outside():
                self._before_call(optimizer, training=module.training, inputs=(args, kwargs))

    @staticmethod
    def _before_call(optimizer: Alice, *, training: bool, inputs: Any) -> None:
        probe = optimizer._probe
        if probe is not None and not probe.finished:
            if probe.watch is not None:
                probe.watch.saw(inputs)
        elif torch._C._current_graph_task_id() != -1:
            pass  # recomputed in a backward pass: wherever the forward was, they are still there
        elif not training:
            optimizer.come_home()
        elif torch.is_grad_enabled() or _is_checkpointed(inputs):
            optimizer.look_ahead()

    def leave(self, *_: Any) -> None:
        """A call has ended: what it wrote to parameters it will write again."""
        optimizer = self._optimizer()
        if optimizer is not None and optimizer._probe is not None:
            optimizer._probe.accept_edits()

    def come_home(self, *_: Any) -> None:
        """Somebody saves or loads the parameters."""
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.come_home()

    def params(self) -> list[nn.Parameter]:
        """The optimizer's."""
        optimizer = self._optimizer()
        return optimizer._params() if optimizer is not None else []

    def stop(self) -> None:
        """Tell of nothing any more; nobody would bring the parameters home, so they go now."""
        self.come_home()
        _EVERYBODY.discard(self)
        _remove(self._handles)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Tell of nothing for a while: somebody else decides where the parameters are."""
        self._off = True
        try:
            yield
        finally:
            self._off = False

    def _is_ours(self, module: nn.Module, optimizer: Alice) -> bool:
        """Not so for replicas, nor while `functional_call` has other tensors in their places."""
        if not any(module is root() for root in self._roots):
            return False
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return True  # FSDP2 has tensors of its own there, every now and then
        if self._known is not None:
            owner, name, param = self._known[0](), *self._known[1:]
            if owner is not None and id(owner._parameters.get(name)) == param:
                return True
        mine = set(map(id, optimizer._params()))
        held = ((m, name, p) for m in module.modules() for name, p in m._parameters.items())
        found = next((there for there in held if id(there[2]) in mine), None)
        if found is None:
            return False
        # Not a weak reference to the parameter: torch swaps no tensors that have any.
        self._known = weakref.ref(found[0]), found[1], id(found[2])
        return True


def _is_checkpointed(inputs: Any) -> bool:
    """Whether gradients will be asked for, though they are switched off: by recomputing it all."""
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(inputs))


def _put_first(entries: dict[str, Any], name: str) -> None:
    """Copying and pickling go in this order: a hook must hear of it before parameters are read."""
    for other in [entry for entry in entries if entry != name]:
        entries[other] = entries.pop(other)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


def _callable(model: nn.Module) -> Iterator[nn.Module]:
    """The model, or the modules in it if it is a mere list or dictionary of them."""
    if isinstance(model, (nn.ModuleList, nn.ModuleDict)):
        for child in model.children():
            yield from _callable(child)
    else:
        yield model


def _of(params: Iterable[Tensor]) -> list[LookAhead]:
    """Everybody who looks ahead for an optimizer of any of these parameters."""
    mine = set(map(id, params))
    return [w for w in list(_EVERYBODY) if any(id(param) in mine for param in w.params())]


@contextlib.contextmanager
def standing_still(params: Iterable[Tensor]) -> Iterator[None]:
    """Have these parameters at home, whoever trains them, and let no call of a model move them."""
    with contextlib.ExitStack() as stack:
        for watcher in _of(params):
            watcher.come_home()
            stack.enter_context(watcher.paused())
        yield
