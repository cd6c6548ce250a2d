"""Pad, crop and flip: one gather for the batch, against one image at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aliceopt.lab.data import PadCropFlip, pad_crop_flip, unit_floats


def one_by_one(images: torch.Tensor, shifts: torch.Tensor, flips: torch.Tensor, padding: int):
    """The definition: pad with zeros, cut out, mirror; image after image, in numpy."""
    out = []
    for image, (dy, dx), flip in zip(images.numpy(), shifts.tolist(), flips.tolist(), strict=True):
        _, height, width = image.shape
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        crop = padded[:, dy : dy + height, dx : dx + width]
        out.append(crop[:, :, ::-1] if flip else crop)
    return torch.from_numpy(np.stack(out).copy())


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(0, 5),
    st.sampled_from([torch.uint8, torch.float32]),
    st.integers(0, 2**31),
)
def test_the_batch_equals_the_definition_image_by_image(
    batch, channels, height, width, padding, dtype, seed
):
    """Exact, for bytes and floats, any size, images smaller than the padding too."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (batch, channels, height, width), generator=generator).to(dtype)
    shifts, flips = PadCropFlip(padding).draw(batch, generator)
    out = pad_crop_flip(images, shifts, flips, padding)
    assert out.dtype == dtype
    assert torch.equal(out, one_by_one(images, shifts, flips, padding))


def test_every_shift_and_flip_of_the_usual_padding_is_exact():
    """All 81 shifts with and without flip, once each."""
    grid = torch.cartesian_prod(torch.arange(9), torch.arange(9), torch.arange(2))
    images = torch.arange(1, 3 * 32 * 32 + 1).remainder(251).to(torch.uint8).view(1, 3, 32, 32)
    images = images.repeat(len(grid), 1, 1, 1)
    out = pad_crop_flip(images, grid[:, :2], grid[:, 2])
    assert torch.equal(out, one_by_one(images, grid[:, :2], grid[:, 2], 4))


def test_a_shift_by_the_padding_without_flip_changes_nothing():
    """(4, 4) is the image in its place."""
    images = torch.rand(5, 3, 32, 32)
    still = pad_crop_flip(images, torch.full((5, 2), 4), torch.zeros(5, dtype=torch.uint8))
    assert torch.equal(still, images)


def test_draws_cover_the_whole_range_evenly():
    """Shifts 0 to 8 and both flips come about equally often."""
    shifts, flips = PadCropFlip().draw(9000, torch.Generator().manual_seed(0))
    counts = torch.bincount(shifts.flatten(), minlength=9)
    assert len(counts) == 9
    assert counts.min() > 1800
    assert flips.float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_bytes_become_floats_from_zero_to_exactly_one():
    """All 256 values, each within half a unit in the last place or so of v / 255."""
    values = unit_floats(torch.arange(256).to(torch.uint8))
    assert values.dtype == torch.float32
    assert values[0] == 0
    assert values[255] == 1
    torch.testing.assert_close(values.double(), torch.arange(256).double() / 255, rtol=1e-7, atol=0)
