"""What every network of the lab promises, whatever it computes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from aliceopt.lab import models
from aliceopt.lab.optimizers.adahessian import signs_like
from aliceopt.lab.optimizers.both_derivatives import BothDerivatives
from paper import paper_alice


class Case(NamedTuple):
    """A tiny network of its kind, a batch for it, and its loss."""

    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return getattr(model, "loss", F.cross_entropy)(model(inputs), targets)


def _images(*shape: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    return lambda g: (torch.rand(8, *shape, generator=g), torch.arange(8) % 3)


def _tokens(g: torch.Generator) -> tuple[Tensor, Tensor]:
    ids = torch.randint(50, (4, 7), generator=g)
    return ids[:, :-1], ids[:, 1:]


_TEXT = {"length": 6, "layers": 2, "width": 8, "rank": 4, "inner": 16}
_GPT = {"context": 6, "layers": 2, "width": 8, "heads": 2}
CASES = {
    "convnet": Case(lambda: models.convnet(3), _images(1, 8, 8)),
    "convnet-norm": Case(lambda: models.convnet(3, norm=True, activation="silu"), _images(1, 8, 8)),
    "resnet18": Case(lambda: models.resnet18(3, width=4), _images(3, 16, 16)),
    "resnet18-plain": Case(lambda: models.resnet18(3, masks=False, width=4), _images(3, 16, 16)),
    "vit": Case(
        lambda: models.vit(3, image=16, width=16, heads=2, layers=3, mlp_ratio=2),
        _images(3, 16, 16),
    ),
    "gpt": Case(lambda: models.gpt(50, **_GPT), _tokens),
    "gpt-untied": Case(lambda: models.gpt(50, tie=False, **_GPT), _tokens),
    "tensorised": Case(lambda: models.tensorised_transformer(50, **_TEXT), _tokens),
    "tensorised-adaptive": Case(
        lambda: models.tensorised_transformer(50, cutoffs=[10, 30], capacity=0.9, **_TEXT), _tokens
    ),
    "tensorised-untied": Case(
        lambda: models.tensorised_transformer(50, tie=False, dropout=0.0, **_TEXT), _tokens
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def _seeded(case: Case, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = case.build()
    return model, *case.batch(torch.Generator().manual_seed(seed))


def test_blocks_are_a_partition_of_the_parameters(case: Case) -> None:
    """Each parameter is in one block, in the model's order inside it, and no block is empty."""
    model, *_ = _seeded(case)
    blocks = model.blocks()
    listed = [name for names in blocks.values() for name in names]
    assert sorted(listed) == sorted(name for name, _ in model.named_parameters())
    assert len(listed) == len(set(listed))
    assert all(blocks.values())


def test_weights_follow_from_the_global_seed_alone(case: Case) -> None:
    """The same ``torch.manual_seed`` gives the same bits; another one gives others."""
    (first, *_), (again, *_), (other, *_) = (_seeded(case, s) for s in (3, 3, 4))
    pairs = list(zip(first.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    others = zip(first.parameters(), other.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in others)


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bf16"])
def test_forward_and_backward_give_finite_gradients_to_every_parameter(
    case: Case, low: bool
) -> None:
    """In float32 and under bf16 autocast alike; gradients are float32 as the parameters are."""
    model, inputs, targets = _seeded(case)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
        outputs = model(inputs)
        loss = getattr(model, "loss", F.cross_entropy)(outputs, targets)
    loss.float().backward()
    assert loss.shape == ()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.dtype == torch.float32


def test_no_shape_and_no_branch_depends_on_data(case: Case) -> None:
    """A meta tensor has no values: a step on it shows that a CUDA graph can hold the model."""
    model, inputs, targets = _seeded(case)
    model, inputs, targets = model.to("meta"), inputs.to("meta"), targets.to("meta")
    case.loss(model, inputs, targets).backward()
    assert all(p.grad is not None and p.grad.is_meta for p in model.parameters())


def test_a_shape_that_depends_on_data_would_be_caught() -> None:
    """Torch's own adaptive softmax asks how many targets a cluster has: no value, no answer."""
    softmax = nn.AdaptiveLogSoftmaxWithLoss(4, 30, [10, 20], 1.0, device="meta")
    hidden, targets = torch.empty(5, 4, device="meta"), torch.empty(5, device="meta").long()
    with pytest.raises((NotImplementedError, RuntimeError)):
        softmax(hidden, targets)


def test_can_be_differentiated_twice(case: Case) -> None:
    """Alice needs no second derivative, but AdaHessian, a baseline, does.

    The GPT's fused attention cannot; torch's unfused one can.
    """
    model, inputs, targets = _seeded(case)
    parameters = list(model.parameters())
    with sdpa_kernel(SDPBackend.MATH):
        loss = case.loss(model, inputs, targets)
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        product = sum((g * torch.ones_like(g)).sum() for g in grads)
        second = torch.autograd.grad(product, parameters, allow_unused=True)
    assert all(torch.isfinite(h).all() for h in second if h is not None)


@pytest.fixture
def doubles() -> Iterator[None]:
    """Everything in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("doubles")
def test_can_be_differentiated_twice_in_one_function(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled for AdaHessian: gradient, product and statistics are as without."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    model, inputs, targets = _seeded(case)
    other, params = copy.deepcopy(model), list(model.parameters())
    with sdpa_kernel(SDPBackend.MATH):
        both = BothDerivatives(model, partial(case.loss, model), (inputs, targets))
        torch.manual_seed(1)  # also of dropout
        loss, grads, diagonals = both(partial(case.loss, model), inputs, targets)
        torch.manual_seed(1)
        signs = signs_like(params)
        wanted = case.loss(other, inputs, targets)
        slopes = torch.autograd.grad(wanted, list(other.parameters()), create_graph=True)
        bent = torch.autograd.grad(
            slopes, list(other.parameters()), signs, allow_unused=True, materialize_grads=True
        )
    products = [z * h for z, h in zip(signs, bent, strict=True)]
    close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)
    close(loss, wanted.detach())
    close([grads[p] for p in params], [g.detach() for g in slopes])
    close([diagonals[p] for p in params], products)
    close(dict(model.named_buffers()), dict(other.named_buffers()))


def test_trains_with_alice(case: Case) -> None:
    """A dozen steps on one batch lower the loss of the model at rest."""
    model, inputs, targets = _seeded(case)

    def closure() -> Tensor:
        loss = case.loss(model, inputs, targets)
        loss.backward()
        return loss

    optimizer = paper_alice(model.named_parameters(), lr=1e-2, model=model)
    losses = [optimizer.step(closure).item() for _ in range(16)]
    assert sum(losses[-4:]) / 4 < losses[0]


def test_weights_survive_a_state_dict(case: Case) -> None:
    """A model of other weights gives the same outputs after ``load_state_dict``."""
    (model, inputs, _), (other, *_) = _seeded(case, 0), _seeded(case, 1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(inputs), other.eval()(inputs))
