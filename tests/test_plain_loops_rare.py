"""What may happen between forward and step, seldom; each case once went wrong in a trial."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aliceopt import Alice
from paper import paper_alice

OPTIONS: dict[str, Any] = {"lr": 0.05, "lookahead": 2.0, "step_fraction": 1.0}
OFF: dict[str, Any] = OPTIONS | {"hessian": "none", "glass": False}
X = torch.linspace(-1, 1, 24).reshape(6, 4)


def made(model: nn.Module | None = None, **options: Any) -> tuple[nn.Module, Alice]:
    torch.manual_seed(0)
    if model is None:
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    return model, paper_alice(model.parameters(), model=model, **{**OFF, **options})


def run(model: nn.Module, optimizer: Alice, steps: int = 3) -> None:
    for _ in range(steps):
        model(X).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(map(torch.equal, a, b))


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.fails = nn.Linear(4, 3), False

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise KeyboardInterrupt
        return self.layer(x)


def test_ctrl_c_in_a_forward_pass_leaves_nothing_wrong() -> None:
    """Validation is at the position, and the next call in training mode looks ahead."""
    model = Fragile()
    _, optimizer = made(model)
    run(model, optimizer)
    home, model.fails = values(model), True
    with pytest.raises(KeyboardInterrupt):
        model(X)
    model.fails = False
    model.eval()(X)
    assert same(values(model), home)
    model.train()(X)
    assert not same(values(model), home)


def test_a_hook_that_fails_before_ours_leaves_nothing_wrong() -> None:
    model, optimizer = made()
    run(model, optimizer)
    home = values(model)

    def fail(*_: Any) -> None:
        raise ValueError("stop")

    handle = model.register_forward_pre_hook(fail, prepend=True)
    with pytest.raises(ValueError, match="stop"):
        model(X)
    handle.remove()
    model(X)
    assert not same(values(model), home)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_parts_are_recomputed_where_they_were_computed(reentrant: bool) -> None:
    """Reentrant checkpointing runs forward without gradients, and again inside backward."""
    torch.manual_seed(0)
    parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])
    optimizer = paper_alice(parts.parameters(), model=parts, **OFF)
    x = X.clone().requires_grad_()

    def loss(how: bool | None) -> Tensor:
        hidden = parts[0](x) if how is None else checkpoint(parts[0], x, use_reentrant=how)
        return parts[1](torch.tanh(hidden).square()).square().sum()

    for _ in range(3):
        loss(None).backward()
        optimizer.step()
        optimizer.zero_grad()
    loss(None).backward()
    expected = [p.grad.clone() for p in parts.parameters() if p.grad is not None]
    optimizer.zero_grad()
    optimizer.come_home()
    loss(reentrant).backward()
    assert same([p.grad for p in parts.parameters() if p.grad is not None], expected)


def test_parameters_written_in_forward_are_not_taken_for_edits() -> None:
    """An embedding with a largest norm rescales itself in every forward pass, also at nu.

    Before the first step a plain loop is at the position, and what is written there stays.
    """
    ids, ends = torch.arange(4), []
    for plain in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(10, 4, max_norm=1.0), nn.Linear(4, 1))
        optimizer = paper_alice(model.parameters(), model=model, **OFF)
        for i in range(5):
            optimizer.zero_grad()
            for _ in range(1) if plain and i > 0 else optimizer.evaluations():
                model(ids).square().sum().backward()
            optimizer.step()
        ends.append(values(model))
    assert same(*ends)


@pytest.mark.parametrize("how", ["copy", "another", "another with the model"])
def test_a_passing_second_optimizer_does_not_end_the_looking_ahead(how: str) -> None:
    """A learning-rate finder's, say; the first goes on as if nothing had been."""
    (model, optimizer), (other, alone) = made(), made()
    run(model, optimizer), run(other, alone)
    if how == "copy":
        second = copy.copy(optimizer)
    else:
        second = paper_alice(model.parameters(), model=model if "model" in how else None)
    del second
    gc.collect()
    run(model, optimizer), run(other, alone)
    assert same(values(model), values(other))


def test_whoever_steps_looks_ahead() -> None:
    """Of two optimizers that live on, the one that is used."""
    (model, optimizer), (other, alone) = made(), made()
    run(model, optimizer), run(other, alone)
    second = paper_alice(model.parameters(), model=model)
    model(X).square().sum().backward()  # at the position: the second has no nu yet
    with pytest.warns(UserWarning, match="at the position, not ahead of it"):
        optimizer.step()
    optimizer.zero_grad()
    home = values(model)
    model(X)
    assert not same(values(model), home)
    assert second._probe is None


def test_model_and_optimizer_are_freed_without_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        model, optimizer = made()
        run(model, optimizer)
        watched = weakref.ref(model[0].weight)
        del model, optimizer
        assert watched() is None
    finally:
        gc.enable()


def test_large_gradients_are_not_held_on_to() -> None:
    """Not by what watches them, even if there is only one parameter."""
    param = nn.Parameter(torch.randn(200, 200))
    optimizer = paper_alice([param], **OPTIONS)
    for _ in range(3):
        optimizer.step(lambda: param.square().sum().backward())
    optimizer.zero_grad()
    held = [o for o in gc.get_objects() if type(o) is Tensor and o.shape == param.shape]
    states = {id(value) for value in optimizer.state[param].values()}
    plain = paper_alice([nn.Parameter(torch.randn(200, 200))], **OFF)
    assert plain._spent is None
    assert optimizer._spent is not None
    assert optimizer._spent.grad is None
    assert optimizer.watch._gradients is None
    assert sum(id(tensor) not in states for tensor in held) <= 1  # where the position was


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_of_another_head_are_seen_too(order: int) -> None:
    """The parameter that told of the last step's gradients has none now."""
    torch.manual_seed(0)
    body, a, b = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 3)
    params = [p for module in (body, a, b) for p in module.parameters()]
    optimizer = paper_alice(params, **OFF | {"lookahead": 1.0})
    (a if order == 1 else b)(body(X)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    head = b if order == 1 else a
    loss = head(body(X)).square().sum()
    loss.backward()
    before = head.weight.detach().clone()
    optimizer.step(lambda: loss.item())
    assert not torch.equal(before, head.weight)
    assert optimizer.gradient_evaluations == 2


def test_a_closure_that_raises_gives_the_gradients_before_it_back() -> None:
    model, optimizer = made()
    model(X).sum().backward()
    grads = [p.grad for p in model.parameters()]

    def fail() -> None:
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        optimizer.step(fail)
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))


def test_a_frozen_parameter_with_an_old_gradient_is_in_nobodys_way() -> None:
    model, optimizer = made(**OPTIONS | {"hessian": "abs", "glass": True})
    for _ in range(2):
        for _ in optimizer.evaluations():
            model(X).sum().backward()
        optimizer.step(lambda: None)
        model[2].bias.requires_grad_(False)
    assert optimizer.gradient_evaluations == 4


def test_the_watches_take_whatever_there_is() -> None:
    """Buffers made in inference mode, sparse inputs, NaN in inputs, inputs that were trained."""
    with torch.inference_mode():
        teacher = nn.BatchNorm1d(3)

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, adjacency: Tensor, x: Tensor) -> Tensor:
            return torch.sparse.mm(adjacency, self.layer(x.nan_to_num()))

    encoder, model = nn.Linear(4, 4), Graph()
    params = [*encoder.parameters(), *model.parameters()]
    optimizer = paper_alice(params, model=model, **OPTIONS)
    holes = X.clone()
    holes[0, 0] = torch.nan

    def closure() -> None:
        loss = model(torch.eye(6).to_sparse(), holes.clone()).square().sum()
        (loss + model(torch.eye(6).to_sparse(), encoder(X)).sum()).backward()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(closure)
    assert teacher.training


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
def test_the_watches_take_nested_meta_and_batched_inputs() -> None:
    """What cannot be compared from round to round is not, and stops no step."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor, like: Tensor | None = None) -> Tensor:
            return self.layer(x.to_padded_tensor(0.0) if x.is_nested else x)

    for inputs in (
        lambda model: model(torch.nested.nested_tensor([X[:2], X[2:]])),
        lambda model: model(X, torch.empty(3, device="meta")),
        lambda model: torch.vmap(model)(X.clone()),
    ):
        model, optimizer = made(Padded(), hessian="abs", glass=True)
        optimizer.step(lambda call=inputs, model=model: call(model).square().sum().backward())
        assert optimizer.gradient_evaluations == 3


def test_a_loop_may_find_gradients_of_empty_parameters_alone() -> None:
    """As a process does that has no rows of a sharded model."""
    empty = nn.Parameter(torch.zeros(0))
    optimizer = paper_alice([empty, nn.Parameter(torch.ones(2))], **OPTIONS)
    for _ in optimizer.evaluations():
        empty.sum().backward()
    optimizer.step()
    assert optimizer.gradient_evaluations == 3


@pytest.mark.parametrize("implementation", ["eager", "auto"])
@pytest.mark.parametrize("transform", ["grad", "jacrev", "jvp", "vmap"])
def test_a_model_that_torch_func_differentiates_looks_ahead(
    transform: str, implementation: str
) -> None:
    """With respect to inputs, as of a differential equation; the gradients are those at nu."""
    calls = {
        "grad": lambda model: torch.func.grad(lambda x: model(x).sum())(X),
        "jacrev": lambda model: torch.vmap(torch.func.jacrev(model))(X),
        "jvp": lambda model: torch.func.jvp(model, (X,), (torch.ones_like(X),))[1],
        "vmap": torch.vmap,
    }
    found = []
    for by_hand in (False, True):
        model, optimizer = made(implementation=implementation)
        run(model, optimizer)
        if by_hand:
            optimizer.look_ahead()
        made_of = calls[transform](model)
        (made_of(X) if transform == "vmap" else made_of).square().sum().backward()
        optimizer.step()
        found.append(values(model))
    assert same(*found)


def test_a_model_that_looks_ahead_may_swap_its_parameters() -> None:
    """A tensor that has weak references torch refuses to swap."""
    model, optimizer = made()
    run(model, optimizer)
    before = values(model)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert same([value.double() for value in before], values(model))


def test_who_stops_looking_ahead_is_at_home() -> None:
    """The model is exported next, and no hook would tell of it."""
    model, optimizer = made()
    run(model, optimizer)
    home = values(model)
    model(X)
    optimizer.looking_ahead.stop()
    assert same(home, values(model))


def edited(kind: str, grad: Tensor, param: Tensor) -> None:
    if kind == "division":
        grad.div_(3)
    elif kind == "penalty":
        grad.add_(param.detach(), alpha=0.1)
    elif kind == "noise":
        grad.add_(torch.randn_like(param), alpha=0.01)
    else:
        grad.mul_(torch.arange(grad.numel()).reshape(grad.shape) % 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["division", "penalty", "noise", "mask"])
def test_edits_that_are_no_clipping_are_the_users_business(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4)).to(dtype)
    optimizer = paper_alice(model.parameters(), model=model, **OPTIONS | {"quick_steps": 0})

    def closure() -> None:
        model(X.to(dtype)).square().sum().backward()
        for param in model.parameters():
            assert param.grad is not None
            edited(kind, param.grad, param)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            optimizer.step(closure)


def test_a_gan_of_closures_that_zero_their_gradients_is_not_spoken_of() -> None:
    """Each leaves gradients in the other's parameters, and knows."""
    maker, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    first = paper_alice(critic.parameters(), model=critic, **OPTIONS)
    second = paper_alice(maker.parameters(), model=maker, **OPTIONS)

    def criticise() -> None:
        first.zero_grad()
        (critic(maker(X).detach()).mean() - critic(X).mean()).backward()

    def make() -> None:
        second.zero_grad()
        (-critic(maker(X)).mean()).backward()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            first.step(criticise)
            second.step(make)


def test_a_checkpoint_loaded_after_backward_is_no_gradient_at_the_position() -> None:
    """The gradient was taken ahead, before the load: nothing to warn of."""
    model, optimizer = made()
    run(model, optimizer)
    model(X).square().sum().backward()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.step()
