"""Ctrl-C at any point of a step: every parameter is where it was, or where it should be.

The host's side of a step is interrupted before each of its lines or instructions, in both kernel
sources; what a kernel does is one thing to the host. Counters are advanced last, after all updates.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aliceopt.kernels.backend as backend_module
import aliceopt.kernels.native as native
import aliceopt.kernels.table as table
import aliceopt.site as site_module
from aliceopt import Alice
from aliceopt.kernels.backend import MultiTensorBackend
from aliceopt.probe import Probe
from aliceopt.site import COUNTERS, Sites
from cpu_cases import needs_compiler
from interrupts import codes_of, interrupted

try:
    import aliceopt.kernels.triton_launch as triton_launch
except ImportError:  # pragma: no cover
    triton_launch = None

IMPLEMENTATIONS = [
    pytest.param("compiled", marks=needs_compiler),
    pytest.param(
        "triton",
        marks=[
            pytest.mark.skipif(triton_launch is None, reason="needs Triton"),
            # numpy, in the interpreter, warns of what a GPU does silently.
            pytest.mark.filterwarnings("ignore::RuntimeWarning"),
        ],
    ),
]
HOST = codes_of(
    MultiTensorBackend,
    backend_module._fill_gradients,
    backend_module._fill_sides,
    table,
    site_module.fit_,
    Sites.rates,
    Sites._adopt,
    native.CpuKernels,
    native._common,
    *([] if triton_launch is None else [triton_launch.TritonKernels, triton_launch._dtypes]),
)
# Counting the step is the last thing, and follows the update.
COUNTING = codes_of(Alice._commit, Sites.count_)
DRIVING = codes_of(Alice, Probe) - COUNTING
KINDS = [(torch.float32, 40), (torch.bfloat16, 12), (torch.float64, 30)]


METHODS = [
    MultiTensorBackend.depart,
    MultiTensorBackend.move,
    MultiTensorBackend.rest,
    MultiTensorBackend.update,
    MultiTensorBackend._move,
    MultiTensorBackend._take_room,
]
GROUP_COUNTS = ("cadence", "full_count", "quick_count")


class Run:
    """A quadratic after some steps; full and quick ones by turns, a full one first."""

    def __init__(self, implementation: str, steps: int, *, gaps: bool = True) -> None:
        torch.manual_seed(0)
        kinds = KINDS[:1] if implementation == "triton" else KINDS
        self.params = [nn.Parameter(torch.randn(n).to(dtype)) for dtype, n in kinds]
        if gaps and implementation != "triton":
            self.params.append(nn.Parameter(torch.randn(10)[::2]))  # for the oracle, by its gaps
        self.optimizer = Alice(self.params, lr=0.01, quick_steps=1, implementation=implementation)
        self.fail: type[BaseException] | None = None
        self.evaluations = 0
        for _ in range(steps):
            self.step()
        self.evaluations = 0

    def closure(self) -> None:
        self.evaluations += 1
        if self.fail is not None:
            raise self.fail
        for p in self.params:
            p.grad = 2 * p.detach()

    def step(self) -> None:
        self.optimizer.step(self.closure)

    def loop(self) -> None:
        for _ in self.optimizer.evaluations():
            self.closure()
        self.optimizer.step()

    @property
    def backend(self) -> MultiTensorBackend:
        self.optimizer._bind()
        backend = self.optimizer._backends.split(list(self.optimizer.sites))[0][0]
        assert isinstance(backend, MultiTensorBackend)
        return backend

    def tensors(self, *, counted: bool) -> list[list[Tensor]]:
        """Each parameter with its state, with or without what is counted."""
        states = [self.optimizer.state.get(p, {}) for p in self.params]
        return [
            [p.data, *(v for k, v in state.items() if counted or k not in COUNTERS)]
            for p, state in zip(self.params, states, strict=True)
        ]

    def found(self, *, counted: bool = False) -> list[list[Tensor]]:
        return [[t.clone() for t in each] for each in self.tensors(counted=counted)]

    def assert_at_home(self, where: Any) -> None:
        """Nobody is away, or believed to be."""
        backend = self.backend
        assert not backend.eager.aside, where
        if backend._plan is not None:
            assert (backend._plan.modes == table.HOME).all(), where
            assert not backend._plan._away.any(), where

    def twin(self) -> Run:
        """Another optimizer at the same point."""
        other = Run(self.optimizer.implementation, 0, gaps=self.params[-1].stride() == (2,))
        for p, q in zip(other.params, self.params, strict=True):
            p.data.copy_(q.data)
        other.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return other


def same(there: list[list[Tensor]], here: list[list[Tensor]]) -> bool:
    return [len(x) for x in there] == [len(x) for x in here] and all(
        torch.equal(x, y)
        for a, b in zip(there, here, strict=True)
        for x, y in zip(a, b, strict=True)
    )


class Case:
    """A run that is interrupted in the same step again and again, and what that step does."""

    def __init__(self, implementation: str, steps: int, *, gaps: bool = True) -> None:
        self.implementation, self.first = implementation, steps == 0
        self.run = Run(implementation, steps, gaps=gaps)
        self.before, self.saved = self.run.found(), self.run.found(counted=True)
        self.counts = {name: self.run.optimizer.param_groups[0][name] for name in GROUP_COUNTS}
        self.run.step()
        self.evaluations = self.run.evaluations
        self.after, self.counted = self.run.found(), self.run.found(counted=True)
        self.restore()

    def restore(self) -> None:
        """The run as before its step, made anew where it has not had any."""
        if self.first:
            self.run = Run(self.implementation, 0)
        for there, known in zip(self.run.tensors(counted=True), self.saved, strict=True):
            for tensor, value in zip(there, known, strict=True):
                tensor.copy_(value)
        self.run.optimizer.param_groups[0].update(self.counts)
        self.run.evaluations = 0
        self.run.fail = None

    def places(self, work: Any, codes: Any, event: str, armed: Any = lambda: True) -> list[int]:
        """What to interrupt it at: every instruction or line, between any two evaluations."""
        seen: list[tuple[Any, ...]] = []

        def note(frame: Any) -> None:
            at = frame.f_lasti if event == "opcode" else frame.f_lineno
            seen.append((frame.f_code, at, self.run.evaluations))

        for _ in range(2):  # Python 3.12 counts instructions only the second time
            seen.clear()
            with contextlib.suppress(KeyError):
                interrupted(work or self.run.step, codes, 0, event=event, armed=armed, note=note)
            self.restore()
        turns: dict[tuple[Any, ...], list[int]] = {}
        for i, key in enumerate(seen, 1):
            turns.setdefault(key, []).append(i)
        # Not every turn of a loop: the first and, where it does not take too long, the last.
        ends = slice(1) if self.implementation == "triton" else slice(None)
        return sorted({i for at in turns.values() for i in (at[0], at[-1])[ends]})

    def check(self, place: Any) -> bool:
        """Each parameter is as before or, once all gradients were there, as after: whether any."""
        self.run.assert_at_home(place)
        ahead = False
        for there, old, new in zip(self.run.found(), self.before, self.after, strict=True):
            if self.first:  # the first state is the optimizer's only when it is counted
                there, old, new = there[:1], old[:1], new[:1]
            if not same([there], [old]):
                assert self.run.evaluations == self.evaluations, place
                assert same([there], [new]), place
                ahead = True
        return ahead

    def assert_goes_on(self, ahead: bool, place: Any) -> None:
        """One more ordinary step is that of an uninterrupted run from here."""
        run, expected = self.run, self.counted
        if ahead and not self.first:
            twin = run.twin()
            twin.step()
            expected = twin.found(counted=True)
        run.step()
        if ahead and self.first:
            assert all(p.isfinite().all() for p in run.params), place
        else:
            assert same(run.found(counted=True), expected), place


STEPS = pytest.mark.parametrize("steps", [0, 1, 2], ids=["first", "quick", "full"])


@needs_compiler
@STEPS
def test_a_step_can_be_interrupted_anywhere(steps: int) -> None:
    """Each parameter, with its state, is as before or as after, and the next step is right."""
    case = Case("compiled", steps)
    places = case.places(None, HOST, "line")
    for place in places:
        where = interrupted(case.run.step, HOST, place, event="line")
        assert where
        case.assert_goes_on(case.check(where), where)
        case.restore()
    assert len(places) > 100


@needs_compiler
def test_between_any_two_instructions() -> None:
    """The same, wherever Python might see a signal, in the methods of the backend itself."""
    case, codes = Case("compiled", 1), codes_of(*METHODS)
    places = case.places(None, codes, "opcode")
    for place in places:
        where = interrupted(case.run.step, codes, place)
        assert where
        case.assert_goes_on(case.check(where), where)
        case.restore()
    assert len(places) > 300


@IMPLEMENTATIONS[1].marks[0]
@IMPLEMENTATIONS[1].marks[1]
@pytest.mark.parametrize("steps", [1, 2], ids=["quick", "full"])
def test_the_other_kernels_can_be_interrupted_anywhere(steps: int) -> None:
    """Triton's: what is not shared with those above, and every line around a launch."""
    case = Case("triton", steps)
    codes = codes_of(*METHODS, *([triton_launch.TritonKernels] if steps == 1 else []))
    for i, place in enumerate(case.places(None, codes, "line")):
        case.run.evaluations = 0
        where = interrupted(case.run.step, codes, place, event="line")
        assert where
        ahead = case.check(where)
        if i % 10 == 0:  # which the interpreter takes long for
            case.assert_goes_on(ahead, where)
            case.restore()
        elif ahead:
            case.restore()
    assert i > 30


@needs_compiler
@pytest.mark.parametrize("work", ["step", "loop"])
@STEPS
def test_what_drives_a_step_can_be_interrupted_anywhere(work: str, steps: int) -> None:
    """In the optimizer and the probe, too; the next call, here for a checkpoint, puts all right."""
    case = Case("compiled", steps)

    def go() -> None:
        getattr(case.run, work)()

    for place in case.places(go, DRIVING, "line"):
        where = interrupted(go, DRIVING, place, event="line")
        assert where
        case.run.optimizer.state_dict()
        case.assert_goes_on(case.check(where), where)
        case.restore()


@needs_compiler
def test_a_step_whose_tables_are_new_can_be_interrupted_anywhere() -> None:
    """As after a checkpoint was loaded: everything is looked up again."""
    case = Case("compiled", 2)
    case.run.optimizer._backends.forget()
    places = case.places(None, HOST, "line")
    for place in places:
        case.run.optimizer._backends.forget()
        where = interrupted(case.run.step, HOST, place, event="line")
        assert where
        case.assert_goes_on(case.check(where), where)
        case.restore()
    assert len(places) > 50


# ---- interrupts while interrupts are dealt with -----------------------------------------------


def interrupt_kernels(case: Case, name: str, call: int, hit: list[bool], *, late: bool) -> None:
    """Have that call of a kernel raise KeyboardInterrupt, before or after its work; say so."""
    kernels, calls = case.run.backend.kernels, 0
    original = getattr(type(kernels), name)

    def interrupting(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not late:
            hit.append(True)
            raise KeyboardInterrupt
        original(kernels, *args, **kwargs)
        if calls == call:
            hit.append(True)
            raise KeyboardInterrupt
        return None

    setattr(kernels, name, interrupting)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", ["move", "update"])
@STEPS
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_interrupt_around_a_launch_is_undone(
    implementation: str, steps: int, name: str, late: bool
) -> None:
    """Of the first, the second, ...: the kernels themselves have marked what they did."""
    case, call = Case(implementation, steps), 0
    while True:
        call += 1
        case.run.optimizer._bind()
        hit: list[bool] = []
        interrupt_kernels(case, name, call, hit, late=late)
        try:
            case.run.step()
        except KeyboardInterrupt:
            delattr(case.run.backend.kernels, name)
            case.assert_goes_on(case.check((call, name)), (call, name))
            case.restore()
            continue
        assert not hit
        break
    assert call > 1 or (steps == 0 and name == "move")  # a first departure is the oracle's


UNDOING = (codes_of(Alice._drop_probe, Alice._step_with, Alice._rounds, Alice._apply, Probe)) | HOST


@needs_compiler
@pytest.mark.parametrize(("steps", "evaluation"), [(1, 1), (2, 1), (2, 2), (2, 3)])
@pytest.mark.parametrize("next_call", ["state_dict", "step", "loop"])
def test_an_interrupt_while_undoing_is_made_good_by_the_next_call(
    steps: int, evaluation: int, next_call: str
) -> None:
    """A closure raises and, while that is undone, Ctrl-C: nothing is saved from a wrong place."""
    case, armed, where = Case("compiled", steps), [], ""

    def fail() -> None:
        closure()
        if case.run.evaluations == evaluation:
            armed.append(True)
            raise KeyError

    closure = case.run.closure

    def work() -> None:
        armed.clear()
        case.run.closure = fail  # type: ignore[method-assign]
        try:
            case.run.step()
        finally:
            case.run.closure = closure  # type: ignore[method-assign]

    for place in case.places(work, UNDOING, "line", lambda: armed):
        with contextlib.suppress(KeyError):
            where = interrupted(work, UNDOING, place, event="line", armed=lambda: armed)
        go_on(case, next_call, where)
        case.restore()


FIRST = [("move", 1, True), ("move", 2, False), ("update", 1, False)]
AFTERWARDS = [("update", 1, True), ("update", 2, False)]  # when some have been updated
TWICE = [(where, call) for where in FIRST for call in ("state_dict", "step", "loop")]
TWICE += [(where, "state_dict") for where in AFTERWARDS]


@needs_compiler
@pytest.mark.parametrize(("where", "next_call"), TWICE, ids=str)
@pytest.mark.parametrize("steps", [1, 2], ids=["quick", "full"])
def test_two_interrupts_are_made_good_by_the_next_call(
    steps: int, where: tuple[str, int, bool], next_call: str
) -> None:
    """One around a launch and one while that is undone."""
    # Without gaps: those that have them are updated before the others, by the oracle.
    case, (name, call, late) = Case("compiled", steps, gaps=False), where
    armed: list[bool] = []

    def work() -> None:
        armed.clear()
        interrupt_kernels(case, name, call, armed, late=late)
        try:
            case.run.step()
        finally:
            delattr(case.run.backend.kernels, name)

    for place in case.places(work, UNDOING, "line", lambda: armed):
        with contextlib.suppress(KeyboardInterrupt):
            where = interrupted(work, UNDOING, place, event="line", armed=lambda: armed)
        go_on(case, next_call, where)
        case.restore()


def go_on(case: Case, next_call: str, place: Any) -> None:
    """The next call is right, and leaves everybody where they should be."""
    if next_call == "state_dict":
        case.run.optimizer.state_dict()
        case.assert_goes_on(case.check(place), place)
        return
    getattr(case.run, next_call)()
    case.run.assert_at_home(place)
    assert same(case.run.found(counted=True), case.counted), place
