"""Tensorised Transformer: language model with third-order attention, made causal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aliceopt.lab.models.blocks import Blocks, consecutive_layers, group_by_prefix

from . import arguments
from .adaptive import AdaptiveSoftmax

LARGE_VOCABULARY = 40_000
CUTOFFS = (20_000, 40_000, 200_000)
CHUNKS = 2
"""Runs of query positions that the attention handles one after another."""


def third_order_attention(
    query: Tensor, key: Tensor, value: Tensor, relative: Tensor, biases: Tensor, faces: Tensor
) -> Tensor:
    """Project the causal third-order attention tensor: ``[B, n, R]`` factors to ``[B, n, width]``.

        T[i, j, m] = sum_r ((q[i, r] + b[0, r]) k[j, r] + (q[i, r] + b[1, r]) p[i, j, r]) v[m, r]
        out[i] = sum over j <= i, m <= i of T[i, j, m] W[j, m]

    ``relative`` is p, ``[n, n, R]``, the key of the distance i - j; ``biases`` b, ``[2, R]``;
    ``faces`` W, ``[n, n, width]``. The cores are diagonal and act on r alone, so the caller
    multiplies them into ``value``.

    A query sees faces of side i + 1 only. Handled in ``CHUNKS`` runs of queries, a run that ends
    at position e needs faces of side e, and 62 % of T's ``B n^3`` entries are computed and kept
    instead of all (33 % are needed). Entries still ahead of their query are replaced by zero, not
    multiplied, so that not even a NaN from the future comes through.
    """
    length = query.shape[1]
    position = torch.arange(length, device=query.device)
    latest = torch.maximum(position[:, None], position[None, :])
    content, place = ((query + bias.type_as(query))[:, :, None] for bias in biases)
    outputs = []
    step = -(-length // CHUNKS)
    for start in range(0, length, step):
        end = min(start + step, length)
        rows = slice(start, end)
        pairs = content[:, rows] * key[:, None, :end] + place[:, rows] * relative[rows, :end]
        tensor = (pairs.flatten(1, 2) @ value[:, :end].mT).unflatten(1, (end - start, end))
        tensor.masked_fill_(latest[:end, :end] > position[rows, None, None], 0.0)
        outputs.append(tensor.flatten(2) @ faces[:end, :end].flatten(0, 1))
    return torch.cat(outputs, 1)


def by_distance(keys: Tensor) -> Tensor:
    """``[n, R]`` keys of distances 0, 1, ... to ``[n, n, R]``: entry i, j is key i - j, else 0.

    Windows over the reversed keys, not a look-up: the backward of a look-up adds in an order that
    changes from run to run on a GPU.
    """
    n = keys.shape[0]
    windows = F.pad(keys.flip(0), (0, 0, 0, n - 1)).unfold(0, n, 1)  # start, R, j
    return windows.flip(0).transpose(1, 2)


def sinusoids(length: int, width: int) -> Tensor:
    """``[length, width]``: sines, then cosines, of distance over wavelengths 2 pi to 2 pi 10^4."""
    frequency = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * frequency
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]


class TensorisedAttention(nn.Module):
    """One set of factors q, k, v of rank R, diagonal cores, faces projected to the width.

    By itself it starts with faces of zero; the model draws them with all its other matrices.

    The mean over cores of ``sum_r core[c, r] ...`` is one sum with the mean core, since all cores
    share q, k and v: more cores give more parameters, not another function.
    """

    def __init__(self, width: int, rank: int, cores: int, length: int):
        super().__init__()
        self.factors = nn.Linear(width, 3 * rank, bias=False)
        self.relative = nn.Linear(width, rank, bias=False)
        self.query_biases = nn.Parameter(torch.zeros(2, rank))
        self.cores = nn.Parameter(torch.randn(cores, rank).softmax(1))
        self.faces = nn.Parameter(torch.zeros(length, length, width))

    def forward(self, x: Tensor, waves: Tensor) -> Tensor:
        """``[B, n, width]`` to the same; ``waves`` are the sinusoids of distances 0 to n - 1."""
        n = x.shape[1]
        query, key, value = self.factors(x).chunk(3, -1)
        value = value * self.cores.mean(0).type_as(value)
        relative = by_distance(self.relative(waves[:n]))
        faces = self.faces[:n, :n].type_as(value)
        return third_order_attention(query, key, value, relative, self.query_biases, faces)


class TensorisedLayer(nn.Module):
    """``norm(x + drop(attention(x)))``, then ``norm(x + drop(feed-forward(x)))``: post-norm."""

    def __init__(self, width: int, rank: int, cores: int, length: int, inner: int, dropout: float):
        super().__init__()
        self.attention = TensorisedAttention(width, rank, cores, length)
        self.norm1 = nn.LayerNorm(width)
        self.forward_in = nn.Linear(width, inner)
        self.forward_out = nn.Linear(inner, width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, waves: Tensor) -> Tensor:
        """``[B, n, width]`` to the same shape."""
        x = self.norm1(x + self.dropout(self.attention(x, waves)))
        inner = self.dropout(F.relu(self.forward_in(x)))
        return cast(Tensor, self.norm2(x + self.dropout(self.forward_out(inner))))


def usual_cutoffs(vocabulary: int) -> list[int]:
    """None up to 40,000 words; beyond, those of 20,000, 40,000 and 200,000 that are below it.

    >>> usual_cutoffs(33_278), usual_cutoffs(267_735)
    ([], [20000, 40000, 200000])
    """
    return [c for c in CUTOFFS if c < vocabulary] if vocabulary > LARGE_VOCABULARY else []


class TensorisedTransformer(nn.Module):
    """Language model with causal third-order attention: Ma et al., Tensorized Transformer.

    Word embedding, tensorised layers, plain or adaptive softmax with (by default) tied weights.
    ``model(ids)`` gives hidden states and ``model.loss(hidden, targets)`` the mean cross-entropy
    in nats a token; ``model.log_probabilities(hidden)`` those of every word.

    ``cutoffs``: where the clusters of the softmax start, for ids sorted by falling frequency;
    ``()`` for none, None for ``usual_cutoffs``. ``capacity``: see ``AdaptiveSoftmax``.

    Parameters, with V words, width w, rank R, length L: ``V w`` embedding (twice untied), ``V``
    biases and ``w + 1`` a cluster; a layer holds ``4 R w`` factors, ``(cores + 2) R`` cores and
    query biases, ``L^2 w`` faces, ``2 w inner + inner + w`` feed-forward and ``4 w`` norms:
    2,758,100 by default, 85,357,266 in all with the 267,735 words of WikiText-103.

    Weights: every matrix normal with deviation ``0.32/sqrt(w)``, 0.02 at width 256 as usual for
    Transformer-XL (embeddings enter times ``sqrt(w)``), cores a softmax of normal draws, biases 0.

    >>> model = tensorised_transformer(50, length=4, layers=1, width=8, rank=3, inner=16)
    >>> sum(p.numel() for p in model.parameters())  # 400 + 50 + 96 + 12 + 128 + 280 + 32
    998
    """

    waves: Tensor

    def __init__(
        self,
        vocabulary: int,
        *,
        length: int = 80,
        layers: int = 6,
        width: int = 256,
        rank: int = 40,
        cores: int = 2,
        inner: int = 2100,
        dropout: float = 0.1,
        cutoffs: Sequence[int] | None = None,
        tie: bool = True,
        capacity: float = 1.0,
    ):
        super().__init__()
        sizes = {"length": length, "width": width, "rank": rank, "cores": cores, "inner": inner}
        arguments.require_whole(vocabulary=vocabulary, layers=layers, **sizes)
        arguments.require_share(zero=True, one=False, dropout=dropout)
        arguments.require_switch(tie=tie)
        starts = usual_cutoffs(vocabulary) if cutoffs is None else cutoffs
        # Made before the embedding, registered behind it: a seed decides weights by this order.
        stack = [TensorisedLayer(**sizes, dropout=dropout) for _ in range(layers)]
        softmax = AdaptiveSoftmax(width, vocabulary, starts, capacity)
        self.length = length
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(stack)
        self.dropout = nn.Dropout(dropout)
        self.softmax = softmax
        self.output = None if tie else nn.Parameter(torch.empty(vocabulary, width))
        self.register_buffer("waves", sinusoids(length, width), persistent=False)
        for name, parameter in self.named_parameters():  # cores and norms stay as they are
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1 and not name.endswith(("cores", "query_biases")):
                nn.init.normal_(parameter, std=0.32 * width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Hidden states ``[B, n, width]`` of ids ``[B, n]``, n up to ``length``; i sees 0..i."""
        if ids.dim() != 2 or ids.shape[1] > self.length:
            raise ValueError(
                f"ids must be [batch, n] with n <= length = {self.length}, got {tuple(ids.shape)}: "
                f"the projection of the attention holds length^2 faces"
            )
        x = self.embedding(ids) * self.embedding.embedding_dim**0.5
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, self.waves)
        return cast(Tensor, self.dropout(x))

    @property
    def table(self) -> Tensor:
        """Word vectors of the softmax: the embedding's own when tied."""
        return self.embedding.weight if self.output is None else self.output

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats a token, of hidden ``[B, n, width]``, targets ``[B, n]``."""
        return self.softmax.loss(hidden.flatten(0, 1), self.table, targets.flatten())

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """``log p`` of the next word, ``[B, n, vocabulary]``."""
        flat = self.softmax.log_probabilities(hidden.flatten(0, 1), self.table)
        return flat.reshape(*hidden.shape[:2], -1)

    def blocks(self) -> Blocks:
        """``embedding`` (the softmax too when tied), up to four runs of layers, ``softmax``."""
        layers = consecutive_layers(len(self.layers))
        ends = {"embedding": ["embedding"]} | layers | {"softmax": ["softmax", "output"]}
        return group_by_prefix(self, ends)


tensorised_transformer = TensorisedTransformer
