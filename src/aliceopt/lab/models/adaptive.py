"""Word probabilities: plain or adaptive softmax, in forms whose shapes depend on no data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .arguments import require_share, require_whole, require_whole_each


class AdaptiveSoftmax(nn.Module):
    """Word probabilities by frequency cluster, weights given by the caller (so they may be tied).

    With cutoffs ``c_1 < ... < c_n < V`` (ids sorted by falling frequency) the head holds words
    below ``c_1`` and one entry a cluster; a rarer word has probability
    ``p(cluster) p(word | cluster)``. Without cutoffs it is the plain softmax over V words.

    Why not ``torch.nn.AdaptiveLogSoftmaxWithLoss``: it asks the device how many targets each
    cluster has, so its shapes depend on data and no CUDA graph can hold it. Here each cluster
    computes a fixed number of rows, the share ``capacity`` of the N tokens:

    * ``capacity=1``: every token in every cluster. Exact always; as dear as a plain softmax,
      ``N V`` logits.
    * less: the first ``ceil(capacity N)`` tokens that belong to the cluster. Exact while no more
      belong to it; beyond that, in training mode, the cluster's part of the loss is estimated by
      their mean times the true count. In eval mode the capacity is 1.

    Parameters: ``V`` biases, and ``width + 1`` for each cluster.
    """

    def __init__(
        self, width: int, vocabulary: int, cutoffs: Sequence[int] = (), capacity: float = 1.0
    ):
        super().__init__()
        require_whole(width=width, vocabulary=vocabulary)
        require_share(zero=False, one=True, capacity=capacity)
        self.bounds = (0, *require_whole_each("cutoffs", cutoffs, least_count=0), vocabulary)
        if any(a >= b for a, b in itertools.pairwise(self.bounds)):
            raise ValueError(
                f"cutoffs must rise and stay below the vocabulary of {vocabulary}, got {cutoffs!r}"
            )
        self.capacity = capacity
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        tails = len(self.bounds) - 2
        self.cluster_weight = nn.Parameter(torch.empty(tails, width)) if tails else None
        self.cluster_bias = nn.Parameter(torch.zeros(tails)) if tails else None
        if self.cluster_weight is not None:
            nn.init.normal_(self.cluster_weight, std=0.32 * width**-0.5)

    def clusters(self, table: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of the head (frequent words, then one row a cluster) and of each tail.

        ``table`` ``[V, width]`` is cut once: its gradient is put together in one piece.
        """
        sizes = [end - start for start, end in itertools.pairwise(self.bounds)]
        (weight, *weights), (bias, *biases) = table.split(sizes), self.bias.split(sizes)
        if self.cluster_weight is not None and self.cluster_bias is not None:
            weight = torch.cat([weight, self.cluster_weight])
            bias = torch.cat([bias, self.cluster_bias])
        return [(weight, bias), *zip(weights, biases, strict=True)]

    def loss(self, hidden: Tensor, table: Tensor, targets: Tensor) -> Tensor:
        """Mean ``-log p(target)`` in nats. ``hidden [N, width]``, ``targets [N]`` ids."""
        head, *tails = self.clusters(table)
        first, cluster_of = self.bounds[1], torch.zeros_like(targets)
        for cutoff in self.bounds[1:-1]:
            cluster_of = cluster_of + (targets >= cutoff)
        in_head = torch.where(cluster_of > 0, first + cluster_of - 1, targets)
        total = _cross_entropy(F.linear(hidden, *head), in_head).mean()
        for cluster, tail in enumerate(tails, start=1):
            inside = targets - self.bounds[cluster]
            total = total + self._tail_loss(hidden, tail, inside, cluster_of == cluster)
        return total

    def _tail_loss(
        self, hidden: Tensor, tail: tuple[Tensor, Tensor], inside: Tensor, belongs: Tensor
    ) -> Tensor:
        """``1/N sum over tokens that belong of -log p(inside | cluster)``."""
        count, tokens = belongs.sum(), belongs.numel()
        rows = math.ceil(self.capacity * tokens) if self.training else tokens
        if rows < tokens:  # those that belong come first, in their order
            chosen = torch.argsort((~belongs).to(torch.uint8), stable=True)[:rows]
            hidden, inside, belongs = (x.index_select(0, chosen) for x in (hidden, inside, belongs))
        losses = _cross_entropy(F.linear(hidden, *tail), torch.where(belongs, inside, 0))
        kept = torch.where(belongs, losses, 0.0).sum()
        return kept * (count / belongs.sum().clamp(min=1)) / tokens

    def log_probabilities(self, hidden: Tensor, table: Tensor) -> Tensor:
        """``log p`` of every word, ``[N, V]``: for samples and tests, dear for large V."""
        head, *tails = self.clusters(table)
        first = self.bounds[1]
        in_head = F.linear(hidden, *head).log_softmax(-1)
        parts = [in_head[:, :first]]
        for cluster, tail in enumerate(tails):
            inside = F.linear(hidden, *tail).log_softmax(-1)
            parts.append(in_head[:, first + cluster, None] + inside)
        return torch.cat(parts, 1)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """``-log p`` of each row's target; logits of low precision are summed in float32."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide, targets, reduction="none")
