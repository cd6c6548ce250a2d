"""A Hugging Face model for `aliceopt study`: change model and data to yours, then run

    aliceopt study FILE.py:problem

where FILE.py is this file; it needs `pip install transformers`. torch is seeded anew before every
call of `problem`, so each seed trains from other weights. As it stands a tiny DistilBERT, with
random weights and nothing to download, says which of two words is more frequent.
"""

import torch
from torch import Tensor, nn
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from aliceopt.lab import Problem

PAD = 0


def problem() -> Problem:
    """Return what is to be trained."""
    return Problem(
        model=Classifier(),
        # loss(model(inputs), targets): the mean over a batch, one number to minimise.
        loss=nn.functional.cross_entropy,
        # (inputs, targets) as tensors, or a torch Dataset of such pairs.
        train=sentences(seed=1, count=1024),
        validation=sentences(seed=2, count=256),
        metric="accuracy",
        batch_size=32,
    )


class Classifier(nn.Module):
    """Token numbers in, logits out: what the model returns besides is left out here."""

    def __init__(self) -> None:
        super().__init__()
        # Pretrained: DistilBertForSequenceClassification.from_pretrained(NAME, num_labels=2).
        # Its new head still differs from seed to seed; where nothing does, give
        # Problem(same_weights=True).
        self.body = DistilBertForSequenceClassification(
            DistilBertConfig(
                vocab_size=64,
                max_position_embeddings=32,
                dim=32,
                hidden_dim=64,
                n_layers=2,
                n_heads=4,
                num_labels=2,
            )
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [B, 2] of token numbers [B, T], padded with `PAD`."""
        logits: Tensor = self.body(input_ids=ids, attention_mask=(ids != PAD).long()).logits
        return logits


def sentences(seed: int, count: int, length: int = 24) -> tuple[Tensor, Tensor]:
    """Random words, some of them 2 and 3, and whether there are more of 3.

    The data has a seed of its own: it must not change with the seed of a run. With a tokenizer,
    return tokenizer(texts, padding=True, return_tensors="pt").input_ids and the labels.
    """
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, 64, (count, length), generator=random)
    marked = torch.rand(count, length, generator=random) < 0.3
    ids[marked] = torch.randint(2, 4, (int(marked.sum()),), generator=random)
    ends = torch.randint(length // 2, length + 1, (count, 1), generator=random)
    ids[torch.arange(length) >= ends] = PAD
    return ids, ((ids == 3).sum(1) > (ids == 2).sum(1)).long()
