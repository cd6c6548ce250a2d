"""Figure 2 shows a real gradient glass: its drawing, its density and its loss agree."""

import math
from pathlib import Path

import pytest
import torch

from aliceopt.illustrations import draw_glass
from aliceopt.illustrations.glass import (
    HALF_HEIGHT,
    HALF_WIDTH,
    GradientGlass,
    boundary_segments,
    path_crossings,
    place_arrows,
    simulate_glass,
    simulate_losses,
)
from aliceopt.lab.figures import style
from aliceopt.theory.glass_bound import glass_loss_bound, loss_variance


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def glass() -> GradientGlass:
    return simulate_glass(36, seeded())


def standard_error(samples: torch.Tensor) -> float:
    return (samples.std(0) / math.sqrt(len(samples))).item()


def test_gradient_equals_autograd_of_the_loss(glass: GradientGlass) -> None:
    """The closed form, the sum of a_k n_k over active kinks, is the derivative of the loss."""
    points = torch.rand(200, 2, generator=seeded(1), dtype=torch.float64) * 2 - 1
    points.requires_grad_()
    (expected,) = torch.autograd.grad(glass.loss(points).sum(), points)
    assert expected.abs().max() > 1
    torch.testing.assert_close(glass.gradient(points), expected, rtol=1e-12, atol=1e-12)


def test_a_batch_of_glasses_equals_its_members_one_by_one(glass: GradientGlass) -> None:
    """Batching is only bookkeeping: the loss and gradient of each member are its own."""
    points = torch.rand(7, 2, generator=seeded(1), dtype=torch.float64) * 2 - 1
    batch = glass.redrawn(seeded(2), 3)
    for index in range(3):
        one = GradientGlass(
            glass.normals, batch.strengths[index], batch.offsets[index], glass.reach
        )
        torch.testing.assert_close(batch.loss(points)[index], one.loss(points))
        torch.testing.assert_close(batch.gradient(points)[index], one.gradient(points))


@pytest.mark.parametrize("coordinate", [0, 1])
@pytest.mark.parametrize("length", [0.1, 0.6])
def test_density_is_the_measured_mean_square_gradient_change_per_length(
    glass: GradientGlass, coordinate: int, length: float
) -> None:
    """E (change of g_i)^2 = rho_i length, for a move along i from anywhere in the disk."""
    glasses = glass.redrawn(seeded(3), 20_000)
    start = torch.tensor([[0.2, -0.3]], dtype=torch.float64)
    end = start.clone()
    end[0, coordinate] += length
    change = (glasses.gradient(end) - glasses.gradient(start))[:, 0, coordinate]
    per_length = change.square() / length
    error = standard_error(per_length)
    rho = glass.density()[coordinate].item()
    assert error < 0.04 * rho
    assert abs(per_length.mean().item() - rho) < 4 * error


def test_gradient_changes_have_mean_zero(glass: GradientGlass) -> None:
    """The strengths have random signs, so crossing boundaries has no preferred direction."""
    glasses = glass.redrawn(seeded(4), 20_000)
    ends = torch.tensor([[-0.5, 0.0], [0.5, 0.0]], dtype=torch.float64)
    change = glasses.gradient(ends).diff(dim=1)[:, 0, 0]
    assert change.std() > 1
    assert abs(change.mean().item()) < 4 * standard_error(change)


@pytest.mark.parametrize("distance", [-1.0, 0.4, 1.0])
def test_simulated_loss_has_the_variance_and_mean_of_theorem_4(
    glass: GradientGlass, distance: float
) -> None:
    """E Delta^2 = rho |d|^3 / 3 exactly, and E |Delta| is at most the bound and close to it."""
    displacement = torch.tensor([[distance, 0.0]], dtype=torch.float64)
    change = simulate_losses(glass, displacement, 20_000, seeded(5))[:, 0]
    variance = loss_variance(glass.density(), displacement)[0, 0].item()
    bound = glass_loss_bound(glass.density(), displacement).item()
    assert abs(change.square().mean().item() - variance) < 4 * standard_error(change.square())
    mean, error = change.abs().mean().item(), standard_error(change.abs())
    assert 0.9 * bound < mean < bound + 4 * error


def test_with_few_kinks_the_mean_stays_well_below_the_bound() -> None:
    """The bound is the limit of many kinks: a single kink has the variance but not the mean."""
    single = simulate_glass(1, seeded(0))
    displacement = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    change = simulate_losses(single, displacement, 20_000, seeded(5))[:, 0]
    assert change.abs().mean() < 0.85 * glass_loss_bound(single.density(), displacement)


def test_excess_loss_starts_flat(glass: GradientGlass) -> None:
    """The slope at the start is removed: nothing changes before the first boundary is crossed."""
    nearest = path_crossings(glass).abs().min().item()
    inside = torch.tensor([[-0.9 * nearest, 0.0], [0.9 * nearest, 0.0]], dtype=torch.float64)
    beyond = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert glass.gradient(torch.zeros(1, 2, dtype=torch.float64)).norm() > 0.1
    assert glass.excess_loss(inside).abs().max() < 1e-12
    assert glass.excess_loss(beyond).abs().min() > 1e-3


def test_every_boundary_that_divides_the_window_is_drawn_from_frame_to_frame(
    glass: GradientGlass,
) -> None:
    """A boundary is drawn exactly when the window has corners on both sides of it."""
    corners = torch.tensor(
        [[sx * HALF_WIDTH, sy * HALF_HEIGHT] for sx in (-1, 1) for sy in (-1, 1)],
        dtype=torch.float64,
    )
    sides = corners @ glass.normals.T > glass.offsets
    segments, kinks = boundary_segments(glass)
    assert kinks.tolist() == torch.nonzero(sides.any(0) & ~sides.all(0)).flatten().tolist()
    on_line = (segments * glass.normals[kinks, None]).sum(-1) - glass.offsets[kinks, None]
    assert on_line.abs().max() < 1e-12
    half = torch.tensor([HALF_WIDTH, HALF_HEIGHT], dtype=torch.float64)
    assert (half - segments.abs()).amin(-1).abs().max() < 1e-12


def test_an_arrow_is_what_crossing_its_boundary_to_the_right_adds(glass: GradientGlass) -> None:
    """The caption's claim: the gradient right of an arrow's tail minus left of it is the arrow."""
    tails, arrows = place_arrows(glass, *boundary_segments(glass))
    assert len(tails) > 20
    hair = torch.tensor([1e-8, 0.0], dtype=torch.float64)
    added = glass.gradient(tails + hair) - glass.gradient(tails - hair)
    torch.testing.assert_close(arrows, 0.1 * added, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_arrows_stay_in_the_frame_off_the_path_and_apart(seed: int) -> None:
    """No arrow is cut by the frame, lies across the path or sits on another arrow."""
    glass = simulate_glass(36, seeded(seed))
    tails, arrows = place_arrows(glass, *boundary_segments(glass))
    heads = tails + arrows
    half = torch.tensor([HALF_WIDTH, HALF_HEIGHT], dtype=torch.float64)
    assert (tails.abs() < half).all()
    assert (heads.abs() < half).all()
    assert (tails[:, 1] * heads[:, 1] > 0).all()
    assert torch.pdist((tails + heads) / 2).min() > 0.05


def test_crossings_are_where_the_gradient_along_the_path_jumps(glass: GradientGlass) -> None:
    """Between two crossings the gradient is constant, across one it is not."""
    crossings = path_crossings(glass)
    edges = torch.cat([crossings.new_tensor([-1.0]), crossings, crossings.new_tensor([1.0])])
    fine = edges[:-1, None] + edges.diff()[:, None] * torch.tensor([0.01, 0.5, 0.99])
    points = torch.stack([fine, torch.zeros_like(fine)], dim=-1).reshape(-1, 2)
    slopes = glass.gradient(points)[:, 0].reshape(fine.shape)
    assert len(crossings) > 10
    assert (slopes.diff(dim=1).abs() < 1e-12).all()
    assert (slopes[:, 0].diff().abs() > 1e-6).all()


@pytest.mark.parametrize("suffix", style.FORMATS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Deterministic at any date: matplotlib takes the date of a file from SOURCE_DATE_EPOCH."""
    written = []
    for date, seed in (("1000000000", 0), ("2000000000", 0), ("2000000000", 1)):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
        path = draw_glass(tmp_path / f"{date}-{seed}{suffix}", seed=seed, glasses=100)
        written.append(path.read_bytes())
    assert len(written[0]) > 10_000
    assert written[0] == written[1]
    assert written[0] != written[2]


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), ("seed", 1.5), ("seed", True), ("seed", 2**63), ("kinks", 0), ("glasses", 1)],
)
def test_a_bad_number_is_named_with_its_value_and_rule(
    tmp_path: Path, name: str, value: object
) -> None:
    """The error says which argument, what it was and what it may be, and nothing is written."""
    with pytest.raises(ValueError, match=rf"{name} must be a whole number from \d+ .*{value!r}"):
        draw_glass(tmp_path / "glass.png", **{name: value})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_an_unknown_suffix_is_refused_before_any_work(tmp_path: Path) -> None:
    """The suffix and the three that can be written are named."""
    with pytest.raises(ValueError, match=r"'\.jpg'.*\.png, \.svg, \.pdf"):
        draw_glass(tmp_path / "glass.jpg")
    assert not list(tmp_path.iterdir())
