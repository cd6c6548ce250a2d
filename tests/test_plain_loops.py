"""With ``model=`` a plain loop looks ahead: to the bit what a loop over evaluations() does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from contract_cases import values
from paper import paper_alice
from plain_loop_cases import OPTIONS, Network, batches, is_home, plainly, ready

IMPLEMENTATIONS = ["eager", "compiled"]


def by_evaluations(model: nn.Module, optimizer: Alice, i: int, parts: int) -> None:
    for _ in optimizer.evaluations():
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
        position = values(model)
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


def test_several_models_in_a_list_look_ahead_each() -> None:
    torch.manual_seed(0)
    a, b = nn.Linear(3, 4), nn.Linear(4, 1)
    both = nn.ModuleList([a, b])
    optimizer = paper_alice(both.parameters(), model=both, **OPTIONS)
    for _ in range(2):
        optimizer.zero_grad()
        b(a(torch.ones(2, 3))).sum().backward()
        optimizer.step()
    home = values(both)
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
    home = values(model)
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
