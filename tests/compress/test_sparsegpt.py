"""SparseGPT's update against least squares, and its masks beside other criteria's."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from aliceopt.compress import input_norms, prune, refit, scores, sparsegpt, weights_of
from aliceopt.compress.sparsegpt import BLOCK, reconstruct
from compress_cases import everything_of, small_net, some_batches

EXACT = 1e-12
"""A damping that changes nothing."""


def mixed_inputs(n: int, features: int, seed: int = 0) -> Tensor:
    """Correlated features of different sizes: what a plain norm does not see."""
    random = torch.Generator().manual_seed(seed)
    mixing = torch.randn(features, features, generator=random) / features**0.5
    sizes = torch.rand(features, generator=random) + 0.1
    return torch.randn(n, features, generator=random) @ (mixing + torch.eye(features)) * sizes


def rows_of(count: int, features: int, seed: int = 1) -> Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(seed))


def test_one_removed_weight_is_made_up_for_as_the_surgeon_does_it():
    """The first column: ``w - w_0 / V_00 V[0]``, V the inverse of H, and the rest of it exact."""
    x, w = mixed_inputs(40, 6).double(), rows_of(3, 6).double()
    gone = torch.zeros(3, 6, dtype=torch.bool)
    gone[:, 0] = True
    new, mask = reconstruct(w, x.T @ x, 1 / 6, gone=gone, damping=EXACT)
    assert torch.equal(mask, ~gone)
    inverse = torch.linalg.inv(x.T @ x)
    torch.testing.assert_close(new, w - w[:, :1] / inverse[0, 0] * inverse[0])
    best = torch.linalg.lstsq(x[:, 1:], x @ w.T).solution.T
    torch.testing.assert_close(new[:, 1:], best)


@pytest.mark.parametrize("column", [1, 4])
def test_columns_before_are_settled_and_those_behind_are_least_squares(column: int):
    x, w = mixed_inputs(40, 6).double(), rows_of(2, 6).double()
    gone = torch.zeros(2, 6, dtype=torch.bool)
    gone[:, column] = True
    new, _ = reconstruct(w, x.T @ x, 1 / 6, gone=gone, damping=EXACT)
    torch.testing.assert_close(new[:, :column], w[:, :column])
    missing = x[:, column:] @ w[:, column:].T
    best = torch.linalg.lstsq(x[:, column + 1 :], missing).solution.T
    torch.testing.assert_close(new[:, column + 1 :], best)


def test_the_cheapest_weight_goes_by_the_error_that_is_left():
    """Of one row: every weight removed by least squares on those behind it, by brute force."""
    x, w = mixed_inputs(50, 5).double(), rows_of(1, 5).double()
    costs = []
    for j in range(5):
        rest, lost = x[:, j + 1 :], x[:, j] * w[0, j]
        found = (
            torch.linalg.lstsq(rest, lost[:, None]).solution[:, 0] if j < 4 else lost.new_empty(0)
        )
        costs.append(float((lost - rest @ found).square().sum()))
    _, mask = reconstruct(w, x.T @ x, 1 / 5, damping=EXACT)
    assert mask[0].tolist() == [j != costs.index(min(costs)) for j in range(5)]


def linear(features: int = 24, rows: int = 16) -> nn.Linear:
    layer = nn.Linear(features, rows)
    layer.weight.data = rows_of(rows, features)
    return layer


@pytest.mark.parametrize("structure", ["unstructured", "2:4"])
def test_the_outputs_change_less_than_with_wanda_or_magnitude(structure: str):
    """On inputs that were not seen, too."""
    seen, fresh = mixed_inputs(400, 24).split(200)
    errors = {}
    for name in ("sparsegpt", "wanda", "magnitude"):
        layer = linear()
        before = layer(fresh)
        if name == "sparsegpt":
            found = sparsegpt(layer, layer, [seen], 0.5, structure=structure)
        else:
            norms = input_norms(layer, layer, [seen])
            worth = scores(layer, criterion=name, norms=norms)
            found = prune(layer, worth, 0.5, scope="row", structure=structure)
        assert found.sparsity == 0.5
        errors[name] = float((layer(fresh) - before).detach().square().sum())
    assert errors["sparsegpt"] < 0.8 * min(errors["wanda"], errors["magnitude"])


def test_two_of_four_are_kept_and_other_rows_stay_dense():
    net, batches = small_net().eval(), some_batches(4)
    found = sparsegpt(net, lambda batch: net(batch[0]), batches, structure="2:4")
    assert found.dense == ("0.weight",)  # nine inputs a row
    assert not hasattr(net[0], "weight_mask")
    assert (net[5].weight_mask.view(3, 16, 4).sum(-1) == 2).all()


def test_a_convolution_is_a_linear_layer_of_its_patches():
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False)
    images = torch.randn(20, 2, 6, 6, generator=torch.Generator().manual_seed(2))
    patches = nn.functional.unfold(images, 3, padding=1, stride=2).transpose(1, 2).flatten(0, 1)
    flat = nn.Linear(18, 3, bias=False)
    flat.weight.data = conv.weight.detach().flatten(1).clone()
    sparsegpt(conv, conv, [images], 0.5)
    sparsegpt(flat, flat, [patches], 0.5)
    torch.testing.assert_close(conv.weight.flatten(1), flat.weight)


def test_autocast_around_the_forward_does_not_blur_what_is_added_up():
    """The inputs of the first layer are float32 with it or without; so then is their H."""
    plain, blurred, inputs = linear(), linear(), mixed_inputs(200, 24)

    def forward(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return blurred(batch)

    sparsegpt(plain, plain, [inputs], 0.5)
    sparsegpt(blurred, forward, [inputs], 0.5)
    assert torch.equal(plain.weight, blurred.weight)


def test_a_layer_sees_what_those_pruned_before_it_give():
    """The second of two layers, against itself pruned alone on the first one's new outputs."""
    first, second = linear(12, 8), linear(8, 4)
    alone = linear(8, 4)
    inputs = mixed_inputs(100, 12)
    sparsegpt(nn.Sequential(first, second), nn.Sequential(first, second), [inputs], 0.5)
    sparsegpt(alone, alone, [first(inputs).detach()], 0.5)
    torch.testing.assert_close(second.weight, alone.weight)


def test_masks_hold_more_than_a_block_of_columns_and_what_was_gone_stays_gone():
    """Every block loses its share; a second call removes more and brings nothing back."""
    layer, inputs = linear(BLOCK + 32, 8), mixed_inputs(400, BLOCK + 32)
    assert sparsegpt(layer, layer, [inputs], 0.25).sparsity == 0.25
    gone = layer.weight_mask == 0
    assert int(gone[:, :BLOCK].sum()) == BLOCK * 8 // 4
    assert sparsegpt(layer, layer, [inputs], 0.5).sparsity == 0.5
    assert (layer.weight_mask[gone] == 0).all()
    torch_prune.remove(layer, "weight")
    assert int((layer.weight == 0).sum()) == 4 * (BLOCK + 32)


def test_features_that_are_never_met_go_first():
    layer, inputs = linear(6, 2), mixed_inputs(50, 6)
    inputs[:, 3] = 0
    sparsegpt(layer, layer, [inputs], 1 / 6)
    assert (layer.weight_mask[:, 3] == 0).all()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"sparsity": 1.2}, r"sparsity must be a number in \(0, 1\), got 1.2"),
        ({"structure": "4:8"}, "structure must be one of unstructured, 2:4; got '4:8'"),
        ({"structure": "2:4", "sparsity": 0.6}, "2:4 removes one half; got sparsity 0.6"),
        ({"damping": 0.0}, r"damping must be a number in \(0, inf\), got 0.0"),
        ({"batches": []}, "there are no batches"),
        ({"batches": some_batches(1) + [(torch.full((8, 1, 6, 6), math.nan), None)]}, "not finite"),
    ],
)
def test_bad_input_gets_one_sentence_and_changes_nothing(asked, told):
    net = small_net().eval()
    before = everything_of(net)
    with pytest.raises(ValueError, match=told):
        sparsegpt(net, lambda batch: net(batch[0]), **{"batches": some_batches(1), **asked})
    assert all(map(torch.equal, everything_of(net), before))
    assert not torch_prune.is_pruned(net)


def test_a_failure_on_the_way_brings_weights_and_masks_back():
    """After the first layer was pruned; the mask of before is back too."""
    net, batches, calls = small_net().eval(), some_batches(1), []
    prune(net, {n: w.values().abs() for n, w in weights_of(net).items()}, 0.2)
    before = everything_of(net)

    def forward(batch):
        calls.append(1)
        if len(calls) == 3:  # the order, the first layer, the second
            assert int((net[0].weight_mask == 0).sum()) == 18
            raise RuntimeError("the disk is gone")
        return net(batch[0])

    with pytest.raises(RuntimeError, match="the disk is gone"):
        sparsegpt(net, forward, batches, 0.5)
    assert all(map(torch.equal, everything_of(net), before))
    assert torch.equal(net[0].weight, net[0].weight_orig * net[0].weight_mask)


@pytest.mark.parametrize("asked", ["sparsegpt", "refit", "norms"])
def test_batch_norms_and_random_state_do_not_notice_in_training_mode(asked: str):
    """Dropout draws, and running statistics would move with every pass."""
    net, batches = small_net().train(), some_batches(2)
    if asked == "refit":
        prune(net, {n: w.values().abs() for n, w in weights_of(net).items()}, 0.5)
    statistics = [net[1].running_mean.clone(), net[1].num_batches_tracked.clone()]
    before = torch.get_rng_state()
    run = {"sparsegpt": sparsegpt, "refit": refit, "norms": input_norms}[asked]
    run(net, lambda batch: net(batch[0]), batches)
    assert torch.equal(net[1].running_mean, statistics[0])
    assert torch.equal(net[1].num_batches_tracked, statistics[1])
    assert asked == "norms" or torch.equal(torch.get_rng_state(), before)


def test_a_pass_ends_at_the_layer_it_is_made_for_however_often_that_is_called():
    """Three layers, the second called twice: H has both calls, and nothing behind is computed."""
    first, twice, last = linear(6, 5), linear(5, 5), linear(5, 2)
    inputs, calls = mixed_inputs(50, 6), []
    last.register_forward_hook(lambda *_: calls.append("last"))
    model = nn.ModuleList([first, twice, last])

    def forward(batch: Tensor) -> Tensor:
        return last(twice(twice(first(batch))))

    whole, alone = copy.deepcopy(twice), copy.deepcopy(twice)
    sparsegpt(model, forward, [inputs], 0.4)
    assert calls == ["last"]  # when the order was found; its own pass ends before it computes
    seen = first(inputs).detach()
    sparsegpt(alone, alone, [torch.cat([seen, whole(seen).detach()])], 0.4)
    torch.testing.assert_close(twice.weight, alone.weight)


def test_the_scale_of_inputs_does_not_matter_where_some_are_never_met():
    """Inputs a thousand times smaller: the same masks and weights."""
    inputs = mixed_inputs(50, 8)
    inputs[:, ::3] = 0
    large, small = linear(8, 4), linear(8, 4)
    sparsegpt(large, large, [inputs], 0.5)
    sparsegpt(small, small, [inputs / 1024], 0.5)
    torch.testing.assert_close(small.weight, large.weight)
