"""Masks: which weights go, that nothing else changes, and that torch reads them."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from aliceopt.compress import (
    input_norms,
    masks_of,
    prune,
    recalibrate,
    scores,
    sensitivity,
    weights_of,
)
from compress_cases import Bowl, backward_of, everything_of, net_closure, small_net, some_batches


def measured(net, **more):
    return sensitivity(net, net_closure(net), some_batches(3), 0.01, **more)


def test_on_a_diagonal_bowl_the_cheapest_set_goes():
    """By the closed form ``h w^2 / 2``, against the cheapest of all sets of three."""
    random = torch.Generator().manual_seed(3)
    h = torch.rand(8, generator=random, dtype=torch.float64) + 0.1
    start = torch.randn(8, generator=random, dtype=torch.float64)
    bowl = Bowl(h.diag(), torch.zeros(8, dtype=torch.float64), start)
    found = sensitivity(bowl, backward_of(bowl.loss), [1.0], 0.01)
    before = bowl.loss(1.0).item()
    sets = torch.combinations(torch.arange(8), 3)
    cheapest = (0.5 * h * start**2)[sets].sum(1).min()
    assert prune(bowl, found, 3 / 8, temper=1.0).sparsity == 3 / 8
    left = bowl.layer.weight[0]
    assert before - (0.5 * (h * left**2).sum()).item() == pytest.approx(float(cheapest))


def test_masks_are_torchs_own_and_can_be_made_final():
    net = small_net().eval()
    found = prune(net, measured(net), 0.6)
    total = sum(w.parameter.numel() for w in weights_of(net).values())
    zeros = sum(int((w.mask == 0).sum()) for w in weights_of(net).values())
    assert zeros == round(0.6 * total)
    assert found.sparsity == pytest.approx(zeros / total)
    assert torch_prune.is_pruned(net)
    whole = net[0].weight_orig.clone()
    output = net(some_batches(1)[0][0])
    for weight in weights_of(net).values():
        torch_prune.remove(weight.layer, "weight")
    assert torch.equal(net(some_batches(1)[0][0]), output)
    assert torch.equal(net[0].weight != 0, (net[0].weight == whole) & (whole != 0))


def test_scope_layer_removes_the_same_share_of_each():
    net = small_net().eval()
    found = prune(net, measured(net), 0.5, scope="layer")
    assert found.layers == {"0.weight": 0.5, "5.weight": 0.5}


def test_scope_row_removes_the_same_share_of_each_output():
    net = small_net().eval()
    prune(net, measured(net), 0.5, scope="row")
    assert (net[5].weight_mask.sum(1) == 32).all()
    assert (net[0].weight_mask.flatten(1).sum(1) == 5).all()  # four of nine go


def test_what_masks_removed_before_counts_and_stays_removed():
    """Scores given by hand, too; less than is gone cannot be asked for."""
    net = small_net().eval()
    prune(net, {name: w.values().abs() for name, w in weights_of(net).items()}, 0.5)
    gone = {name: w.mask == 0 for name, w in weights_of(net).items()}
    again = {name: torch.rand_like(w.values()) for name, w in weights_of(net).items()}
    found = prune(net, again, 0.7)
    really = 1 - sum(int(w.mask.sum()) for w in weights_of(net).values()) / (36 + 192)
    assert found.sparsity == pytest.approx(really) == pytest.approx(0.7, abs=0.003)
    assert all((w.mask[gone[name]] == 0).all() for name, w in weights_of(net).items())
    with pytest.raises(ValueError, match=r"70\.2% are removed already, more than the 50%"):
        prune(net, again, 0.5)


def test_layers_on_which_masks_do_not_work_are_left_out():
    """Weight norm makes weights of others; attention never calls its projection."""
    attention = nn.TransformerEncoderLayer(8, 2, 16)
    assert list(weights_of(attention)) == ["linear1.weight", "linear2.weight"]
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 2))
    assert list(weights_of(normed)) == ["1.weight"]


def test_a_sensitivity_with_several_radii_is_asked_which():
    net = small_net().eval()
    found = sensitivity(net, net_closure(net), some_batches(2), (0.01, 0.1))
    with pytest.raises(ValueError, match="which radius"):
        prune(net, found, 0.5)
    assert prune(net, found, 0.5, radius=0.1).sparsity == pytest.approx(0.5)


def test_two_of_four_keeps_the_better_two_of_every_four_inputs():
    """Against all six pairs; the convolution's rows of nine have no whole number of fours."""
    net = small_net().eval()
    worth = scores(net, measured(net))
    found = prune(net, worth, 0.5, structure="2:4")
    assert found.dense == ("0.weight",)
    mask = net[5].weight_mask.view(3, 16, 4)
    assert (mask.sum(-1) == 2).all()
    fours = worth["5.weight"].view(3, 16, 4)
    pairs = torch.combinations(torch.arange(4), 2)
    best = fours[..., pairs].sum(-1).amax(-1)
    torch.testing.assert_close((fours * mask).sum(-1), best)
    assert not hasattr(net[0], "weight_mask")


def test_recomputing_asks_between_rounds_and_never_brings_a_weight_back():
    net = small_net().eval()
    seen = []

    def measure():
        masks = {name: weight.mask.clone() for name, weight in weights_of(net).items()}
        seen.append(masks)
        return measured(net)

    found = prune(net, measured(net), 0.784, recompute=3, measure=measure)
    total = sum(mask.numel() for mask in seen[0].values())
    left = [sum(int(mask.sum()) for mask in masks.values()) for masks in seen]
    assert left == [round(total * 0.6), round(total * 0.36)]
    assert found.sparsity == pytest.approx(0.784, abs=1 / total)
    for name, weight in weights_of(net).items():
        assert (weight.mask <= seen[1][name]).all()
        assert (seen[1][name] <= seen[0][name]).all()


def test_rounds_can_go_by_scores_and_one_that_fails_undoes_those_before():
    """Weights, gradients, buffers and random state to the bit; a mask of before is back."""
    net = small_net().eval()

    def measure():
        if failing:
            raise RuntimeError("out of memory")
        return {name: w.values().abs() for name, w in weights_of(net).items()}

    failing = False
    first = measure()
    failing, before = True, everything_of(net)
    with pytest.raises(RuntimeError, match="out of memory"):
        prune(net, first, 0.8, recompute=2, measure=measure)
    assert all(map(torch.equal, everything_of(net), before))
    assert not torch_prune.is_pruned(net)
    prune(net, first, 0.3)
    before = everything_of(net)
    with pytest.raises(RuntimeError, match="out of memory"):
        prune(net, first, 0.8, recompute=2, measure=measure)
    assert all(map(torch.equal, everything_of(net), before))
    failing = False
    assert prune(net, first, 0.75, recompute=2, measure=measure).sparsity == 0.75


def test_masked_weights_stay_removed_in_training():
    net = small_net()
    prune(net, measured(net), 0.5)
    gone = {name: weight.mask == 0 for name, weight in weights_of(net).items()}
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    for batch in some_batches(3):
        optimizer.zero_grad()
        net_closure(net)(batch)
        optimizer.step()
    for name, weight in weights_of(net).items():
        assert (weight.values()[gone[name]] == 0).all()
        assert (weight.values()[~gone[name]] != 0).any()


@pytest.mark.parametrize(
    ("criterion", "oracle"),
    [
        ("magnitude", lambda w, s: w.abs()),
        ("taylor", lambda w, s: (w * s.mean("gradient")["5.weight"]).abs()),
        ("fisher", lambda w, s: s.mean("fisher")["5.weight"] * w**2),
        ("curvature", lambda w, s: s.mean("rms")["5.weight"] ** 0.5 * w**2),
        ("abs", lambda w, s: s.mean("abs")["5.weight"] * w**2),
        ("free", lambda w, s: s.mean("free")["5.weight"].clamp(min=0) ** 0.5 * w**2),
        ("glass", lambda w, s: 0.460659 * s.mean("glass")["5.weight"] ** 0.5 * w.abs() ** 1.5),
        (
            "both",
            lambda w, s: (
                0.5 * s.mean("rms")["5.weight"] ** 0.5 * w**2
                + 0.460659 * s.mean("glass")["5.weight"] ** 0.5 * w.abs() ** 1.5
            ),
        ),
        ("signed", lambda w, s: s.mean("signed")["5.weight"].abs() * w**2),
    ],
)
def test_scores_are_what_their_formulas_say(criterion, oracle):
    net = small_net().eval()
    found = measured(net, terms=("rms", "abs", "glass", "signed", "free", "gradient", "fisher"))
    score = scores(net, found, criterion)["5.weight"]
    expected = oracle(net[5].weight.detach(), found)
    torch.testing.assert_close(score, expected, rtol=1e-4, atol=1e-12)


def test_a_criterion_without_what_it_needs_is_refused():
    with pytest.raises(
        ValueError, match="criterion 'both' needs a sensitivity with 'rms' and 'glass'"
    ):
        scores(small_net(), criterion="both")


def test_wanda_weighs_by_the_norm_of_what_a_weight_meets():
    """For the convolution against inputs cut out by hand, for the linear layer by a hook."""
    net, batches = small_net().eval(), some_batches(2)
    norms = input_norms(net, lambda batch: net(batch[0]), batches)
    images = torch.cat([batch[0] for batch in batches])
    for i in range(3):
        for j in range(3):
            met = images[:, 0, i : i + 4, j : j + 4]
            assert norms["0.weight"][:, 0, i, j].tolist() == pytest.approx([met.norm().item()] * 4)
    inputs = net[:5](images)
    torch.testing.assert_close(norms["5.weight"][1], inputs.norm(dim=0))
    wanda = scores(net, criterion="wanda", norms=norms)["5.weight"]
    torch.testing.assert_close(wanda, net[5].weight.abs() * inputs.norm(dim=0))
    assert not net[0]._forward_pre_hooks


def test_input_norms_of_a_layer_that_is_never_called_are_refused():
    net = small_net().eval()
    with pytest.raises(ValueError, match=r"'5\.weight' was never called"):
        input_norms(net, lambda batch: net[0](batch[0]), some_batches(1))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_inputs_that_are_not_finite_are_refused_and_statistics_stay(bad):
    net = small_net().eval()
    before = everything_of(net)
    batches = [*some_batches(1), (torch.full((8, 1, 6, 6), bad), None)]
    with pytest.raises(ValueError, match=r"the statistics of '1' would not be finite"):
        recalibrate(net, lambda batch: net(batch[0]), batches)
    with pytest.raises(ValueError, match=r"the inputs of '0\.weight' are not finite"):
        input_norms(net, lambda batch: net(batch[0]), batches)
    assert all(map(torch.equal, everything_of(net), before))


def test_recalibration_is_the_plain_average_over_batches():
    net, batches = small_net().train(), some_batches(3)
    seen = [net[0](batch[0]) for batch in batches]
    assert recalibrate(net, lambda batch: net(batch[0]), batches) == 1
    means = torch.stack([x.mean((0, 2, 3)) for x in seen]).mean(0)
    variances = torch.stack([x.var((0, 2, 3)) for x in seen]).mean(0)
    torch.testing.assert_close(net[1].running_mean, means)
    torch.testing.assert_close(net[1].running_var, variances)
    assert net[1].momentum == 0.1
    assert net[4].training
    assert recalibrate(small_net(norm=False), lambda batch: None, []) == 0
    spare = nn.ModuleDict({"used": nn.BatchNorm1d(2), "not": nn.BatchNorm1d(2)})
    spare["not"].running_mean.fill_(5.0)
    recalibrate(spare, lambda batch: spare["used"](batch), [torch.randn(4, 2)])
    assert spare["not"].running_mean.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("batches", [[], "bad"])
def test_a_recalibration_that_fails_leaves_the_statistics(batches):
    net = small_net().train()
    net(some_batches(1)[0][0])
    before = everything_of(net)
    with pytest.raises((ValueError, TypeError)):
        recalibrate(net, lambda batch: net(batch), batches)
    assert all(map(torch.equal, everything_of(net)[:-1], before[:-1]))
    assert net.training
    assert net[1].momentum == 0.1


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"sparsity": 1.2}, r"sparsity must be a number in \(0, 1\), got 1.2"),
        ({"sparsity": 0.0}, "got 0.0"),
        ({"sparsity": math.nan}, "got nan"),
        ({"scope": "block"}, "scope must be one of global, layer, row; got 'block'"),
        ({"structure": "4:8"}, "structure must be one of unstructured, 2:4, channels; got '4:8'"),
        ({"structure": "channels", "scope": "row"}, "channels go in one round, with scope global"),
        ({"structure": "channels"}, "channels need inputs, a batch"),
        ({"structure": "2:4", "sparsity": 0.6}, "2:4 removes one half in one round"),
        ({"recompute": 0}, "recompute must be a whole number >= 1, got 0"),
        ({"recompute": 3}, "recompute=3 needs measure"),
        ({"criterion": "luck"}, "criterion must be one of magnitude"),
        ({"criterion": "taylor"}, "'gradient' was not measured; there is rms"),
        ({"criterion": "wanda"}, "norms=input_norms"),
        ({"temper": -0.5}, r"temper must be a number in \[0, 2\], got -0.5"),
    ],
)
def test_bad_input_gets_one_sentence_and_changes_nothing(asked, told):
    net = small_net()
    found, before = measured(net), everything_of(net)
    with pytest.raises(ValueError, match=told):
        prune(net, found, **{"sparsity": 0.5, **asked})
    assert all(map(torch.equal, everything_of(net), before))
    assert not torch_prune.is_pruned(net)


def test_the_magnitude_needs_nothing_that_was_measured():
    one, other = small_net(), small_net()
    prune(one, None, 0.5, criterion="magnitude")
    prune(other, scores(other, criterion="magnitude"), 0.5)
    assert torch.equal(one[5].weight, other[5].weight)
    net = small_net()
    with pytest.raises(ValueError, match="criterion 'curvature' needs a sensitivity with 'rms'"):
        prune(net, None, 0.5)
    with pytest.raises(ValueError, match="there are no scores"):
        prune(net, {}, 0.5)
    assert not torch_prune.is_pruned(net)


def test_channels_without_their_package_are_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    net = small_net()
    found, before = measured(net), everything_of(net)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "aliceopt\[compress\]"'):
        prune(net, found, 0.5, structure="channels", inputs=some_batches(1)[0][0])
    assert all(map(torch.equal, everything_of(net), before))


def test_a_sensitivity_of_another_model_is_refused():
    found = measured(small_net())
    other = nn.Sequential(nn.Conv2d(1, 2, 3), *[nn.Identity()] * 4, nn.Linear(64, 3))
    with pytest.raises(
        ValueError, match=r"what was measured of '0\.weight' has shape \(4, 1, 3, 3\)"
    ):
        prune(other, found, 0.5)
    with pytest.raises(ValueError, match=r"'5\.weight' is no weight that can be removed"):
        prune(nn.Sequential(nn.Conv2d(1, 4, 3)), found, 0.5)
    worth = {"0.weight": torch.full((4, 1, 3, 3), math.nan)}
    with pytest.raises(ValueError, match="is not a number in places"):
        prune(small_net(), worth, 0.5)


def test_of_equal_scores_as_many_go_as_were_asked_for():
    masks, _ = masks_of({"a": torch.zeros(10, 10)}, 0.37, scope="global")
    assert int((~masks["a"]).sum()) == 37
