"""What kinds of parameters Alice takes: layouts, dtypes, sizes, ties, frozen ones; and refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from contract_cases import FEW_OPTIONS, LR, batch, counts, memory, network, same, train, values
from paper import paper_alice

few_cases = pytest.mark.parametrize("options", FEW_OPTIONS, ids=range(len(FEW_OPTIONS)))

EXACT = {"rtol": 0.0, "atol": 0.0}
START = torch.linspace(-1.0, 1.0, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)


def with_gaps(x: Tensor) -> Tensor:
    """The same values in every third element of a larger memory, which nothing may touch."""
    return x.new_full((*x.shape, 3), 99.0)[..., 1].copy_(x)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": lambda x: x.clone().to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "reversed": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "with gaps": with_gaps,
}


def bent(p: Tensor) -> Tensor:
    """A loss with Hessian and kinks that treats every coordinate differently."""
    weights = torch.arange(1.0, p.numel() + 1).reshape(p.shape) / p.numel()
    return (weights * (p.square() + (p - 0.1 * weights).relu())).sum()


def descend(p: nn.Parameter, options: dict) -> Alice:
    optimizer = paper_alice([p], **{"lr": LR, **options})
    for _ in range(6):
        optimizer.step(lambda: bent(p).backward())
    return optimizer


@few_cases
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layout_changes_no_number(options, layout):
    """Signs and steps follow the logical index, so any strides give the contiguous numbers."""
    plain = nn.Parameter(START.clone())
    strided = nn.Parameter(LAYOUTS[layout](START))
    assert not strided.is_contiguous()
    strides = strided.stride()
    first, second = descend(plain, options), descend(strided, options)
    # A clip norm adds up in another order, and what has gaps is served by torch's own operations,
    # whose square root is an ulp off now and then.
    exact = layout != "with gaps" and "max_grad_norm" not in options
    tolerance = EXACT if exact else {"rtol": 1e-5, "atol": 1e-9}
    torch.testing.assert_close(strided.detach(), plain.detach(), **tolerance)
    for name, value in memory(first)["state"].items():
        torch.testing.assert_close(memory(second)["state"][name], value, **tolerance)
    assert strided.stride() == strides


def test_memory_between_the_elements_of_a_strided_parameter_is_not_written():
    """A parameter may be a window into a larger tensor; the rest of it is someone else's."""
    whole = torch.full((*START.shape, 3), 99.0)
    p = nn.Parameter(whole[..., 1].copy_(START))
    assert p.data_ptr() == whole[..., 1].data_ptr()
    descend(p, {})
    assert torch.equal(whole[..., 1], p.detach())
    assert not torch.equal(p.detach(), START)
    assert torch.equal(whole[..., ::2], torch.full_like(whole[..., ::2], 99.0))


def test_gradients_may_have_another_layout_than_the_parameter():
    """A channels_last gradient of a contiguous parameter counts at the right coordinates."""
    plain, other = nn.Parameter(START.clone()), nn.Parameter(START.clone())
    first, second = paper_alice([plain], lr=LR), paper_alice([other], lr=LR)
    for _ in range(4):
        first.step(lambda: bent(plain).backward())

        def closure() -> None:
            bent(other).backward()
            other.grad = other.grad.to(memory_format=torch.channels_last)

        second.step(closure)
    assert same(plain.detach(), other.detach())


def test_an_expanded_parameter_is_refused_without_moving_the_others():
    """Elements that share memory cannot be stepped; torch says so, and nothing else moved."""
    good = nn.Parameter(torch.zeros(3))
    expanded = nn.Parameter(torch.zeros(1).expand(4))
    with pytest.raises((RuntimeError, ValueError)):
        paper_alice([good, expanded]).step(lambda: (good.sum() + expanded.sum()).backward())
    assert torch.equal(good, torch.zeros(3))


@few_cases
def test_scalars_and_empty_tensors_are_parameters_too(options):
    """A 0-dim parameter moves like a one-element vector; an empty one is no trouble."""
    scalar, empty = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.zeros(0, 3))
    vector = nn.Parameter(torch.tensor([0.7]))
    first = paper_alice([scalar, empty], **{"lr": LR, **options})
    second = paper_alice([vector], **{"lr": LR, **options})
    for _ in range(6):
        first.step(lambda: (scalar.square().sum() + empty.sum()).backward())
        second.step(lambda: vector.square().sum().backward())
    assert torch.equal(scalar, vector[0])
    assert scalar.item() != pytest.approx(0.7)
    assert first.state[empty]["grad_avg"].shape == (0, 3)


@few_cases
def test_mixed_dtypes_in_one_optimizer_behave_as_alone(options):
    """Each dtype's trajectory equals that of an optimizer of its own with the same sign index."""
    if options.get("max_grad_norm"):
        options = {**options, "max_grad_norm": None}  # one norm for all would couple them
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    together = [nn.Parameter(torch.linspace(-1, 1, 8).to(d)) for d in dtypes]
    optimizer = paper_alice(together, **{"lr": LR, **options})
    for _ in range(5):
        optimizer.step(lambda: sum(bent(p).to(torch.float32) for p in together).backward())
    for index, dtype in enumerate(dtypes):
        alone = [nn.Parameter(torch.linspace(-1, 1, 8).to(dtype)) for _ in dtypes]
        single = paper_alice(alone, **{"lr": LR, **options})
        for _ in range(5):
            single.step(lambda p=alone[index]: bent(p).to(torch.float32).backward())
        assert same(together[index].detach(), alone[index].detach())
        wanted = torch.float64 if dtype == torch.float64 else torch.float32
        state = optimizer.state[together[index]]
        assert {v.dtype for k, v in state.items() if v.dim()} == {wanted}


@few_cases
def test_frozen_parameters_never_move_not_even_during_probes(options):
    """Their value is the same object's same bits inside every evaluation and after the step."""
    model = network()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = paper_alice(model.parameters(), **{"lr": LR, **options})

    def closure() -> None:
        assert torch.equal(model[0].weight, before)
        x, y = batch(0)
        nn.functional.mse_loss(model(x), y).backward()

    for _ in range(5):
        optimizer.step(closure)
    assert torch.equal(model[0].weight, before)
    assert model[0].weight not in optimizer.state


def test_freezing_in_mid_training_holds_a_parameter_where_it_stands():
    """mu, not nu or a probe point; its state waits, and thawing goes on from there."""
    model = network()
    optimizer = paper_alice(model.parameters(), lr=LR)
    train(model, optimizer, 0, 3)
    model[0].weight.requires_grad_(False)
    optimizer.zero_grad()
    before, steps = model[0].weight.clone(), optimizer.state[model[0].weight]["step"].clone()
    train(model, optimizer, 3, 8)
    assert torch.equal(model[0].weight, before)
    assert torch.equal(optimizer.state[model[0].weight]["step"], steps)
    model[0].weight.requires_grad_(True)
    train(model, optimizer, 8, 9)
    assert not torch.equal(model[0].weight, before)


def test_a_forgotten_gradient_of_a_frozen_parameter_has_no_say_in_the_clip_norm():
    """A stale .grad from before the freeze is not a gradient of this step."""
    results = []
    for stale in (None, torch.full((5,), 100.0)):
        model = network()
        model[0].bias.requires_grad_(False)
        model[0].bias.grad = stale
        optimizer = paper_alice(model.parameters(), lr=LR, max_grad_norm=0.05)
        train(model, optimizer, 0, 2)
        results.append(optimizer.state[model[0].weight]["grad_avg"])
    assert same(results[0], results[1])


@few_cases
def test_tied_parameters_are_one_parameter(options):
    """A weight used twice equals one parameter whose gradient is the sum."""
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    tied[2].weight = tied[0].weight
    single = nn.Parameter(tied[0].weight.detach().clone())
    x, y = torch.linspace(-1, 1, 24).reshape(6, 4), torch.linspace(1, -1, 24).reshape(6, 4)
    first = paper_alice(tied.parameters(), **{"lr": LR, **options})
    second = paper_alice([single], **{"lr": LR, **options})
    assert len(first.param_groups[0]["params"]) == 1
    for _ in range(5):
        first.step(lambda: (tied(x) - y).square().mean().backward())
        second.step(
            lambda: ((x @ single.T).relu() @ single.T - y).square().mean().backward(),
        )
    torch.testing.assert_close(tied[0].weight, single)


def test_duplicates_within_a_group_are_announced_and_across_groups_refused():
    """As torch does; the refused group leaves the optimizer as it was."""
    p = nn.Parameter(torch.ones(2))
    with pytest.warns(UserWarning, match="duplicate parameters"):
        paper_alice([p, p])
    optimizer = paper_alice([p])
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [p]})
    assert len(optimizer.param_groups) == 1


BAD_PARAMETERS = {
    "complex": (lambda: torch.zeros(2, dtype=torch.complex64), "complex"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "sparse"),
    "integer": (lambda: torch.zeros(2, dtype=torch.int64), "int64"),
    "boolean": (lambda: torch.zeros(2, dtype=torch.bool), "bool"),
}


@pytest.mark.parametrize("kind", BAD_PARAMETERS)
def test_parameters_the_arithmetic_cannot_take_are_refused(kind):
    """At construction and as a later group; the message says which parameter and what it is."""
    build, word = BAD_PARAMETERS[kind]
    bad, good = build(), nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=word):
        paper_alice([bad])
    with pytest.raises(ValueError, match=f"parameter 1 of group 0.*{word}"):
        paper_alice([good, bad])
    optimizer = paper_alice([good])
    with pytest.raises(ValueError, match=f"of group 1.*{word}"):
        optimizer.add_param_group({"params": [bad]})
    assert len(optimizer.param_groups) == 1
    optimizer.step(lambda: good.sum().backward())


@pytest.mark.parametrize("drive", ["closure", "loop", "plain"])
def test_sparse_gradients_are_refused_and_change_nothing(drive):
    """nn.Embedding(sparse=True): a clear error; values, state and counters as before."""
    embedding, linear = nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1)
    model = nn.Sequential(embedding, linear)
    optimizer = paper_alice(model.parameters(), lr=LR)
    before = values(model)

    def backward() -> None:
        model(torch.tensor([0, 2])).sum().backward()

    def loop() -> None:
        for _ in optimizer.evaluations():
            backward()

    def plain() -> None:
        backward()
        optimizer.step()

    act = {"closure": lambda: optimizer.step(backward), "loop": loop, "plain": plain}[drive]
    with pytest.raises(RuntimeError, match=r"dense gradients.*\(5, 3\).*sparse=False"):
        act()
    assert same(values(model), before)
    assert memory(optimizer)["state"] == {}
    assert counts(optimizer) == (0, 0, 0)


def test_torch_refuses_what_it_refuses_for_any_optimizer():
    """No parameters, no tensors, no order, a tensor that is not a leaf."""
    leaf = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="empty parameter list"):
        paper_alice([])
    with pytest.raises(TypeError, match="Tensors"):
        paper_alice([1.0])
    with pytest.raises(TypeError, match="ordered"):
        paper_alice([{"params": {leaf}}])
    with pytest.raises(ValueError, match="non-leaf"):
        paper_alice([leaf * 2])
