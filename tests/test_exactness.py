"""What Alice equals exactly: Adam, AdamW, SGD, Theorem 6's average, true curvature, Newton."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from paper import paper_alice

Params = list[nn.Parameter]
Baseline = Callable[[Params], torch.optim.Optimizer]

# Terms that must not matter when both bounds are equal. The radius is for limit "sgd" too.
TERMS: list[dict[str, Any]] = [
    {"hessian": "none", "glass": False},
    {"hessian": "abs", "glass": True, "probe_radius": 0.01, "quick_steps": 0},
    {"hessian": "rms", "glass": False, "probe_radius": 0.1, "quick_steps": 1},
    {"hessian": "signed", "glass": True, "probe_radius": 0.01, "quick_steps": 3},
    {"hessian": "none", "glass": True, "probe_radius": 0.05, "quick_steps": 2},
]
PRECISIONS = [(torch.float64, 300, 1e-12), (torch.float32, 30, 1e-5)]
precisions = pytest.mark.parametrize(
    ("dtype", "steps", "tolerance"), PRECISIONS, ids=["float64", "float32"]
)
terms = pytest.mark.parametrize("term", TERMS, ids=lambda t: f"{t['hessian']}-{t['glass']}")


class Regression:
    """A ReLU network and batches to fit, in a given precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        draw = functools.partial(torch.randn, generator=generator, dtype=dtype)
        self.x, self.y = draw(24, 4), draw(24, 2)
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(dtype)

    def closure(self, optimizer: torch.optim.Optimizer, step: int) -> Callable[[], Tensor]:
        """Loss and gradients of the batch of this step."""
        rows = slice(8 * (step % 3), 8 * (step % 3) + 8)

        def evaluate() -> Tensor:
            optimizer.zero_grad()
            loss = (self.model(self.x[rows]) - self.y[rows]).square().mean()
            loss.backward()
            return loss

        return evaluate


def assert_equal_runs(
    alice: Callable[[Params], Alice],
    baseline: Baseline,
    precision: tuple[torch.dtype, int, float],
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
) -> Alice:
    """Both stay together, to the tolerance times each tensor's largest entry, at every step."""
    dtype, steps, tolerance = precision
    ours, theirs = Regression(dtype), Regression(dtype)
    a, b = alice(list(ours.model.parameters())), baseline(list(theirs.model.parameters()))
    schedulers = [] if schedule is None else [schedule(a), schedule(b)]
    for step in range(steps):
        a.step(ours.closure(a, step))
        b.step(theirs.closure(b, step))
        for scheduler in schedulers:
            scheduler.step()
        pairs = zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
        for i, (p, q) in enumerate(pairs):
            error = ((p - q).abs().max() / q.abs().max()).item()
            assert error <= tolerance, f"parameter {i} is off by {error} after step {step}"
    return a


@precisions
@terms
def test_equal_bounds_are_adam(
    term: dict[str, Any], dtype: torch.dtype, steps: int, tolerance: float
) -> None:
    """Phi = omega = 1 and lr_min = lr with limit "adam" is torch.optim.Adam."""
    options = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8}
    alice = assert_equal_runs(
        lambda p: paper_alice(p, lr_min=0.01, step_fraction=1.0, lookahead=1.0, **options, **term),
        lambda p: torch.optim.Adam(p, **options),
        (dtype, steps, tolerance),
    )
    curved = term["glass"] or term["hessian"] != "none"
    assert (alice.gradient_evaluations > steps) == curved  # the probes were really taken


@precisions
@terms
def test_equal_bounds_with_decay_are_adamw(
    term: dict[str, Any], dtype: torch.dtype, steps: int, tolerance: float
) -> None:
    """The same with weight decay is torch.optim.AdamW; lr_min above lr means lr."""
    options = {"lr": 0.01, "weight_decay": 0.3}
    assert_equal_runs(
        lambda p: paper_alice(p, lr_min=7.0, step_fraction=1.0, **options, **term),
        lambda p: torch.optim.AdamW(p, **options),
        (dtype, steps, tolerance),
    )


@precisions
@terms
def test_equal_bounds_are_sgd_with_momentum(
    term: dict[str, Any], dtype: torch.dtype, steps: int, tolerance: float
) -> None:
    """Limit "sgd" with lr = L is torch.optim.SGD(L (1-b1), momentum=b1, dampening=0)."""
    lr, b1 = 0.4, 0.85
    options = {"lr": lr, "lr_min": lr, "betas": (b1, 0.99), "limit": "sgd"}
    assert_equal_runs(
        lambda p: paper_alice(p, step_fraction=1.0, **options, **term),
        lambda p: torch.optim.SGD(p, lr=lr * (1 - b1), momentum=b1, dampening=0),
        (dtype, steps, tolerance),
    )


def test_adam_under_one_cycle() -> None:
    """OneCycleLR, which moves beta1 too, drives both alike."""
    cycle = functools.partial(
        torch.optim.lr_scheduler.OneCycleLR, max_lr=0.02, total_steps=101, cycle_momentum=True
    )
    assert_equal_runs(
        lambda p: paper_alice(p, lr_min=1.0, step_fraction=1.0),
        lambda p: torch.optim.Adam(p),
        (torch.float64, 100, 1e-12),
        schedule=cycle,
    )


def test_ascent_with_equal_bounds_is_adamw_s() -> None:
    """Maximize is torch's, decay included."""
    options = {"lr": 0.01, "weight_decay": 0.3, "maximize": True}
    assert_equal_runs(
        lambda p: paper_alice(p, lr_min=0.01, step_fraction=1.0, **options),
        lambda p: torch.optim.AdamW(p, **options),
        (torch.float64, 100, 1e-12),
    )


def test_plain_backward_without_terms_is_adam() -> None:
    """Used like any torch optimizer, backward then step(), Alice with no term is Adam."""
    ours, theirs = Regression(torch.float64), Regression(torch.float64)
    a = paper_alice(
        ours.model.parameters(), lr=0.01, hessian="none", glass=False, step_fraction=1.0
    )
    b = torch.optim.Adam(theirs.model.parameters(), lr=0.01)
    for step in range(100):
        for problem, optimizer in ((ours, a), (theirs, b)):
            problem.closure(optimizer, step)()
            optimizer.step()
    for p, q in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


# ---- quadratics ------------------------------------------------------------------------------


class Quadratic:
    """``x H x / 2 - b x`` over a matrix and a vector, with gradients by matrix product."""

    def __init__(self, hessian: Tensor, start: Tensor, target: Tensor) -> None:
        self.hessian, self.linear = hessian, hessian @ target
        half = len(start) // 2
        parts = (start[:half].reshape(2, -1), start[half:])
        self.params = [nn.Parameter(part.clone()) for part in parts]

    def flat(self, tensors: list[Tensor]) -> Tensor:
        """The coordinates of all parameters in one vector."""
        return torch.cat([t.detach().flatten() for t in tensors])

    def gradient(self) -> Tensor:
        """``H x - b`` where the parameters stand."""
        return self.hessian @ self.flat(self.params) - self.linear

    def evaluate(self) -> None:
        """Closure: put the gradient in place."""
        gradient, start = self.gradient(), 0
        for p in self.params:
            p.grad = gradient[start : start + p.numel()].view_as(p).clone()
            start += p.numel()

    def averages(self, optimizer: Alice, name: str) -> Tensor:
        """One of the running averages of all coordinates."""
        return self.flat([optimizer.state[p][name] for p in self.params])

    def weight(self, optimizer: Alice) -> float:
        """Total weight of the topography averages."""
        return optimizer.state[self.params[0]]["topography_weight"].item()


def dense_hessian(size: int, generator: torch.Generator) -> Tensor:
    """Positive definite and full, with a diagonal that outweighs the rest of its row.

    So no single probe can see a curvature near zero, from which a step would be too long.
    """
    a = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return 0.3 * a @ a.T / size + 2.0 * torch.eye(size, dtype=torch.float64)


def dense_problem(distance: float) -> Quadratic:
    """A dense quadratic in 12 coordinates that starts this far from its minimum."""
    generator = torch.Generator().manual_seed(3)
    hessian = dense_hessian(12, generator)
    away = 1.0 + torch.rand(12, generator=generator, dtype=torch.float64)
    target = torch.randn(12, generator=generator, dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0] * 6, dtype=torch.float64)
    return Quadratic(hessian, target + distance * away * signs, target)


class Regime(NamedTuple):
    """Bounds in each limit, distance of the start, steps, and which share is all of it, so long."""

    bounds: dict[str, dict[str, float]]
    distance: float
    steps: int
    share: str
    lasting: int


REGIMES = {
    "newton": Regime(
        {"adam": {"lr": 1e4}, "fixed": {"lr": 1e3}, "sgd": {"lr": 1e3}}, 1.0, 12, "quasi_newton", 12
    ),
    "upper": Regime(
        {"adam": {"lr": 1e-3}, "fixed": {"lr": 1e-3}, "sgd": {"lr": 1e-3}}, 1.0, 12, "at_upper", 12
    ),
    "lower": Regime(  # steps too long for the curvature leave this regime, and soon diverge
        {
            "adam": {"lr": 0.2, "lr_min": 0.1},
            "fixed": {"lr": 0.2, "lr_min": 0.1},
            "sgd": {"lr": 10.0, "lr_min": 5.0},
        },
        1e-4,
        3,
        "at_lower",
        1,
    ),
}


@pytest.mark.parametrize("decay", [0.0, 0.1], ids=["", "decay"])
@pytest.mark.parametrize("lookahead", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("quick_steps", [0, 3])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("limit", ["adam", "fixed", "sgd"])
def test_theorem_6(
    limit: str, regime: str, quick_steps: int, lookahead: float, decay: float
) -> None:
    """On a quadratic the uncorrected average misses the gradient at mu by -b1^(k+1) times the
    first gradient, whatever the steps: clamped above, clamped below or not at all, decay or none.
    """
    bounds, distance, steps, share, lasting = REGIMES[regime]
    options: dict[str, Any] = {"betas": (0.8, 0.99), "lookahead": lookahead, **bounds[limit]}
    options |= {"weight_decay": decay / options["lr"], "quick_steps": quick_steps}
    problem = dense_problem(distance)
    optimizer = paper_alice(problem.params, limit=limit, probe_radius=0.1, **options)
    first = problem.gradient()
    for k in range(steps):
        before = problem.gradient()
        optimizer.step(problem.evaluate)
        error = problem.averages(optimizer, "grad_avg") - before
        torch.testing.assert_close(error, -(0.8 ** (k + 1)) * first, rtol=0, atol=1e-12)
        assert k >= lasting or getattr(optimizer.telemetry().groups[0], share) == 1.0


def test_theorem_6_needs_the_right_fraction() -> None:
    """With any other phi the average is not exact: the test above could have failed."""
    problem = dense_problem(1.0)
    options = {"betas": (0.8, 0.99), "limit": "fixed", "step_fraction": 0.25}
    optimizer = paper_alice(problem.params, lr=1e3, probe_radius=0.1, **options)
    first = problem.gradient()
    for _ in range(3):
        before = problem.gradient()
        optimizer.step(problem.evaluate)
    error = problem.averages(optimizer, "grad_avg") - before + 0.8**3 * first
    assert error.abs().max() > 1e-2


@pytest.mark.parametrize("quick_steps", [0, 1])
@pytest.mark.parametrize("limit", ["adam", "fixed", "sgd"])
@pytest.mark.parametrize("kind", ["abs", "rms", "signed"])
def test_diagonal_is_measured_exactly(kind: str, limit: str, quick_steps: int) -> None:
    """On a diagonal quadratic h/w is the diagonal, in the form the kind averages, from the first
    step on; only "signed" keeps its sign. There is no glass.
    """
    diagonal = torch.tensor([0.5, -0.25, 3.0, 0.0, 40.0, 1e-3, 1.0, -2.0], dtype=torch.float64)
    expected = {"abs": diagonal.abs(), "rms": diagonal.square(), "signed": diagonal}[kind]
    start = torch.linspace(-1.0, 2.0, 8, dtype=torch.float64)
    problem = Quadratic(diagonal.diag(), start, torch.zeros_like(start))
    options = {"limit": limit, "hessian": kind, "quick_steps": quick_steps}
    optimizer = paper_alice(problem.params, lr=0.02, probe_radius=0.01, **options)
    for _ in range(20):
        optimizer.step(problem.evaluate)
        weight = problem.weight(optimizer)
        measured = problem.averages(optimizer, "hess") / weight
        torch.testing.assert_close(measured, expected, rtol=1e-11, atol=1e-12)
        assert problem.averages(optimizer, "glass_density").max() / weight < 1e-24


def samples_of(kind: str, hessian: Tensor) -> Tensor:
    """What one probe sees of the diagonal for each of the 2^n sign vectors, in rows."""
    t = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * len(hessian))
    x = t @ hessian
    return {"abs": x.abs(), "rms": x.square(), "signed": t * x}[kind]


@pytest.mark.parametrize("kind", ["abs", "rms", "signed"])
def test_long_run_estimates_are_the_mean_over_all_signs(kind: str) -> None:
    """On a dense quadratic h/w is, within 4 standard errors, the mean over all sign vectors.

    For "signed" that is the diagonal: unbiased. For the others it is not.
    """
    steps, beta2, generator = 1000, 0.998, torch.Generator().manual_seed(4)
    a = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    hessian = a + a.T  # off-diagonal entries as large as diagonal ones, of either sign
    problem = Quadratic(hessian, torch.zeros(8, dtype=torch.float64), torch.ones(8).double())
    options = {"hessian": kind, "glass": False, "quick_steps": 0, "betas": (0.9, beta2)}
    optimizer = paper_alice(problem.params, lr=1e-6, probe_radius=0.1, **options)
    for _ in range(steps):
        optimizer.step(problem.evaluate)
    measured = problem.averages(optimizer, "hess") / problem.weight(optimizer)
    share = beta2 ** torch.arange(steps, dtype=torch.float64)
    share /= share.sum()
    samples = samples_of(kind, hessian)
    variance = samples.var(0, correction=0) * share.square().sum()
    assert ((measured - samples.mean(0)) / variance.sqrt()).abs().max() < 4
    true = hessian.diagonal().square() if kind == "rms" else hessian.diagonal()
    unbiased = torch.allclose(samples.mean(0), true, rtol=0, atol=1e-12)
    assert unbiased == (kind == "signed")
    assert variance.sqrt().max() < 0.1 * samples.mean(0).abs().max()  # 4 of them are not much


@pytest.mark.parametrize("glass", [False, True])
@pytest.mark.parametrize("limit", ["adam", "fixed", "sgd"])
@pytest.mark.parametrize("kind", ["abs", "rms", "signed"])
def test_exact_curvature_gives_the_newton_step(kind: str, limit: str, glass: bool) -> None:
    """With beta1 = 0, phi = omega = 1, eps = 0 and wide bounds one step ends at the minimum."""
    generator = torch.Generator().manual_seed(5)
    diagonal = 0.1 + 3.0 * torch.rand(12, generator=generator, dtype=torch.float64)
    start, target = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    problem = Quadratic(diagonal.diag(), start, target)
    options = {"limit": limit, "hessian": kind, "glass": glass, "betas": (0.0, 0.99), "eps": 0.0}
    optimizer = paper_alice(problem.params, lr=1e4, probe_radius=0.1, step_fraction=1.0, **options)
    optimizer.step(problem.evaluate)
    torch.testing.assert_close(problem.flat(problem.params), target, rtol=0, atol=1e-12)
