"""What `benchmarks.step` compares: ready gradients in, one optimizer step out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import aliceopt
from aliceopt import PAPER, Alice

from .shapes import Shapes
from .timing import captured

__all__ = ["Contender", "Ready", "Running", "Unavailable", "Workload", "contenders"]

EVALUATIONS = 12
"""More than any capture of a step asks its closure for."""
NEVER = 10**6
"""As ``quick_steps``: one measuring step, then quick ones only."""


class Unavailable(Exception):
    """This contender cannot run here; the message says why."""


class Ready:
    """A closure that only hands out gradients, so that a step is the optimizer's work alone.

    With ``rounds = 3`` successive calls give the gradients of the two probes and of the center, as
    a measuring step asks for them; with 1 it is always the center's. As autograd's, each gradient
    is a new tensor, and whoever gets it is the only one to hold it, unless ``hold`` is set: a graph
    that reads it does not own it. `prepare` makes them ahead of time.
    """

    def __init__(self, params: Sequence[nn.Parameter], sets: Sequence[list[Tensor]]):
        self.rounds, self.hold = len(sets), False
        self._params, self._sets, self._calls = params, sets, 0
        self._prepared: deque[list[Tensor]] = deque()
        self._held: list[Tensor] = []
        self._loss = torch.zeros((), device=params[0].device)

    def prepare(self, steps: int) -> None:
        """Make the gradients of the next steps, and clear those of the last one away."""
        for param in self._params:
            param.grad = None
        self._prepared.clear()
        for i in range(self._calls, self._calls + steps * self.rounds):
            self._prepared.append(self._made(i))

    def _made(self, call: int) -> list[Tensor]:
        return [grad.clone() for grad in self._sets[call % self.rounds - self.rounds]]

    def __call__(self) -> Tensor:
        """Assign the next set, made now if it is not prepared; the loss is a constant."""
        grads = self._prepared.popleft() if self._prepared else self._made(self._calls)
        self._calls += 1
        self._held += grads if self.hold else []
        for param in reversed(self._params):
            param.grad = grads.pop()
        return self._loss


class Workload:
    """Parameters of the given shapes, and three sets of gradients."""

    def __init__(self, shapes: Shapes, dtype: torch.dtype, device: torch.device, seed: int = 0):
        generator = torch.Generator(device=device).manual_seed(seed)

        def normal(shape: tuple[int, ...], scale: float) -> Tensor:
            return scale * torch.randn(shape, generator=generator, device=device, dtype=dtype)

        self.device, self.dtype = device, dtype
        self.params = [nn.Parameter(normal(shape, 0.02)) for shape in shapes.values()]
        self.numel = sum(param.numel() for param in self.params)
        center = [normal(shape, 1e-2) for shape in shapes.values()]
        sides = [[g + normal(tuple(g.shape), 1e-3) for g in center] for _ in range(2)]
        self._sets = [*sides, center]

    def closure(self, sides: bool = False) -> Ready:
        """Gradients of the center only, or of all three points in turn."""
        return Ready(self.params, self._sets if sides else self._sets[-1:])

    def clear(self) -> None:
        """Leave no gradients behind."""
        for param in self.params:
            param.grad = None


@dataclass
class Running:
    """A contender with its state: ``step`` takes one step on gradients that are `prepare`d."""

    step: Callable[[], object]
    optimizer: Optimizer | None = None
    closure: Ready | None = None

    def prepare(self, steps: int) -> None:
        """Give back the last steps' gradients, and make those that the next ones will be given.

        Both are autograd's work, for whichever optimizer.
        """
        if self.optimizer is not None and self.closure is not None:
            self.optimizer.zero_grad()
            self.closure.prepare(steps)

    def capture(self) -> Callable[[], object]:
        """The same step in a CUDA graph."""
        if self.closure is not None:
            # Made here, the gradients are not made anew by each replay.
            self.closure.prepare(EVALUATIONS)
            self.closure.hold = not isinstance(
                self.optimizer, Alice
            )  # Alice's recording holds them
        if isinstance(self.optimizer, Alice) and self.closure is not None:
            return aliceopt.capture(self.optimizer, self.closure, static_inputs=())
        return captured(self.step)

    @property
    def state_bytes(self) -> int:
        """What the optimizer keeps from step to step."""
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        values = [value for state in states for value in state.values()]
        return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))


@dataclass(frozen=True)
class Contender:
    """One row. ``make(workload, capturable)`` sets it up, ready for its first timed step.

    ``traffic`` is the bytes a parameter that one pass over memory must read and write, and ``held``
    the bytes a parameter that a step keeps by design beside parameters, one gradient and state.
    """

    name: str
    label: str
    traffic: int
    make: Callable[[Workload, bool], Running]
    held: int = 0


def contenders(dtype: torch.dtype, implementation: str, device: torch.device) -> list[Contender]:
    """All rows of the table, in order."""
    item = dtype.itemsize
    quick, measuring = alice_traffic(dtype, device)
    alice = partial(_alice, implementation=implementation)
    return [
        Contender("copy", "copy of the parameters", 2 * item, _copy),
        Contender("adamw_fused", "AdamW fused", 7 * item, partial(_adamw, form="fused")),
        Contender("adamw_foreach", "AdamW foreach", 7 * item, partial(_adamw, form="foreach")),
        Contender("schedule_free", "schedule-free AdamW", 7 * item, _schedule_free),
        Contender(
            "alice", "Alice (as it comes)", quick - 2 * max(4, item), partial(alice, terms=False)
        ),
        Contender("alice_quick", "Alice quick", quick, partial(alice, measuring=False)),
        Contender(
            "alice_measuring",
            "Alice measuring",
            measuring,
            partial(alice, measuring=True),
            4 + 2 * item,
        ),
    ]


def alice_traffic(dtype: torch.dtype, device: torch.device) -> tuple[int, int]:
    """Bytes a parameter of a quick and of a measuring step, with glass and a Hessian.

    Without them a quick step reads two tensors of the state less.

    P and G are a parameter's and a gradient's bytes, S those of the state. An update reads g0, g,
    s, rho, h and mu and writes g, s, nu and the parameter; a measuring one also reads two gradients
    and writes rho and h. Captured on CUDA, in full precision, parameters are pointed at nu, and in
    a measuring step at the two sides, which a pass of its own reads nu and writes for. Elsewhere
    departing reads the parameter and nu and writes both anew, in places of their own or each
    other's, and two moves read nu and write the parameter. Low precision adds a master copy, read
    at departure and written by the update, and nu in a measuring update.
    """
    P = G = dtype.itemsize
    S = torch.promote_types(dtype, torch.float32).itemsize
    low = S if P < S else 0
    update = G + 5 * S + 3 * S + P + low
    measuring = update + 2 * G + 2 * S + low
    if device.type == "cuda" and not low:
        return update, measuring + S + 2 * P
    depart, move = 2 * P + 2 * S + low, S + P
    return depart + update, depart + 2 * move + measuring


def _copy(workload: Workload, capturable: bool) -> Running:
    source = torch.zeros(workload.numel, dtype=workload.dtype, device=workload.device)
    target = torch.ones_like(source)
    return Running(lambda: target.copy_(source))


def _adamw(workload: Workload, capturable: bool, form: str) -> Running:
    optimizer = torch.optim.AdamW(
        workload.params,
        foreach=form == "foreach",
        fused=form == "fused",
        capturable=capturable,
    )
    return _plain(optimizer, workload.closure())


def _schedule_free(workload: Workload, capturable: bool) -> Running:
    try:
        import schedulefree
    except ImportError:
        raise Unavailable("not installed") from None
    optimizer = schedulefree.AdamWScheduleFree(workload.params, foreach=True)
    optimizer.train()
    return _plain(optimizer, workload.closure())


def _plain(optimizer: Optimizer, closure: Ready) -> Running:
    def step() -> None:
        closure()
        optimizer.step()

    return Running(step, optimizer, closure)


def _alice(
    workload: Workload,
    capturable: bool,
    *,
    implementation: str,
    terms: bool = True,
    measuring: bool = False,
) -> Running:
    closure = workload.closure(sides=True)
    if not terms:
        closure.rounds = 1
    options = {**PAPER, "quick_steps": 0 if measuring else NEVER} if terms else {}
    optimizer = Alice(workload.params, **options, implementation=implementation)
    optimizer.step(closure)
    if not measuring:
        closure.rounds = 1  # from here on it is asked for the center only
    return Running(lambda: optimizer.step(closure), optimizer, closure)
