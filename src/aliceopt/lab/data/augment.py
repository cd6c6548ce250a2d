"""Augmentation of image batches, on the device they live on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor


class Augmentation(Protocol):
    """A change of the inputs in two halves, so that every device sees the same values."""

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random numbers for ``count`` examples, on the CPU, first dimension ``count``."""
        ...

    def __call__(self, inputs: Tensor, *draws: Tensor) -> Tensor:
        """The changed inputs: a function of its arguments alone, without randomness."""
        ...


@lru_cache(maxsize=16)
def _grids(height: int, width: int, padding: int, device: torch.device) -> Tensor:
    """Where the pixels of a crop at (0, 0) lie in the padded image: [2, H W], plain and mirrored.

    Made on the CPU and copied with waiting, once, so that any CUDA stream may use it afterwards.
    """
    rows = torch.arange(height)[:, None] * (width + 2 * padding)
    columns = torch.arange(width)
    both = torch.stack([rows + columns, rows + columns.flip(0)])
    return both.flatten(1).to(device)


def pad_crop_flip(images: Tensor, shifts: Tensor, flips: Tensor, padding: int = 4) -> Tensor:
    """Zero padding, a crop of the old size, then a horizontal flip; each image its own.

    With ``P`` the image padded by ``padding`` zeros on all sides and ``(dy, dx)`` its shift,
    ``out[c, y, x] = P[c, y + dy, x' + dx]`` where ``x' = W - 1 - x`` if flipped, else ``x``.

    ``images``: [B, C, H, W], any dtype. ``shifts``: int64 [B, 2] from 0 to 2 padding;
    (padding, padding) leaves the image in place. ``flips``: [B], 0 or 1. One gather for the whole
    batch; but for the first call the host waits for nothing, so a shift out of range is not
    noticed here.
    """
    batch, channels, height, width = images.shape
    padded = torch.nn.functional.pad(images, (padding,) * 4).flatten(2)
    grids = _grids(height, width, padding, images.device)
    corner = torch.add(shifts[:, 1:], shifts[:, :1], alpha=width + 2 * padding)
    source = grids.index_select(0, flips.long()) + corner
    source = source[:, None].expand(batch, channels, height * width)
    return padded.gather(2, source).view(batch, channels, height, width)


@dataclass(frozen=True)
class PadCropFlip:
    """The usual augmentation of CIFAR: shifts by up to ``padding`` pixels, and mirror images."""

    padding: int = 4

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Uniform shifts [count, 2] and fair flips [count]."""
        shifts = torch.randint(0, 2 * self.padding + 1, (count, 2), generator=generator)
        flips = torch.randint(0, 2, (count,), generator=generator)
        return shifts, flips

    def __call__(self, inputs: Tensor, *draws: Tensor) -> Tensor:
        """``pad_crop_flip`` with these shifts and flips."""
        shifts, flips = draws
        return pad_crop_flip(inputs, shifts, flips, self.padding)


def unit_floats(images: Tensor) -> Tensor:
    """Bytes 0..255 as float32 in [0, 1].

    A product with 1/255, not a quotient: CUDA divides by a constant through its reciprocal and the
    CPU does not, and batches must not depend on the device. 255 still becomes exactly 1.
    """
    return images.to(torch.float32).mul(1 / 255)
