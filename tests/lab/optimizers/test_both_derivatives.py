"""Gradient and diagonal from one function: those of plain double backward, or a reason why not."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from aliceopt.lab import models
from aliceopt.lab.models.resnet import MaskedBatchNorm
from aliceopt.lab.optimizers.adahessian import signs_like
from aliceopt.lab.optimizers.both_derivatives import BothDerivatives
from aliceopt.lab.optimizers.methods import NotCompilable, make_method
from aliceopt.lab.training.precision import autocast, lay_out_
from cpu_cases import needs_compiler
from method_cases import CountedLoss, batches, drive, network

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def traced(monkeypatch):
    """Without torch's own code generation, which takes long and is torch's to test."""
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    return counter


@pytest.fixture
def untraced(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


class Everything(nn.Module):
    """Kernels, masks, statistics, a buffer made anew, and parameters tied, frozen and idle."""

    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(2, 2)  # first, so that signs drawn for it would move the others
        self.conv, self.norm = nn.Conv2d(1, 3, 3, bias=False), MaskedBatchNorm(3)
        self.first, self.second = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(12, 4).requires_grad_(False)
        self.scale = nn.Parameter(torch.zeros(4))
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, images):
        self.calls = self.calls + 1
        hidden = self.norm(self.conv(images)).tanh().flatten(1)
        hidden = self.second(torch.tanh(self.first(hidden)))
        return self.frozen(hidden) * self.calls + self.scale.exp() * hidden.detach()[:, :4]


def everything(dtype=torch.float64):
    random = torch.Generator().manual_seed(2)
    torch.manual_seed(0)
    images = torch.randn(6, 1, 4, 4, generator=random)
    return Everything().to(dtype), (images.to(dtype), torch.arange(6) % 4)


class Net(nn.Module):
    """A function of what a linear layer gives."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(6, 3), function

    def forward(self, x):
        return self.function(self.layer(x))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0].square() * grad


def hooked(x):
    x = x.sin()
    x.register_hook(lambda grad: grad * grad.abs())
    return x.sin()


def cross_entropy(model, x, y):
    return F.cross_entropy(model(x), y)


def steps(model, batch, loss_of, compiled):
    """The method, and what each of two steps had."""
    options = {"lr": 0.1, "eps": 0.1, "weight_decay": 0.1}
    method = make_method("adahessian", model, options, seed=0)
    loss_of = partial(loss_of, model)
    if compiled:
        assert method.compiled(loss_of, batch) is model
    torch.manual_seed(5)
    found = []
    for _ in range(2):
        named, loss = dict(model.named_parameters()), method._gradient(loss_of, *batch)
        diagonals = method.adahessian._diagonals
        grads = {name: p.grad for name, p in named.items()}
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        found.append((loss, grads, {n: diagonals.get(p) for n, p in named.items()}, buffers))
        method._update()
    return method, found


def assert_plain(model, batch, loss_of=cross_entropy, rtol=1e-10):
    """Losses, gradients, diagonals, buffers and weights of two steps are those of plain ones."""
    plain, wanted = steps(copy.deepcopy(model), batch, loss_of, compiled=False)
    method, found = steps(copy.deepcopy(model), batch, loss_of, compiled=True)
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=rtol / 100)
    weights, others = method.model.state_dict(), plain.model.state_dict()
    torch.testing.assert_close(weights, others, rtol=rtol, atol=rtol / 100)
    assert method._cost == plain._cost == 3
    assert [m.optimizers[0].param_groups[0]["calls"] for m in (method, plain)] == [2, 2]


def test_it_is_double_backward(untraced):
    """What no loss reaches has no gradient, no draw and no decay: everything is as it was."""
    assert_plain(*everything())


def test_so_it_is_through_torch_compile(traced):
    """As one graph."""
    assert_plain(*everything())
    assert traced.frame_count == 1


def test_runs_in_one_process_share_what_is_compiled(traced):
    """Seeds of an experiment, say: other weights and batches of the same form."""
    for seed in range(3):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
        assert_plain(model.double(), (torch.randn(7, 6).double(), torch.arange(7) % 3))
    assert traced.frame_count == 1


@needs_compiler
def test_so_it_is_as_machine_code():
    torch._dynamo.reset()
    x, y = batches(1)[0]
    assert_plain(Net(torch.sin).double(), (x.double(), y))


def test_making_it_changes_nothing(traced):
    """Weights, statistics and random state are as before, and there are no gradients."""
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    BothDerivatives(model, partial(cross_entropy, model), batches(1)[0])
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


def test_a_loss_that_bends_nowhere(traced):
    """Then the gradient does not depend on the weights, and the diagonal is zero."""
    batch = torch.ones(4, 6).double(), torch.ones(4)
    assert_plain(Net(torch.abs).double(), batch, lambda model, x, y: model(x).sum())


def test_dropout_drops_the_same_in_both_derivatives(traced):
    """The product belongs to the gradient: with one mask they are those of one loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.5), nn.Linear(9, 3)).double()
    (x, y), params = batches(1)[0], list(model.parameters())
    loss_of, x = partial(cross_entropy, model), x.double()
    both = BothDerivatives(model, loss_of, (x, y))
    torch.manual_seed(8)
    _, grads, diagonals = both(loss_of, x, y)
    torch.manual_seed(8)
    signs = signs_like(params)
    wanted = torch.autograd.grad(loss_of(x, y), params, create_graph=True)
    torch.testing.assert_close([grads[p] for p in params], [g.detach() for g in wanted])
    bent = torch.autograd.grad(wanted, params, signs)
    products = [z * h for z, h in zip(signs, bent, strict=True)]
    torch.testing.assert_close([diagonals[p] for p in params], products)


def test_under_autocast_with_kernels_channels_last(traced):
    """As far as bfloat16 goes; gradient and diagonal lie in memory as their parameters do."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)]
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 3))
    assert lay_out_(model, "bf16")

    def loss_of(model, images, labels):
        with autocast("bf16", images.device):
            return F.cross_entropy(model(images), labels)

    batch = torch.randn(6, 2, 6, 6).to(memory_format=torch.channels_last), torch.arange(6) % 3
    _, plain = steps(copy.deepcopy(model), batch, loss_of, compiled=False)
    _, found = steps(model, batch, loss_of, compiled=True)
    for kind in (1, 2):  # gradients, diagonals
        mine, wanted = (
            torch.cat([t.flatten() for t in f[0][kind].values()]) for f in (found, plain)
        )
        assert (mine - wanted).norm() < 0.03 * wanted.norm()
        for param, one in zip(model.parameters(), found[0][kind].values(), strict=True):
            assert one.stride() == param.stride()


def test_a_batch_of_another_shape_is_taken_plainly(traced):
    """For which nothing is compiled; the steps are the same."""
    data, found = [(x[: 7 - k % 2], y[: 7 - k % 2]) for k, (x, y) in enumerate(batches(4))], []
    for compiled in (False, True):
        method = make_method("adahessian", network(), {"lr": 0.1, "eps": 0.1}, seed=0)
        loss_of = partial(cross_entropy, method.model)
        if compiled:
            method.compiled(loss_of, data[0])
        torch.manual_seed(3)
        step = method.bind(loss_of, data[0], capture=False)
        found.append([step(x, y).item() for x, y in data])
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert traced.frame_count == 1


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (Cube.apply, {}, "RuntimeError: CubeBackward is of an autograd.Function"),
        (hooked, {}, "give different products"),
        (lambda x: x.sin() if x.sum() > 0 else x.cos(), {}, "Unsupported"),
        (torch.sin, {"num_samples": 2}, "does not draw one diagonal at every step"),
        (torch.sin, {"update_period": 2}, "does not draw one diagonal at every step"),
    ],
    ids=["function", "hook", "branch", "samples", "period"],
)
def test_where_it_cannot_be_had_steps_stay_plain(function, options, reason, traced):
    """And the reason is given: what torch.compile would get wrong, and what it cannot take."""
    found = []
    for tried in (False, True):
        torch.manual_seed(0)
        model = Net(function)
        method = make_method("adahessian", model, {"lr": 0.1, "eps": 0.1, **options}, seed=0)
        if tried:
            with pytest.raises(NotCompilable, match=reason):
                method.compiled(CountedLoss(model), batches(1)[0])
        torch.manual_seed(3)
        found.append(drive(method, batches(3))[0])
    assert found[0] == found[1]


def test_what_cannot_be_differentiated_twice_is_refused():
    """The GPT's fused attention, and what is no tensor."""
    ids = torch.randint(20, (2, 4))
    gpt = models.gpt(20, context=4, layers=1, width=4, heads=1)
    method = make_method("adahessian", gpt, {"lr": 0.1}, seed=0)
    with pytest.raises(NotCompilable, match=r"derivative for .*attention.* is not implemented"):
        method.compiled(lambda x, y: gpt.loss(gpt(x), y), (ids, ids))
    with pytest.raises(NotCompilable, match="batches are no pairs of tensors"):
        method.compiled(lambda x, y: gpt.loss(gpt(x["ids"]), y), ({"ids": ids}, ids))
