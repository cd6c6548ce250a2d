"""ResNet18: the paper's form with channel masks, and the plain one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aliceopt.lab.models import resnet18
from aliceopt.lab.models.resnet import (
    MaskedBatchNorm,
    MaskedBlock,
    PlainBlock,
    on_tensor_cores,
)


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_plain_network_has_the_published_number_of_parameters() -> None:
    """The CIFAR ResNet18 of ten classes: 11,173,962."""
    assert _count(resnet18(masks=False)) == 11_173_962


def test_masks_add_one_number_a_channel() -> None:
    """Stem w, three a block: ``91 w`` in all, 11,179,786 at w = 64."""
    model = resnet18()
    assert _count(model) == 11_173_962 + 64 + 6 * (64 + 128 + 256 + 512) == 11_179_786
    masks = [p for name, p in model.named_parameters() if name.endswith("mask")]
    assert len(masks) == 1 + 3 * 8
    assert all((mask == 1).all() for mask in masks)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(("w", "c", "n"), [(4, 3, 10), (6, 1, 3)])
def test_parameters_follow_the_formula(masks: bool, w: int, c: int, n: int) -> None:
    """``2724 w^2 + (150 + 9 c + 8 n) w + n``, and ``91 w`` with masks."""
    expected = 2724 * w**2 + (150 + 9 * c + 8 * n) * w + n + 91 * w * masks
    assert _count(resnet18(n, masks=masks, width=w, in_channels=c)) == expected


def _spread(model: nn.Module) -> None:
    """Give masks, norms and running statistics values that are not their first ones."""
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(0.5 * torch.randn(p.shape, generator=g))
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand(buffer.shape, generator=g))


def _norm(bn: nn.BatchNorm2d, x: Tensor, training: bool) -> Tensor:
    mean, var = bn.running_mean.clone(), bn.running_var.clone()
    return F.batch_norm(x, mean, var, bn.weight, bn.bias, training)


def _channels(mask: Tensor) -> Tensor:
    return mask[None, :, None, None]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("inputs", "stride"), [(4, 2), (6, 1)])
def test_masked_block_is_the_authors_formula(inputs: int, stride: int, training: bool) -> None:
    """mask3(bn2(relu(mask2(conv2(relu(mask1(bn1(conv1 x))))) + shortcut x))), written out.

    The block multiplies masks into weights; here they multiply pixels.
    """
    torch.manual_seed(0)
    block = MaskedBlock(inputs, 6, stride).double().train(training)
    _spread(block)
    x = torch.randn(5, inputs, 8, 8, dtype=torch.float64)
    shortcut = x
    if len(block.shortcut):
        reduced = F.conv2d(x, block.shortcut[0].weight, stride=stride)
        shortcut = _norm(block.shortcut[1], reduced, training)
    first = F.conv2d(x, block.conv1.weight, stride=stride, padding=1)
    first = F.relu(_norm(block.bn1, first, training) * _channels(block.bn1.mask))
    second = F.conv2d(first, block.conv2.weight, padding=1) * _channels(block.conv2.mask)
    expected = _norm(block.bn2, F.relu(second + shortcut), training) * _channels(block.bn2.mask)
    torch.testing.assert_close(block(x), expected)


def test_plain_block_is_the_usual_formula() -> None:
    """relu(bn2(conv2(relu(bn1(conv1 x)))) + shortcut x), with an identity shortcut."""
    torch.manual_seed(0)
    block = PlainBlock(4, 4, 1).double().eval()
    _spread(block)
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    first = F.relu(_norm(block.bn1, F.conv2d(x, block.conv1.weight, padding=1), False))
    second = _norm(block.bn2, F.conv2d(first, block.conv2.weight, padding=1), False)
    torch.testing.assert_close(block(x), F.relu(second + x))


def test_masked_norm_keeps_the_statistics_of_the_plain_one() -> None:
    """Running mean, variance and count move as those of ``nn.BatchNorm2d``."""
    masked, plain = MaskedBatchNorm(3), nn.BatchNorm2d(3)
    with torch.no_grad():
        masked.mask.copy_(torch.tensor([2.0, 0.5, -1.0]))
    for seed in range(3):
        x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(seed)) + 1
        masked(x), plain(x)
    expected = dict(plain.named_buffers())
    for name, buffer in masked.named_buffers():
        assert torch.equal(buffer, expected[name]), name


@pytest.mark.parametrize("masks", [False, True])
def test_stages_halve_the_image_and_double_the_width(masks: bool) -> None:
    """No max-pool: 32 x 32 stays until the second stage, and ends at 4 x 4 with 8 w channels."""
    model = resnet18(5, masks=masks, width=4).eval()
    x = model.stem(torch.rand(2, 3, 32, 32))
    shapes = [tuple(x.shape[1:])]
    for stage in model.stages:
        x = stage(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(4, 32, 32), (4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 5)


def test_blocks_are_the_six_of_figure_1() -> None:
    """Initial convolution, four residual stages, final layer, in the order of the network."""
    model = resnet18(width=4)
    blocks = model.blocks()
    stages = [f"stage {i}" for i in range(1, 5)]
    assert list(blocks) == ["initial convolution", *stages, "final layer"]
    assert blocks["final layer"] == ["final.weight", "final.bias"]
    in_order = [name for names in blocks.values() for name in names]
    assert in_order == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("argument", ["classes", "width", "in_channels"])
def test_a_bad_size_is_refused_by_name_and_value(argument: str) -> None:
    """Sizes must be whole numbers from 1."""
    with pytest.raises(ValueError, match=f"{argument} must be a whole number >= 1, got 0"):
        resnet18(**{argument: 0})
    with pytest.raises(ValueError, match="masks must be True or False, got 1"):
        resnet18(masks=1)


def test_channels_last_is_for_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """With autocast or TF32 on CUDA; float32 convolutions without are slow on it."""
    cuda = torch.device("cuda")
    for tf32 in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
        assert on_tensor_cores(cuda) is tf32
        assert not on_tensor_cores(torch.device("cpu"))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
    assert on_tensor_cores(cuda)
