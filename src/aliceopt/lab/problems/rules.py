"""What a problem must hold to before hours are spent on it, each rule with a sentence of its own.

One batch is tried, gradient and metric included. A user's function is called twice at one seed and
once at another: at one seed everything must be the same, at two the data the same and the weights
different. Nothing is trained, and what was tried leaves no trace.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from aliceopt.lab.optimizers.muon import matrices_of
from aliceopt.lab.problems.problem import Problem, ProblemError, build_problem, kind_of, said
from aliceopt.lab.randomness import host_states, restore_host_states, seed_host
from aliceopt.lab.spec import Source, UserProblem
from aliceopt.lab.words import counted
from aliceopt.probe import BufferGuard

__all__ = ["check_repeatable", "check_seeds", "checked_problem", "try_problem"]

GRADIENTS = 4
"""Batches tried at most, to tell a parameter that is never used from one that is used at times."""

MOST_OUTPUTS = 200_000
"""Numbers in a batch's outputs up to which the sign of the metric is judged: a second of work."""


def checked_problem(source: Source) -> Problem:
    """The problem that ``build_problem(source, seed=0)`` makes, if it breaks no rule."""
    made = _made(source, 0)
    try_problem(made)
    if isinstance(source, UserProblem):
        check_repeatable(made, _made(source, 0))
        check_seeds(made, _made(source, 1))
    return made


def _made(source: Source, seed: int) -> Problem:
    """The problem at a seed; torch's generator remembers the last seed that it was given."""
    made = build_problem(source, seed)
    if isinstance(source, UserProblem) and torch.initial_seed() != seed:
        raise ProblemError(
            f"{source} calls torch.manual_seed, and what is drawn after it is the same "
            "at every seed: leave it out, the seed is set before the call, and give data a "
            "torch.Generator of its own"
        )
    return made


# ---- two calls ---------------------------------------------------------------------------------


def check_repeatable(first: Problem, second: Problem) -> None:
    """Refuse two calls at one seed that do not start alike: methods could not be compared."""
    if {id(p) for p in first.model.parameters()} & {id(p) for p in second.model.parameters()}:
        raise ProblemError(
            "two calls returned the same model: make it inside the function, or every run would "
            "go on with the weights of the one before"
        )
    if not _same(first.model.state_dict(), second.model.state_dict()):
        raise ProblemError(
            "two calls at one seed gave models with different weights: torch, numpy and random "
            "are seeded before the call, so draw from them"
        )
    if (part := _different(first, second)) is not None:
        raise ProblemError(
            f"two calls at one seed gave different {part} data: give the data's random numbers a "
            "seed"
        )


def check_seeds(first: Problem, second: Problem) -> None:
    """Refuse two seeds that differ in their data, or that do not differ in their weights."""
    if (part := _different(first, second)) is not None:
        raise ProblemError(
            f"the {part} data change with the seed, so seeds could not be compared: draw them from "
            "a generator of their own, like torch.Generator().manual_seed(1) or "
            "numpy.random.default_rng(1)"
        )
    mine, other = (_trained(problem) for problem in (first, second))
    if not first.same_weights and _same(mine, other):
        raise ProblemError(
            "the weights are the same at seeds 0 and 1, so more seeds would show nothing new: let "
            "torch draw them inside the function, or give same_weights=True if that is meant "
            "(pretrained weights, say)"
        )


def _trained(problem: Problem) -> dict[str, Tensor]:
    return {name: p for name, p in problem.model.named_parameters() if p.requires_grad}


def _different(first: Problem, second: Problem) -> str | None:
    """Which data are not the same in both, judged by their length and one batch."""
    for name, adjective in _DATA.items():
        mine, other = (
            (len(getattr(problem, name)), _batch(problem, name)) for problem in (first, second)
        )
        if not _same(mine, other):
            return adjective
    return None


_DATA = {"train": "training", "validation": "validation"}


def _batch(problem: Problem, name: str, index: int = 0) -> tuple[Any, Any]:
    """A batch of the data that is called so; of validation data always the first."""
    try:
        if name == "train":
            inputs, targets = problem.train.batch(0, 0, index)
        else:
            inputs, targets = next(problem.validation.in_order())
    except Exception as error:
        raise ProblemError(f"{name}: a batch cannot be made: {said(error)}") from error
    return inputs, targets


def _same(a: Any, b: Any) -> bool:
    """Whether two nests of tensors and numbers agree; what else may be in them is not judged."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = a.shape == b.shape and a.dtype == b.dtype
        return alike and bool(((a == b) | ((a != a) & (b != b))).all())  # NaN is NaN
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b if isinstance(a, int | float) and isinstance(b, int | float) else True


# ---- one batch ---------------------------------------------------------------------------------


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Within, a model may be tried: buffers, gradients, mode and random states are put back."""
    was_training, buffers, states = model.training, BufferGuard(model), host_states()
    grads = [(p, p.grad) for p in model.parameters()]
    try:
        yield
    finally:
        model.train(was_training)
        buffers.restore()
        restore_host_states(states)
        for param, grad in grads:
            param.grad = grad


def try_problem(problem: Problem) -> None:
    """Try one batch, so that a mistake is told before an hour of training, and where it is.

    The model is left as it was, buffers, gradients and mode, and so are the random states.
    """
    with _untouched(problem.model):
        _check_batches_repeat(problem)
        tried = [_try(problem, name, training=name == "train") for name in _DATA]
        _check_gradients(problem)
        _check_sign(problem, tried)


def _check_batches_repeat(problem: Problem) -> None:
    """A batch follows from its number alone: global generators in another state change nothing."""
    for name, adjective in _DATA.items():
        found = []
        for seed in (0, 1):
            seed_host(seed)
            found.append(_batch(problem, name))
        if not _same(*found):
            raise ProblemError(
                f"asked for twice, a batch of the {adjective} data is not the same, so no two "
                "methods would see the same examples: draw its random numbers from a generator "
                "that is seeded by the batch's number"
            )


def _try(problem: Problem, name: str, *, training: bool) -> tuple[Any, Any]:
    """One batch through model, loss and metric; the outputs and targets. ``name``: of the data."""
    inputs, targets = _batch(problem, name)
    problem.model.train(training)
    version = inputs._version if isinstance(inputs, Tensor) else 0
    with torch.set_grad_enabled(training):
        outputs = _call(f"{name}: model(inputs)", problem.model, inputs)
        loss = _call(f"{name}: loss(outputs, targets)", problem.loss, outputs, targets)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ProblemError(
            f"loss(outputs, targets) must be a tensor with one number, got {kind_of(loss)}: "
            "take the mean over the batch"
        )
    if training and not loss.requires_grad:
        raise ProblemError("the loss does not depend on the model's parameters: no gradient")
    if not loss.isfinite().all():
        raise ProblemError(
            f"the loss of a batch is {loss.item()}, before anything is trained: is a number in the "
            "data not finite, or the logarithm of zero in the loss?"
        )
    if isinstance(inputs, Tensor) and inputs._version != version:
        raise ProblemError(
            "the model changes its inputs in place, and Alice evaluates a batch three times: "
            "compute a new tensor instead"
        )
    with torch.no_grad():
        metric = problem.measure.of or (lambda outputs, targets: 0.0)
        value = _call(f"{name}: metric(outputs, targets)", metric, outputs, targets)
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ProblemError(f"metric must give one number, got {kind_of(value)}") from error
    return outputs, targets


def _call(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        with warnings.catch_warnings():
            # torch only warns of outputs [N, 1] against targets [N], and compares all with all.
            warnings.filterwarnings("error", message="Using a target size")
            return function(*arguments)
    except Exception as error:
        kinds = [
            f"{tuple(v.shape)} {str(v.dtype).removeprefix('torch.')}"
            if isinstance(v, Tensor)
            else kind_of(v)
            for v in arguments
        ]
        given = f"; it was given {' and '.join(kinds)}" if kinds else ""
        raise ProblemError(f"{what} raised {said(error)}{given}") from error


def _check_gradients(problem: Problem) -> None:
    """Refuse parameters that get no gradient; a gradient of zero is one."""

    def loss_of(inputs: Any, targets: Any) -> Tensor:
        return problem.loss(problem.model(inputs), targets).reshape(())

    unused = _trained(problem)
    problem.model.train()
    batches = min(GRADIENTS, len(problem.train))
    for index in range(batches):
        for param in unused.values():
            param.grad = None
        loss = _call("train: loss of a batch", loss_of, *_batch(problem, "train", index))
        _call("train: loss.backward()", loss.backward)
        unused = {name: p for name, p in unused.items() if p.grad is None}
        if not unused:
            return
    names = ", ".join(list(unused)[:3]) + (", ..." if len(unused) > 3 else "")
    raise ProblemError(
        f"the loss does not depend on {counted(len(unused), 'parameter')} ({names}): no gradient "
        f"in {counted(batches, 'batch', 'batches')}; use them, remove them, or set "
        "requires_grad=False"
    )


# ---- the sign of the metric --------------------------------------------------------------------


def _check_sign(problem: Problem, tried: list[tuple[Any, Any]]) -> None:
    """Refuse a metric that is worse for outputs that fit their targets than for the model's.

    Not the weights but the outputs of a batch go down the loss, until they fit as no network would:
    there an accuracy is high and an error low, whatever the model. Both batches must agree.
    Outputs that are no tensor of floats, or a very large one, are not judged.
    """
    measure, found = problem.measure, []
    sign = 1.0 if measure.better == "higher" else -1.0
    for outputs, targets in tried:
        if measure.of is None or not isinstance(outputs, Tensor):
            return
        if not outputs.is_floating_point() or outputs.numel() > MOST_OUTPUTS:
            return
        try:
            fit = _fit(problem.loss, outputs.detach().clone(), targets)
            with torch.no_grad():
                before, after = (float(measure.of(out, targets)) for out in (outputs, fit))
        except Exception:  # of a loss or a metric that minds such outputs: nothing is known
            return
        if not sign * (before - after) > 1e-3 * max(abs(before), abs(after)):  # nor if it is NaN
            return
        found.append((before, after))
    before, after = found[0]
    other = "lower" if measure.better == "higher" else "higher"
    cure = f"give better={other!r}" if callable(problem.metric) else "minimise the other sign"
    raise ProblemError(
        f"{measure.better} {measure.name} is better, it is said, but it goes from {before:.3g} to "
        f"{after:.3g} where the outputs of a batch are made to fit: {cure}, or choose a metric "
        "that agrees with the loss"
    )


def _fit(loss: Callable[[Any, Any], Tensor], outputs: Tensor, targets: Any) -> Tensor:
    """The outputs of lowest loss that Rprop comes by.

    Each number has a step of its own, which grows by a half while its gradient keeps its sign and
    is halved when it does not: no unit matters, and 200 steps cross four powers of ten and settle.
    """
    best, lowest, enough = outputs, math.inf, 0.0
    reach = torch.full_like(outputs, 1e-3 * float(outputs.square().mean().sqrt()) or 1e-3)
    before = torch.zeros_like(outputs)
    for _ in range(200):
        outputs.requires_grad_()
        value = loss(outputs, targets).reshape(())
        (grad,) = torch.autograd.grad(value, outputs)
        now, outputs = value.item(), outputs.detach()
        enough = enough or 1e-12 * abs(now)
        if not math.isfinite(now):
            break
        if now < lowest:
            best, lowest = outputs, now
        if abs(now) <= enough:
            break
        sign = grad.sign()
        reach = reach * torch.where(sign * before < 0, 0.5, 1.5)
        outputs, before = outputs - reach * sign, sign
    return best


# ---- what methods need -------------------------------------------------------------------------


def lacks(problem: Problem, optimizer: str) -> str | None:
    """What a problem lacks that an optimizer needs, in a sentence; None: nothing.

    Muon needs matrices. AdaHessian differentiates twice, which flash attention and other kernels
    do not allow.
    """
    if optimizer == "muon" and not matrices_of(problem.model):
        return "Muon needs parameters that are matrices, and the model has none"
    if optimizer != "adahessian":
        return None
    try:
        with _untouched(problem.model):
            inputs, targets = _batch(problem, "train")
            params = list(_trained(problem).values())
            loss = problem.loss(problem.model.train()(inputs), targets).reshape(())
            grads = torch.autograd.grad(loss, params, create_graph=True)
            torch.autograd.grad(grads, params, grad_outputs=grads)
    except RuntimeError as error:
        return f"AdaHessian needs gradients that can be differentiated again: {said(error)}"
    return None
