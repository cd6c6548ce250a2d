"""Steps replayed from CUDA graphs are the steps of the loop without them."""

import io

import pytest
import torch
from torch import nn

from aliceopt.lab import models
from aliceopt.lab.optimizers.adahessian import AdaHessian
from aliceopt.lab.optimizers.captured import GraphStep
from aliceopt.lab.optimizers.methods import make_method
from aliceopt.lab.optimizers.muon import MatrixMuon
from aliceopt.lab.training.precision import autocast, lay_out_

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        # No bias: BatchNorm makes its gradient pure rounding, of which Adam makes whole steps.
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    ).cuda()


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(16, 1, 8, 8, generator=random).cuda(),
            torch.randint(10, (16,), generator=random).cuda(),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("make", "momenta"),
    [
        (lambda params: torch.optim.AdamW(params, lr=0.1, fused=True), {}),
        (lambda params: torch.optim.NAdam(params, lr=0.1, weight_decay=0.1), {"mu_product": 1.0}),
        (lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True), {}),
        (lambda params: MatrixMuon([p for p in params if p.dim() > 1], lr=0.1), {}),
        (lambda params: AdaHessian(params, lr=0.1), {}),
    ],
    ids=["adamw", "nadam", "sgd", "muon", "adahessian"],
)
def test_capturing_trains_nothing(make, momenta):
    """Weights, buffers and random state are as before, and the states as before a first step."""
    model = network()
    optimizer = make(model.parameters())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.cuda.get_rng_state()

    def gradient(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.backward(loss) if isinstance(optimizer, AdaHessian) else loss.backward()
        return loss.detach()

    GraphStep(model, gradient, batches(1)[0], [optimizer], optimizer.step)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)
    assert optimizer.state
    for param in optimizer.state:
        for name, value in optimizer.state[param].items():
            assert torch.all(value == momenta.get(name, 0.0)), name


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("adamw", {}),
        ("nadamw", {}),
        ("sgd", {"momentum": 0.9}),
        ("muon", {}),
        ("adahessian", {"eps": 0.1}),
    ],
)
def test_a_captured_run_that_is_resumed_goes_on_where_it_was(name, own):
    """States and rates from a checkpoint: six steps at once, and three then three."""
    options, data = {"lr": 1e-2, "weight_decay": 0.1, **own}, batches(6)

    def begin():
        model = network()
        return model, make_method(name, model, options, seed=0)

    def go_on(model, method, some):
        loss_of = lambda x, y: nn.functional.cross_entropy(model(x), y)  # noqa: E731
        step = method.bind(loss_of, data[0], capture=True)
        for x, y in some:
            method.set_rate(0.5)
            step(x, y)

    whole, first, second = begin(), begin(), begin()
    torch.manual_seed(5)  # AdaHessian's signs
    go_on(*whole, data)
    torch.manual_seed(5)
    go_on(*first, data[:3])
    for old, new in zip(first, second, strict=True):
        saved = io.BytesIO()
        torch.save(old.state_dict(), saved)
        saved.seek(0)
        new.load_state_dict(torch.load(saved, map_location="cpu"))
    go_on(*second, data[3:])
    assert second[1].gradients == whole[1].gradients == (18 if name == "adahessian" else 6)
    for a, b in zip(whole[0].parameters(), second[0].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["adam", "alice"])
def test_captured_bfloat16_steps_channels_last_repeat_the_plain_ones(name):
    """Autocast within the graph; weights stay float32 and channels last, losses agree."""
    data = [(x.to(memory_format=torch.channels_last), y) for x, y in batches(10)]
    found = []
    for capture in (False, True):
        model = network()
        assert lay_out_(model, "bf16")
        method = make_method(name, model, {"lr": 1e-3}, seed=0)

        def loss_of(x, y, model=model):
            with autocast("bf16", x.device):
                return nn.functional.cross_entropy(model(x), y)

        step = method.bind(loss_of, data[0], capture=capture)
        found.append(([step(x, y).item() for x, y in data], method.gradients))
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert found[1][0] == pytest.approx(found[0][0], rel=2e-2)
    assert found[1][1] == found[0][1]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adam", {"lr": 1e-3}),
        ("sgd", {"lr": 0.1, "momentum": 0.9}),
        ("sgd", {"lr": 0.1, "momentum": 0.9, "max_grad_norm": 0.3}),
        ("nadamw", {"lr": 1e-3, "weight_decay": 0.1}),
        ("schedule-free", {"lr": 1e-3}),
        ("alice", {"lr": 1e-2, "terms": "glass+abs", "step": "naq"}),
        ("alice", {"lr": 1e-2, "terms": "none", "step": "full"}),
    ],
)
def test_captured_steps_repeat_the_plain_ones(name, options):
    """Ten steps, the rate falling: the same weights and counts, to rounding."""
    if name == "schedule-free":
        pytest.importorskip("schedulefree")
    data, found = batches(10), []
    for capture in (False, True):
        model = network()
        method = make_method(name, model, options, seed=0)

        def loss_of(x, y, model=model):
            return nn.functional.cross_entropy(model(x), y)

        step = method.bind(loss_of, data[0], capture=capture)
        losses = []
        for k, (x, y) in enumerate(data):
            method.set_rate(1 - k / 20)
            losses.append(step(x, y).item())
        found.append((losses, [p.detach().clone() for p in model.parameters()], method.gradients))
    plain, captured = found
    assert captured[0] == pytest.approx(plain[0], rel=1e-4)
    assert captured[2] == plain[2]
    for a, b in zip(plain[1], captured[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_captured_adahessian_descends_like_the_plain_one():
    """Double backward in a graph: signs are drawn anew at every replay, so only nearly the same."""
    data, found = batches(1) * 40, []
    for capture in (False, True):
        model = network()
        method = make_method("adahessian", model, {"lr": 0.05, "eps": 1e-2}, seed=0)

        def loss_of(x, y, model=model):
            return nn.functional.cross_entropy(model(x), y)

        step = method.bind(loss_of, data[0], capture=capture)
        losses = [step(x, y).item() for x, y in data]
        assert method.gradients == 3 * len(data)
        assert losses[-1] < 0.8 * losses[0]
        (state,) = [method.optimizers[0].state[p] for p in [model[0].weight]]
        assert int(state["step"]) == len(data)
        found.append((losses[-1], state["v"].clone()))
    assert found[1][0] == pytest.approx(found[0][0], rel=0.2)
    torch.testing.assert_close(found[1][1].mean(), found[0][1].mean(), rtol=0.5, atol=0)


def test_a_compiled_adahessian_is_captured_as_the_plain_one_is():
    """Both draw the same signs at every replay, so that losses agree to rounding."""
    data, found = batches(6), []
    torch._dynamo.reset()
    for compiled in (False, True):
        model = network()
        method = make_method("adahessian", model, {"lr": 0.05, "eps": 0.1}, seed=0)

        def loss_of(x, y, model=model):
            return nn.functional.cross_entropy(model(x), y)

        if compiled:
            method.compiled(loss_of, data[0])
        step = method.bind(loss_of, data[0], capture=True)
        torch.manual_seed(5)
        found.append([step(x, y).item() for x, y in data])
        assert method.gradients == 18
        assert int(model[1].num_batches_tracked) == 6
    assert found[1] == pytest.approx(found[0], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adamw", {}),
        ("muon", {"adjust_lr_fn": "match_rms_adamw"}),
        ("alice", {"terms": "none", "step": "full", "lookahead": 1.5}),
        ("alice", {"terms": "glass+abs", "step": "full", "lookahead": 1.5, "quick_steps": 3}),
    ],
)
def test_a_captured_gpt_in_bfloat16_repeats_the_plain_one(name, options):
    """Fused attention, embeddings and loss within a graph; only rounding differs."""
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(50, (8, 16, 33), generator=random).cuda()
    data, found = [(x[:, :-1].contiguous(), x[:, 1:].contiguous()) for x in ids], []
    for capture in (False, True):
        torch.manual_seed(0)
        model = models.gpt(50, context=32, layers=2, width=64, heads=2).cuda()
        method = make_method(name, model, {"lr": 1e-3, **options}, seed=0)

        def loss_of(x, y, model=model):
            with autocast("bf16", x.device):
                return model.loss(model(x), y)

        step = method.bind(loss_of, data[0], capture=capture)
        found.append(([step(x, y).item() for x, y in data], method.gradients))
    assert found[1][0] == pytest.approx(found[0][0], rel=2e-2)
    assert found[1][1] == found[0][1]
