"""Sensitivities against closed forms; nothing left behind; interrupted ones resume to the bit."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from aliceopt.compress import TERMS, Sensitivity, default_radius, sensitivity, weights_of
from compress_cases import Bowl, backward_of, everything_of, net_closure, small_net, some_batches

DIAGONAL = torch.tensor([2.0, -3.0, 0.5, 0.0], dtype=torch.float64)
START = torch.tensor([0.3, -0.2, 1.0, 0.7], dtype=torch.float64)
SLOPE = torch.tensor([0.1, 0.0, -0.4, 0.2], dtype=torch.float64)


def test_a_diagonal_bowl_is_measured_exactly():
    """Two batches of weights 1 and 3: means 2, squares 5, root mean square by the root."""
    bowl = Bowl(DIAGONAL.diag(), SLOPE, START)
    found = sensitivity(bowl, backward_of(bowl.loss), [1.0, 3.0], 0.01, terms=TERMS)
    mean = {term: found.mean(term)["layer.weight"][0] for term in TERMS}
    grad = DIAGONAL * START + SLOPE
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(mean["rms"], 5 * DIAGONAL.square(), **close)
    torch.testing.assert_close(mean["abs"], 2 * DIAGONAL.abs(), **close)
    torch.testing.assert_close(mean["signed"], 2 * DIAGONAL, **close)
    torch.testing.assert_close(mean["free"], 5 * DIAGONAL.square(), **close)
    torch.testing.assert_close(mean["glass"], torch.zeros_like(grad), **close)
    torch.testing.assert_close(mean["gradient"], 2 * grad, **close)
    torch.testing.assert_close(mean["fisher"], 5 * grad.square(), **close)
    curvature = found.curvature("free")["layer.weight"][0]
    torch.testing.assert_close(curvature, math.sqrt(5) * DIAGONAL.abs(), **close)
    assert (found.batches, found.gradients) == (2, 6)
    lean = sensitivity(bowl, backward_of(bowl.loss), [1.0, 3.0], 0.01)
    assert lean.gradients == 4


def test_signed_is_unbiased_for_a_full_matrix_and_the_others_see_the_row():
    """Off-diagonal entries are noise of zero mean in one, and size in the other."""
    random = torch.Generator().manual_seed(0)
    matrix = torch.randn(6, 6, generator=random, dtype=torch.float64)
    matrix = matrix + matrix.T
    zero = torch.zeros(6, dtype=torch.float64)
    bowl = Bowl(matrix, zero, zero)
    found = sensitivity(
        bowl, backward_of(bowl.loss), [1.0] * 400, 0.1, terms=("signed", "abs", "rms"), errors=True
    )
    off = (found.mean("signed")["layer.weight"][0] - matrix.diag()).abs()
    error = found.error("signed")["layer.weight"][0]
    expected = ((matrix.square().sum(1) - matrix.diag().square()) / 400).sqrt()
    torch.testing.assert_close(error, expected, rtol=0.15, atol=0)
    assert (off < 3.5 * error).all()
    mean = found.mean("abs")["layer.weight"][0]
    assert (mean > matrix.diag().abs() - 1e-12).all()
    row = found.curvature("rms")["layer.weight"][0]
    torch.testing.assert_close(row, matrix.norm(dim=1), rtol=0.1, atol=0)
    assert (row >= mean).all()


def test_a_kink_on_one_side_is_glass_and_adds_nothing_to_what_is_free_of_it():
    """The gradient jumps from -1 to 1 between center and one side: 2/lambda and zero."""
    layer = nn.Linear(3, 1, bias=False)
    layer.weight.data.zero_()

    def closure(batch):
        (layer.weight - 0.005).abs().sum().backward()

    found = sensitivity(layer, closure, [0] * 20, 0.01, terms=("glass", "free"))
    torch.testing.assert_close(found.mean("glass")["weight"], torch.full((1, 3), 200.0))
    assert (found.mean("free")["weight"] == 0).all()


def test_several_radii_in_one_pass_are_what_separate_passes_find():
    net, batches = small_net().eval(), some_batches(4)
    terms = ("abs", "glass", "fisher")
    together = sensitivity(net, net_closure(net), batches, (0.04, 0.01), terms=terms)
    assert together.radii == (0.01, 0.04)
    assert together.gradients == 4 * 5
    for radius in together.radii:
        alone = sensitivity(net, net_closure(net), batches, radius, terms=terms)
        for term in terms:
            for name, mean in alone.mean(term).items():
                torch.testing.assert_close(
                    together.mean(term, radius)[name], mean, rtol=1e-3, atol=1e-5
                )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_nothing_is_left_behind(training, fails):
    """Parameters, buffers, gradients, modes and random state, to the bit, also half-way."""
    net = small_net().train(training)
    net(some_batches(1)[0][0]).sum().backward()
    before, calls = everything_of(net), []

    def closure(batch):
        calls.append(batch)
        net_closure(net)(batch)
        if fails and len(calls) == 5:
            raise RuntimeError("no more")

    if fails:
        with pytest.raises(RuntimeError, match="no more"):
            sensitivity(net, closure, some_batches(4), terms=TERMS)
    else:
        sensitivity(net, closure, some_batches(4), terms=TERMS)
    assert all(map(torch.equal, everything_of(net), before))
    assert net.training == training


def test_an_interrupted_measurement_goes_on_to_the_same_bits(tmp_path):
    net, batches, path = small_net().eval(), some_batches(7), tmp_path / "sensitivity.pt"
    asked = {"terms": TERMS, "errors": True, "radius": (0.01, 0.02)}
    whole = sensitivity(net, net_closure(net), batches, **asked)
    seen = []

    def interrupt(done):
        seen.append(done)
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sensitivity(
            net, net_closure(net), batches, **asked, checkpoint=path, every=2, progress=interrupt
        )
    resumed = sensitivity(
        net, net_closure(net), batches, **asked, checkpoint=path, progress=seen.append
    )
    assert seen == [1, 2, 3, 4, 5, 5, 6, 7]
    assert (resumed.batches, resumed.gradients) == (whole.batches, whole.gradients)
    for kept in ("means", "spreads"):
        for key, there in getattr(whole, kept).items():
            for name, value in there.items():
                assert torch.equal(getattr(resumed, kept)[key][name], value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"radius": 0.5}, "radius 0.01, terms rms, seed 0, not radius 0.5"),
        ({"terms": ("signed",)}, "terms rms, seed 0, not radius 0.01, terms signed"),
        ({"seed": 3}, "not radius 0.01, terms rms, seed 3"),
    ],
)
def test_a_checkpoint_of_another_measurement_is_refused(tmp_path, change, told):
    net, path = small_net().eval(), tmp_path / "it"
    sensitivity(net, net_closure(net), some_batches(2), 0.01, checkpoint=path)
    asked = {"radius": 0.01, **change}
    with pytest.raises(ValueError, match=told):
        sensitivity(net, net_closure(net), some_batches(3), **asked, checkpoint=path)
    other = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="other weights"):
        sensitivity(other, lambda b: None, [0, 0, 0], 0.01, checkpoint=path)


def test_a_checkpoint_from_elsewhere_is_refused(tmp_path):
    """Other weights, a radius that differs in the ninth digit."""
    net, path = small_net().eval(), tmp_path / "it"
    asked = (net_closure(net), some_batches(2))
    sensitivity(net, *asked, 0.05, checkpoint=path)
    with pytest.raises(ValueError, match="another measurement needs another checkpoint"):
        sensitivity(net, *asked, 0.0500000001, checkpoint=path)
    with torch.no_grad():
        net[5].weight.mul_(3)
    with pytest.raises(ValueError, match=r"was measured where '5\.weight' had other values"):
        sensitivity(net, *asked, 0.05, checkpoint=path)


def test_a_checkpoint_that_cannot_go_on_is_refused_and_kept(tmp_path):
    """One of more batches than there are, and a file that is something else."""
    net, path = small_net().eval(), tmp_path / "it"
    sensitivity(net, net_closure(net), some_batches(3), 0.01, checkpoint=path)
    kept = path.read_bytes()
    with pytest.raises(ValueError, match="has 3 batches already, and not as many are given"):
        sensitivity(net, net_closure(net), some_batches(2), 0.01, checkpoint=path)
    assert path.read_bytes() == kept
    path.write_bytes(b"a shopping list")
    with pytest.raises(ValueError, match="is no measurement to go on from"):
        sensitivity(net, net_closure(net), some_batches(3), 0.01, checkpoint=path)
    assert path.read_bytes() == b"a shopping list"


def test_a_state_dict_is_read_with_weights_only(tmp_path):
    net = small_net().eval()
    found = sensitivity(net, net_closure(net), some_batches(2), 0.01)
    torch.save(found.state_dict(), tmp_path / "it")
    back = Sensitivity.from_state_dict(torch.load(tmp_path / "it", weights_only=True))
    assert torch.equal(back.mean("rms")["0.weight"], found.mean("rms")["0.weight"])


def test_low_precision_weights_are_measured_in_float32():
    """A move of bfloat16 is rounded to its grid, and divided by what it really was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.Linear(16, 4, bias=False).to(torch.bfloat16)
    inputs = torch.eye(16, dtype=torch.bfloat16)

    def closure(batch):
        layer(inputs).float().square().sum().mul(0.5).backward()

    found = sensitivity(layer, closure, [0] * 8, 0.05).curvature()["weight"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.ones(4, 16), rtol=0.05, atol=0)


@pytest.mark.parametrize("sparsity", [0.5, 0.8])
def test_the_default_radius_is_as_far_as_a_removal_moves_weights(sparsity):
    net = small_net()
    sizes = torch.cat([w.values().abs().flatten() for w in weights_of(net).values()]).tolist()
    gone = sorted(sizes)[: round(sparsity * len(sizes))]
    expected = math.sqrt(sum(x * x for x in gone) / len(sizes))
    assert default_radius(net, sparsity=sparsity) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"got 1\.5"):
        default_radius(net, sparsity=1.5)


def test_without_a_radius_the_default_is_taken():
    net = small_net()
    assert sensitivity(net, net_closure(net), some_batches(1)).radii == (default_radius(net),)
    nn.init.zeros_(net[0].weight)
    nn.init.zeros_(net[-1].weight)
    with pytest.raises(ValueError, match="what would be removed is zero already"):
        default_radius(net)
    nn.init.constant_(net[-1].bias, math.nan)  # which is not removed
    nn.init.constant_(net[-1].weight, math.nan)
    with pytest.raises(ValueError, match=r"the weights '5\.weight' are not finite"):
        default_radius(net)


def _no_backward(net):
    return lambda batch: net(batch[0])


def _not_finite(net):
    return lambda batch: (net(batch[0]).sum() * math.nan).backward()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"radius": 0.0}, r"radius must be a number in \(0, inf\), got 0.0"),
        ({"radius": math.nan}, "got nan"),
        ({"radius": (0.1, 0.1)}, "different numbers"),
        ({"radius": ()}, "different numbers"),
        ({"terms": ("hutchinson",)}, "got 'hutchinson'"),
        ({"terms": ()}, "one or more different ones"),
        ({"names": ["2.weight"]}, "'2.weight' is no weight that can be removed: did you mean"),
        ({"closure": 3}, "closure must be callable, got int"),
        ({"closure": _no_backward}, "batch 1: the closure left no gradient"),
        ({"closure": _not_finite}, "batch 1: the gradient of '0.weight' is not finite"),
        ({"batches": []}, "there are no batches"),
    ],
)
def test_bad_input_gets_one_sentence_and_changes_nothing(asked, told):
    net = small_net()
    before = everything_of(net)
    given = {"closure": net_closure, "batches": some_batches(2), "radius": 0.01, **asked}
    closure, batches = given.pop("closure"), given.pop("batches")
    with pytest.raises(ValueError, match=told):
        sensitivity(net, closure(net) if callable(closure) else closure, batches, **given)
    assert all(map(torch.equal, everything_of(net), before))


def test_what_was_not_measured_is_told():
    net = small_net().eval()
    found = sensitivity(net, net_closure(net), some_batches(1), (0.01, 0.02))
    with pytest.raises(ValueError, match=r"which radius\? There are"):
        found.mean("rms")
    with pytest.raises(ValueError, match=r"radius 0\.5 was not measured"):
        found.mean("rms", 0.5)
    with pytest.raises(ValueError, match="'glass' was not measured; there is rms"):
        found.mean("glass")
    with pytest.raises(ValueError, match="no errors of 'rms' were kept"):
        found.error("rms", 0.01)
    with pytest.raises(ValueError, match="curvatures are rms, abs, signed, free"):
        found.curvature("glass")


def test_shared_weights_are_left_out():
    """A tied head would be removed together with the embedding."""
    net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False))
    net[2].weight = net[0].weight
    assert list(weights_of(net)) == ["1.weight"]
    with pytest.raises(ValueError, match="no linear or convolution layer"):
        weights_of(nn.Embedding(3, 2))
    with pytest.raises(ValueError, match=r"a torch\.nn\.Module is needed, got list"):
        weights_of([])
