"""Captured steps on a GPU leave no trace, share no random state, and wait for nothing."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn

import aliceopt
from aliceopt.capture.graphs import GraphRandom
from cuda_cases import Run, assert_equal, batches
from paper import paper_alice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_each_evaluation_of_a_graph_draws_from_a_state_of_its_own() -> None:
    """All draw what was set for them, whatever the default generator does, which is left alone."""
    torch.cuda.init()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    torch.rand(8, device="cuda")
    main, graph = generator.graphsafe_get_state(), torch.cuda.CUDAGraph()
    states = [generator.clone_state() for _ in range(3)]
    for state in states:
        graph.register_generator_state(state)
    draws = []
    try:
        with torch.cuda.graph(graph):
            random = GraphRandom(generator, states)
            for i in range(3):
                if i > 0:
                    random.restore()
                draws.append(torch.rand(8, device="cuda"))
    finally:
        generator.graphsafe_set_state(main)
    torch.cuda.synchronize()  # torch sets the states' seeds on the capture's stream, maybe late
    for seed in (5, 6):
        torch.cuda.manual_seed(seed)
        begin = generator.get_state()
        expected = torch.rand(8, device="cuda")
        after = generator.get_state()
        for state in states:
            state.set_state(begin)
        graph.replay()
        assert torch.equal(generator.get_state(), after)
        for draw, state in zip(draws, states, strict=True):
            assert torch.equal(draw, expected)
            assert torch.equal(state.get_state(), after)


def test_steps_replay_what_was_captured_and_return_a_plain_loss() -> None:
    """Nothing is captured twice, and no autograd graph of the capture is left behind."""
    run = Run(captured=True)
    assert run.step is not None
    graphs = [recording.graph for recording in run.step._recordings.values()]
    x, y = (t[0] for t in batches(1))
    losses = [run.step(x, y) for _ in range(4)]
    after = [recording.graph for recording in run.step._recordings.values()]
    assert all(a is b for a, b in zip(graphs, after, strict=True))
    assert all(loss.grad_fn is None for loss in losses)


@pytest.mark.usefixtures("deterministic")
def test_capturing_trains_nothing() -> None:
    """Parameters, buffers, counters and generator are the same before and after."""
    run = Run(captured=False)
    before, state = run.everything(), copy.deepcopy(run.optimizer.state_dict()["param_groups"])
    run.capture()
    run.optimizer.state.clear()
    assert_equal(before, run.everything())
    assert run.optimizer.state_dict()["param_groups"] == state


@pytest.mark.usefixtures("deterministic")
def test_a_closure_that_raises_while_captured_leaves_no_trace() -> None:
    """At each of its nine evaluations, the recorded ones included; afterwards capturing works."""
    run, plain = Run(captured=False), Run(captured=False)
    places = [p.data_ptr() for p in run.model.parameters()]
    before = run.everything()
    for last in range(9):
        left = list(range(last))
        run.hook = lambda left=left: left.pop()  # type: ignore[misc]
        with pytest.raises(IndexError):
            run.capture()
        assert [p.data_ptr() for p in run.model.parameters()] == places
        assert all(p.grad is None for p in run.model.parameters())
        run.optimizer.state.clear()
        assert_equal(before, run.everything())
    run.hook = lambda: None
    run.step = run.capture()
    ends = []
    for each in (run, plain):
        torch.cuda.manual_seed(7)
        for x, y in zip(*batches(4), strict=True):
            each.train(x, y)
        ends.append(each.everything())
    assert_equal(*ends)


@pytest.mark.parametrize("last", [5, 6], ids=["quick", "measuring"])
def test_a_recording_that_failed_writes_to_nobody_else(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does what torch began on the recording's stream, however late the device comes to it."""
    begin = torch.cuda.CUDAGraph.capture_begin

    def late(graph: torch.cuda.CUDAGraph, *args: Any, **options: Any) -> None:
        torch.cuda._sleep(1 << 28)  # clock cycles, about a seventh of a second
        begin(graph, *args, **options)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", late)
    run, left = Run(captured=False), list(range(last))
    run.hook = lambda: left.pop()  # type: ignore[assignment, return-value]
    with pytest.raises(IndexError):
        run.capture()
    gc.collect()
    others = [torch.zeros(16, device="cuda") for _ in range(1000)]
    torch.cuda.synchronize()
    assert not any(t.any() for t in others)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
@pytest.mark.parametrize("quick_steps", [0, 3])
def test_twenty_steps_never_wait_for_the_device(
    captured: bool, max_grad_norm: float | None, quick_steps: int
) -> None:
    """Quick and measuring, clipped or not, in sync debug mode "error", after one cycle of steps."""
    run = Run(captured, max_grad_norm=max_grad_norm, quick_steps=quick_steps)
    x, y = (t[0] for t in batches(1))
    for _ in range(quick_steps + 2):
        run.train(x, y)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            run.train(x, y)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_wrong_inputs_are_refused_by_number_and_shape() -> None:
    """Another count or shape than captured raises before anything is copied."""
    run = Run(captured=True)
    assert run.step is not None
    x, y = (t[1] for t in batches(2))
    before = run.x.clone()
    with pytest.raises(ValueError, match="2 static inputs, called with 1"):
        run.step(x)
    with pytest.raises(
        ValueError, match=r"input 0 was captured with shape \(16, 3, 6, 6\), got \(8"
    ):
        run.step(x[:8], y[:8])
    with pytest.raises(ValueError, match=r"input 1 was captured with shape \(16,\), got \(8"):
        run.step(x, y[:8])
    assert torch.equal(run.x, before)


def test_an_implementation_without_kernels_is_refused() -> None:
    optimizer = paper_alice([nn.Parameter(torch.zeros(3, device="cuda"))], implementation="eager")
    with pytest.raises(ValueError, match="implementation 'auto' or 'triton', got 'eager'"):
        aliceopt.capture(optimizer, lambda: None)
