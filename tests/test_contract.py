"""What PyTorch runs over its own optimizers, over every option combination of Alice that differs.

The oracle is a second run that must come out bit for bit the same, or torch's documented contract.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from aliceopt import Alice
from contract_cases import (
    FEW_OPTIONS,
    IDS,
    LR,
    OPTIONS,
    closure_for,
    counts,
    loss_of,
    make,
    memory,
    network,
    optimizer_options,
    run_loop,
    same,
    train,
    values,
)
from paper import paper_alice

every_case = pytest.mark.parametrize("options", OPTIONS, ids=IDS)
few_cases = pytest.mark.parametrize("options", FEW_OPTIONS, ids=range(len(FEW_OPTIONS)))


@every_case
def test_training_goes_in_the_right_direction(options):
    """Thirty steps on one batch lower the loss; with maximize they raise it."""
    model, optimizer = make(options)
    before = loss_of(model, 0).item()
    for _ in range(30):
        optimizer.step(closure_for(model, 0))
    change = loss_of(model, 0).item() - before
    assert (change > 0) if options.get("maximize") else (change < 0)


@every_case
@pytest.mark.parametrize("result", [3, 2.5, None, torch.tensor(1.5), (1, "two")], ids=repr)
def test_step_returns_what_the_closure_returned(options, result):
    """int, float, None, tensor or anything else comes back untouched, measuring step or quick."""
    model, optimizer = make(options)

    def closure() -> Any:
        loss_of(model, 0).backward()
        return result

    for _ in range(2):
        returned = optimizer.step(closure)
        assert returned is result


@every_case
def test_step_without_any_gradient_is_a_no_op(options):
    """All gradients None: parameters, averages and counters stay as they are."""
    model, optimizer = make(options)
    train(model, optimizer, 0, 2)
    optimizer.zero_grad()
    before = values(model), memory(optimizer)
    assert optimizer.step() is None
    assert same((values(model), memory(optimizer)), before)


@every_case
def test_closure_without_backward_moves_nothing(options):
    """A closure that leaves no gradients moves no parameter and creates no state."""
    model, optimizer = make(options)
    before = values(model)
    with pytest.warns(UserWarning, match="no parameter got a gradient"):
        assert optimizer.step(lambda: 7) == 7
    for _ in range(2):
        assert optimizer.step(lambda: 7) == 7
    assert same(values(model), before)
    assert memory(optimizer)["state"] == {}


@every_case
def test_a_parameter_without_gradient_is_skipped_and_the_others_are_not(options):
    """The unused layer keeps value and state, decay included; the used one trains."""
    model, optimizer = make(options)
    spare = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [spare]})
    before = values(model)
    train(model, optimizer, 0, 5)
    assert torch.equal(spare, torch.ones(3))
    assert spare not in optimizer.state
    assert not any(torch.equal(p, q) for p, q in zip(values(model), before, strict=True))


@every_case
def test_zero_gradients_are_a_no_op_without_weight_decay(options):
    """sign(0) = 0: whatever the bounds, a parameter whose gradient is zero does not move."""
    model, optimizer = make({**options, "weight_decay": 0.0})
    before = values(model)

    def closure() -> None:
        (0.0 * loss_of(model, 0)).backward()

    for _ in range(3):
        optimizer.step(closure)
    assert same(values(model), before)


@every_case
def test_loop_and_closure_are_one_engine(options):
    """Six steps by loop equal six steps by closure in parameters, state and counters."""
    by_closure, first = make(options)
    by_loop, second = make(options)
    train(by_closure, first, 0, 6)
    for index in range(6):
        run_loop(by_loop, second, index)
        second.step()
    assert same(values(by_closure), values(by_loop))
    assert same(memory(first), memory(second))


@every_case
def test_state_dicts_are_deterministic_and_interchangeable(options):
    """Taken twice they are equal; loaded into a fresh optimizer it goes on bit for bit."""
    model, optimizer = make(options)
    train(model, optimizer, 0, 6)
    assert same(optimizer.state_dict(), optimizer.state_dict())
    twin = copy.deepcopy(model)
    second = paper_alice(twin.parameters(), **{"lr": 1.0, **options})
    second.load_state_dict(optimizer.state_dict())
    assert same(memory(optimizer), memory(second))
    train(model, optimizer, 6, 11)
    train(twin, second, 6, 11)
    assert same(values(model), values(twin))
    assert same(memory(optimizer), memory(second))


@every_case
def test_loading_shares_no_memory_with_the_checkpoint(options):
    """Steps of the optimizer that loaded leave the checkpoint and its origin as they were."""
    model, optimizer = make(options)
    train(model, optimizer, 0, 5)
    saved, before = optimizer.state_dict(), memory(optimizer)
    twin, second = make(options, seed=1)
    second.load_state_dict(saved)
    train(twin, second, 5, 8)
    assert same(memory(optimizer), before)
    for mine, other in zip(optimizer.state.values(), second.state.values(), strict=True):
        assert all(mine[name].data_ptr() != other[name].data_ptr() for name in mine)


@every_case
@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copies_go_on_identically_and_independently(options, clone):
    """Model and optimizer copied or pickled together train like the originals, on their own."""
    model, optimizer = make(options)
    train(model, optimizer, 0, 6)
    twin, second = clone((model, optimizer))
    assert second.param_groups[0]["params"][0] is next(twin.parameters())
    frozen = values(twin), memory(second)
    train(model, optimizer, 6, 10)
    assert same((values(twin), memory(second)), frozen)
    train(twin, second, 6, 10)
    assert same(values(model), values(twin))
    assert same(memory(optimizer), memory(second))


def test_a_copy_has_every_public_attribute():
    """As torch asks of its own optimizers."""
    model = network()
    optimizer = paper_alice(model.parameters(), model=model)
    public = {name for name in vars(optimizer) if not name.startswith("_")}
    clone = copy.deepcopy(optimizer)
    assert public == {name for name in vars(clone) if not name.startswith("_")}


def test_copying_between_loop_and_step_leaves_the_step_alone():
    """A snapshot for an EMA or a log, taken after the loop, must not turn it into a quick step."""
    plain, first = make({})
    copied, second = make({})
    run_loop(plain, first, 0)
    run_loop(copied, second, 0)
    copy.deepcopy(second)
    first.step()
    second.step()
    assert counts(second) == counts(first) == (1, 0, 1)
    assert same(values(plain), values(copied))


@every_case
@pytest.mark.parametrize("shape", [(), (1,)], ids=["0-dim", "one element"])
def test_a_tensor_learning_rate_equals_the_number(options, shape):
    """``lr=torch.tensor(x)`` and ``lr=x`` are the same run."""
    plain, first = make(options)
    other, second = make({**options, "lr": torch.full(shape, LR)})
    train(plain, first, 0, 6)
    train(other, second, 0, 6)
    assert same(values(plain), values(other))


@every_case
def test_maximize_equals_minimising_the_negated_loss(options):
    """Bit for bit, since negation is exact."""
    up = not options.get("maximize", False)
    climber, first = make({**options, "maximize": up})
    other, second = make({**options, "maximize": not up})
    for index in range(6):
        first.step(closure_for(climber, index))

        def negated(index: int = index) -> None:
            (-loss_of(other, index)).backward()

        second.step(negated)
    assert same(values(climber), values(other))


@every_case
def test_repr_names_class_learning_rate_and_options(options):
    """What a log shows when someone prints the optimizer."""
    _, optimizer = make(options)
    text = repr(optimizer)
    assert text.startswith("Alice (")
    assert f"lr: {LR}" in text
    assert all(
        f"{name}: {value}" in text for name, value in options.items() if name != "implementation"
    )


@few_cases
def test_step_hooks_run_around_every_step_with_parameters_at_rest(options):
    """Pre-hooks see the position before, post-hooks the one after, also when driven by loops."""
    model, optimizer = make(options)
    seen: list[tuple[str, list[torch.Tensor]]] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(("pre", values(model))))
    optimizer.register_step_post_hook(lambda *_: seen.append(("post", values(model))))
    rest = [values(model)]
    for index in range(4):
        if index % 2:
            run_loop(model, optimizer, index)
            optimizer.step()
        else:
            train(model, optimizer, index, index + 1)
        rest.append(values(model))
    assert [kind for kind, _ in seen] == ["pre", "post"] * 4
    assert same([v for kind, v in seen if kind == "pre"], rest[:-1])
    assert same([v for kind, v in seen if kind == "post"], rest[1:])


def test_global_step_hooks_run_once_a_step():
    """Torch's hooks for all optimizers count steps, not evaluations."""
    model, optimizer = make({})
    seen: list[str] = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("pre")),
        register_optimizer_step_post_hook(lambda *_: seen.append("post")),
    ]
    try:
        train(model, optimizer, 0, 3)
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["pre", "post"] * 3


@few_cases
def test_state_dict_hooks_run_and_may_replace_the_result(options):
    """Pre-hook, then post-hook, which sees the tensors and whose return value counts."""
    model, optimizer = make(options)
    train(model, optimizer, 0, 2)
    order: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda opt: order.append("pre"))

    def post(opt: Alice, saved: dict[str, Any]) -> dict[str, Any]:
        order.append("post")
        assert torch.equal(saved["state"][0]["grad_avg"], opt.state[model[0].weight]["grad_avg"])
        return {**saved, "note": "replaced"}

    optimizer.register_state_dict_post_hook(post)
    assert optimizer.state_dict()["note"] == "replaced"
    assert order == ["pre", "post"]


@few_cases
@pytest.mark.parametrize("prepend", [False, True])
def test_load_state_dict_hooks_see_real_tensors(options, prepend):
    """A pre-hook may rewrite tensors of the checkpoint; a post-hook sees them in place."""
    model, optimizer = make(options)
    train(model, optimizer, 0, 2)
    twin, second = make(options, seed=1)
    order: list[str] = []

    def pre(opt: Alice, saved: dict[str, Any]) -> dict[str, Any]:
        order.append("pre")
        entries = {**saved["state"][0], "grad_avg": 2 * saved["state"][0]["grad_avg"]}
        return {**saved, "state": {**saved["state"], 0: entries}}

    def post(opt: Alice) -> None:
        order.append("post")
        doubled = 2 * optimizer.state[model[0].weight]["grad_avg"]
        assert torch.equal(opt.state[twin[0].weight]["grad_avg"], doubled)

    handles = [
        second.register_load_state_dict_pre_hook(pre, prepend=prepend),
        second.register_load_state_dict_post_hook(post, prepend=prepend),
    ]
    for _ in range(2):
        second.load_state_dict(optimizer.state_dict())
    assert order == ["pre", "post"] * 2
    for handle in handles:
        handle.remove()
    second.load_state_dict(optimizer.state_dict())
    assert same(memory(second), memory(optimizer))


def test_loading_adds_no_option_of_its_own():
    """Groups after a load hold the names a fresh optimizer has, or checkpoints stop matching."""
    model, optimizer = make({})
    train(model, optimizer, 0, 2)
    _, second = make({})
    second.load_state_dict(optimizer.state_dict())
    assert sorted(second.param_groups[0]) == sorted(["params", *optimizer_options()])


def test_an_older_state_dict_without_some_options_gets_their_defaults():
    """As torch does for options added after a checkpoint was written."""
    model, optimizer = make({"weight_decay": 0.1})
    train(model, optimizer, 0, 3)
    saved = optimizer.state_dict()
    for name in ("maximize", "weight_decay"):
        del saved["param_groups"][0][name]
    twin, second = make({"weight_decay": 0.3})
    second.load_state_dict(saved)
    assert second.param_groups[0]["maximize"] is False
    assert second.param_groups[0]["weight_decay"] == 0.3
    train(twin, second, 3, 5)


@few_cases
def test_zero_grad_clears_as_in_torch(options):
    """To None by default, to zeros when asked."""
    model, optimizer = make(options)
    train(model, optimizer, 0, 1)
    optimizer.zero_grad(set_to_none=False)
    assert all(torch.count_nonzero(p.grad) == 0 for p in model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@few_cases
@pytest.mark.filterwarnings("ignore:gradients that were there before the evaluations")
def test_old_gradients_do_not_leak_into_a_step(options):
    """Zeroing is done for you: garbage in .grad before step(closure) changes nothing."""
    clean, first = make(options)
    dirty, second = make(options)
    for index in range(4):
        for p in dirty.parameters():
            p.grad = torch.full_like(p, 100.0)
        train(clean, first, index, index + 1)
        train(dirty, second, index, index + 1)
    assert same(values(clean), values(dirty))


@few_cases
def test_step_works_where_gradients_are_switched_off(options):
    """Trainers call step under no_grad; the closure needs grad mode and gets it."""
    plain, first = make(options)
    other, second = make(options)
    train(plain, first, 0, 4)
    with torch.no_grad():
        train(other, second, 0, 4)
        assert not torch.is_grad_enabled()
    assert same(values(plain), values(other))
