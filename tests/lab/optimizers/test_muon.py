"""Muon takes the hidden matrices, AdamW the rest, from one gradient."""

import copy

import pytest
import torch
from torch import nn

from aliceopt.lab import models
from aliceopt.lab.optimizers.methods import make_method
from aliceopt.lab.optimizers.muon import MatrixMuon, matrices_of, muon_and_adamw
from method_cases import assert_same, batches, drive, network


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.first(self.table(x.argmax(-1))).relu())


def test_muon_takes_the_matrices_and_adamw_the_rest():
    """Embeddings and biases are not Muon's; the two optimizers step from one gradient."""
    torch.manual_seed(0)
    mine = Words()
    theirs = copy.deepcopy(mine)
    method = make_method("muon", mine, {"lr": 0.02, "adam_lr": 1e-2}, seed=0)
    taken = [id(p) for p in method.optimizers[0].weights]
    assert taken == [id(mine.first.weight), id(mine.last.weight)]
    data = batches(5)
    drive(method, data)
    muon = torch.optim.Muon([theirs.first.weight, theirs.last.weight], lr=0.02)
    others = [theirs.table.weight, theirs.first.bias, theirs.last.bias]
    adam = torch.optim.AdamW(others, lr=1e-2, weight_decay=0.0, foreach=False)
    for x, y in data:
        theirs.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        muon.step()
        adam.step()
    assert_same(mine, theirs)
    assert method.gradients == 5


def test_muons_adamw_has_options_of_its_own():
    """One rate for both where Muon's steps are matched to AdamW's; else 1e-3, and no decay."""

    def rest(**options):
        method = make_method("muon", network(), {"lr": 0.02, **options}, seed=0)
        return method.optimizers[1].param_groups[0]

    assert (rest()["lr"], rest()["weight_decay"]) == (1e-3, 0.0)
    assert rest(adjust_lr_fn="match_rms_adamw")["lr"] == 0.02
    assert rest(adjust_lr_fn="match_rms_adamw", adam_lr=0.5)["lr"] == 0.5
    group = rest(adam_betas=[0.8, 0.9], adam_weight_decay=0.3)
    assert (group["betas"], group["weight_decay"]) == ((0.8, 0.9), 0.3)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_muon_takes_a_kernel_as_the_matrix_of_its_rows(layout):
    """[o, i, h, w] steps as torch's Muon does on [o, i h w], however it lies in memory."""
    torch.manual_seed(0)
    kernel, matrix = nn.Conv2d(3, 4, 3, bias=False), nn.Parameter(torch.empty(4, 27))
    kernel.to(memory_format=layout)
    with torch.no_grad():
        matrix.copy_(kernel.weight.flatten(1))
    options = {"lr": 0.02, "weight_decay": 0.1}
    method = make_method("muon", kernel, {**options, "kernels": True}, seed=0)
    muon, x = torch.optim.Muon([matrix], **options), torch.randn(5, 3, 6, 6)
    step = method.bind(lambda x, y: kernel(x).square().mean(), (x, x), capture=False)
    for _ in range(3):
        step(x, x)
        muon.zero_grad()
        nn.functional.conv2d(x, matrix.unflatten(1, (3, 3, 3))).square().mean().backward()
        muon.step()
    # Newton-Schulz runs in bfloat16, whose sums depend on the order of the columns.
    torch.testing.assert_close(kernel.weight.flatten(1), matrix, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("made", [float, torch.tensor])
def test_muons_rate_may_be_a_tensor_that_changes(made):
    """As torch's Muon steps, with decay, at falling rates; without a gradient it stays."""
    mine, theirs = network(), network()
    matrices = [p for p in mine.parameters() if p.dim() == 2]
    muon = MatrixMuon(matrices, lr=made(0.0), weight_decay=0.3)
    usual = torch.optim.Muon([p for p in theirs.parameters() if p.dim() == 2], weight_decay=0.3)
    rates = [0.05, 0.02, 0.0, 0.01]
    for rate, (x, y) in zip(rates, batches(4), strict=True):
        muon.param_groups[0]["lr"] = made(rate)
        usual.param_groups[0]["lr"] = rate
        for model, optimizer in ((mine, muon), (theirs, usual)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        assert_same(mine, theirs)
    muon.zero_grad()
    before = [p.clone() for p in matrices]
    muon.step()
    assert all(map(torch.equal, before, matrices))


@pytest.mark.parametrize(
    "change", [{"memory_format": torch.channels_last}, {"dtype": torch.double}]
)
def test_muon_follows_a_model_that_is_changed_after_it_was_made(change):
    """As an optimizer does that holds the parameters themselves."""
    pair = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 5)) for _ in "ab"]
    pair[1].load_state_dict(pair[0].state_dict())
    x = torch.randn(6, 3, 6, 6)
    for model, early in zip(pair, (True, False), strict=True):
        made = [] if not early else muon_and_adamw(model, {"lr": 0.1, "kernels": True})
        model.to(**change)
        made = made or muon_and_adamw(model, {"lr": 0.1, "kernels": True})
        before = [p.detach().clone() for p in model.parameters()]
        for _ in range(2):
            model.zero_grad()
            model(x.to(model[0].weight.dtype)).square().mean().backward()
            for optimizer in made:
                optimizer.step()
        assert not any(map(torch.equal, before, model.parameters()))
    assert_same(*pair)


def test_muon_goes_on_from_its_state():
    """A run that is taken up again after two of four steps ends where one without a break does."""
    data = batches(4)
    whole, first = (make_method("muon", network(), {"lr": 0.02}, seed=0) for _ in range(2))
    drive(whole, data)
    drive(first, data[:2])
    second = make_method("muon", copy.deepcopy(first.model), {"lr": 0.02}, seed=0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    drive(second, data[2:])
    assert_same(whole.model, second.model)


def test_muon_leaves_first_and_last_layers_to_adamw():
    """Of the lab's networks it takes what lies between: kernels only if told."""
    vit = models.vit(3, image=16, width=16, heads=2, layers=2)
    assert len(matrices_of(vit)) == 2 * 4
    gpt = models.gpt(20, context=4, layers=3, width=8, heads=1, tie=False)
    assert len(matrices_of(gpt)) == 3 * 4
    resnet = models.resnet18(3, width=4)
    assert matrices_of(resnet) == []
    taken = matrices_of(resnet, kernels=True)
    assert len(taken) == 16 + 3
    with pytest.raises(ValueError, match="the model has none: kernels = true takes"):
        make_method("muon", resnet, {}, seed=0)


def test_muon_alone_where_all_parameters_are_matrices():
    """And refused where none is."""
    linear = nn.Linear(3, 3, bias=False)
    assert len(make_method("muon", linear, {}, seed=0).optimizers) == 1
    with pytest.raises(ValueError, match="matrices, and the model has none"):
        make_method("muon", nn.Conv2d(1, 2, 3, bias=False), {}, seed=0)
