"""A language model for `aliceopt study`: change model and text to yours, then run

    aliceopt study FILE.py:problem

where FILE.py is this file. torch is seeded anew before every call of `problem`, so each seed
trains from other weights. As it stands a small transformer reads Python's own argparse.py.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from aliceopt.lab import Problem
from aliceopt.lab.data import Tokens

LENGTH = 64
"""Tokens in a window."""


def problem() -> Problem:
    """Return what is to be trained."""
    ids = tokens()
    kept = len(ids) * 9 // 10  # the end of the text is held out
    return Problem(
        model=Model(vocabulary=256),
        loss=loss,
        # Windows of the text, shuffled; the targets are the same tokens, one ahead.
        train=Tokens(ids[:kept], batch_size=32, length=LENGTH),
        validation=Tokens(ids[kept:], batch_size=32, length=LENGTH),
        metric="perplexity",
    )


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over all tokens of a batch; outputs [B, T, V], targets [B, T]."""
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


class Model(nn.Module):
    """A causal transformer: outputs [B, T, V] for token numbers [B, T]."""

    def __init__(self, vocabulary: int, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """Each place sees itself and what is before it."""
        length = ids.shape[1]
        future = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        x = self.words(ids) + self.places.weight[:length]
        outputs: Tensor = self.head(self.body(x, mask=future, is_causal=True))
        return outputs


def tokens() -> Tensor:
    """The text as bytes; with a tokenizer of your own, one row of its numbers."""
    text = Path(argparse.__file__).read_bytes()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)
