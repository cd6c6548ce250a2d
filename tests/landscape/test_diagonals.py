"""Curvature by coordinate: the exact Hessian is inside the intervals, known glass is found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aliceopt.landscape import diagonals, exact_diagonals
from landscape_cases import Interrupted, everything, generator, network, quadratic

Batches = list[tuple[Tensor, Tensor]]


def smooth(seed: int) -> tuple[nn.Module, Batches, Callable[..., Tensor]]:
    """A GELU network with three hidden layers, two batches, and the loss of a batch."""
    g = generator(seed)
    sizes = (4, 6, 5, 4, 3)
    model = nn.Sequential()
    for a, b in pairwise(sizes):
        model.extend([nn.Linear(a, b), nn.GELU()])
    del model[-1]
    model.double()
    for param in model.parameters():
        nn.init.normal_(param, std=0.4, generator=g)
    x = torch.randn(2, 32, 4, generator=g, dtype=torch.float64)
    y = torch.randint(3, (2, 32), generator=g)

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    return model, list(zip(x, y, strict=True)), loss


def test_the_exact_hessian_is_inside_the_interval_of_nearly_every_block() -> None:
    """Diagonal and row squares of 40 blocks: inside 95% intervals in 95% of them or more."""
    inside = dict.fromkeys(("signed", "free"), 0)
    for seed in range(5):
        model, batches, loss = smooth(seed)

        def closure(batch: tuple[Tensor, Tensor], loss: Callable[..., Tensor] = loss) -> None:
            loss(batch).backward()

        found = diagonals(model, closure, 1e-3, batches=batches, directions=8, blocks=2, seed=seed)
        exact = exact_diagonals(model, loss, batches=batches, blocks=2)
        for block, truth in exact.items():
            for term in inside:
                estimate = found.blocks[block][term]
                inside[term] += estimate.low <= truth[term] <= estimate.high
        assert all(sums["glass"].value * 1e-3 < 1e-4 for sums in found.blocks.values())
    assert min(inside.values()) >= 0.95 * 40


def test_the_exact_hessian_is_that_of_a_quadratic() -> None:
    """Against the matrix itself, in chunks of rows that do not divide its size."""
    model, closure = quadratic(n=10)
    hessian = torch.autograd.functional.hessian(
        lambda x: _loss_of(model, closure, x), torch.zeros(10, dtype=torch.float64)
    )
    exact = exact_diagonals(model, lambda: _plain(model, closure), rows=3)
    for block, rows in (("first", slice(0, 5)), ("second", slice(5, 10))):
        assert exact[block]["signed"] == pytest.approx(hessian.diag()[rows].sum().item())
        assert exact[block]["free"] == pytest.approx(hessian[rows].square().sum().item())


def test_what_has_no_curvature_is_zero_in_the_exact_hessian() -> None:
    """A parameter that the loss does not use, and one in which it is linear."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.slope = (nn.Parameter(torch.ones(2)) for _ in range(3))

    model = Odd()
    exact = exact_diagonals(model, lambda: model.used.square().sum() / 2 + model.slope.sum())
    assert exact == {
        "used": {"signed": 2.0, "free": 2.0},
        "unused": {"signed": 0.0, "free": 0.0},
        "slope": {"signed": 0.0, "free": 0.0},
    }


def _matrix(closure: Callable[[], Tensor]) -> Tensor:
    (cell,) = (c for c in closure.__closure__ or () if isinstance(c.cell_contents, Tensor))
    matrix: Tensor = cell.cell_contents
    return matrix


def _loss_of(model: nn.Module, closure: Callable[[], Tensor], x: Tensor) -> Tensor:
    return x @ _matrix(closure) @ x / 2


def _plain(model: nn.Module, closure: Callable[[], Tensor]) -> Tensor:
    return _loss_of(model, closure, torch.cat([model.first, model.second]))  # type: ignore[list-item]


def test_averages_of_every_coordinate_add_up_to_the_blocks() -> None:
    """Means sum to the blocks' values; their errors are those of a plain sample."""
    model, batches, loss = smooth(0)
    taken: list[Tensor] = []

    def closure(batch: tuple[Tensor, Tensor]) -> None:
        loss(batch).backward()
        taken.append(model[0].bias.grad.clone())  # type: ignore[union-attr, operator]

    found = diagonals(model, closure, 1e-3, batches=batches, directions=3, blocks=2)
    assert found.gradients == len(taken) == 2 * 7
    for term in ("glass", "signed", "free"):
        for name, param in model.named_parameters():
            assert found.means[term][name].shape == param.shape
            total = found.means[term][name].sum().item()
            assert total == pytest.approx(found.blocks[name][term].value)
    rho = []
    for start in (0, 7):
        center, *sides = taken[start : start + 7]
        pairs = zip(sides[::2], sides[1::2], strict=True)
        rho += [2 / 1e-3 * ((p + m) / 2 - center).square() for p, m in pairs]
    samples = torch.stack(rho)
    assert torch.allclose(found.means["glass"]["0.bias"], samples.mean(0))
    assert torch.allclose(found.errors["glass"]["0.bias"], samples.std(0) / math.sqrt(6))


def test_the_density_of_known_kinks() -> None:
    """One coordinate with kinks of density 200 and jumps of size 1, twenty times over."""
    x = nn.Parameter(torch.zeros(400, dtype=torch.float64))
    g = generator(1)
    places = 2 * torch.rand(400, 400, generator=g, dtype=torch.float64) - 1
    jumps = 2.0 * torch.randint(2, (400, 400), generator=g, dtype=torch.float64) - 1

    def closure() -> None:
        gradient = (jumps * (x.detach()[:, None] > places)).sum(1)
        (x * gradient).sum().backward()

    found = diagonals([x], closure, 0.05, directions=2).total
    assert found["glass"].value == pytest.approx(400 * 200, rel=0.15)
    # kinks add nothing to the rows' squares, but for their luck
    assert abs(found["free"].value) < 0.2 * found["glass"].value / 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("call", [None, 8])
def test_nothing_is_left_behind(dtype: torch.dtype, call: int | None) -> None:
    """Parameters, gradients, buffers and random state to the bit; also after a failure."""
    model, closure = network(dropout=0.2, norm=True, dtype=dtype)
    closure()
    before, counted = everything(model), Interrupted(closure, call)
    if call is None:
        found = diagonals(model, [counted] * 2, 0.02, directions=2)
        assert counted.calls == found.gradients == 10
        plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
        told = plain["blocks"]["hidden"]["signed"]
        assert told["relative_error"] == pytest.approx(
            found.blocks["hidden"]["signed"].relative_error
        )
    else:
        with pytest.raises(KeyboardInterrupt):
            diagonals(model, [counted] * 2, 0.02, directions=2)
    assert all(map(torch.equal, before, everything(model)))


def test_the_exact_one_leaves_nothing_behind_either() -> None:
    """Dropout draws, BatchNorm counts, and gradients that were there."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    x, y = torch.randn(8, 3), torch.zeros(8, dtype=torch.long)
    F.cross_entropy(model(x), y).backward()
    before = everything(model)
    exact_diagonals(model, lambda: F.cross_entropy(model(x), y))
    assert all(map(torch.equal, before, everything(model)))


def test_bad_input_is_named() -> None:
    """Every refusal says what was wrong and with what value."""
    model, closure = network()
    for options, message in (
        ({"radius": -0.1}, r"radius must be a number in \(0, inf\), got -0.1"),
        ({"directions": 0}, "directions must be a whole number >= 1, got 0"),
        ({"terms": ("rms",)}, "terms must be some of glass, signed, free; got 'rms'"),
        ({"terms": ()}, r"one or more different ones, got \(\)"),
        ({"seed": 1.5}, "seed must be a whole number >= 0, got 1.5"),
    ):
        given: dict[str, object] = {"radius": 1e-2, **options}
        with pytest.raises(ValueError, match=message):
            diagonals(model, closure, **given)  # type: ignore[arg-type]
    large = nn.Linear(200, 101)
    with pytest.raises(ValueError, match="up to 20,000 of them, not sharded, got 20,301"):
        exact_diagonals(large, lambda: large(torch.ones(200)).sum())
    with pytest.raises(ValueError, match="no batches were given"):
        exact_diagonals(model, lambda batch: model(batch).sum(), batches=[])
    sparse = nn.Embedding(5, 2, sparse=True)
    with pytest.raises(RuntimeError, match=r"needs dense gradients.* use sparse=False"):
        exact_diagonals(sparse, lambda: sparse(torch.tensor([1])).square().sum())
