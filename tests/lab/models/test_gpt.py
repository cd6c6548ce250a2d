"""The plain GPT: causal, of the size its docstring promises."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aliceopt.lab.models import GPT, gpt
from aliceopt.lab.models.gpt import causal_attention
from aliceopt.lab.models.transformer import SelfAttention


def _small(**changes: object) -> GPT:
    torch.manual_seed(0)
    return gpt(50, **{"context": 8, "layers": 2, "width": 16, "heads": 2, **changes})


def _ids(*shape: int) -> Tensor:
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tie", [True, False])
def test_a_later_token_leaves_earlier_logits_as_they_are(tie: bool) -> None:
    """Changing token k changes the logits from k on, and none before, to the bit."""
    model, ids = _small(tie=tie), _ids(3, 8)
    before = model(ids)
    for k in range(1, 8):
        changed = ids.clone()
        changed[:, k] = (changed[:, k] + 7) % 50
        after = model(changed)
        assert torch.equal(before[:, :k], after[:, :k])
        assert (before[:, k:] != after[:, k:]).any(-1).all()


def test_no_gradient_comes_from_the_future() -> None:
    """The logits at i depend on the vectors of positions 0 to i, all of them, and no other."""
    model = _small()
    vectors = torch.randn(8, 16, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        model.positions.weight.copy_(vectors)
    for i in range(8):
        (grad,) = torch.autograd.grad(
            model(_ids(1, 8))[0, i].square().sum(), model.positions.weight
        )
        assert (grad[: i + 1].abs().sum(1) > 0).all()
        assert (grad[i + 1 :] == 0).all()


def test_attention_equals_its_masked_softmax() -> None:
    """Head by head ``softmax(q k^T / sqrt(d) where j <= i) v``."""
    torch.manual_seed(0)
    layer = SelfAttention(6, 2, causal_attention).double()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    future = torch.ones(5, 5).triu(1).bool()
    heads = []
    for s in (slice(3), slice(3, 6)):
        q, k, v = (part[..., s] for part in layer.inward(x).chunk(3, -1))
        scores = (q @ k.mT / 3**0.5).masked_fill(future, -torch.inf)
        heads.append(scores.softmax(-1) @ v)
    torch.testing.assert_close(layer(x), layer.outward(torch.cat(heads, -1)))


def test_parameters_follow_the_formula() -> None:
    """``12 w^2 + 13 w`` a layer; 10.8 million at 6 layers of 384 on bytes."""

    def expected(v: int, n: int, layers: int, w: int, tables: int) -> int:
        return tables * v * w + n * w + layers * (12 * w**2 + 13 * w) + 2 * w

    count = sum(p.numel() for p in gpt(256).parameters())
    assert count == expected(256, 256, 6, 384, 1) == 10_844_160
    untied = _small(tie=False)
    assert sum(p.numel() for p in untied.parameters()) == expected(50, 8, 2, 16, 2)


def test_logits_and_loss_have_their_shapes_and_start_near_the_uniform_one() -> None:
    """``[B, n, V]`` for every n up to the context; the loss is the mean over all tokens."""
    model = _small()
    for n in (1, 5, 8):
        ids = _ids(3, n + 1)
        logits, targets = model(ids[:, :-1]), ids[:, 1:]
        assert logits.shape == (3, n, 50)
        each = -F.log_softmax(logits, -1).gather(-1, targets[..., None])
        torch.testing.assert_close(model.loss(logits, targets), each.mean())
        assert each.mean().item() == pytest.approx(torch.tensor(50.0).log().item(), abs=0.3)


def test_blocks_are_embedding_runs_of_layers_and_head() -> None:
    """Six layers make three runs of two; the last block is there when tied too, with its norm."""
    blocks = gpt(20, layers=6, width=8, heads=1).blocks()
    assert list(blocks) == ["embedding", "layers 1-2", "layers 3-4", "layers 5-6", "head"]
    assert blocks["head"] == ["norm.weight", "norm.bias"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"heads": 5}, "heads must divide width, got heads=5 and width=384"),
        ({"layers": 0}, "layers must be a whole number >= 1, got 0"),
        ({"context": 2.5}, "context must be a whole number >= 1, got 2.5"),
        ({"tie": "yes"}, "tie must be True or False, got 'yes'"),
    ],
)
def test_a_bad_argument_is_refused_by_name_and_value(arguments: dict, words: str) -> None:
    """Errors name the value and, where two must agree, both."""
    with pytest.raises(ValueError, match=words):
        gpt(256, **arguments)


def test_a_text_longer_than_the_context_is_refused() -> None:
    """With both lengths and what to do; so is a row without a batch."""
    with pytest.raises(ValueError, match=r"n <= context = 8, got \(2, 9\): cut the text"):
        _small()(_ids(2, 9))
    with pytest.raises(ValueError, match=r"ids must be \[batch, n\].*got \(5,\)"):
        _small()(_ids(5))
