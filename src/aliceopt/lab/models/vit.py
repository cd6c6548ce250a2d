"""Vision transformer whose attention costs time linear in the number of patches."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from aliceopt.lab.models.blocks import Blocks, consecutive_layers, group_by_prefix

from . import arguments
from .transformer import PreNormLayer


def efficient_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """``softmax_features(Q) (softmax_positions(K)^T V)``: Shen et al., Efficient Attention.

    Arguments are ``[..., n, d]``. The product on the right is ``d x d`` and comes first, so the
    cost is ``n d^2``, not ``n^2 d``. It equals ``A V`` with the ``n x n`` matrix
    ``A = softmax_features(Q) softmax_positions(K)^T``, whose rows sum to 1, as in softmax
    attention; A itself is never formed.
    """
    context = key.softmax(-2).transpose(-2, -1) @ value
    return query.softmax(-1) @ context


def cut_patches(images: Tensor, patch: int) -> Tensor:
    """``[B, C, H, W]`` to ``[B, HW / patch^2, C patch^2]``: tiles, row by row."""
    tiles = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # B, C, h, p, w, p
    return torch.permute(tiles, (0, 2, 4, 1, 3, 5)).flatten(3).flatten(1, 2)


class ViT(nn.Module):
    """Vision transformer with linear-complexity attention: 8 encoder layers on 64 x 64 images.

    Patches, learned positions, encoder layers, mean over patches, linear layer.

    The paper states the layers, the attention and the image size. Our choices for the rest:
    8 x 8 patches (64 of them), width 256, 8 heads of 32, GELU of four times the width, pre-norm,
    learned positions, the mean over patches instead of a class token, no dropout.

    Parameters, with width w, ratio m, patch p, n = (image/p)^2 patches: ``(channels p^2 + 1) w``
    patches, ``n w`` positions, ``(4 + 2 m) w^2 + (9 + m) w`` a layer (attention ``4 w^2 + 4 w``,
    MLP ``2 m w^2 + (m + 1) w``, two norms ``4 w``), ``2 w + (w + 1) classes`` at the end:
    6,641,384 for 1000 classes.

    Weights are Xavier uniform, biases 0, positions normal with deviation 0.02.

    >>> sum(p.numel() for p in vit(10, image=16, width=8, heads=2, layers=1).parameters())
    2554
    """

    ends = ("patches", "positions", "final")
    """What is no hidden layer: Muon leaves it to AdamW."""

    def __init__(
        self,
        classes: int,
        *,
        image: int = 64,
        patch: int = 8,
        width: int = 256,
        heads: int = 8,
        layers: int = 8,
        mlp_ratio: int = 4,
        channels: int = 3,
        activation: str = "gelu",
    ):
        super().__init__()
        arguments.require_whole(classes=classes, image=image, patch=patch, width=width, heads=heads)
        arguments.require_whole(layers=layers, mlp_ratio=mlp_ratio, channels=channels)
        if image % patch:
            raise ValueError(f"patch must divide image, got patch={patch} and image={image}")
        if width % heads:
            raise ValueError(f"heads must divide width, got heads={heads} and width={width}")
        self.channels, self.image, self.patch = channels, image, patch
        self.patches = nn.Linear(channels * patch**2, width)
        self.positions = nn.Parameter(torch.empty((image // patch) ** 2, width))
        self.layers = nn.ModuleList()
        for _ in range(layers):
            hidden = mlp_ratio * width
            layer = PreNormLayer(width, heads, hidden, activation, efficient_attention)
            self.layers.append(layer)
        self.norm = nn.LayerNorm(width)
        self.final = nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[B, classes]`` of images ``[B, channels, image, image]``."""
        if images.shape[1:] != (self.channels, self.image, self.image):
            wanted = f"[B, {self.channels}, {self.image}, {self.image}]"
            raise ValueError(f"images must be {wanted}, got {tuple(images.shape)}")
        x = self.patches(cut_patches(images, self.patch)) + self.positions
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.final(self.norm(x).mean(1)))

    def blocks(self) -> Blocks:
        """``patches``, up to four runs of layers, and ``final layer`` with the norm before it."""
        layers = consecutive_layers(len(self.layers))
        ends = {"patches": ["patches", "positions"]} | layers | {"final layer": ["norm", "final"]}
        return group_by_prefix(self, ends)


vit = ViT
