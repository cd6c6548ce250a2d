"""Networks for `benchmarks.train_step`, with a random batch each: ResNet18, a small GPT, an MLP."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["BATCH", "GPT", "BasicBlock", "Problem", "ResNet18", "mlp", "problem"]

BATCH = {"resnet18": 100, "gpt": 16, "mlp": 128}
"""Examples a batch, unless asked otherwise."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if inside != outside:
            conv = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """Same size, or half of it at stride 2."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet18 for 32x32 images and 10 classes: 3x3 stem, no pooling before the first stage."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(64)
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        self.blocks = nn.Sequential(
            *(BasicBlock(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths))
        )
        self.head = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.blocks(F.relu(self.stem_norm(self.stem(x))))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


class Attention(nn.Module):
    """Causal self-attention, in whichever fused form the device offers."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class TransformerBlock(nn.Module):
    """Pre-norm attention and a four times wider MLP."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        x = x + self.attention(self.norm1(x))
        y: Tensor = self.mlp(self.norm2(x))
        return x + y


class GPT(nn.Module):
    """A small GPT with learned positions and an output layer tied to the embedding."""

    def __init__(
        self, vocab: int, width: int = 384, layers: int = 6, heads: int = 6, context: int = 256
    ):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next token at every place."""
        places = self.places.weight[: x.shape[1]]
        return F.linear(self.norm(self.blocks(self.tokens(x) + places)), self.tokens.weight)


def mlp() -> nn.Module:
    """64-256-256-10."""
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


@dataclass(frozen=True)
class Problem:
    """A model and a batch whose tensors stay where they are."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    amp: bool = False

    def closure(self) -> Tensor:
        """Forward and backward; gradients are added to what is there."""
        with torch.autocast(self.inputs.device.type, dtype=torch.bfloat16, enabled=self.amp):
            logits = self.model(self.inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), self.targets.flatten())
        loss.backward()
        return loss.detach()


def problem(
    name: str,
    batch: int,
    device: torch.device,
    *,
    amp: bool = False,
    channels_last: bool = False,
    vocab: int = 65,
    context: int = 256,
) -> Problem:
    """The named model and its batch, the same every time."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "resnet18": ResNet18,
        "gpt": lambda: GPT(vocab, context=context),
        "mlp": mlp,
    }
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = makers[name]().to(device)
        if name == "gpt":
            text = torch.randint(vocab, (batch, context + 1))
            x, y = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        else:
            x = torch.randn((batch, 3, 32, 32) if name == "resnet18" else (batch, 64))
            y = torch.randint(10, (batch,))
    x = x.to(device)
    if channels_last and x.ndim == 4:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.to(memory_format=torch.channels_last)
    return Problem(model, x, y.to(device), amp)
