"""The weights of a model that can be removed: matrices and kernels of its layers."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ..landscape.excursion import inner_name
from ..sharding import reshard

__all__ = ["Weight", "weights_of"]


@dataclass(frozen=True)
class Weight:
    """The weight of one layer, masked or not.

    ``name`` is the same with and without a mask of torch.nn.utils.prune, which renames the
    parameter; ``parameter`` is what is trained, ``mask`` what of it is left, None for all.
    """

    name: str
    layer: nn.Module
    parameter: nn.Parameter
    mask: Tensor | None

    def values(self) -> Tensor:
        """The weights as the layer uses them."""
        whole = self.parameter.detach()
        return whole if self.mask is None else whole * self.mask


def weights_of(model: nn.Module, names: Iterable[str] | None = None) -> dict[str, Weight]:
    """By name, the weights of linear and convolution layers that are trained; or those named.

    Left out are tensors that several layers share (a tied embedding): removed for one of them, it
    would be removed for all, or no longer be shared; and layers on which masks would not work,
    because their weights are made of other parameters (weight norm) or used without a call of the
    layer (the projections of torch's MultiheadAttention).
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"a torch.nn.Module is needed, got {type(model).__name__}")
    reshard(model)  # an unsharded FSDP2 module has other parameters
    users = Counter(id(p) for m in model.modules() for p in m.parameters(recurse=False))
    found = {}
    for prefix, layer in model.named_modules():
        if isinstance(layer, nn.Linear | _ConvNd):
            masked = hasattr(layer, "weight_orig") and hasattr(layer, "weight_mask")
            parameter = layer._parameters.get("weight_orig" if masked else "weight")
            if parameter is None or isinstance(layer, NonDynamicallyQuantizableLinear):
                continue
            if parameter.requires_grad and users[id(parameter)] == 1:
                name = inner_name(f"{prefix}.weight" if prefix else "weight")
                found[name] = Weight(name, layer, parameter, getattr(layer, "weight_mask", None))
    if not found:
        raise ValueError("the model has no linear or convolution layer with trained weights")
    if names is None:
        return found
    wanted = list(names)
    for name in wanted:
        if name not in found:
            near = difflib.get_close_matches(name, found, n=1)
            meant = f": did you mean {near[0]!r}?" if near else f"; there are {', '.join(found)}"
            raise ValueError(f"{name!r} is no weight that can be removed{meant}")
    return {name: found[name] for name in wanted}
