"""ResNet18 for small images: the paper's, with channel masks, and the plain one."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aliceopt.lab.models.blocks import Blocks, group_by_prefix

from . import arguments


class MaskedBatchNorm(nn.BatchNorm2d):
    """``mask(bn(x))``: batch normalisation, then a learned scale per channel that starts at 1.

    Both are linear in a channel, ``m (w x + b) = (m w) x + m b``, so the mask multiplies ``w``
    and ``b`` and costs nothing per pixel.
    """

    def __init__(self, channels: int):
        super().__init__(channels)
        self.mask = nn.Parameter(torch.ones(channels))

    def forward(self, input: Tensor) -> Tensor:
        """Masked and normalised ``[B, C, H, W]``; running statistics move as in the base."""
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return F.batch_norm(
            input,
            self.running_mean,
            self.running_var,
            self.mask * self.weight,
            self.mask * self.bias,
            self.training,
            cast(float, self.momentum),
            self.eps,
        )


class MaskedConv(nn.Conv2d):
    """``mask(conv(x))`` with no bias: the mask multiplies the filters, not the pixels."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs, 3, padding=1, bias=False)
        self.mask = nn.Parameter(torch.ones(outputs))

    def forward(self, input: Tensor) -> Tensor:
        """Masked convolution of ``[B, C, H, W]``."""
        return F.conv2d(input, self.mask[:, None, None, None] * self.weight, padding=1)


def on_tensor_cores(device: torch.device) -> bool:
    """Whether convolutions there are rounded to fewer bits, by autocast or as TF32."""
    rounded = torch.is_autocast_enabled("cuda") or torch.backends.cudnn.allow_tf32
    return device.type == "cuda" and rounded


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Identity where the shape stays, else 1 x 1 convolution and BatchNorm; never masked."""
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    convolution = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class PlainBlock(nn.Module):
    """``relu(bn2(conv2(relu(bn1(conv1 x)))) + shortcut x)``: He et al., basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _convolution(outputs, outputs, 1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, inputs, H, W]`` to ``[B, outputs, H / stride, W / stride]``."""
        inner = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


class MaskedBlock(nn.Module):
    """``mask3(bn2(relu(mask2(conv2(relu(mask1(bn1(conv1 x))))) + shortcut x)))``.

    The second normalisation comes after the ReLU of the sum, as in the authors' scripts, so a
    block gives out numbers of both signs. mask1 and mask3 live in ``bn1`` and ``bn2``, mask2 in
    ``conv2``.
    """

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, stride)
        self.bn1 = MaskedBatchNorm(outputs)
        self.conv2 = MaskedConv(outputs, outputs)
        self.bn2 = MaskedBatchNorm(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, inputs, H, W]`` to ``[B, outputs, H / stride, W / stride]``."""
        inner = F.relu(self.bn1(self.conv1(x)))
        return cast(Tensor, self.bn2(F.relu(self.conv2(inner) + self.shortcut(x))))


class ResNet18(nn.Module):
    """ResNet18 for small images: 3 x 3 stem, no max-pool, widths w, 2w, 4w, 8w, two blocks each.

    After the four stages the mean over the image and a linear layer.

    ``masks=True`` is the paper's network. The stem is ``relu(mask(bn(conv x)))``, the first half
    of a block; shortcuts have no mask. ``masks=False`` is the plain CIFAR ResNet18.

    Parameters of the plain network with width w, c channels, n classes: stem ``9 c w + 2 w``;
    first stage ``36 w^2 + 8 w``; a later one, from a to 2a channels,
    ``9(2 a^2 + 3 (2a)^2) + 2 a^2 + 10 (2a) = 128 a^2 + 20 a`` with its shortcut; final
    ``(8 w + 1) n``. Together ``2724 w^2 + (150 + 9 c + 8 n) w + n``: 11,173,962 at w = 64, c = 3,
    n = 10. Masks add w in the stem and three times the width of each block,
    ``w + 6 (w + 2 w + 4 w + 8 w) = 91 w``: 5,824 more, 11,179,786 in all.

    Weights are torch's own: filters uniform within ``1/sqrt(fan-in)``, BatchNorm 1 and 0, masks 1.

    >>> sum(p.numel() for p in resnet18(width=4).parameters())
    44986
    """

    ends = ("stem", "final")
    """What is no hidden layer: Muon leaves it to AdamW."""

    def __init__(
        self, classes: int = 10, *, masks: bool = True, width: int = 64, in_channels: int = 3
    ):
        super().__init__()
        arguments.require_whole(classes=classes, width=width, in_channels=in_channels)
        arguments.require_switch(masks=masks)
        block = MaskedBlock if masks else PlainBlock
        norm = MaskedBatchNorm if masks else nn.BatchNorm2d
        self.stem = nn.Sequential(_convolution(in_channels, width, 1), norm(width), nn.ReLU())
        self.stages = nn.ModuleList()
        inputs = width
        for stage in range(4):
            wide, stride = width * 2**stage, 1 if stage == 0 else 2
            self.stages.append(nn.Sequential(block(inputs, wide, stride), block(wide, wide, 1)))
            inputs = wide
        self.final = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[B, classes]`` of images ``[B, in_channels, H, W]``, any size from 1 x 1."""
        if on_tensor_cores(images.device):  # channels last: a third less time a step
            images = images.contiguous(memory_format=torch.channels_last)
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return cast(Tensor, self.final(x.mean((2, 3))))

    def blocks(self) -> Blocks:
        """The six blocks of Figure 1: initial convolution, four residual stages, final layer."""
        stages = {f"stage {i + 1}": [f"stages.{i}"] for i in range(4)}
        ends = {"initial convolution": ["stem"]} | stages | {"final layer": ["final"]}
        return group_by_prefix(self, ends)


resnet18 = ResNet18
