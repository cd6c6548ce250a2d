"""Buffers and random numbers: as if only the gradient at the center had been evaluated."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from contract_cases import LR, batch, network, same, topography, train, values
from paper import paper_alice

EXTRA = {"quick_steps": 1}


class Recorder(nn.Module):
    """Buffers of every kind: in place, replaced, made in forward, integer, None, not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("in_place", torch.zeros(4))
        self.register_buffer("replaced", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("later", None)

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        self.in_place += out.detach().mean()
        self.replaced = 0.9 * self.replaced + out.detach().std()
        self.count += 1
        self.later = out.detach().mean(0)
        if "fresh" not in self._buffers:
            self.register_buffer("fresh", torch.zeros(1))
        self.fresh += 1
        return out


def batchnorm_dropout() -> nn.Sequential:
    body = network()
    return nn.Sequential(body[0], nn.BatchNorm1d(5), body[1], nn.Dropout(0.4), body[2])


MODELS: dict[str, Callable[[], nn.Module]] = {"batchnorm": batchnorm_dropout, "kinds": Recorder}


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in model.named_buffers()}


def evaluate(model: nn.Module, index: int) -> None:
    x, y = batch(index)
    nn.functional.mse_loss(model(x), y).backward()


def single_evaluation(model: nn.Module, optimizer: Alice, index: int) -> tuple:
    """Buffers and random state after one ordinary forward and backward at nu."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p, q in zip(twin.parameters(), model.parameters(), strict=True):
            p.copy_(optimizer.state[q].get("probe_center", q))
    start = torch.get_rng_state()
    evaluate(twin, index)
    found = buffers_of(twin), torch.get_rng_state()
    torch.set_rng_state(start)
    return found


@pytest.mark.parametrize("drive", ["closure", "loop"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_full_step_marks_buffers_and_random_state_like_one_evaluation_at_the_center(kind, drive):
    """The oracle is a copy of the model put at nu by hand and run once."""
    torch.manual_seed(1)
    model = MODELS[kind]()
    optimizer = paper_alice(model.parameters(), lr=LR, model=model, **EXTRA)
    for index in range(5):
        wanted = single_evaluation(model, optimizer, index)
        if drive == "closure":
            optimizer.step(lambda i=index: evaluate(model, i))
        else:
            for _ in optimizer.evaluations():
                evaluate(model, index)
            optimizer.step()
        assert same((buffers_of(model), torch.get_rng_state()), wanted)


def test_buffers_that_forward_changes_in_place_keep_their_identity():
    """Whoever holds a reference to a running mean (an EMA, a fused kernel) still holds it."""
    model = batchnorm_dropout()
    held = [(b, b.data_ptr()) for b in model.buffers()]
    optimizer = paper_alice(model.parameters(), lr=LR, model=model, **EXTRA)
    train(model, optimizer, 0, 3)
    assert all(
        b is h and b.data_ptr() == p for b, (h, p) in zip(model.buffers(), held, strict=True)
    )
    assert int(model[1].num_batches_tracked) == 3


def test_every_evaluation_starts_from_the_same_buffers():
    """What forward reads must be the same three times, or the difference looks like curvature."""
    model = Recorder()
    optimizer = paper_alice(model.parameters(), lr=LR, model=model, quick_steps=0)
    for index in range(3):
        seen: list[tuple] = []

        def closure(seen: list[tuple] = seen, index: int = index) -> None:
            seen.append((buffers_of(model), set(model._buffers)))
            evaluate(model, index)

        optimizer.step(closure)
        assert len(seen) == 3
        assert same(seen[0][0], seen[1][0])
        assert same(seen[0][0], seen[2][0])
        assert seen[0][1] == seen[1][1] == seen[2][1]


def test_dropout_masks_are_the_same_in_all_evaluations_of_a_step():
    """And differ from step to step."""
    model = network()
    optimizer = paper_alice(model.parameters(), lr=LR, quick_steps=0)
    steps = []
    for index in range(3):
        masks: list[Tensor] = []

        def closure(masks: list[Tensor] = masks, index: int = index) -> None:
            masks.append(nn.functional.dropout(torch.ones(40), 0.5))
            evaluate(model, index)

        optimizer.step(closure)
        assert len(masks) == 3
        assert torch.equal(masks[0], masks[1])
        assert torch.equal(masks[0], masks[2])
        steps.append(masks[0])
    assert not torch.equal(steps[0], steps[1])


def test_dropout_does_not_look_like_glass():
    """Dropout before a linear layer under a quadratic loss: curvature yes, glass none."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1)).double()
    optimizer = paper_alice(model.parameters(), lr=0.1, quick_steps=0)
    for index in range(5):
        x, y = batch(index, torch.double)
        optimizer.step(lambda x=x, y=y: nn.functional.mse_loss(model(x), y).backward())
    weight = model[1].weight
    assert topography(optimizer, weight, "hess").min() > 0.1
    assert topography(optimizer, weight, "glass_density").max() < 1e-24


def test_probes_neither_read_nor_change_the_random_state_where_nothing_is_drawn():
    """Signs come from a hash: a step of a network without dropout leaves every generator alone."""
    model = network()
    optimizer = paper_alice(model.parameters(), lr=LR)
    before = torch.get_rng_state()
    train(model, optimizer, 0, 5)
    after_one_seed = values(model)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12345)
    twin = network()
    train(twin, paper_alice(twin.parameters(), lr=LR), 0, 5)
    assert same(values(twin), after_one_seed)


# ---- the warning without model= ---------------------------------------------------------------


def warnings_of(net: nn.Module, steps: int = 6, **options) -> list[warnings.WarningMessage]:
    optimizer = paper_alice(net.parameters(), lr=LR, **EXTRA, **options)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for index in range(steps):
            optimizer.step(lambda i=index: evaluate(net, i))
    return seen


def with_layer(layer: nn.Module, *, eval_mode: bool = False) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), layer, nn.Flatten())
    model.append(nn.Linear(6, 1))
    return model.eval() if eval_mode else model


class Replacing(nn.Module):
    """Keeps a running mean by assigning a new tensor, as much code does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x - self.mean


class Constant(nn.Module):
    """A buffer that forward only reads, like a mask or position codes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(2),
        nn.BatchNorm1d(2, momentum=None),
        nn.InstanceNorm1d(2, track_running_stats=True),
        Replacing(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_changing_buffers_without_model_warn_once_by_class_name(layer):
    """Once, at the first measuring step; the message names the class and the fix."""
    seen = warnings_of(with_layer(layer))
    assert len(seen) == 1
    assert issubclass(seen[0].category, UserWarning)
    assert type(layer).__name__ in str(seen[0].message)
    assert "model=model" in str(seen[0].message)


def test_the_buffer_warning_points_at_the_users_line():
    """Not into torch or this package."""
    seen = warnings_of(with_layer(nn.BatchNorm1d(2)), steps=1)
    assert [w.filename for w in seen] == [__file__]


def test_no_warning_where_buffers_do_not_change_or_are_guarded():
    """Constant buffers, statistics in eval mode, no curvature term, or model given."""
    assert warnings_of(with_layer(Constant())) == []
    assert warnings_of(with_layer(nn.BatchNorm1d(2), eval_mode=True)) == []
    assert warnings_of(with_layer(nn.BatchNorm1d(2)), hessian="none", glass=False) == []
    model = with_layer(nn.BatchNorm1d(2))
    assert warnings_of(model, model=model) == []


def test_the_watch_sets_no_hooks():
    """With the model at hand: global hooks would make torch.compile compile anew, and warn."""
    model = network()
    optimizer = paper_alice(model.parameters(), lr=LR, model=model)

    def closure() -> None:
        assert not nn.modules.module._global_forward_hooks
        assert not nn.modules.module._global_forward_pre_hooks
        evaluate(model, 0)

    optimizer.step(closure)


def test_a_warning_turned_into_an_error_still_leaves_the_parameters_at_mu():
    """Under ``-W error`` the watch's warning ends the step; nobody may be left at nu."""
    model = with_layer(nn.BatchNorm1d(2))
    optimizer = paper_alice(model.parameters(), lr=LR, lookahead=2.0)
    for index in range(3):
        optimizer.zero_grad()
        evaluate(model, index)
        with contextlib.nullcontext() if index else pytest.warns(UserWarning, match="curvature"):
            optimizer.step()
    before = values(model)
    with pytest.raises(UserWarning, match="BatchNorm1d"):
        optimizer.step(lambda: evaluate(model, 3))
    assert same(values(model), before)


class Rotary(nn.Module):
    """Registers its buffer in the first call, and remembers by an attribute that it did."""

    seen = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.seen:
            self.register_buffer("cosines", torch.ones(x.shape[-1]), persistent=False)
            self.seen = True
        return x * self.cosines


def test_a_module_keeps_the_buffers_of_its_first_call() -> None:
    """Taken away between two evaluations, they would be missed in the next."""
    model, x = nn.Sequential(nn.Linear(3, 2), Rotary()), torch.randn(5, 3)
    optimizer = Alice(model.parameters(), model=model, hessian="abs", probe_radius=0.1)
    optimizer.step(lambda: model(x).square().sum().backward())
    assert "cosines" in model[1]._buffers


ODD: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "conjugated": lambda eye: eye.to(torch.complex64).conj(),
    "negated": lambda eye: eye.to(torch.complex64).conj().imag,
    "conjugated and expanded": lambda eye: eye.to(torch.complex64)[:1].conj().expand(3, 3),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("name", ODD)
def test_buffers_that_are_no_plain_memory_are_kept(name: str) -> None:
    """A graph's adjacency, say: the same object with the same entries."""
    buffer, x = ODD[name](torch.eye(3)), torch.randn(2, 3)
    before, model = buffer.to_dense().clone(), nn.Linear(3, 1)
    model.register_buffer("odd", buffer)
    optimizer = Alice(model.parameters(), model=model, glass=True, quick_steps=0)
    for _ in range(2):
        optimizer.step(lambda: model(x).square().sum().backward())
    assert model.odd is buffer
    assert torch.equal(buffer.to_dense(), before)
