"""Whole channels: smaller layers that need no sparse kernels.

A channel cannot go alone: the norms behind it, the layers that read it and those that add to it
(residual connections) lose it too. Torch-Pruning's dependency graph says what goes together; a
channel is worth the sum of the scores of all weights that go with it. By ``h w^2`` that is twice
the predicted increase of the loss.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from .weights import weights_of

__all__ = ["shrink"]


class _Group(NamedTuple):
    """Channels that go together: the layer and function that name them, and their worth."""

    layer: nn.Module
    function: Any
    worth: Tensor


def shrink(
    model: nn.Module, worth: Mapping[str, Tensor], sparsity: float, inputs: Any, scope: str
) -> dict[str, float]:
    """Take a share of the channels out of a model, in place; by weight, what share of it went.

    Tried on a copy first, so that a model which cannot be shrunk stays as it is. The channels of
    outputs stay, and one at least of every group.
    """
    _check(model, inputs)
    trial = copy.deepcopy(model).eval()
    with torch.no_grad():
        before = _shapes(trial(inputs))
    try:
        _shrink(trial, worth, sparsity, inputs, scope)
        with torch.no_grad():
            after = _shapes(trial(inputs))
    except ModuleNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"channels of this model cannot be removed: {error}") from error
    if after != before:
        raise ValueError(f"without channels the outputs would be {after}, not {before}")
    sizes = {name: weight.parameter.numel() for name, weight in weights_of(model).items()}
    _shrink(model, worth, sparsity, inputs, scope)
    left = weights_of(model)
    return {name: 1 - left[name].parameter.numel() / size for name, size in sizes.items()}


def _check(model: nn.Module, inputs: Any) -> None:
    if inputs is None:
        raise ValueError("channels need inputs, a batch that the model can be called on")
    for name, layer in model.named_modules():
        if isinstance(layer, _ConvNd) and layer.groups > 1:
            raise ValueError(f"{name!r} is a convolution in groups, whose channels stay")
    for name, weight in weights_of(model).items():
        if weight.mask is not None:
            raise ValueError(f"{name!r} has a mask: make it final before channels go")


def _shapes(outputs: Any) -> Any:
    return tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__


def _shrink(
    model: nn.Module, worth: Mapping[str, Tensor], sparsity: float, inputs: Any, scope: str
) -> None:
    graph = _graph(model, inputs)
    groups = list(_groups(graph, model, worth))
    if not groups:
        raise ValueError("it has no channels but those of its inputs and outputs")
    for group, gone in zip(groups, _chosen(groups, sparsity, scope), strict=True):
        if gone:
            graph.get_pruning_group(group.layer, group.function, gone).prune()


def _graph(model: nn.Module, inputs: Any) -> Any:
    try:
        import torch_pruning
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "channels are removed with torch-pruning, which is not installed: "
            'pip install "aliceopt[compress]"',
            name=error.name,
        ) from error
    with _as_it_was(model):
        return torch_pruning.DependencyGraph().build_dependency(model, inputs)


@contextlib.contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Modes, gradients and buffers as before: the graph is read off a forward pass."""
    modes = [(module, module.training) for module in model.modules()]
    grads = [(p, p.grad) for p in model.parameters()]
    model.eval()
    try:
        with torch.enable_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, grad in grads:
            parameter.grad = grad


def _groups(graph: Any, model: nn.Module, worth: Mapping[str, Tensor]) -> Iterator[_Group]:
    scored = {weight.layer: worth[name] for name, weight in weights_of(model, worth).items()}
    for group in graph.get_all_groups(root_module_types=[nn.Conv2d, nn.Conv1d, nn.Linear]):
        root = group[0].dep.target.module
        total = torch.zeros(len(group[0].idxs), dtype=torch.float64, device="cpu")
        known = is_output = False
        for item in group:
            outward = graph.is_out_channel_pruning_fn(item.dep.handler)
            is_output |= outward and not item.dep.target.outputs
            score = scored.get(item.dep.target.module)
            if score is not None:
                known = True
                rows = (score if outward else score.transpose(0, 1)).flatten(1).double().sum(1)
                places = torch.as_tensor(item.root_idxs, device="cpu")
                total.index_add_(0, places, rows.cpu()[item.idxs])
        if known and not is_output:
            yield _Group(root, group[0].dep.handler, total)


def _chosen(groups: list[_Group], sparsity: float, scope: str) -> list[list[int]]:
    """The channels of every group that go; its best one stays."""
    gone: list[list[int]] = [[] for _ in groups]
    flat = [(float(w), g, i) for g, group in enumerate(groups) for i, w in enumerate(group.worth)]
    best = {g: int(group.worth.argmax()) for g, group in enumerate(groups)}
    left = {g: round(sparsity * len(group.worth)) for g, group in enumerate(groups)}
    everywhere = round(sparsity * len(flat))
    for _, g, i in sorted(flat):
        if i != best[g] and (everywhere if scope == "global" else left[g]) > 0:
            gone[g].append(i)
            left[g] -= 1
            everywhere -= 1
    return gone
