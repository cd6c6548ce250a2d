"""The layer of a transformer, whatever its attention is."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from .arguments import activation_named

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``attend(query, key, value)``, each ``[..., n, d]``, gives ``[..., n, d]``."""


class SelfAttention(nn.Module):
    """Attention in ``heads`` slices of the width, between two linear maps."""

    def __init__(self, width: int, heads: int, attend: Attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, n, width]`` to the same shape."""
        split = self.inward(x).unflatten(-1, (3, self.heads, -1))  # B, n, 3, heads, d
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = self.attend(query, key, value)
        return cast(Tensor, self.outward(mixed.transpose(1, 2).flatten(2)))


class PreNormLayer(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``, ``hidden`` units inside."""

    def __init__(self, width: int, heads: int, hidden: int, activation: str, attend: Attend):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, attend)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), activation_named(activation), nn.Linear(hidden, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[B, n, width]`` to the same shape."""
        x = x + self.attention(self.norm1(x))
        return cast(Tensor, x + self.mlp(self.norm2(x)))
