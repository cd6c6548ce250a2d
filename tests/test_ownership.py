"""A gradient is kept without a copy only if nobody else can get at its memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.ownership import Keeper, is_owned, kept, references
from paper import paper_alice

SIZE = 12


def fresh(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    param.grad = value.clone()


def reused_buffer(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    held[:] = held or [torch.empty(SIZE)]
    param.grad = held[0].copy_(value)


def reused_by_another_name(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    held[:] = held or [torch.empty(SIZE)]
    param.grad = held[0].copy_(value).detach()


def reused_numpy_memory(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    held[:] = held or [np.empty(SIZE, dtype=np.float32)]
    held[0][:] = value.numpy()
    param.grad = torch.from_numpy(held[0])


def bucket_view(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    held[:] = held or [torch.empty(2 * SIZE)]
    param.grad = held[0][SIZE:].copy_(value)


def view_of_a_forgotten_buffer(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    """Nothing but the gradient itself refers to it, which is larger than the gradient."""
    whole = torch.empty(2 * SIZE)
    whole[:SIZE] = value
    param.grad = torch.empty(0).set_(whole.untyped_storage(), 0, (SIZE,), (1,))


def in_a_list(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    spoil(held)
    param.grad = value.clone()
    held.append(param.grad)


def as_a_view(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    spoil(held)
    param.grad = value.clone()
    held.append(param.grad.view(3, 4))


def as_numpy(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    if held:
        held.pop()[:] = np.nan
    param.grad = value.clone()
    held.append(param.grad.numpy())


def as_dlpack(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    if held:
        torch.utils.dlpack.from_dlpack(held.pop()).fill_(torch.nan)
    param.grad = value.clone()
    held.append(torch.utils.dlpack.to_dlpack(param.grad))


def as_storage(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    if held:
        held.pop().fill_(255)
    param.grad = value.clone()
    held.append(param.grad.untyped_storage())


def as_another_parameters(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    if held:
        held.pop().grad.fill_(torch.nan)
    param.grad = value.clone()
    held.append(nn.Parameter(torch.zeros(SIZE)))
    held[0].grad = param.grad


def by_weak_reference(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    if held and held[0]() is not None:
        held[0]().fill_(torch.nan)
    param.grad = value.clone()
    held[:] = [weakref.ref(param.grad)]


def stashed_by_a_hook(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    spoil(held)
    hook = param.register_post_accumulate_grad_hook(lambda p: held.append(p.grad))
    (param * value).sum().backward()
    hook.remove()


def with_a_graph(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    param.grad = value.clone().requires_grad_() * 1


def in_shared_memory(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    param.grad = value.clone().share_memory_()


def spoil(held: list[Tensor]) -> None:
    for tensor in held:
        with torch.no_grad():
            tensor.fill_(torch.nan)
    held.clear()


def sparse(param: nn.Parameter, value: Tensor, held: list[Any]) -> None:
    param.grad = value.to_sparse()


WRITERS = [
    reused_buffer,
    reused_by_another_name,
    reused_numpy_memory,
    bucket_view,
    in_a_list,
    as_a_view,
    as_numpy,
    as_dlpack,
    as_storage,
    as_another_parameters,
    by_weak_reference,
    stashed_by_a_hook,
]
OTHERS = [view_of_a_forgotten_buffer, in_shared_memory, with_a_graph, sparse]
Assign = Callable[[nn.Parameter, Tensor, list[Any]], None]


def after(assign: Assign) -> list[Tensor]:
    """Parameter and state after three steps on gradients handed out in this way."""
    draws, held = torch.Generator().manual_seed(0), []
    param = nn.Parameter(torch.zeros(SIZE))
    optimizer = paper_alice([param], lr=0.1, quick_steps=1)

    def closure() -> None:
        assign(param, torch.randn(SIZE, generator=draws), held)

    for _ in range(3):
        optimizer.step(closure)
        held.clear()
    return [param.detach(), *optimizer.state[param].values()]


@pytest.mark.parametrize("assign", WRITERS)
def test_a_gradient_that_is_written_again_was_copied(assign: Assign) -> None:
    """Whoever still reaches the memory of a side's gradient, and writes to it, changes nothing."""
    assert all(map(torch.equal, after(fresh), after(assign)))


@pytest.mark.parametrize("assign", WRITERS)
def test_without_the_copy_it_would_have_been_lost(
    assign: Assign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above is about the copy: these gradients really are written again."""
    monkeypatch.setattr("aliceopt.ownership.is_owned", lambda param: True)
    assert not all(map(torch.equal, after(fresh), after(assign)))


@pytest.mark.parametrize("assign", [*WRITERS, *OTHERS])
def test_what_others_may_reach_is_not_owned(assign: Assign) -> None:
    held: list[Any] = []
    param = nn.Parameter(torch.zeros(SIZE))
    assign(param, torch.ones(SIZE), held)
    assert not is_owned(param)


def test_autograds_gradients_are_owned_and_kept_as_they_are() -> None:
    """Convolutions, normalisations, shared weights and hooks that only look: no copy is made."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 16),
        nn.LayerNorm(16),
        nn.Linear(16, 16),
        nn.Embedding.from_pretrained(torch.ones(3, 3), freeze=False),
    )
    model[6].weight = model[6].weight
    handle = model[0].weight.register_hook(lambda grad: None)
    images, words = torch.randn(5, 3, 6, 6), torch.tensor([0, 2])
    for _ in range(2):
        model.zero_grad()
        (model[:7](images).sum() + model[7](words).sum()).backward()
        for name, param in model.named_parameters():
            assert is_owned(param), (name, references(param))
            address = param.grad.data_ptr()
            assert kept(param).data_ptr() == address
            assert Keeper().keep([param], [0], name)[0].data_ptr() == address
    handle.remove()


def test_accumulated_gradients_are_owned() -> None:
    """Micro-batches add up in memory of their own."""
    layer = nn.Linear(4, 3)
    for _ in range(3):
        layer(torch.randn(2, 4)).sum().backward()
    assert all(is_owned(param) for param in layer.parameters())


def test_a_gradient_that_several_evaluations_share_is_not_copied_twice() -> None:
    """Copies of the same place go to the same memory; each place has its own."""
    keeper, param, held = Keeper(), nn.Parameter(torch.zeros(SIZE)), []
    places = []
    for place in ("plus", "minus", "plus", "minus"):
        reused_buffer(param, torch.ones(SIZE), held)
        places.append(keeper.keep([param], [0], place)[0].data_ptr())
    assert places[:2] == places[2:]
    assert len({*places, held[0].data_ptr()}) == 3
    param.grad = torch.ones(2 * SIZE)[::2]  # another layout
    assert torch.equal(*keeper.keep([param], [0], "plus"), param.grad)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_gradients_are_always_copied_to_the_same_memory() -> None:
    """Whatever their dtypes and layouts, and anew where they are of another shape."""
    keeper, held = Keeper(), []
    params = [
        nn.Parameter(torch.zeros(size, dtype=dtype, device="cuda"))
        for size, dtype in (((3, 4), torch.float32), ((5,), torch.bfloat16), ((0,), torch.float32))
    ]
    for _ in range(2):
        for param in params:
            param.grad = torch.randn_like(param)
        there = keeper.keep(params, [0, 1, 2], "plus")
        other = keeper.keep(params, [0, 1, 2], "minus")
        for param, mine, second in zip(params, there, other, strict=True):
            assert torch.equal(mine, param.grad)
            assert mine.dtype == param.dtype
            assert not mine.numel() or len({t.data_ptr() for t in (mine, second, param.grad)}) == 3
        held.append([tensor.data_ptr() for tensor in there])
    assert held[0] == held[1]
    params[0].grad = torch.randn(4, 3, device="cuda").t()
    assert torch.equal(keeper.keep(params[:1], [0], "plus")[0], params[0].grad)


def test_where_torch_cannot_count_everything_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters are not public: a release without them costs a copy, not a wrong step."""
    param = nn.Parameter(torch.zeros(SIZE))
    param.grad = torch.ones(SIZE)
    assert is_owned(param)
    monkeypatch.delattr("torch._C._storage_Use_Count")
    assert references(param) is None
    assert not is_owned(param)
    assert kept(param) is not param.grad


def test_without_a_global_lock_everything_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reference counts of free-threaded Python are approximate."""
    monkeypatch.setattr("aliceopt.ownership._are_counts_exact", lambda: False)
    param = nn.Parameter(torch.zeros(SIZE))
    param.grad = torch.ones(SIZE)
    assert not is_owned(param)


def test_zero_grad_lets_go_of_the_probes_gradients_but_not_in_the_middle_of_a_step() -> None:
    """A closure that begins with zero_grad, as many do, does not lose the sides."""
    after_each = []
    for zeroing in (False, True):
        param = nn.Parameter(torch.ones(SIZE))
        optimizer = paper_alice([param], lr=0.1, quick_steps=0)

        def closure(
            param: nn.Parameter = param, optimizer: Alice = optimizer, zeroing: bool = zeroing
        ) -> None:
            if zeroing:
                optimizer.zero_grad()
            (param**4).sum().backward()

        optimizer.step(closure)
        after_each.append(param.detach().clone())
        optimizer.zero_grad()
        assert param.grad is optimizer.sites[0].plus is optimizer.sites[0].minus is None
    assert torch.equal(*after_each)
