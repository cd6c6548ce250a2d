"""bf16 and fp16 parameters, clipped gradients, and gradients that are not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.signs import block_signs, sign_key
from contract_cases import LR, counts, memory, same, topography, values
from paper import paper_alice
from reference import ReferenceAlice

LOW = [torch.bfloat16, torch.float16]
low_precision = pytest.mark.parametrize("dtype", LOW, ids=str)


def quadratic_step(p: nn.Parameter, h: Tensor, optimizer: Alice) -> list[Tensor]:
    """One step on sum h x^2/2; returns where the parameter stood. h x is exact for powers of 2."""
    places: list[Tensor] = []

    def closure() -> None:
        places.append(p.detach().double().clone())
        (h * p.float().square() / 2).sum().backward()

    optimizer.step(closure)
    return places


@low_precision
def test_master_positions_add_up_steps_below_one_ulp(dtype):
    """Thirty-two steps of an eighth of an ulp are four ulps; in the parameter alone, nothing."""
    ulp = torch.finfo(dtype).eps / 2  # of numbers just below 1
    p = nn.Parameter(torch.ones(5, dtype=dtype))
    optimizer = paper_alice([p], lr=ulp / 8, lr_min=1.0, step_fraction=1.0)
    for step in range(1, 33):
        optimizer.step(lambda: p.float().sum().backward())
        master = optimizer.state[p]["position"]
        assert master.dtype == torch.float32
        assert master.tolist() == pytest.approx([1 - step * ulp / 8] * 5, abs=ulp / 100)
        assert same(p.detach(), master.to(dtype))
    assert p.tolist() == pytest.approx([1 - 4 * ulp] * 5, abs=ulp / 2)


@low_precision
def test_an_edited_parameter_overrides_its_master(dtype):
    """Loaded weights count themselves; coordinates that were not edited keep their low bits."""
    p = nn.Parameter(torch.ones(4, dtype=dtype))
    optimizer = paper_alice([p], lr=2.0**-12, lr_min=1.0, step_fraction=1.0)
    for _ in range(3):
        optimizer.step(lambda: p.float().sum().backward())
    master = optimizer.state[p]["position"].clone()
    with torch.no_grad():
        p[:2] = 0.5
    optimizer.step(lambda: p.float().sum().backward())
    wanted = torch.cat([torch.full((2,), 0.5), master[2:]]) - 2.0**-12
    torch.testing.assert_close(optimizer.state[p]["position"], wanted, rtol=0, atol=1e-6)


def test_full_precision_parameters_need_no_master():
    """float32 and float64 parameters are their own."""
    for dtype in (torch.float32, torch.float64):
        p = nn.Parameter(torch.ones(3, dtype=dtype))
        optimizer = paper_alice([p])
        optimizer.step(lambda p=p: p.sum().backward())
        assert "position" not in optimizer.state[p]


CENTERS = {
    "generic": torch.tensor([1.4, 1.6, -1.3, 0.7, -0.3, 0.19, 0.8, -1.7] * 4),
    "powers of two": torch.tensor([1.0, -1.0, 0.5, -0.5, 0.25, 2.0, -2.0, 0.125] * 4),
}


@low_precision
@pytest.mark.parametrize("kind", CENTERS)
@pytest.mark.parametrize("radius", [0.013, 0.03])
def test_low_precision_probes_are_symmetric_about_the_center(dtype, kind, radius):
    """Both sides, as they really stand, have the center exactly in the middle.

    Just below a power of two numbers lie closer than above it (1.0 is how norm layers start).
    """
    p = nn.Parameter(CENTERS[kind].to(dtype))
    optimizer = paper_alice([p], lr=LR, probe_radius=radius)
    plus, minus, center = quadratic_step(p, torch.ones(32), optimizer)
    assert (plus != center).all()
    assert same((plus + minus) / 2, center)
    ulp = torch.finfo(dtype).eps * center.abs()
    assert ((plus - center).abs() - radius).abs().le(2 * ulp).all()


@low_precision
@pytest.mark.parametrize("hessian", ["abs", "rms", "signed"])
@pytest.mark.parametrize("kind", CENTERS)
def test_low_precision_measures_a_quadratic_by_the_realised_displacement(dtype, hessian, kind):
    """The radius rounds, by up to a half in bf16; h comes out right and glass is none."""
    h = torch.tensor([0.25, 0.5, 1.0, 2.0] * 8)
    p = nn.Parameter(CENTERS[kind].to(dtype))
    optimizer = paper_alice([p], lr=LR, probe_radius=0.013, hessian=hessian)
    quadratic_step(p, h, optimizer)
    found = topography(optimizer, p, "hess")
    found = found.sqrt() if hessian == "rms" else found
    torch.testing.assert_close(found, h.double(), rtol=1e-4, atol=0)
    assert topography(optimizer, p, "glass_density").max() < 1e-9


@low_precision
def test_a_radius_that_rounds_away_measures_nothing_and_breaks_nothing(dtype):
    """Far below one ulp the probes coincide: zero curvature, finite numbers, bounded step."""
    p = nn.Parameter(torch.full((6,), 100.0, dtype=dtype))
    optimizer = paper_alice([p], lr=1e-4)
    quadratic_step(p, torch.ones(6), optimizer)
    assert topography(optimizer, p, "hess").tolist() == [0.0] * 6
    assert topography(optimizer, p, "glass_density").tolist() == [0.0] * 6
    moved = 100.0 - optimizer.state[p]["probe_center"]
    assert moved.tolist() == pytest.approx([1e-4] * 6, rel=0.1)


# ---- clipping ---------------------------------------------------------------------------------


def test_all_three_gradients_are_clipped_by_the_centers_factor():
    """On h x^2/2 the curvature comes out as factor times h, and there is still no glass."""
    h = torch.tensor([1.0, 2.0, 4.0], dtype=torch.double)
    p = nn.Parameter(torch.tensor([1.0, -1.0, 0.5], dtype=torch.double))
    optimizer = paper_alice([p], lr=LR, max_grad_norm=0.75)
    optimizer.step(lambda: (h * p.square() / 2).sum().backward())
    factor = 0.75 / (3.0 + 1e-6)  # the gradient is (1, -2, 2)
    torch.testing.assert_close(topography(optimizer, p, "hess"), factor * h)
    assert topography(optimizer, p, "glass_density").max() < 1e-20
    grad = torch.tensor([1.0, -2.0, 2.0], dtype=torch.double)
    torch.testing.assert_close(optimizer.state[p]["grad_avg"], 0.1 * factor * grad)


@pytest.mark.parametrize("limit", [0.2, 1.5, 100.0])
def test_clipping_is_one_norm_over_all_groups_as_the_reference_has_it(limit):
    """Two groups, kinks, several steps: parameters and averages follow the transcription."""
    start = [torch.linspace(-1, 1, 5).double(), torch.linspace(2, -1, 4).double()]
    params = [nn.Parameter(s.clone()) for s in start]
    groups = [{"params": [p]} for p in params]
    optimizer = paper_alice(groups, lr=LR, max_grad_norm=limit, quick_steps=1)
    options = {"lr": LR, "max_grad_norm": limit, "quick_steps": 1}
    reference = ReferenceAlice([s.numpy() for s in start], **options)

    def signs(step: int, index: int, shape: tuple[int, ...]) -> np.ndarray:
        return block_signs(sign_key(0, step, index), shape, dtype=torch.double).numpy()

    for _ in range(6):
        loss = lambda: sum((p.square() / 2 + p.abs()).sum() for p in params).backward()  # noqa: E731
        optimizer.step(loss)
        reference.step(lambda at: [x + np.sign(x) for x in at], signs)
    for i, p in enumerate(params):
        np.testing.assert_allclose(p.detach().numpy(), reference.positions[i], rtol=1e-10)
        hess = optimizer.state[p]["hess"].numpy()
        np.testing.assert_allclose(hess, reference.hess[i], rtol=1e-9)


# ---- not finite -------------------------------------------------------------------------------


def stepped(bad_round: int | None, value: float, limit: float | None = None) -> tuple:
    """Four measuring steps on a separable loss; in the third, one gradient entry is replaced."""
    p = nn.Parameter(torch.linspace(-1.0, 1.0, 6))
    optimizer = paper_alice([p], lr=LR, quick_steps=0, weight_decay=0.1, max_grad_norm=limit)
    before = None
    for step in range(4):
        calls = []

        def closure(calls: list = calls, step: int = step) -> None:
            calls.append(None)
            (p.square() / 2 + (p - 0.1).abs()).sum().backward()
            if step == 2 and len(calls) - 1 == bad_round:
                p.grad[1] = value

        if step == 2:
            before = values([p])[0], memory(optimizer)["state"]
        optimizer.step(closure)
        if step == 2:
            after = values([p])[0], memory(optimizer)["state"]
    return p, optimizer, before, after


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("bad_round", [0, 1, 2])
def test_a_coordinate_with_a_gradient_that_is_not_finite_is_left_alone(bad_round, value):
    """Position, probe center and averages as they were; all others as in a clean run."""
    p, optimizer, before, after = stepped(bad_round, value)
    _, _, _, clean_after = stepped(None, 0.0)
    others = [0, 2, 3, 4, 5]
    assert after[0][1] == before[0][1]
    assert same(after[0][others], clean_after[0][others])
    assert not torch.equal(after[0][others], before[0][others])
    for name in ("probe_center", "grad_avg", "grad_sq", "glass_density", "hess"):
        key = f"0.{name}"
        assert after[1][key][1] == before[1][key][1]
        assert same(after[1][key][others], clean_after[1][key][others])
    assert torch.isfinite(p).all()
    assert p.detach()[1] != before[0][1]  # and it moves again in the next step
    assert counts(optimizer) == (4, 0, 4)
    assert optimizer.telemetry().groups[0].skipped_coordinates == 1


def test_coordinates_left_alone_add_up_in_the_telemetry():
    """Three entries, five steps: fifteen, per group and in total where they happened."""
    a, b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    optimizer = paper_alice([{"params": [a]}, {"params": [b]}], lr=LR)

    def closure() -> None:
        (a.sum() + b.square().sum()).backward()
        a.grad[:3] = math.nan

    for _ in range(5):
        optimizer.step(closure)
    assert [g.skipped_coordinates for g in optimizer.telemetry().groups] == [15, 0]
    assert a.tolist()[:3] == [1.0] * 3
    assert a[3] < 1.0


def test_the_clip_norm_is_over_finite_entries():
    """One infinite entry does not clip all others to zero."""
    p = nn.Parameter(torch.ones(3))
    optimizer = paper_alice([p], lr=LR, max_grad_norm=1.0, hessian="none", glass=False)

    def closure() -> None:
        p.grad = torch.tensor([3.0, math.inf, 4.0])

    optimizer.step(closure)
    averages = optimizer.state[p]["grad_avg"].tolist()
    assert averages == pytest.approx([0.1 * 0.6, 0.0, 0.1 * 0.8], rel=1e-5)
