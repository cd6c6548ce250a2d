"""With ``model=`` a plain loop looks ahead: to the bit what a loop over evaluations() does."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aliceopt import Alice
from paper import paper_alice

OPTIONS: dict[str, Any] = {
    "lr": 0.02,
    "lookahead": 2.0,
    "step_fraction": 1.0,
    "hessian": "none",
    "glass": False,
    "weight_decay": 0.1,
}
IMPLEMENTATIONS = ["eager", "compiled"]


class Network(nn.Module):
    """BatchNorm, dropout, and a block that may be recomputed in backward."""

    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.recompute = recompute

    def block(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(torch.tanh(self.norm(self.first(x))), 0.3, self.training)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            raise ValueError("nothing to do")
        if self.recompute:
            hidden = checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=True)
        else:
            hidden = self.block(x)
        return self.last(hidden)


def batches(i: int, parts: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(i)
    for _ in range(parts):
        yield torch.randn(8, 3, generator=g), torch.randn(8, 1, generator=g)


def by_evaluations(model: nn.Module, optimizer: Alice, i: int, parts: int) -> None:
    for _ in optimizer.evaluations():
        for x, y in batches(i, parts):
            ((model(x) - y).square().mean() / parts).backward()
    optimizer.step()


def plainly(model: nn.Module, optimizer: Alice, i: int, parts: int) -> None:
    optimizer.zero_grad()
    for x, y in batches(i, parts):
        ((model(x) - y).square().mean() / parts).backward()
    optimizer.step()


def zeroed_between(model: nn.Module, optimizer: Alice, i: int, parts: int) -> None:
    """The order of many training loops: forward, zero_grad, backward, step."""
    for k, (x, y) in enumerate(batches(i, parts)):
        loss = (model(x) - y).square().mean() / parts
        if k == 0:
            optimizer.zero_grad()
        loss.backward()
    optimizer.step()


def with_a_lot_in_between(model: nn.Module, optimizer: Alice, i: int, parts: int) -> None:
    """Validation, checkpoints, a discarded and a failing forward, each leaving no trace."""
    optimizer.zero_grad()
    random = torch.get_rng_state()
    buffers = [b.clone() for b in model.buffers()]
    model(next(batches(i))[0])  # its loss is thrown away
    with pytest.raises(ValueError, match="nothing"):
        model(torch.zeros(0, 3))
    with torch.no_grad():
        for buffer, old in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(old)
    torch.set_rng_state(random)
    for x, y in batches(i, parts):
        ((model(x) - y).square().mean() / parts).backward()
        position = [p.detach().clone() for p in model.parameters()]
        saved = [v.clone() for v in model.state_dict().values()]
        optimizer.state_dict()
        model.eval()
        assert_at_home(model, optimizer, saved)
        with torch.no_grad():
            model(x)
        model.train()
        if i > 0:
            assert not all(map(torch.equal, position, model.parameters()))
    optimizer.step()


def assert_at_home(model: nn.Module, optimizer: Alice, saved: list[Tensor]) -> None:
    assert optimizer._probe is None
    assert all(map(torch.equal, saved, model.state_dict().values()))


Loop = Callable[[nn.Module, Alice, int, int], None]


def trained(
    loop: Loop,
    parts: int,
    *,
    implementation: str = "eager",
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
    **options: Any,
) -> tuple[list[Tensor], Alice]:
    model = Network(recompute=options.pop("recompute", False))
    called = wrap(model)
    model_option = called if options.pop("give_wrapper", False) else model
    optimizer = paper_alice(
        model.parameters(), model=model_option, implementation=implementation, **OPTIONS | options
    )
    torch.manual_seed(1)
    for i in range(6):
        loop(called, optimizer, i, parts)
    states = [v for s in optimizer.state_dict()["state"].values() for v in s.values()]
    return [*model.state_dict().values(), *states, torch.get_rng_state()], optimizer


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("loop", [plainly, zeroed_between, with_a_lot_in_between])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_plain_loop_equals_the_loop_over_evaluations(
    loop: Loop, parts: int, implementation: str
) -> None:
    """BatchNorm, dropout, micro-batches and what comes between included."""
    expected, one = trained(by_evaluations, parts, implementation=implementation)
    found, two = trained(loop, parts, implementation=implementation)
    assert all(map(torch.equal, expected, found))
    assert one.gradient_evaluations == two.gradient_evaluations == 6


@pytest.mark.parametrize("give_wrapper", [False, True])
@pytest.mark.parametrize("kind", ["compile", "compile in place", "checkpointed"])
def test_compiled_and_checkpointed_models_look_ahead(kind: str, give_wrapper: bool) -> None:
    """Whichever module is given; compiled whole, if the compiled one is given."""
    if kind == "checkpointed":
        expected, _ = trained(by_evaluations, 2, recompute=True)
        found, _ = trained(plainly, 2, recompute=True)
    else:

        def wrap(model: nn.Module) -> nn.Module:
            torch._dynamo.reset()
            if kind == "compile in place":
                model.compile(backend="aot_eager")
                return model
            wrapped: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
            return wrapped

        expected, _ = trained(by_evaluations, 2, wrap=wrap, give_wrapper=give_wrapper)
        found, _ = trained(plainly, 2, wrap=wrap, give_wrapper=give_wrapper)
    assert all(map(torch.equal, expected, found))


def test_where_the_hook_would_be_compiled_it_is_refused_with_what_to_give() -> None:
    """Torch calls the hooks of a module of its own inside the graph, those of others before it."""
    torch._dynamo.reset()
    for give_wrapper in (False, True):
        model = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 1))
        compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
        given = compiled if give_wrapper else model
        optimizer = paper_alice(model.parameters(), model=given, **OPTIONS)
        if give_wrapper:
            plainly(compiled, optimizer, 0, 1)
        else:
            with pytest.raises(Exception, match="give it the compiled module"):
                plainly(compiled, optimizer, 0, 1)


def ready(**options: Any) -> tuple[Network, Alice, list[Tensor]]:
    """A model after two steps, its optimizer, and where it is at home."""
    model = Network()
    optimizer = paper_alice(model.parameters(), model=model, **OPTIONS | options)
    for i in range(2):
        plainly(model, optimizer, i, 1)
    return model, optimizer, [p.detach().clone() for p in model.parameters()]


def is_home(model: nn.Module, home: list[Tensor]) -> bool:
    return all(map(torch.equal, home, model.parameters()))


GOING_HOME: dict[str, Callable[[Network, Alice], object]] = {
    "a call in eval mode": lambda model, _: model.eval()(torch.ones(2, 3)),
    "the model's state_dict": lambda model, _: model.state_dict(),
    "a part's state_dict": lambda model, _: model.first.state_dict(),
    "the optimizer's state_dict": lambda _, optimizer: optimizer.state_dict(),
    "a copy of the model": lambda model, _: copy.deepcopy(model),
    "a pickled optimizer": lambda _, optimizer: torch.save(optimizer, io.BytesIO()),
    "come_home": lambda _, optimizer: optimizer.come_home(),
    "a step without gradients": lambda _, optimizer: optimizer.step(),
    "a loop begun and left": lambda _, optimizer: next(iter(optimizer.evaluations())),
    "a second optimizer": lambda model, _: paper_alice(model.parameters(), model=model),
}


@pytest.mark.parametrize("way", GOING_HOME)
def test_a_discarded_forward_leaves_nothing_behind_after(way: str) -> None:
    model, optimizer, home = ready()
    optimizer.zero_grad()
    model(torch.ones(4, 3))
    assert not is_home(model, home)
    with torch.no_grad():
        model(torch.ones(4, 3))
    assert not is_home(model, home)  # training mode without gradients stays where it is
    GOING_HOME[way](model, optimizer)
    gc.collect()
    assert is_home(model, home)
    assert optimizer.gradient_evaluations == 2


def test_an_optimizer_that_is_dropped_brings_the_parameters_home() -> None:
    model, optimizer, home = ready()
    model(torch.ones(4, 3))
    assert not is_home(model, home)
    del optimizer
    gc.collect()
    assert is_home(model, home)
    model(torch.ones(4, 3))
    assert is_home(model, home)
    assert not model._forward_pre_hooks


def test_weights_loaded_while_looking_ahead_stay() -> None:
    """Also those written one by one, and those that another optimizer trains."""
    model, optimizer, home = ready()
    saved = copy.deepcopy(model.state_dict())
    plainly(model, optimizer, 5, 1)
    model(torch.ones(4, 3))
    model.load_state_dict(saved)
    assert is_home(model, home)
    model(torch.ones(4, 3))
    with torch.no_grad():
        model.last.bias.fill_(7.0)
    model.eval()(torch.ones(4, 3))
    assert model.last.bias == 7.0
    assert all(map(torch.equal, home[:-1], list(model.parameters())[:-1]))


def test_another_optimizer_may_take_over() -> None:
    """SGD on the same parameters trains as if Alice, still alive, were not there."""
    (model, optimizer, _), (other, stopped, _) = ready(), ready()
    stopped.looking_ahead.stop()
    for twin in (model, other):
        sgd = torch.optim.SGD(twin.parameters(), lr=0.1)
        torch.manual_seed(2)
        for i in range(3):
            sgd.zero_grad()
            for x, y in batches(i):
                (twin(x) - y).square().mean().backward()
            sgd.step()
    assert optimizer._probe is not None
    model.eval()(torch.ones(2, 3))
    assert optimizer._probe is None
    assert all(p.isfinite().all() for p in model.parameters())
    # It began at nu, where the first forward had taken the parameters, and ended where SGD went.
    assert not is_home(model, ready()[2])


@pytest.mark.parametrize("copied", ["deepcopy", "pickle"])
def test_a_copy_of_the_model_does_not_drive_the_optimizer(copied: str) -> None:
    model, optimizer, home = ready()
    if copied == "deepcopy":
        twin = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        assert b"aliceopt" not in file.getvalue()
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    twin(torch.ones(4, 3)).sum().backward()
    assert is_home(model, home)
    assert is_home(twin, home)
    assert optimizer._probe is None


class Scaled(nn.Module):
    """Has parameters of its own and those of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.part = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) * self.scale


COPIES: dict[str, Callable[[Scaled, Alice], Scaled]] = {
    "the model": lambda model, _: copy.deepcopy(model),
    "the model, then the optimizer": lambda *both: copy.deepcopy(both)[0],
    "the optimizer, then the model": lambda *both: copy.deepcopy(both[::-1])[1],
    "a part, then the model": lambda model, _: copy.deepcopy([model.part, model])[1],
    "pickled": lambda *both: pickle.loads(pickle.dumps(both))[0],
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("implementation", ["eager", "auto"])
def test_what_is_copied_while_looking_ahead_is_at_home(way: str, implementation: str) -> None:
    """And the step goes on as if nothing had happened."""
    torch.manual_seed(0)
    model = Scaled()
    twin = copy.deepcopy(model)
    for m in (model, twin):
        optimizer = Alice(m.parameters(), lr=0.1, model=m, implementation=implementation)
        for step in range(3):
            home = [p.detach().clone() for p in m.parameters()]
            optimizer.zero_grad()
            m(torch.ones(4, 3)).square().sum().backward()
            if m is model and step > 0:
                assert not is_home(m, home)
                assert is_home(COPIES[way](m, optimizer), home)
            optimizer.step()
    assert is_home(model, list(twin.parameters()))


def test_a_copied_optimizer_drives_its_own_model() -> None:
    model, optimizer, home = ready()
    twin = copy.deepcopy(optimizer)
    model(torch.ones(4, 3))
    assert not is_home(model, home)
    assert is_home(twin.model, home)
    twin.model(torch.ones(4, 3))
    assert not is_home(twin.model, home)


def test_calls_that_bypass_the_model_are_taken_at_home() -> None:
    """A part alone, other tensors in the parameters' place, eval mode."""
    model, _, home = ready()
    model.last(model.first(torch.ones(4, 3)))
    assert is_home(model, home)
    others = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.func.functional_call(model, others, (torch.ones(4, 3),))
    assert is_home(model, home)
    model(torch.ones(4, 3))
    assert not is_home(model, home)


def test_several_models_in_a_list_look_ahead_each() -> None:
    torch.manual_seed(0)
    a, b = nn.Linear(3, 4), nn.Linear(4, 1)
    both = nn.ModuleList([a, b])
    optimizer = paper_alice(both.parameters(), model=both, **OPTIONS)
    for _ in range(2):
        optimizer.zero_grad()
        b(a(torch.ones(2, 3))).sum().backward()
        optimizer.step()
    home = [p.detach().clone() for p in both.parameters()]
    b.eval()
    out = b(a(torch.ones(2, 3)))  # the second call, in eval mode, is outermost too
    assert is_home(both, home)
    b.train()
    out = b(a(torch.ones(2, 3)))
    out.sum().backward()
    assert not is_home(both, home)


def test_a_backward_through_a_graph_from_before_a_move_is_refused() -> None:
    """By autograd itself; a gradient is never wrong."""
    model, optimizer, _ = ready()
    loss = model(torch.ones(4, 3)).square().sum()
    model.state_dict()
    assert optimizer._probe is None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_without_a_model_gradients_are_taken_at_the_position() -> None:
    model = Network()
    optimizer = paper_alice(model.parameters(), **OPTIONS)
    plainly(model, optimizer, 0, 1)
    with pytest.warns(UserWarning, match="at the position, not ahead of it"):
        plainly(model, optimizer, 1, 1)
    home = [p.detach().clone() for p in model.parameters()]
    model(torch.ones(4, 3))
    assert is_home(model, home)
    optimizer.look_ahead()
    assert not is_home(model, home)


def test_a_plain_step_that_fails_keeps_its_gradients() -> None:
    """An option out of range: at home, nothing counted, and the step can be taken again."""
    model, optimizer, home = ready()
    optimizer.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    grads = [p.grad for p in model.parameters()]
    optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(ValueError, match="lr must be"):
        optimizer.step()
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    assert optimizer.gradient_evaluations == 2
    optimizer.param_groups[0]["lr"] = 0.02
    optimizer.step()
    assert optimizer.gradient_evaluations == 3
    assert not is_home(model, home)
