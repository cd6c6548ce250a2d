"""A convnet for a processor, and for 8 x 8 digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from aliceopt.lab.models.blocks import Blocks, group_by_prefix

from . import arguments


class ConvNet(nn.Module):
    """3 x 3 convolutions, each with an activation, then one linear layer.

    The first convolution keeps the size of the image, each later one halves it by a stride of 2.
    No pooling: a maximum would have kinks of its own. With a smooth ``activation`` the whole loss
    is smooth, so that two networks, with and without glass, differ in nothing else. About 98 % on
    8 x 8 digits within 20 epochs of Adam.

    Parameters: ``9 c w + w`` a convolution from ``c`` to ``w`` channels (``9 c w + 2 w`` with
    ``norm``, whose BatchNorm takes the place of the bias), then ``(w H W / 4^(n-1) + 1) classes``
    after ``n`` of them (sizes that are not even round up).
    Weights are normal with variance ``2/fan-in`` for convolutions and ``1/fan-in`` for the last
    layer, biases 0.

    >>> sum(p.numel() for p in convnet().parameters())  # 160 + 4640 + 5130
    9930
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        image: Sequence[int] = (1, 8, 8),
        widths: Sequence[int] = (16, 32),
        activation: str = "relu",
        norm: bool = False,
    ):
        super().__init__()
        arguments.require_whole(classes=classes)
        arguments.require_switch(norm=norm)
        shape = arguments.require_whole_each("image", image)
        if len(shape) != 3:
            raise ValueError(f"image must be (channels, height, width), got {image!r}")
        channels, height, width = shape
        self.stages = nn.ModuleList()
        for i, wide in enumerate(arguments.require_whole_each("widths", widths)):
            stride = 1 if i == 0 else 2
            convolution = nn.Conv2d(channels, wide, 3, stride=stride, padding=1, bias=not norm)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            if convolution.bias is not None:
                nn.init.zeros_(convolution.bias)
            norms = [nn.BatchNorm2d(wide)] if norm else []
            self.stages.append(
                nn.Sequential(convolution, *norms, arguments.activation_named(activation))
            )
            channels, height, width = wide, -(-height // stride), -(-width // stride)
        self.final = nn.Linear(channels * height * width, classes)
        nn.init.kaiming_normal_(self.final.weight, nonlinearity="linear")
        nn.init.zeros_(self.final.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[B, classes]`` of images ``[B, C, H, W]``."""
        for stage in self.stages:
            images = stage(images)
        return cast(Tensor, self.final(images.flatten(1)))

    def blocks(self) -> Blocks:
        """One block a convolution, then ``final layer``."""
        stages = {f"convolution {i + 1}": [f"stages.{i}"] for i in range(len(self.stages))}
        return group_by_prefix(self, stages | {"final layer": ["final"]})


convnet = ConvNet
