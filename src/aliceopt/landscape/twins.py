"""Activation twins: the same network with other activations, in one call.

Glass comes from kinks. A copy of a network whose ReLUs are GELUs has the same weights and sees the
same batches, but has no kinks: what differs between the two comes from them.

Modules are replaced in the copy. Calls of ``torch.nn.functional.relu`` and its like are caught
while the copy computes, so models that have them in their ``forward`` need no change. Modules with
kinks that neither way finds, such as the ReLUs inside a fused ``nn.RNN``, are named; kinks of other
functions (``F.max_pool2d``, ``clamp``) stay, unnamed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["ACTIVATIONS", "Twin", "twin"]


class SquaredReLU(nn.Module):
    """``relu(x)^2``: its slope is continuous, the slope's slope is not."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise, by a function that no twin catches."""
        return x.clamp(min=0).square()


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "relu2": SquaredReLU,
    "leaky": nn.LeakyReLU,
}
"""What a twin may have."""

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "relu": (F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_),
    "gelu": (F.gelu, torch._C._nn.gelu),
    "silu": (F.silu,),
    "relu2": (),
    "leaky": (F.leaky_relu, F.leaky_relu_),
}
_KINKED = (
    *(nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.PReLU, nn.RReLU, nn.Threshold),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softshrink, nn.Hardshrink),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.FractionalMaxPool2d, nn.FractionalMaxPool3d),
)


@dataclass
class Twin:
    """A copy of a model with other activations.

    ``modules`` are the names of those that were replaced; ``calls`` counts the functions that
    were caught in all forward passes so far. ``kinked`` names the modules that have kinks still.
    """

    model: nn.Module
    activation: str
    modules: tuple[str, ...]
    kinked: tuple[str, ...]
    _catch: _Catch

    @property
    def calls(self) -> int:
        """Functions caught so far; zero before the first forward pass."""
        return self._catch.calls


class _Catch(TorchFunctionMode):
    """While a module of the twin computes, calls of some functions go to another activation."""

    def __init__(self, functions: tuple[Any, ...], activation: nn.Module) -> None:
        super().__init__()
        self.functions, self.activation = functions, activation
        self.depth = self.calls = self.modules = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in self.functions:
            return func(*args, **kwargs)
        self.calls += 1
        x: Tensor = args[0] if args else kwargs["input"]
        name = str(getattr(func, "__name__", ""))
        in_place = kwargs.get("inplace", len(args) > 1 and args[1] is True)
        if name.endswith("_") or in_place:
            return _over(x, self.activation)
        return self.activation(x)

    def within(self, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Compute a module: on at the outermost, off behind it, also if it was interrupted."""
        if self.depth:
            return forward(*args, **kwargs)
        self.depth = 1
        try:
            with self:
                return forward(*args, **kwargs)
        finally:
            self.depth = 0


def twin(
    model: nn.Module, activation: str = "gelu", *, of: str | None = None, share: bool = False
) -> Twin:
    """A copy of a model with ``activation`` where it has ``of``; the model is not changed.

    Args:
        model: any module whose activations are modules or functions of torch.
        activation: one of `ACTIVATIONS`: "gelu", "silu", "relu2" (its square), "leaky", "relu".
        of: what is replaced, of the same names; None: ReLU, or for a twin with ReLUs all others.
        share: have the parameters of the model itself instead of copies; buffers are copied.

    >>> found = twin(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), "gelu")
    >>> found.modules, found.model[1]
    (('1',), GELU(approximate='none'))
    """
    for name in (activation, *([] if of is None else [of])):
        if name not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {name!r}")
    others = tuple(name for name in ACTIVATIONS if name != "relu")
    sources = (of,) if of else others if activation == "relu" else ("relu",)
    if sources == (activation,):
        raise ValueError(f"a twin with other activations is asked for, got {activation!r} for both")
    shared: dict[int, Any] = {id(p): p for p in model.parameters()} if share else {}
    copied = copy.deepcopy(model, shared)
    replaced = _replace(copied, tuple(ACTIVATIONS[source] for source in sources), activation)
    functions = tuple(function for source in sources for function in _FUNCTIONS[source])
    catch = _Catch(functions, ACTIVATIONS[activation]())
    catch.modules = len(replaced)
    ours = {id(module) for module in replaced.values()}
    for module in copied.modules():  # each, since a checkpointed part is computed again by itself
        if id(module) not in ours:  # no hooks: an interrupt would skip the one behind
            module.forward = partial(catch.within, module.forward)
    return Twin(copied, activation, tuple(replaced), _kinked(copied), catch)


def _replace(
    model: nn.Module, kinds: tuple[type[nn.Module], ...], activation: str
) -> dict[str, nn.Module]:
    """Put a new activation where a module is of these kinds; one that is used twice stays one."""
    found: dict[str, nn.Module] = {}
    new: dict[int, nn.Module] = {}
    if type(model) in kinds:
        raise ValueError(f"the model is itself a {type(model).__name__}: give what contains it")
    for prefix, parent in model.named_modules(remove_duplicate=False):
        for name, child in list(parent._modules.items()):  # named_children leaves out the second
            if child is not None and type(child) in kinds:
                if id(child) not in new:
                    new[id(child)] = _instead(child, ACTIVATIONS[activation]())
                setattr(parent, name, new[id(child)])
                found[f"{prefix}.{name}" if prefix else name] = new[id(child)]
    return found


def _instead(old: nn.Module, activation: nn.Module) -> nn.Module:
    """With the other's hooks, and in place if that was."""
    new = _InPlace(activation) if getattr(old, "inplace", False) else activation
    vars(new).update({name: value for name, value in vars(old).items() if "_hook" in name})
    return new.train(old.training)


class _InPlace(nn.Module):
    """Writes to its input, which others may read afterwards."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """The input itself."""
        return _over(x, self.activation)


def _over(x: Tensor, activation: nn.Module) -> Tensor:
    """In the input's place; the clone is what backward remembers."""
    return x.copy_(activation(x.clone()))


def _kinked(model: nn.Module) -> tuple[str, ...]:
    """Modules that are known to have kinks, and fused ones with ReLUs inside."""
    return tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, _KINKED)
        or (isinstance(module, nn.RNN | nn.RNNCell) and module.nonlinearity == "relu")
    )


def check_swapped(model: nn.Module) -> str:
    """What a twin's model has in other places, in words, after a forward pass.

    One in which nothing was replaced is refused: it would be the model itself.
    """
    function = getattr(model.forward, "func", None)
    catch = getattr(function, "__self__", None)
    if not isinstance(catch, _Catch):
        raise ValueError("the model is no activation twin")
    if not catch.modules and not catch.calls:
        raise ValueError(
            "nothing was replaced: the model has no activation for another to stand in for, "
            "neither a module nor a call of torch's functions"
        )
    left = [n for n in _kinked(model) if type(model.get_submodule(n)) is not type(catch.activation)]
    modules = "1 module" if catch.modules == 1 else f"{catch.modules} modules"
    calls = "1 call" if catch.calls == 1 else f"{catch.calls} calls"
    said = f"replaced {modules} and {calls} of functions"
    return said + (f"; kinks are left in {', '.join(left)}" if left else "")
