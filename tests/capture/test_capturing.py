"""When a step is captured anew, what cannot be captured, and what a launch will read."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("captured steps proper are tested there", allow_module_level=True)
from aliceopt.kernels import backend
from aliceopt.kernels.table import Row
from capture_cases import ReplayedStep, Run, assert_equal
from paper import paper_alice

# numpy, in the interpreter, warns of what a GPU does silently and the kernels then mask.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_steady_steps_capture_once() -> None:
    """One capture a kind, for any number of steps, schedules and edits of contents included."""
    run = Run(captured=True)
    for _ in range(6):
        run.optimizer.param_groups[0]["lr"] *= 0.9
        with torch.no_grad():
            run.a.mul_(1.1)
            run.idle.mul_(1.1)
        run.train()
    assert run.step.captures == 2


def test_state_replaced_behind_a_capture_is_noticed_in_zero_dimensions_too() -> None:
    run = Run(captured=True)
    run.train()
    state = run.optimizer.state[run.c]
    state["grad_avg"] = state["grad_avg"].clone()
    run.train()
    assert run.step.captures == 4


def test_capturing_anew_lets_go_of_the_old_memory() -> None:
    """Tables, sides and gradients of the recordings before."""
    run = Run(captured=True)
    run.train()
    recording = run.step._recordings[True]
    old = [weakref.ref(recording), weakref.ref(recording.tables.there)]
    old += [weakref.ref(t) for t in run.step._backend._sides[run.optimizer.sites[0]]]
    old += [weakref.ref(grad) for grad in recording.grads if grad is not None]
    recording.graph = None
    del recording
    run.optimizer.param_groups[0]["max_grad_norm"] = 1.0
    run.train()
    assert run.step.captures == 4
    assert [ref() for ref in old] == [None] * len(old)


def test_a_step_of_another_optimizer_is_refused() -> None:
    run, other = Run(captured=True), Run(captured=False)
    before = other.everything()
    with pytest.raises(ValueError, match="another optimizer"):
        other.optimizer.step(run.step)
    assert_equal(before, other.everything())


def test_a_loss_comes_without_its_graph() -> None:
    run = Run(captured=True)
    loss = run.optimizer.step(run.step)
    assert loss.grad_fn is None
    assert not loss.requires_grad


@pytest.mark.parametrize(
    "param",
    [
        torch.randn(4, 6)[:, ::2],
        torch.randn(2, 3, 2, 3, 2, 3).permute(5, 4, 3, 2, 1, 0),
    ],
    ids=["gaps", "six runs"],
)
def test_what_no_kernel_can_describe_is_refused(param: Tensor) -> None:
    """The numbers of an eager update would be recorded for good."""
    leaf = nn.Parameter(param)
    optimizer = paper_alice([leaf], implementation="triton")
    with pytest.raises(ValueError, match=r"capture needs dense parameters .* strides \("):
        ReplayedStep(optimizer, lambda: (leaf**2).sum().backward())


def test_a_state_in_another_layout_is_refused() -> None:
    param = nn.Parameter(torch.randn(3, 4).t())
    optimizer = paper_alice([param], implementation="triton", hessian="none", glass=False)
    optimizer.step(lambda: (param**2).sum().backward())
    entries = optimizer.state[param]
    entries["probe_center"] = entries["probe_center"].contiguous()
    with pytest.raises(ValueError, match="states laid out alike"):
        ReplayedStep(optimizer, lambda: (param**2).sum().backward())


def test_an_optimizer_that_trains_nothing_is_refused() -> None:
    optimizer = paper_alice(
        [nn.Parameter(torch.randn(3), requires_grad=False)], implementation="triton"
    )
    with pytest.raises(ValueError, match="a parameter that requires gradients, got none"):
        ReplayedStep(optimizer, lambda: None)


def test_a_sparse_gradient_is_refused() -> None:
    layer = nn.Embedding(5, 3, sparse=True)
    optimizer = paper_alice(layer.parameters(), implementation="triton")
    with pytest.raises(RuntimeError, match="dense gradients"):
        ReplayedStep(optimizer, lambda: layer(torch.tensor([1, 2])).sum().backward())
    assert layer.weight.grad is None


def test_a_launch_finds_in_its_table_what_was_true_when_it_was_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gradients in another layout are copied twice, for the clip norm and for the update.

    Were there one table, the norm would be of memory that the update has yet to fill.
    """
    param, copies = nn.Parameter(torch.randn(3, 4).t()), []

    def closure() -> Tensor:
        param.grad = torch.ones(4, 3)
        return param.detach().sum()

    def conformed(grad: Tensor, like: Tensor) -> Tensor:
        copies.append(original(grad, like))  # kept, so that no two are in the same place
        return copies[-1]

    original = backend.conformed
    monkeypatch.setattr(backend, "conformed", conformed)
    optimizer = paper_alice(
        [param], implementation="triton", max_grad_norm=1.0, hessian="none", glass=False
    )
    step = ReplayedStep(optimizer, closure)
    found = step._recordings[False].tables.host[:, 0, Row.GRAD].tolist()
    assert found == [copy.data_ptr() for copy in copies[-2:]]
    optimizer.step(step)
    assert len(copies) == 6
