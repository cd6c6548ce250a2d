"""Whatever is replaced between two steps, or within one, kernels do as the oracle does."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from cpu_cases import assert_same, everything, needs_compiler, quadratic
from paper import paper_alice

pytestmark = needs_compiler
bits = pytest.mark.usefixtures("exact_roots")


# ---- what users and their tools do to a parameter or its state between two steps ---------------


def storage(optimizer: Alice, param: nn.Parameter) -> None:
    param.data = param.data.clone() + 1


def entry(optimizer: Alice, param: nn.Parameter) -> None:
    optimizer.state[param]["hess"] = optimizer.state[param]["hess"] * 2


def entry_laid_out_otherwise(optimizer: Alice, param: nn.Parameter) -> None:
    center = optimizer.state[param]["probe_center"]
    optimizer.state[param]["probe_center"] = center.t().contiguous().t()


def state(optimizer: Alice, param: nn.Parameter) -> None:
    optimizer.state[param] = copy.deepcopy(optimizer.state[param])


def no_state(optimizer: Alice, param: nn.Parameter) -> None:
    del optimizer.state[param]


def layout(optimizer: Alice, param: nn.Parameter) -> None:
    param.data = param.data.t().contiguous().t()


def gaps(optimizer: Alice, param: nn.Parameter) -> None:
    param.data = torch.stack([param.data, param.data], -1)[..., 0]


def turned_in_place(optimizer: Alice, param: nn.Parameter) -> None:
    param.data = param.data.t()


def memory_given_back(optimizer: Alice, param: nn.Parameter) -> None:
    values, param.data = param.data.clone(), torch.empty(0)
    param.data = torch.empty_strided((40, 40), (1, 40), dtype=values.dtype).copy_(values)


def no_term(optimizer: Alice, param: nn.Parameter) -> None:
    del optimizer.state[param]["hess"]


def nothing_left(optimizer: Alice, param: nn.Parameter) -> None:
    optimizer.state[param].clear()


def other_memory(optimizer: Alice, param: nn.Parameter) -> None:
    for tensor in optimizer.state[param].values():
        tensor.data = tensor.data.clone()


def other_memory_laid_out_otherwise(optimizer: Alice, param: nn.Parameter) -> None:
    for name in ("grad_avg", "hess", "probe_center"):
        tensor = optimizer.state[param][name]
        tensor.data = tensor.data.t().contiguous().t()


def exchanged(optimizer: Alice, param: nn.Parameter) -> None:
    other = optimizer.param_groups[0]["params"][0]
    mine, theirs = optimizer.state.pop(param), optimizer.state.pop(other)
    optimizer.state[other], optimizer.state[param] = mine, theirs


def checkpoint(optimizer: Alice, param: nn.Parameter) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def edited(optimizer: Alice, param: nn.Parameter) -> None:
    with torch.no_grad():
        param.mul_(1.5)


def center_and_more(optimizer: Alice, param: nn.Parameter) -> None:
    optimizer.state[param]["probe_center"] = torch.ones_like(param, dtype=torch.float32)
    optimizer.state[param]["mine"] = torch.zeros(())


REPLACEMENTS = [
    storage, entry, entry_laid_out_otherwise, state, no_state, layout, gaps,
    turned_in_place, memory_given_back, checkpoint, edited, layout, storage,
    no_term, nothing_left, other_memory, other_memory_laid_out_otherwise, exchanged,
]  # fmt: skip

WHILE_AWAY = [change for change in REPLACEMENTS if change.__name__ in (
    "entry", "entry_laid_out_otherwise", "state", "no_state", "no_term", "nothing_left",
    "other_memory", "other_memory_laid_out_otherwise", "exchanged", "checkpoint", "layout",
)]  # fmt: skip

# ---- which is found ----------------------------------------------------------------------------


@bits
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("change", [None, *REPLACEMENTS], ids=lambda c: getattr(c, "__name__", c))
def test_what_is_replaced_between_steps_is_found(dtype: torch.dtype, change: Any) -> None:
    """Storage, entries of a state, whole states, memory layouts, checkpoints; None: all in turn."""

    def drive(name: str) -> list[Tensor]:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(40, 40).to(dtype)) for _ in range(3)]
        optimizer = paper_alice(params, lr=1e-2, quick_steps=1, implementation=name)
        optimizer.step(quadratic(params))
        found = []
        for each in [change] if change else REPLACEMENTS:
            each(optimizer, params[1])
            for _ in range(3):
                optimizer.step(quadratic(params))
            found += everything(optimizer)
        return found

    assert_same(drive)


@bits
def test_what_is_replaced_between_a_loop_and_its_step_is_found() -> None:
    """An entry of a state: the step is taken with the new one."""

    def drive(name: str) -> list[Tensor]:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(4, 6))]
        optimizer = paper_alice(params, lr=0.05, quick_steps=1, implementation=name)
        for _ in range(4):
            for _ in optimizer.evaluations():
                quadratic(params)()
            if optimizer.state:
                optimizer.state[params[0]]["grad_avg"] = torch.zeros(4, 6)
            optimizer.step()
        assert optimizer.state[params[0]]["grad_avg"].any()
        return everything(optimizer)

    assert_same(drive)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("implementation", ["eager", "compiled"])
@pytest.mark.parametrize("change", [*WHILE_AWAY, center_and_more], ids=lambda c: c.__name__)
def test_what_is_replaced_while_parameters_look_ahead_is_found(
    change: Any, implementation: str, dtype: torch.dtype
) -> None:
    """The positions are not lost: as if they had come home first."""

    def drive(*, home: bool) -> list[Tensor]:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(40, 40).to(dtype)) for _ in range(3)]
        optimizer = paper_alice(params, lr=1e-2, quick_steps=1, implementation=implementation)
        for _ in range(2):
            optimizer.step(quadratic(params))
        found = []
        for step in range(3):
            optimizer.look_ahead()
            quadratic(params)()
            if step == 1:
                optimizer.come_home() if home else None
                change(optimizer, params[1])
            optimizer.step()
            found += everything(optimizer)
        return found

    assert all(map(torch.equal, drive(home=True), drive(home=False)))


@bits
@pytest.mark.parametrize("to", ["parameter", "state"])
def test_another_dtype_in_mid_training_is_served_by_the_oracle(to: str) -> None:
    """``model.double()``, or states that somebody cast: no kernel reads one dtype as another."""

    def drive(name: str) -> list[Tensor]:
        torch.manual_seed(0)
        param = nn.Parameter(torch.randn(40, 60))
        optimizer = paper_alice([param], lr=0.05, quick_steps=1, implementation=name)
        for step in range(6):
            if step == 3 and to == "parameter":
                param.grad, param.data = None, param.data.double()
            elif step == 3:
                state = optimizer.state[param]
                state["grad_avg"] = state["grad_avg"].double()
            optimizer.step(quadratic([param]))
        return everything(optimizer)

    assert_same(drive)


@pytest.mark.parametrize("implementation", ["eager", "compiled"])
def test_a_part_with_gaps_in_the_place_of_a_parameter_is_refused(implementation: str) -> None:
    """Its strides and size are the old ones: (3, 2) in a matrix of (3, 3), after (2, 3)."""
    param, whole = nn.Parameter(torch.randn(2, 3)), torch.full((3, 3), 7.0)
    optimizer = paper_alice([param], lr=0.05, quick_steps=1, implementation=implementation)
    for _ in range(3):
        optimizer.step(quadratic([param]))
    param.grad, param.data = None, whole[:, :2]
    with pytest.raises(RuntimeError):
        optimizer.step(quadratic([param]))
    assert (whole[:, 2] == 7).all()


@bits
def test_a_parameter_may_change_groups_and_counters_their_memory() -> None:
    """The other group's lr counts from then on, and counts go on in checkpoints."""
    params = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    groups = [{"params": params[:2], "lr": 0.05}, {"params": params[2:], "lr": 0.5}]
    optimizer = paper_alice(groups, implementation="compiled")
    for _ in range(2):
        optimizer.step(quadratic(params))
    optimizer.param_groups[1]["params"].insert(0, optimizer.param_groups[0]["params"].pop())
    for tensor in optimizer.state[params[0]].values():
        tensor.data = tensor.data.clone()
    optimizer.step(quadratic(params))
    assert optimizer.sites[1].group is optimizer.param_groups[1]
    assert optimizer.state_dict()["state"][0]["step"] == 3


@bits
def test_a_norm_given_as_a_tensor_clips_as_a_number_does() -> None:
    """Also one of one element in one dimension."""

    def drive(norm: Any) -> list[Tensor]:
        params = [nn.Parameter(torch.linspace(1, 2, 6))]
        optimizer = paper_alice(params, max_grad_norm=norm, implementation="compiled")
        for _ in range(3):
            optimizer.step(quadratic(params))
        return everything(optimizer)

    for norm in (torch.tensor(1.0), torch.tensor([1.0])):
        assert all(map(torch.equal, drive(1.0), drive(norm)))


@bits
@pytest.mark.parametrize("evaluation", range(1, 8))
def test_a_layout_may_change_in_the_middle_of_a_step(evaluation: int) -> None:
    """``model.to(memory_format=...)`` inside a closure: the other points are still visited."""

    def drive(name: str) -> list[Tensor]:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(4, 3, 2, 2)) for _ in range(2)]
        optimizer = paper_alice(params, lr=1e-2, quick_steps=1, implementation=name)
        seen: list[Tensor] = []

        def closure() -> None:
            seen.extend(p.detach().clone() for p in params)
            if len(seen) == 2 * evaluation:
                params[0].data = params[0].data.to(memory_format=torch.channels_last)
            quadratic(params)()

        for _ in range(4):
            optimizer.step(closure)
        return [*seen, *everything(optimizer)]

    assert_same(drive)


@bits
@pytest.mark.parametrize("evaluation", range(1, 8))
def test_a_layout_may_change_in_a_step_that_fails_and_change_back(evaluation: int) -> None:
    """What was noted of the failed step is not taken for true in the next ones."""

    def drive(name: str) -> list[Tensor]:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(4, 3, 2, 2)) for _ in range(2)]
        params.append(nn.Parameter(torch.randn(5).bfloat16()))
        optimizer = paper_alice(params, lr=1e-2, quick_steps=1, implementation=name)
        count = itertools.count(1)

        def closure() -> None:
            quadratic(params)()
            if next(count) == evaluation:
                params[0].data = params[0].data.to(memory_format=torch.channels_last)
                raise KeyError

        found = []
        for _ in range(4):
            try:
                optimizer.step(closure)
            except KeyError:
                found += everything(optimizer)
                with torch.no_grad():
                    for p in params:
                        p.data = 2 * p.data.contiguous()
            found += everything(optimizer)
        return found

    assert_same(drive)


@pytest.mark.parametrize("moved", [False, True], ids=["in place", "elsewhere"])
@pytest.mark.parametrize("implementation", ["compiled", "eager"])
@pytest.mark.parametrize("quick", [False, True], ids=["measuring", "quick"])
def test_a_parameter_of_another_size_is_refused(
    implementation: str, quick: bool, moved: bool
) -> None:
    """Before anything is written beyond its end, or to the others."""
    whole, grads = torch.randn(600), torch.ones(600)
    params = [nn.Parameter(torch.randn(50)), nn.Parameter(whole.clone() if moved else whole)]
    optimizer = paper_alice(params, lr=0.01, quick_steps=1, implementation=implementation)

    def closure() -> None:
        for p in params:
            p.grad = grads[: p.numel()]  # whoever reads too far still reads what is there

    for _ in range(3 if quick else 2):
        optimizer.step(closure)
    params[1].data = whole[:300]
    before = [whole.clone(), params[0].detach().clone()]
    with pytest.raises(RuntimeError):
        optimizer.step(closure)
    assert torch.equal(before[0], whole)
    assert torch.equal(before[1], params[0].detach())
