"""A plain GPT: decoder-only, pre-norm, learned positions, GELU, causal softmax attention."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from aliceopt.lab.models.blocks import Blocks, consecutive_layers, group_by_prefix

from . import arguments
from .transformer import PreNormLayer


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention in which position i sees 0 to i.

    torch's fused attention never forms the ``n x n`` weights and cannot be differentiated twice;
    under ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`` it can.
    """
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class GPT(nn.Module):
    """Language model: token and position vectors, decoder layers, norm, one logit a token.

    ``model(ids)`` gives logits and ``model.loss(logits, targets)`` the mean cross-entropy in nats
    a token; ``tie`` uses the embedding as the last layer.

    Parameters, with V tokens, width w: ``V w`` embedding (twice untied), ``context w`` positions,
    ``12 w^2 + 13 w`` a layer (attention ``4 w^2 + 4 w``, MLP ``8 w^2 + 5 w``, two norms ``4 w``)
    and ``2 w`` for the last norm: 10,844,160 by default on the 256 bytes. No dropout.

    Weights are normal with deviation 0.02, the last matrix of attention and MLP with
    ``0.02/sqrt(2 layers)``; biases 0.

    >>> model = gpt(50, context=4, layers=1, width=8, heads=2)
    >>> sum(p.numel() for p in model.parameters())  # 400 + 32 + 872 + 16
    1320
    """

    ends = ("embedding", "positions", "head")
    """What is no hidden layer: Muon leaves it to AdamW."""

    def __init__(
        self,
        vocabulary: int,
        *,
        context: int = 256,
        layers: int = 6,
        width: int = 384,
        heads: int = 6,
        tie: bool = True,
    ):
        super().__init__()
        arguments.require_whole(vocabulary=vocabulary, context=context, layers=layers)
        arguments.require_whole(width=width, heads=heads)
        arguments.require_switch(tie=tie)
        if width % heads:
            raise ValueError(f"heads must divide width, got heads={heads} and width={width}")
        self.context = context
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            [PreNormLayer(width, heads, 4 * width, "gelu", causal_attention) for _ in range(layers)]
        )
        self.norm = nn.LayerNorm(width)
        self.head = None if tie else nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # As GPT-2: 2 layers sums enter the residual stream, each with a share of the size.
                inner = name.endswith(("attention.outward.weight", "mlp.2.weight"))
                share = (2 * layers) ** -0.5 if inner else 1.0
                nn.init.normal_(parameter, std=0.02 * share)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits ``[B, n, vocabulary]`` of ids ``[B, n]``, n up to ``context``; i sees 0 to i."""
        if ids.dim() != 2 or ids.shape[1] > self.context:
            raise ValueError(
                f"ids must be [batch, n] with n <= context = {self.context}, got "
                f"{tuple(ids.shape)}: cut the text, or build the model with a longer context"
            )
        x = self.embedding(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        table = self.embedding.weight if self.head is None else self.head.weight
        return F.linear(self.norm(x), table)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats a token, of ``[B, n, vocabulary]`` and ``[B, n]``."""
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def blocks(self) -> Blocks:
        """``embedding`` (the head too when tied), up to four runs of layers, ``head``."""
        layers = consecutive_layers(len(self.layers))
        ends = {"embedding": ["embedding", "positions"]} | layers | {"head": ["norm", "head"]}
        return group_by_prefix(self, ends)


gpt = GPT
