"""Theorem 1 on real networks: what the figure shows, with few networks, and how it is drawn."""

from __future__ import annotations

import pytest
import torch

from aliceopt.claims import relu_network
from aliceopt.illustrations import draw_theorem1, theorem1
from aliceopt.illustrations.theorem1 import RADII, REACH, Findings, find
from figure_checks import assert_legible


@pytest.fixture(scope="module")
def found() -> Findings:
    """Ten networks for the power law, two for the bound."""
    return find(seed=5, draws=10)


def test_the_figure_shows_what_the_page_says(found):
    """Slopes 1 and 2, a layer below its bound when fresh, above it when trained or far away."""
    small = slice(2, 7)  # 4e-4 to 6.4e-3
    assert relu_network.slope(RADII[small], found.relu.hidden_second[small]) == pytest.approx(
        1, abs=0.25
    )
    assert relu_network.slope(RADII[small], found.gelu.hidden_one_sided[small]) == pytest.approx(
        2, abs=0.02
    )
    assert relu_network.slope(RADII[small], found.relu.output_one_sided[small]) == pytest.approx(
        2, abs=0.02
    )
    assert max(found.fresh.ratio[:8]) < 1 < found.fresh.ratio[-1]
    assert found.trained.ratio[0] > 3
    assert found.trained.ratio[-1] > 10
    assert all(0.5 < ratio < 2.5 for ratio in found.following)
    assert found.trained_density[0] > 50 * found.fresh_density[0]


def test_single_parameters_exceed_their_bound_at_every_radius(found):
    """At least those without a bound, for H d reaches them too; and more with the radius."""
    assert all(share >= found.fresh.no_bound > 0.1 for share in found.fresh.exceeding)
    assert found.fresh.exceeding[-1] > 0.6


def test_the_bound_is_linear_in_the_radius_and_does_not_depend_on_the_direction():
    """One evaluation of R serves every radius and every sign vector."""
    networks = relu_network.sample_networks(2, torch.Generator().manual_seed(1))
    unit = theorem1.unit_bound(networks)
    turned = {name: -t.flip(1) for name, t in networks.signs.items()}
    other = relu_network.Networks(
        networks.model, networks.params, turned, networks.inputs, networks.labels
    )
    torch.testing.assert_close(relu_network.compare(other, 3e-3).bound, 3e-3 * unit)


def test_no_pre_activation_moves_further_than_its_reach():
    """``|t . gamma| <= |gamma|_1``, the 1-norm of an input and a 1 for the bias."""
    networks = relu_network.sample_networks(50, torch.Generator().manual_seed(2))
    assert networks.inputs.abs().sum(2).max() + 1 <= REACH


@pytest.mark.parametrize("values", [{"seed": -1}, {"seed": 0.5}, {"draws": 1}, {"draws": True}])
def test_a_bad_number_is_named_with_its_value_and_rule(tmp_path, values):
    (name, value), *_ = values.items()
    with pytest.raises(ValueError, match=rf"{name} must be a whole number from .*, got {value!r}"):
        draw_theorem1(tmp_path / "figure.png", **values)
    assert not list(tmp_path.iterdir())


def test_an_unknown_suffix_is_refused_before_any_work(tmp_path):
    with pytest.raises(ValueError, match=r"\.jpg.*\.png, \.svg, \.pdf"):
        draw_theorem1(tmp_path / "figure.jpg")


def test_text_is_nine_points_inside_the_figure_and_never_overlaps(
    tmp_path, monkeypatch, kept, found
):
    """Every word is legible at print size, whole, and clear of every other word."""
    monkeypatch.setattr(theorem1, "find", lambda seed, draws: found)
    draw_theorem1(tmp_path / "figure.png")
    assert_legible(kept[0], at_least=41)
