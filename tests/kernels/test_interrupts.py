"""Ctrl-C at any point of a step: every parameter is where it was, or where it should be.

The host's side of a step is interrupted before each of its lines or instructions, in both kernel
sources; what a kernel does is one thing to the host. Counters are advanced last, after all updates.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

import aliceopt.kernels.backend as backend_module
import aliceopt.kernels.eager as eager_module
import aliceopt.kernels.native as native
import aliceopt.kernels.plan as plan_module
import aliceopt.site as site_module
import aliceopt.step as step_module
import aliceopt.topography as topography_module
import aliceopt.watching as watching
from aliceopt import Alice
from aliceopt.kernels.backend import MultiTensorBackend
from aliceopt.kernels.eager import EagerBackend
from aliceopt.probe import Probe
from aliceopt.site import Sites
from cpu_cases import needs_compiler
from interrupt_cases import Case, same
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
    backend_module._options,
    plan_module,
    site_module.fit_,
    Sites.rates,
    Sites._choose,
    Sites._adopt,
    native.CpuKernels,
    native._common,
    *([] if triton_launch is None else [triton_launch.TritonKernels, triton_launch._constants]),
)
# Counting the step is the last thing, and follows the update.
COUNTING = codes_of(Alice._commit, Sites.count_)
DRIVING = codes_of(Alice, Probe) - COUNTING


METHODS = [
    MultiTensorBackend.depart,
    MultiTensorBackend.move,
    MultiTensorBackend.rest,
    MultiTensorBackend.update,
    MultiTensorBackend._move,
    MultiTensorBackend._take_room,
]
STEPS = pytest.mark.parametrize("steps", [0, 1, 2], ids=["first", "quick", "measuring"])


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
@pytest.mark.parametrize("steps", [1, 2], ids=["quick", "measuring"])
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
@pytest.mark.filterwarnings("ignore:the gradients of a finished loop")  # whose step was interrupted
@pytest.mark.parametrize("work", ["step", "loop"])
@STEPS
def test_what_drives_a_step_can_be_interrupted_anywhere(
    work: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the optimizer and the probe, too; the next call, here for a checkpoint, puts all right."""
    monkeypatch.setattr(watching, "LOOKS", 10**6)  # every step goes through the same lines
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


EAGER = codes_of(
    EagerBackend.update,
    EagerBackend._update,
    EagerBackend.rest,
    eager_module.update_,
    eager_module.in_slices,
    topography_module.updated,
    step_module.bounded_step,
    step_module.moved,
)


@pytest.mark.parametrize("steps", [1, 2], ids=["quick", "measuring"])
def test_the_oracle_can_be_interrupted_anywhere(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It updates slice by slice: each coordinate, with its state, is as before or as after."""
    monkeypatch.setattr(eager_module, "SLICE", 16)
    case = Case("eager", steps)
    places = case.places(None, EAGER, "line")
    for i, place in enumerate(places):
        where = interrupted(case.run.step, EAGER, place, event="line")
        assert where
        case.run.assert_at_home(where)
        assert_in_step(case, where)
        if i % 5 == 0:
            case.assert_goes_on(not same(case.run.found(), case.before), where)
        case.restore()
    assert len(places) > 50


def assert_in_step(case: Case, place: Any) -> None:
    """Of each coordinate all is as before, or all is as after."""
    for there, old, new in zip(case.run.found(), case.before, case.after, strict=True):
        before = [x == y for x, y in zip(there, old, strict=True)]
        after = [x == y for x, y in zip(there, new, strict=True)]
        assert (torch.stack(before).all(0) | torch.stack(after).all(0)).all(), place


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
@pytest.mark.parametrize("steps", [1, 2], ids=["quick", "measuring"])
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
