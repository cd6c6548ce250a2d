"""Shapes of the parameters of known networks: an optimizer's work depends on nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

__all__ = ["MODELS", "Shapes", "count", "gpt2", "gpt20m", "mlp20m", "resnet18", "resnet20m", "tiny"]

Shapes = dict[str, tuple[int, ...]]


def count(shapes: Shapes) -> int:
    """Number of parameters."""
    return sum(math.prod(shape) for shape in shapes.values())


def gpt2(width: int = 768, vocabulary: int = 50257) -> Shapes:
    """GPT-2 small: 124,439,808 parameters in 148 tensors; the output layer is the embedding."""
    shapes: Shapes = {"wte": (vocabulary, width), "wpe": (1024, width)}
    for i in range(12):
        for name, shape in _gpt2_block(width):
            shapes[f"h.{i}.{name}"] = shape
    return {**shapes, "ln_f.weight": (width,), "ln_f.bias": (width,)}


def _gpt2_block(width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    linear = {
        "attn.c_attn": (width, 3 * width),
        "attn.c_proj": (width, width),
        "mlp.c_fc": (width, 4 * width),
        "mlp.c_proj": (4 * width, width),
    }
    for name in ("ln_1", "ln_2"):
        yield f"{name}.weight", (width,)
        yield f"{name}.bias", (width,)
    for name, shape in linear.items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[1:]


def gpt20m() -> Shapes:
    """GPT-2's layers at width 336: 20,014,176 parameters in 148 tensors, for CPUs."""
    return gpt2(336, 10000)


def resnet18(width: int = 64) -> Shapes:
    """ResNet18 for CIFAR-10: 11,173,962 parameters in 62 tensors."""
    shapes: Shapes = {"stem.weight": (width, 3, 3, 3), **_norm("stem_norm", width)}
    inside = width
    for stage, outside in enumerate((width, 2 * width, 4 * width, 8 * width)):
        for block in range(2):
            name = f"blocks.{2 * stage + block}"
            shapes[f"{name}.conv1.weight"] = (outside, inside, 3, 3)
            shapes.update(_norm(f"{name}.norm1", outside))
            shapes[f"{name}.conv2.weight"] = (outside, outside, 3, 3)
            shapes.update(_norm(f"{name}.norm2", outside))
            if inside != outside:
                shapes[f"{name}.shortcut.0.weight"] = (outside, inside, 1, 1)
                shapes.update(_norm(f"{name}.shortcut.1", outside))
            inside = outside
    return {**shapes, "head.weight": (10, 8 * width), "head.bias": (10,)}


def resnet20m() -> Shapes:
    """ResNet18 at width 86: 20,168,816 parameters in 62 tensors, for CPUs."""
    return resnet18(86)


def _norm(name: str, channels: int) -> Shapes:
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


def mlp20m() -> Shapes:
    """784-4096-4096-10 with layer norms: 20,054,026 parameters in 10 tensors, for CPUs."""
    return {
        "0.weight": (4096, 784),
        "0.bias": (4096,),
        **_norm("1", 4096),
        "2.weight": (4096, 4096),
        "2.bias": (4096,),
        **_norm("3", 4096),
        "4.weight": (10, 4096),
        "4.bias": (10,),
    }


def tiny() -> Shapes:
    """A few thousand parameters in odd shapes, for tests: 2,792 in 6 tensors."""
    return {
        "0.weight": (64, 32),
        "0.bias": (64,),
        "1.weight": (10, 64),
        "1.bias": (10,),
        "odd": (7, 3, 1),
        "temperature": (1, 9),
    }


MODELS: dict[str, Callable[[], Shapes]] = {
    "gpt2": gpt2,
    "resnet18": resnet18,
    "gpt20m": gpt20m,
    "resnet20m": resnet20m,
    "mlp20m": mlp20m,
    "tiny": tiny,
}
