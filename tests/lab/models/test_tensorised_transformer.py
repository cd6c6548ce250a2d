"""The Tensorised Transformer: its attention written out, and no look into the future."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from aliceopt.lab.models import tensorised, tensorised_transformer
from aliceopt.lab.models.tensorised import (
    TensorisedAttention,
    TensorisedTransformer,
    by_distance,
    sinusoids,
    third_order_attention,
)

LENGTH = 7


def _model(**changes: object) -> TensorisedTransformer:
    torch.manual_seed(0)
    sizes = {"length": LENGTH, "layers": 3, "width": 8, "rank": 4, "inner": 16, "dropout": 0.0}
    return tensorised_transformer(30, **(sizes | changes)).double()


def _loud(**changes: object) -> TensorisedTransformer:
    """A model whose attention outweighs its residual path, so that a leak would be heard."""
    model = _model(**changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".attention." in name:
                parameter.normal_()
    return model


def _attention_inputs(length: int = LENGTH) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return {
        "query": draw(3, length, 4),
        "key": draw(3, length, 4),
        "value": draw(3, length, 4),
        "relative": draw(length, length, 4),
        "biases": draw(2, 4),
        "faces": draw(length, length, 5),
    }


def _explicit(inputs: dict[str, Tensor], causal: bool = True) -> Tensor:
    """The definition: the whole tensor T, its mask, its projection."""
    q, k, v, p, b, w = inputs.values()
    tensor = torch.einsum("bir,bjr,bmr->bijm", q + b[0], k, v)
    tensor = tensor + torch.einsum("bir,ijr,bmr->bijm", q + b[1], p, v)
    i, j, m = torch.meshgrid(*[torch.arange(q.shape[1])] * 3, indexing="ij")
    if causal:
        tensor = tensor.masked_fill((j > i) | (m > i), 0.0)
    return torch.einsum("bijm,jmw->biw", tensor, w)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 13])
def test_chunks_of_queries_give_the_explicit_tensor(length: int) -> None:
    """Values and gradients, at lengths the chunks divide and do not."""
    inputs = {k: v.requires_grad_() for k, v in _attention_inputs(length).items()}
    found, expected = third_order_attention(**inputs), _explicit(inputs)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    found_grads = torch.autograd.grad((found * weights).sum(), list(inputs.values()))
    expected_grads = torch.autograd.grad((expected * weights).sum(), list(inputs.values()))
    torch.testing.assert_close(found_grads, expected_grads)


def test_attention_is_the_mean_over_cores() -> None:
    """Each core by itself in the explicit tensor, then their mean: the layer folds it into v."""
    torch.manual_seed(0)
    layer = TensorisedAttention(width=8, rank=4, cores=3, length=LENGTH).double()
    with torch.no_grad():
        layer.query_biases.normal_()
        layer.faces.normal_()
    x = torch.randn(2, LENGTH, 8, dtype=torch.float64)
    waves = sinusoids(LENGTH, 8).double()
    position = torch.arange(LENGTH)
    q, k, v = layer.factors(x).chunk(3, -1)
    shared = {
        "relative": layer.relative(waves)[(position[:, None] - position).clamp(min=0)],
        "biases": layer.query_biases,
        "faces": layer.faces,
    }
    each = [_explicit({"q": q, "k": k, "v": v * core} | shared) for core in layer.cores]
    torch.testing.assert_close(layer(x, waves), sum(each) / 3)


def test_relative_keys_stand_at_their_distance() -> None:
    """Entry i, j holds the key of distance i - j; ahead of i there is none."""
    keys = torch.arange(1.0, 9.0).view(4, 2)
    placed = by_distance(keys)
    for i in range(4):
        for j in range(4):
            expected = keys[i - j] if j <= i else torch.zeros(2)
            assert torch.equal(placed[i, j], expected)


def test_cores_start_as_a_softmax() -> None:
    """Positive, summing to one, and not all the same."""
    cores = _model(cores=2).layers[0].attention.cores
    assert cores.shape == (2, 4)
    torch.testing.assert_close(cores.sum(1), torch.ones(2, dtype=torch.float64), atol=1e-6, rtol=0)
    assert (cores > 0).all()
    assert cores.std() > 0.01


def test_matrices_start_at_the_stated_deviation() -> None:
    """``0.32/sqrt(width)`` for each, 0.02 at width 256; biases 0."""
    torch.manual_seed(0)
    model = tensorised_transformer(500, cutoffs=[200], length=12, layers=1, inner=200, tie=False)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "query_biases")):
            assert not parameter.any(), name
        elif parameter.numel() > 1000:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name


def _unmasked(*args: Tensor) -> Tensor:
    """The known public mistake: the tensor is projected whole."""
    names = ("query", "key", "value", "relative", "biases", "faces")
    return _explicit(dict(zip(names, args, strict=True)), causal=False)


def _half_masked(axis: int) -> Callable[..., Tensor]:
    """A subtler mistake: only j, or only m, is kept from running ahead of i."""

    def attend(*args: Tensor) -> Tensor:
        q, k, v, p, b, w = args
        n = q.shape[1]
        tensor = torch.einsum("bir,bjr,bmr->bijm", q + b[0], k, v)
        tensor = tensor + torch.einsum("bir,ijr,bmr->bijm", q + b[1], p, v)
        ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
        ahead = ahead[:, :, None] if axis == 0 else ahead[:, None, :]
        return torch.einsum("bijm,jmw->biw", tensor.masked_fill(ahead, 0.0), w)

    return attend


def _leak_by_perturbation(model: TensorisedTransformer) -> float:
    """Largest change of an output when only later tokens change, over all positions."""
    ids = torch.randint(30, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        base = model.log_probabilities(model(ids))
        worst = 0.0
        for i in range(LENGTH - 1):
            changed = ids.clone()
            changed[:, i + 1 :] = (changed[:, i + 1 :] + 11) % 30
            other = model.log_probabilities(model(changed))
            worst = max(worst, (other - base)[:, : i + 1].abs().max().item())
    return worst


def _leak_by_gradient(model: TensorisedTransformer) -> float:
    """Largest gradient of an output with respect to the embedding of a later token."""
    ids = torch.randint(30, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    embedded: list[Tensor] = []
    handle = model.embedding.register_forward_hook(lambda *a: embedded.append(a[-1]))
    hidden = model(ids)
    handle.remove()
    probe = torch.randn(hidden.shape[-1], dtype=torch.float64)
    worst = 0.0
    for i in range(LENGTH - 1):
        (grad,) = torch.autograd.grad((hidden[:, i] @ probe).sum(), embedded, retain_graph=True)
        assert grad[:, : i + 1].abs().max() > 0
        worst = max(worst, grad[:, i + 1 :].abs().max().item())
    return worst


@pytest.mark.parametrize("leak", [_leak_by_perturbation, _leak_by_gradient])
@pytest.mark.parametrize("cutoffs", [(), (10, 20)], ids=["plain", "adaptive"])
def test_no_output_depends_on_a_later_token(
    leak: Callable[[TensorisedTransformer], float], cutoffs: tuple[int, ...]
) -> None:
    """Not to the last bit that changes, and no gradient reaches a later embedding."""
    assert leak(_loud(cutoffs=cutoffs)) == 0.0


@pytest.mark.parametrize("leak", [_leak_by_perturbation, _leak_by_gradient])
@pytest.mark.parametrize("mistake", [_unmasked, _half_masked(0), _half_masked(1)])
def test_a_missing_mask_would_be_caught(
    monkeypatch: pytest.MonkeyPatch,
    leak: Callable[[TensorisedTransformer], float],
    mistake: Callable[..., Tensor],
) -> None:
    """The same measures on a model without its mask, or with half of it, are far from zero."""
    monkeypatch.setattr(tensorised, "third_order_attention", mistake)
    assert leak(_loud()) > 1e-2


def test_not_even_nan_comes_through_from_the_future() -> None:
    """Entries ahead of a query are replaced, not multiplied by zero."""
    inputs = _attention_inputs()
    inputs["key"][:, 4:] = float("nan")
    inputs["value"][:, 4:] = float("inf")
    found = third_order_attention(**inputs)
    assert torch.isfinite(found[:, :4]).all()
    assert found[:, 4:].isnan().all()


def test_every_earlier_token_is_used() -> None:
    """The last output moves with the first token: the mask does not hide the past."""
    model = _loud(layers=1)
    ids = torch.zeros(1, LENGTH, dtype=torch.long)
    changed = ids.clone()
    changed[0, 0] = 1
    moved = (model(ids) - model(changed)).abs().amax(-1)[0]
    assert (moved > 1e-6).all()


def test_a_prefix_gives_the_same_outputs_as_the_whole() -> None:
    """Causality again: shorter inputs are legal and use the corner of the projection."""
    model = _loud()
    ids = torch.randint(30, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(ids[:, :4]), model(ids)[:, :4])


def test_parameters_follow_the_formula() -> None:
    """``V w + V``, ``w + 1`` a cluster, and the layers; 2,758,100 a default layer."""

    def layer(w: int, rank: int, cores: int, length: int, inner: int) -> int:
        attention = 4 * rank * w + (cores + 2) * rank + length**2 * w
        return attention + 2 * w * inner + inner + w + 4 * w

    def count(model: nn.Module) -> int:
        return sum(p.numel() for p in model.parameters())

    assert layer(256, 40, 2, 80, 2100) == 2_758_100
    small = layer(8, 4, 2, LENGTH, 16)
    assert count(_model()) == 30 * 8 + 30 + 3 * small
    assert count(_model(cutoffs=[10, 20])) == 30 * 8 + 30 + 2 * 9 + 3 * small
    assert count(_model(tie=False)) == 2 * 30 * 8 + 30 + 3 * small
    with torch.device("meta"):
        assert count(tensorised_transformer(267_735)) == 85_357_266


def test_large_vocabularies_get_clusters_by_themselves() -> None:
    """Plain up to 40,000 words, then the usual cutoffs below the vocabulary; () stays plain."""
    with torch.device("meta"):
        sizes = {"length": 2, "layers": 1, "width": 2, "rank": 1, "inner": 1}
        bounds = [tensorised_transformer(v, **sizes).softmax.bounds for v in (40_000, 50_000)]
        plain = tensorised_transformer(50_000, cutoffs=(), **sizes).softmax.bounds
    assert bounds == [(0, 40_000), (0, 20_000, 40_000, 50_000)]
    assert plain == (0, 50_000)


def test_loss_is_the_mean_cross_entropy_of_the_probabilities() -> None:
    """Tied or not, plain or adaptive; the table is the embedding itself when tied."""
    ids = torch.randint(30, (3, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    for changes in ({}, {"cutoffs": [10, 20]}, {"tie": False}):
        model = _model(**changes)
        assert (model.table is model.embedding.weight) == changes.get("tie", True)
        hidden = model(ids[:, :-1])
        chosen = model.log_probabilities(hidden).gather(2, ids[:, 1:, None])
        torch.testing.assert_close(model.loss(hidden, ids[:, 1:]), -chosen.mean())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 0}, "rank must be a whole number >= 1, got 0"),
        ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\), got 1.0"),
        ({"capacity": 0}, r"capacity must be a number in \(0, 1\], got 0"),
        ({"cutoffs": [20, 10]}, r"cutoffs must rise.*vocabulary of 30, got \[20, 10\]"),
        ({"cutoffs": [10, 30]}, r"vocabulary of 30, got \[10, 30\]"),
        ({"cutoffs": 10}, "cutoffs must be a list or tuple.*got 10"),
    ],
)
def test_a_bad_argument_is_refused_by_name_and_value(arguments: dict, words: str) -> None:
    """Sizes, shares and cutoffs."""
    with pytest.raises(ValueError, match=words):
        _model(**arguments)


@pytest.mark.parametrize("shape", [(2, LENGTH + 1), (LENGTH,)])
def test_ids_longer_than_the_model_are_refused(shape: tuple[int, ...]) -> None:
    """The error names the length the model was built for and the shape it was given."""
    with pytest.raises(ValueError, match=rf"n <= length = {LENGTH}, got \({shape[0]}"):
        _model()(torch.zeros(shape, dtype=torch.long))
