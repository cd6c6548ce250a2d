"""Theorem 1 on a real two-layer network: what must show, on seeds the claims do not use."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from aliceopt.claims import relu_network

SEEDS = [11, 12]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_exponents_of_relu_networks(seed):
    """Glass in the hidden layer (power 1), only a Hessian in the output layer (power 2)."""
    found = relu_network.measure(generator(seed))
    assert found.second_exponent == pytest.approx(1, abs=0.1)
    assert found.hidden_exponent < 1.3
    assert found.output_exponent == pytest.approx(2, abs=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_exponents_of_the_smooth_twin(seed):
    """No kinks: power 2 in both layers, and a second difference of power 4."""
    found = relu_network.measure(generator(seed), activation=nn.GELU)
    assert found.hidden_exponent == pytest.approx(2, abs=0.02)
    assert found.output_exponent == pytest.approx(2, abs=0.02)
    assert found.second_exponent == pytest.approx(4, abs=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_size_is_predicted_and_the_layer_respects_the_bound(seed):
    networks = relu_network.sample_networks(150, generator(seed))
    found = relu_network.compare(networks, relu_network.RADII[0])
    assert 2 * found.second.sum() == pytest.approx(found.expected.sum().item(), rel=0.2)
    assert found.one_sided.sum() < 0.5 * found.bound.sum()
    assert (found.expected <= found.bound * (1 + 1e-12)).all()


def test_kinks_and_hessian_account_for_every_gradient_change():
    """Jumps at the kinks really crossed plus ``H d`` reproduce the gradients themselves."""
    networks = relu_network.sample_networks(4, generator(1))
    found = relu_network.compare(networks, relu_network.RADII[0])
    torch.testing.assert_close(found.exact.sum(1), found.one_sided.sum(1), rtol=0.02, atol=0)


def test_the_bound_fails_for_single_coordinates_large_radii_and_trained_networks():
    networks = relu_network.sample_networks(6, generator(2))
    small = relu_network.compare(networks, relu_network.RADII[0])
    assert ((small.one_sided > small.bound).double().mean(1) > 0.1).all()
    large = relu_network.compare(networks, 0.3)
    assert (large.one_sided.sum(1) > 1.5 * large.bound.sum(1)).all()
    trained = relu_network.compare(relu_network.train(networks), 1e-4)
    assert (trained.one_sided.sum(1) > 3 * trained.bound.sum(1)).all()


def test_training_gathers_pre_activations_at_their_kinks():
    """Why the bound fails there: Theorem 1 supposes them uniform near zero."""
    networks = relu_network.sample_networks(4, generator(3))

    def near(networks: relu_network.Networks, width: float) -> float:
        weight, bias = networks.params["0.weight"], networks.params["0.bias"]
        preacts = torch.baddbmm(bias[:, None], networks.inputs, weight.mT)
        return (preacts.abs() < width).double().mean().item() / width

    trained = relu_network.train(networks)
    assert near(networks, 1e-3) < 2 * near(networks, 1e-1)
    assert near(trained, 1e-3) > 10 * near(trained, 1e-1)


def test_a_generator_reproduces_the_networks():
    one, two = (relu_network.sample_networks(2, generator(4)) for _ in range(2))
    for name, p in one.params.items():
        assert torch.equal(p, two.params[name])
        assert p.abs().max() <= (32 if name.startswith("0") else 64) ** -0.5
    assert torch.equal(one.labels, two.labels)


def test_slope_of_a_power_law():
    assert relu_network.slope((1.0, 2.0, 4.0), (3.0, 24.0, 192.0)) == pytest.approx(3)


def test_kinks_account_for_every_excursion_of_the_loss():
    """Units across their kink, one by one, give what is left beside gradient and Hessian."""
    networks = relu_network.sample_networks(4, generator(6))
    losses, slopes = relu_network.kink_excursions(networks, 1e-4)
    torch.testing.assert_close(networks.excursions(1e-4), losses, rtol=0.02, atol=1e-9)
    plus, minus = (networks.along(networks.gradients(s * 1e-4)) for s in (1, -1))
    bend = 2e-4 * networks.along(networks.hessian_step(1.0))
    torch.testing.assert_close(plus - minus - bend, slopes.sum(0), rtol=0.02, atol=1e-6)


def test_training_keeps_kinks_that_bend_up_and_only_on_its_own_examples():
    """All excursions of trained networks go up on their batch, not so on another one."""
    both = relu_network.sample_networks(4, generator(7), batch=128)
    seen = relu_network.train(both.on(slice(64)))
    other = replace(both, params=seen.params).on(slice(64, 128))
    assert (seen.excursions(1e-4) > 0).all()
    assert (other.excursions(1e-4) < 0).any()


def test_minibatches_are_drawn_from_the_generator():
    networks = relu_network.sample_networks(2, generator(8), batch=32)
    one, two, three = (
        relu_network.train(networks, steps=3, batch=8, generator=generator(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(one.params["0.weight"], two.params["0.weight"])
    assert not torch.equal(one.params["0.weight"], three.params["0.weight"])
