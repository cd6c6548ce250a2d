"""The vision transformer and its attention of linear cost."""

from __future__ import annotations

import pytest
import torch

from aliceopt.lab.models import vit
from aliceopt.lab.models.transformer import SelfAttention
from aliceopt.lab.models.vit import cut_patches, efficient_attention


def test_efficient_attention_equals_its_square_matrix_form() -> None:
    """``Q' (K'^T V) = (Q' K'^T) V`` with Q' a softmax over features, K' one over positions."""
    g = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 9, 5, generator=g, dtype=torch.float64)
    matrix = torch.exp(q) / torch.exp(q).sum(-1, keepdim=True)
    matrix = matrix @ (torch.exp(k) / torch.exp(k).sum(-2, keepdim=True)).transpose(-2, -1)
    assert matrix.shape == (2, 4, 9, 9)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 4, 9, dtype=torch.float64))
    torch.testing.assert_close(efficient_attention(q, k, v), matrix @ v)


def test_heads_are_slices_that_do_not_mix() -> None:
    """Head h reads and writes columns h d to (h + 1) d of query, key, value and result."""
    torch.manual_seed(0)
    layer = SelfAttention(6, 2, efficient_attention).double()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    q, k, v = layer.inward(x).chunk(3, -1)
    heads = [efficient_attention(q[..., s], k[..., s], v[..., s]) for s in (slice(3), slice(3, 6))]
    torch.testing.assert_close(layer(x), layer.outward(torch.cat(heads, -1)))


def test_patches_are_tiles_in_reading_order() -> None:
    """Patch r, c of an image is its tile at r p, c p with channels outermost."""
    images = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6)
    patches = cut_patches(images, 2)
    assert patches.shape == (2, 6, 12)
    assert torch.equal(patches[1, 4], images[1, :, 2:4, 2:4].flatten())


def test_parameters_follow_the_formula() -> None:
    """Patches, positions, ``(4 + 2 m) w^2 + (9 + m) w`` a layer, norm and final layer."""

    def expected(classes: int, w: int, m: int, layers: int, channels: int, n: int, p: int) -> int:
        layer = (4 + 2 * m) * w**2 + (9 + m) * w
        ends = (channels * p**2 + 1) * w + n * w + 2 * w + (w + 1) * classes
        return ends + layers * layer

    default = vit(1000)
    count = sum(p.numel() for p in default.parameters())
    assert count == expected(1000, 256, 4, 8, 3, 64, 8) == 6_641_384
    small = vit(7, image=12, patch=4, width=6, heads=3, layers=2, mlp_ratio=2, channels=1)
    assert sum(p.numel() for p in small.parameters()) == expected(7, 6, 2, 2, 1, 9, 4)


def test_logits_know_where_a_patch_is() -> None:
    """Learned positions: the mean over patches alone would not see their order."""
    torch.manual_seed(0)
    model = vit(3, image=16, width=16, heads=2, layers=2)
    x = torch.rand(2, 3, 16, 16)
    logits = model(x)
    assert logits.shape == (2, 3)
    assert not torch.allclose(logits, model(x.roll(8, 2)), atol=1e-6)
    with torch.no_grad():
        model.positions.zero_()
    torch.testing.assert_close(model(x), model(x.roll(8, 2)))


def test_blocks_are_patches_runs_of_layers_and_the_final_layer() -> None:
    """Eight layers make four runs of two: six blocks, as in Figure 1."""
    blocks = vit(10, width=8, heads=1).blocks()
    runs = [f"layers {i}-{i + 1}" for i in (1, 3, 5, 7)]
    assert list(blocks) == ["patches", *runs, "final layer"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"patch": 7}, "patch must divide image, got patch=7 and image=64"),
        ({"heads": 3}, "heads must divide width, got heads=3 and width=256"),
        ({"layers": 0}, "layers must be a whole number >= 1, got 0"),
        ({"mlp_ratio": 0.5}, "mlp_ratio.*got 0.5"),
        ({"activation": "swish"}, "activation must be one of relu.*got 'swish'"),
    ],
)
def test_a_bad_argument_is_refused_by_name_and_value(arguments: dict, words: str) -> None:
    """Errors name the value and, where two must agree, both."""
    with pytest.raises(ValueError, match=words):
        vit(10, **arguments)


def test_images_of_another_size_are_refused() -> None:
    """The positions belong to one image size; the error names both shapes."""
    with pytest.raises(ValueError, match=r"\[B, 3, 64, 64\], got \(2, 3, 32, 32\)"):
        vit(10, width=8, heads=1, layers=1)(torch.rand(2, 3, 32, 32))
