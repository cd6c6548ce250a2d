"""The sliced eager form against the oracle: moves to the bit, updates to rounding."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import aliceopt.kernels.chunks as chunks
from aliceopt import Alice
from aliceopt.kernels import EagerBackend
from aliceopt.kernels.chunks import ChunkedBackend
from aliceopt.kernels.words import SignWords, displacements
from aliceopt.site import Draw, Site
from cpu_cases import assert_agree, run

CHUNK = 64
OPTIONS = [
    {"limit": limit, "hessian": hessian, "glass": glass}
    for limit, hessian, glass in itertools.product(
        ("adam", "fixed", "sgd"), ("none", "abs", "rms", "signed"), (True, False)
    )
]
LOW = [torch.bfloat16, torch.float16]


def assert_both_agree(dtype: torch.dtype, **options: Any) -> None:
    expected = run(EagerBackend(), dtype, **options)
    assert_agree(expected, run(ChunkedBackend(CHUNK), dtype, **options), dtype)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_slices_agree_with_the_oracle(options: dict[str, Any]) -> None:
    """Whatever the options: same probe points, same results, same coordinates left alone."""
    assert_both_agree(torch.float32, **options)


@pytest.mark.parametrize("dtype", [torch.float64, *LOW], ids=str)
@pytest.mark.parametrize("hessian", ["abs", "signed"])
def test_slices_agree_with_the_oracle_in_every_precision(dtype: torch.dtype, hessian: str) -> None:
    """Also where probes are rounded and master weights kept."""
    assert_both_agree(dtype, hessian=hessian)


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1, "lr_min": 1e-3},
        {"lookahead": 2.0, "step_fraction": 0.5},
        {"maximize": True, "lr_min": 1.0},
        {"eps": 0.0},
        {"eps": 0.0, "lr_min": 1e-3, "glass": False},
        {"betas": (0.0, 0.0), "quick_steps": 0},
    ],
    ids=str,
)
def test_numbers_do_not_change_that(options: dict[str, Any]) -> None:
    """Decay, bounds, lookahead, ascent, no eps, no memory."""
    assert_both_agree(torch.float32, **options)


def test_clip_norm_agrees_to_rounding() -> None:
    """The norm is a sum, and sums in slices round otherwise."""
    expected, found = (
        run(backend, torch.float64, max_grad_norm=0.5)
        for backend in (EagerBackend(), ChunkedBackend(CHUNK))
    )
    for x, y in zip(expected.tensors(), found.tensors(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-15)


def test_words_made_together_are_those_made_one_by_one() -> None:
    """In whatever company, in plain memory order or not, and again at the next draw."""
    params = [nn.Parameter(torch.zeros(n)) for n in (40, 7, 3000, 600_000, 64)]
    params.append(nn.Parameter(torch.zeros(30, 50).t()))
    sites = [Site.of(param, i, {}) for i, param in enumerate(params)]
    together = SignWords()
    for step in range(2):
        draw = Draw(3, step)
        for mine in (sites, sites[1:4], sites[4:]):
            for site, words in zip(mine, together.each(mine, draw), strict=True):
                expected = SignWords().of([site], draw)
                signs = [
                    displacements(w, 1.0, torch.float32)[: site.numel] for w in (words, expected)
                ]
                assert torch.equal(*signs)


@pytest.mark.parametrize("count", [2, 40])
def test_small_tensors_share_their_operations(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many: they are laid end to end."""
    params = [nn.Parameter(torch.ones(10 + i)) for i in range(count)]
    optimizer = Alice(params, lr=1e-2, quick_steps=0)
    optimizer._backends._made[torch.device("cpu")] = ChunkedBackend()
    sizes, update = [], chunks.clean_update_

    def counting(target: Any, *args: Any) -> bool:
        sizes.append(target.position.numel())
        return update(target, *args)

    def closure() -> None:
        for p in params:
            p.grad = torch.ones_like(p)

    monkeypatch.setattr(chunks, "clean_update_", counting)
    optimizer.step(closure)
    assert sizes == [sum(p.numel() for p in params)]


def test_infinite_curvature_is_as_in_the_oracle() -> None:
    """Where gradients are finite and their difference quotient is not, the step is still right."""

    def after(backend: EagerBackend) -> list[torch.Tensor]:
        param = nn.Parameter(torch.zeros(200))
        optimizer = Alice([param], lr=1e-2, probe_radius=1e-6, quick_steps=0, glass=False)
        optimizer._backends._made[torch.device("cpu")] = backend
        values = iter([1e34, -1e34, 0.0] * 2)

        def closure() -> None:
            param.grad = torch.full_like(param, next(values))

        for _ in range(2):
            optimizer.step(closure)
        return [param.detach(), *optimizer.state[param].values()]

    for x, y in zip(after(EagerBackend()), after(ChunkedBackend(CHUNK)), strict=True):
        torch.testing.assert_close(x, y)


def test_a_step_after_a_loop_and_after_a_plain_backward() -> None:
    """Both other ways to drive it agree with the oracle."""

    def after(backend: EagerBackend) -> torch.Tensor:
        torch.manual_seed(0)
        param = nn.Parameter(torch.randn(300))
        optimizer = Alice([param], lr=1e-2, quick_steps=1)
        optimizer._backends._made[torch.device("cpu")] = backend
        for _ in range(3):
            for _ in optimizer.evaluations():
                (param**2).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        (param**2).sum().backward()
        optimizer.step()
        return param.detach()

    torch.testing.assert_close(after(EagerBackend()), after(ChunkedBackend(CHUNK)))
