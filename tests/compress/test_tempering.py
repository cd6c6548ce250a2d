"""The exponent of a score by measured loss: the best of those tried, and nothing else changes."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from aliceopt.compress import (
    EXPONENTS,
    prune,
    recalibrate,
    refit,
    sensitivity,
    temper_by_loss,
    tempering,
    weights_of,
)
from aliceopt.compress.pruning import apply_masks
from compress_cases import Bowl, backward_of, everything_of, net_closure, small_net, some_batches
from interrupts import codes_of, interrupted

TRAINED, UNSEEN = some_batches(4), some_batches(3, seed=2)


def measured(net, batches=TRAINED):
    return sensitivity(net, net_closure(net), batches, 0.05, terms=("rms", "fisher", "gradient"))


def loss_of(net):
    return lambda batch: nn.functional.cross_entropy(net(batch[0]), batch[1])


def mender(net):
    def mend():
        recalibrate(net, lambda batch: net(batch[0]), TRAINED)
        if torch_prune.is_pruned(net):  # not where channels go
            refit(net, lambda batch: net(batch[0]), TRAINED)

    return mend


def all_of(net):
    """Tensors, and beside them all that pruning touches."""
    hooks = [hook for m in net.modules() for hook in m._forward_pre_hooks.values()]
    said = [list(vars(thing)) for thing in (*net.modules(), *hooks)]
    said += [[n, id(p), id(p.grad)] for n, p in net.named_parameters()]
    said += [[n, id(b)] for n, b in net.named_buffers()]
    said += [[m.training, list(m._parameters), getattr(m, "momentum", 0)] for m in net.modules()]
    said += [[getattr(hook, "_pruning_methods", ())] for hook in hooks]
    return everything_of(net), said


def same(one, other):
    return all(map(torch.equal, one[0], other[0])) and one[1] == other[1]


def test_the_loss_decides_and_not_what_was_measured():
    """Weights go by ``h w^2``, or where the loss is another, round one, by their size."""
    random = torch.Generator().manual_seed(5)
    h = torch.randn(40, generator=random, dtype=torch.float64).exp()
    start = torch.randn(40, generator=random, dtype=torch.float64)
    bowl = Bowl(h.diag(), torch.zeros(40, dtype=torch.float64), start)
    found = sensitivity(bowl, backward_of(bowl.loss), [1.0], 0.01)

    def removed(batch):  # what the loss of a bowl of that matrix has lost
        return batch @ (bowl.layer.weight[0] - start).square() / 2

    assert temper_by_loss(bowl, found, 0.5, removed, [h]) == 1.0
    assert temper_by_loss(bowl, found, 0.5, removed, [torch.ones_like(h)]) == 0.0
    assert temper_by_loss(bowl, found, 0.5, removed, [h], tempers=(0.5, 0.0)) == 0.5


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"criterion": "fisher"},
        {"scope": "layer"},
        {"structure": "2:4"},
        {"structure": "channels", "inputs": TRAINED[0][0]},
        {"tempers": (2.0, 0.3), "scope": "row"},
    ],
)
def test_it_is_the_best_of_copies_pruned_and_mended(how):
    """On data that neither has seen; the model stays as it was, gradients and masks included."""
    if how.get("structure") == "channels":
        pytest.importorskip("torch_pruning")
    net = small_net(2).eval()
    net_closure(net)(TRAINED[0])  # gradients that are there already
    found, before = measured(net), all_of(net)
    more = {key: value for key, value in how.items() if key != "tempers"}
    half = 2 if how.get("criterion") == "fisher" else 1
    losses = {}
    for temper in how.get("tempers") or [exponent / half for exponent in EXPONENTS]:
        other = copy.deepcopy(net)
        prune(other, found, 0.5, temper=temper, **more)
        mender(other)()
        losses[temper] = sum(loss_of(other)(batch).item() for batch in UNSEEN) / 3
    assert len(set(losses.values())) > 1
    chosen = temper_by_loss(net, found, 0.5, loss_of(net), iter(UNSEEN), mend=mender(net), **how)
    assert losses[chosen] == pytest.approx(min(losses.values()))
    assert same(all_of(net), before)


def masked_net():
    """In training mode, with gradients, and masked twice, so that torch keeps a container."""
    net = small_net()
    net_closure(net)(TRAINED[0])
    for share in (0.2, 0.4):
        prune(net, {name: w.values().abs() for name, w in weights_of(net).items()}, share)
    return net


@pytest.mark.parametrize("make", [small_net, masked_net])
def test_an_interrupt_anywhere_leaves_the_model_as_it_was(make):
    """Before every eleventh line; dropout draws, BatchNorms learn, mending changes everything."""
    net = make()
    found, codes = measured(net), codes_of(tempering, prune, apply_masks)
    before, places, place = all_of(net), set(), 1

    def mend():
        with torch.no_grad():
            for tensor in (*net.parameters(), *net.buffers()):
                tensor.add_(1)
        net.eval()

    def work():
        temper_by_loss(net, found, 0.6, loss_of(net), UNSEEN[:1], mend=mend, tempers=(1, 0))

    while where := interrupted(work, codes, place, event="line"):
        places.add(where.partition(",")[0])
        assert same(all_of(net), before), where
        place += 11
    assert {"temper_by_loss", "prune", "restore", "apply_masks"} <= places
    assert same(all_of(net), before)


@pytest.mark.parametrize("fails", ["loss", "mend"])
def test_one_that_fails_at_the_second_exponent_changes_nothing(fails):
    """Even where mending trains: what it did to weights and gradients is undone."""
    net = masked_net()
    found, before, calls = measured(net), all_of(net), []

    def call(name):
        calls.append(name)
        if calls.count(fails) == 2:
            raise RuntimeError("out of memory")

    def mend():
        net_closure(net)(TRAINED[1])
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        call("mend")

    def loss(batch):
        call("loss")
        return loss_of(net)(batch)

    with pytest.raises(RuntimeError, match="out of memory"):
        temper_by_loss(net, found, 0.6, loss, UNSEEN[:1], mend=mend)
    assert calls.count("mend") == 2
    assert same(all_of(net), before)


def test_a_loss_that_is_no_number_is_never_the_lowest():
    net = small_net().eval()
    found, told = measured(net), iter([math.nan, 0.5, 0.5, math.inf])
    chosen = temper_by_loss(net, found, 0.5, lambda b: next(told), [0], tempers=(0, 1, 0.5, 2))
    assert chosen == 1
    told = iter([math.nan, math.inf, 0.5])
    with pytest.raises(ValueError, match=r"is not finite with any exponent of 0, 0\.5"):
        temper_by_loss(net, found, 0.5, lambda b: next(told), [0], tempers=(0, 0.5))


def test_an_exponent_that_breaks_the_model_is_never_chosen():
    """Recalibration finds statistics that are not finite; the others are tried on."""
    net = small_net().eval()
    found, before, tried = measured(net), all_of(net), []

    def mend():
        tried.append(1)
        if len(tried) == 1:
            net[0].bias.data.fill_(math.inf)
        recalibrate(net, lambda batch: net(batch[0]), TRAINED)

    assert temper_by_loss(net, found, 0.5, loss_of(net), UNSEEN, mend=mend, tempers=(0, 1)) == 1
    assert len(tried) == 2
    assert same(all_of(net), before)


def test_batches_that_are_no_numbers_are_told_from_a_model_that_breaks():
    net = small_net().eval()
    found, before = measured(net), all_of(net)
    with pytest.raises(ValueError, match="the loss of the whole model on these batches is nan"):
        temper_by_loss(net, found, 0.5, lambda b: math.nan, [0], tempers=(0, 0.5))
    assert same(all_of(net), before)
    calls = []

    def loss(batch):  # the third is that of the whole model
        calls.append(batch)
        net[1].running_mean.add_(torch.rand(4))
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return math.nan

    with pytest.raises(RuntimeError, match="out of memory"):
        temper_by_loss(net, found, 0.5, loss, [0], tempers=(0, 0.5))
    assert same(all_of(net), before)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"measured": {}}, "a sensitivity is needed, got dict"),
        ({"sparsity": 1.2}, r"sparsity must be a number in \(0, 1\), got 1.2"),
        ({"loss": 3.0}, "loss must be callable, got float"),
        ({"batches": []}, "there are no batches"),
        ({"criterion": "taylor"}, "one with an exponent, fisher, curvature, .* got 'taylor'"),
        ({"criterion": "luck"}, "one with an exponent, fisher, curvature, .* got 'luck'"),
        ({"criterion": "free"}, "'free' was not measured"),
        ({"tempers": ()}, "tempers must be some numbers to choose from, got none"),
        ({"tempers": (0.5, -1)}, r"temper must be a number in \[0, 2\], got -1"),
        ({"tempers": ("half",)}, r"temper must be a number in \[0, 2\], got 'half'"),
        ({"scope": "block"}, "scope must be one of global, layer, row; got 'block'"),
    ],
)
def test_bad_input_gets_one_sentence_and_changes_nothing(asked, told):
    net = small_net()
    given = {"measured": measured(net), "sparsity": 0.5, "loss": loss_of(net), "batches": UNSEEN}
    before = all_of(net)
    with pytest.raises(ValueError, match=told):
        temper_by_loss(net, **{**given, **asked})
    assert same(all_of(net), before)
