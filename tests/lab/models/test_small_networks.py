"""The convnet and the multilayer perceptron."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aliceopt.lab import models
from aliceopt.lab.models.blocks import group_by_prefix


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_convnet_gives_a_logit_a_class() -> None:
    """``[B, C, H, W]`` to ``[B, classes]``, odd sizes rounded up by the stride."""
    assert models.convnet()(torch.rand(5, 1, 8, 8)).shape == (5, 10)
    odd = models.convnet(4, image=(3, 7, 9), widths=(4, 6, 8))
    assert odd(torch.rand(2, 3, 7, 9)).shape == (2, 4)


def test_convnet_parameters_follow_the_formula() -> None:
    """``9 c w + w`` a convolution (``+ 2 w`` with norm) and one linear layer."""
    assert _count(models.convnet()) == 160 + 4640 + (32 * 16 + 1) * 10
    normed = models.convnet(7, image=(3, 16, 16), widths=(4, 6, 8), norm=True)
    assert _count(normed) == (108 + 8) + (216 + 12) + (432 + 16) + (8 * 16 + 1) * 7


def test_convnet_with_a_smooth_activation_has_no_kink() -> None:
    """The second difference of the loss gradient shrinks as the square of the radius: no glass.

    With ReLU it would shrink as its root. Checked in float64 along one direction.
    """
    torch.manual_seed(0)
    model = models.convnet(activation="gelu").double()
    x, y = torch.rand(16, 1, 8, 8, dtype=torch.float64), torch.arange(16) % 10
    start = [p.detach().clone() for p in model.parameters()]
    direction = [torch.randn_like(p) for p in start]

    def grads(t: float) -> torch.Tensor:
        with torch.no_grad():
            for p, s, d in zip(model.parameters(), start, direction, strict=True):
                p.copy_(s + t * d)
        loss = nn.functional.cross_entropy(model(x), y)
        found = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([g.flatten() for g in found])

    def second(t: float) -> float:
        return ((grads(t) + grads(-t)) / 2 - grads(0.0)).norm().item()

    assert second(2e-4) / second(1e-4) == pytest.approx(4.0, rel=0.02)


def test_convnet_learns_the_digits() -> None:
    """12 epochs of Adam: at least 95 % of the held-out fifth (97 to 98 % after 20)."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    torch.manual_seed(0)
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    labels, order = torch.tensor(digits.target), torch.randperm(len(images))
    train, held_out = order[:1437], order[1437:]
    model = models.convnet()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(12):
        for rows in train[torch.randperm(len(train))].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    right = model(images[held_out]).argmax(1) == labels[held_out]
    assert right.float().mean() > 0.95


@pytest.mark.parametrize("name", models.ACTIVATIONS)
def test_every_activation_is_finite_at_both_ends(name: str) -> None:
    """Each named activation works in the network; large inputs overflow nothing."""
    images = torch.tensor([1e4, -1e4]).repeat(32).reshape(1, 1, 8, 8)
    assert torch.isfinite(models.convnet(3, activation=name)(images)).all()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: models.convnet(activation="rleu"), r"relu, leaky_relu.*got 'rleu'"),
        (lambda: models.convnet(activation=None), "got None"),
        (lambda: models.convnet(widths=[]), r"widths.*at least 1.*got \[\]"),
        (lambda: models.convnet(widths=4), "widths.*got 4"),
        (lambda: models.convnet(widths=[4, 0, 3]), r"widths.*>= 1.*got \[4, 0, 3\]"),
        (lambda: models.convnet(0), "classes must be a whole number >= 1, got 0"),
        (lambda: models.convnet(2.5), "classes.*got 2.5"),
        (lambda: models.convnet(True), "classes.*got True"),
        (lambda: models.convnet(image=(8, 8)), r"image must be .*height.*got \(8, 8\)"),
        (lambda: models.convnet(image=(1, -8, 8)), r"image.*got \(1, -8, 8\)"),
        (lambda: models.convnet(widths=()), r"widths.*got \(\)"),
        (lambda: models.convnet(norm="no"), "norm must be True or False, got 'no'"),
    ],
)
def test_a_bad_argument_is_refused_by_name_and_value(build: object, words: str) -> None:
    """Errors say what was wrong and with what value; activations list what there is."""
    with pytest.raises(ValueError, match=words):
        build()


def test_a_parameter_outside_every_block_is_an_error() -> None:
    """A layer that is added to a model cannot drop out of the figures unseen."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"1\.weight belongs to 0 blocks"):
        group_by_prefix(model, {"first": ["0"]})
    with pytest.raises(ValueError, match=r"0\.weight belongs to 2 blocks"):
        group_by_prefix(model, {"first": ["0"], "all": ["0", "1"]})
