"""Telemetry against a brute-force count, coordinate by coordinate, from the state in float64."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice
from aliceopt.telemetry import Telemetry, average
from contract_cases import IDS, LR, OPTIONS, loss_of, make, memory, network, same, train, values
from paper import paper_alice

DEFAULTS = {"lr": LR, "lr_min": 0.0, "eps": 1e-8, "betas": (0.9, 0.999), "limit": "adam"}


def column(state: dict[str, Tensor], name: str) -> np.ndarray:
    """A state tensor as float64, zeros where the group does not use it."""
    like = state["grad_avg"].double().numpy().ravel()
    return state[name].double().numpy().ravel() if name in state else np.zeros_like(like)


def coordinate_table(optimizer: Alice, param: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Everything about one parameter, straight from Algorithm 3 and Theorem 5."""
    opt, state = {**DEFAULTS, "hessian": "abs", "glass": True, **options}, optimizer.state[param]
    k, w = int(state["step"]), float(state["topography_weight"])
    raw = column(state, "grad_avg")
    g = np.abs(raw) / (1 - opt["betas"][0] ** k)
    s = column(state, "grad_sq") / (1 - opt["betas"][1] ** k)
    unit = {"adam": g / (np.sqrt(s) + opt["eps"]), "sgd": np.abs(raw), "fixed": np.ones_like(g)}
    upper = opt["lr"] * unit[opt["limit"]]
    lower = min(opt["lr"], opt["lr_min"]) * unit[opt["limit"]]
    h, rho, newton, share = (np.zeros_like(g) for _ in range(4))
    measured = w > 0 and (opt["glass"] or opt["hessian"] != "none")
    if measured:
        rho = column(state, "glass_density") / w
        h = column(state, "hess") / w
        h = np.sqrt(h) if opt["hessian"] == "rms" else np.abs(h)
        hg = 3 / (4 * math.pi) * rho / (g + opt["eps"])
        total = hg + h + np.sqrt(hg * (hg + 2 * h)) + opt["eps"]
        newton, share = g / total, 1 - (h + opt["eps"]) / total
    length = np.clip(newton, lower, upper) if measured else upper
    return {
        "upper": (newton >= upper) | (not measured),
        "lower": measured & (newton <= lower) & (newton < upper),
        "step": np.where(g == 0, 0.0, length),
        "grad": g,
        "hess": h,
        "density": rho,
        "share": share,
    }


def expected(optimizer: Alice, params: list[Tensor], options: dict[str, Any]) -> dict[str, float]:
    """The summary of these parameters."""
    tables = [coordinate_table(optimizer, p, options) for p in params]
    merged = {name: np.concatenate([np.atleast_1d(t[name]) for t in tables]) for name in tables[0]}
    upper, lower = merged["upper"].mean(), merged["lower"].mean()
    return {
        "coordinates": len(merged["step"]),
        "at_upper": upper,
        "at_lower": lower,
        "quasi_newton": 1 - upper - lower,
        "glass_density": merged["density"].mean(),
        "hess": merged["hess"].mean(),
        "glass_share": merged["share"].mean(),
        "step_norm": np.linalg.norm(merged["step"]),
        "grad_norm": np.linalg.norm(merged["grad"]),
        "skipped_coordinates": 0,
    }


@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
@pytest.mark.parametrize("steps", [1, 7])
def test_summary_matches_the_brute_force_count(options, steps):
    """Every field of the group's summary, for every kind of step; shares add up to 1."""
    model, optimizer = make(options, dtype=torch.double)
    train(model, optimizer, 0, steps)
    found = asdict(optimizer.telemetry().groups[0])
    wanted = expected(optimizer, list(model.parameters()), options)
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    assert found["at_upper"] + found["at_lower"] + found["quasi_newton"] == pytest.approx(1)


def test_all_three_regimes_occur_in_one_summary():
    """Bounds chosen so that no share is zero: the count above is not vacuous."""
    options = {"lr": 2.0**-4, "lr_min": 2.0**-6, "probe_radius": 0.01}
    model, optimizer = make(options, dtype=torch.double)
    train(model, optimizer, 0, 9)
    found = optimizer.telemetry().groups[0]
    assert asdict(found) == pytest.approx(
        expected(optimizer, list(model.parameters()), options), rel=1e-6, abs=1e-12
    )
    assert min(found.at_upper, found.at_lower, found.quasi_newton) > 0


def test_groups_and_blocks_are_summed_separately():
    """Two groups with different options; blocks of depth 1 and 2 by name."""
    model = nn.ModuleDict({"body": network(0, torch.double), "head": nn.Linear(1, 1).double()})
    other = {"hessian": "rms", "limit": "fixed", "lr_min": 1e-3}
    groups = [
        {"params": model["body"].named_parameters("body")},
        {"params": model["head"].named_parameters("head"), **other},
    ]
    optimizer = paper_alice([{**g, "params": list(g["params"])} for g in groups], lr=LR)
    net = nn.Sequential(model["body"], model["head"])
    train(net, optimizer, 0, 6)
    report = optimizer.telemetry()
    body, head = (list(model[name].parameters()) for name in ("body", "head"))
    for summary, params, options in zip(report.groups, (body, head), ({}, other), strict=True):
        wanted = expected(optimizer, params, options)
        assert asdict(summary) == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    assert report.blocks == {"body": report.groups[0], "head": report.groups[1]}

    deep = optimizer.telemetry(depth=2).blocks
    assert list(deep) == ["body.0", "body.2", "head.weight", "head.bias"]
    wanted = expected(optimizer, list(model["body"][2].parameters()), {})
    assert asdict(deep["body.2"]) == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    assert sum(block.coordinates for block in deep.values()) == 33


def test_names_come_from_the_model_when_the_parameters_have_none():
    """And from nowhere, hence no blocks, without either."""
    for named, model_given, blocks in (
        (True, False, ["0", "2"]),
        (False, True, ["0", "2"]),
        (True, True, ["0", "2"]),
        (False, False, []),
    ):
        model = network()
        params = model.named_parameters() if named else model.parameters()
        optimizer = paper_alice(params, lr=LR, model=model if model_given else None)
        train(model, optimizer, 0, 2)
        assert list(optimizer.telemetry().blocks) == blocks


def test_names_given_with_the_parameters_win_over_the_models():
    """They are what the user chose to see."""
    model = network()
    named = [(f"mine.{i}", p) for i, p in enumerate(model.parameters())]
    optimizer = paper_alice(named, lr=LR, model=model)
    train(model, optimizer, 0, 1)
    assert list(optimizer.telemetry().blocks) == ["mine"]


def test_steps_and_gradient_evaluations_are_counted():
    """Three evaluations a measuring step, one a quick one, as a counting closure sees them."""
    model, optimizer = make({"quick_steps": 2})
    calls = []

    def closure() -> None:
        calls.append(None)
        loss_of(model, 0).backward()

    for step in range(1, 9):
        optimizer.step(closure)
        report = optimizer.telemetry()
        assert report.measuring_steps == math.ceil(step / 3)
        assert report.measuring_steps + report.quick_steps == step
        assert report.gradient_evaluations == optimizer.gradient_evaluations == len(calls)


@pytest.mark.parametrize("limit", ["adam", "fixed"])
def test_equal_bounds_leave_nothing_to_the_curvature(limit):
    """lr_min = lr: all at the upper bound where Newton is longer; else at one or the other."""
    for lr, at_upper in ((LR, 1.0), (100.0, None)):
        p = nn.Parameter(torch.linspace(0.5, 2.0, 8))
        optimizer = paper_alice([p], lr=lr, lr_min=lr, limit=limit, probe_radius=0.01)
        optimizer.step(lambda p=p: (p**4).sum().backward())
        found = optimizer.telemetry().groups[0]
        assert found.quasi_newton == 0.0
        assert found.at_upper + found.at_lower == 1.0
        assert at_upper is None or found.at_upper == at_upper
        assert found.step_norm == pytest.approx(lr * math.sqrt(8), rel=1e-5)


def test_a_lower_bound_beyond_every_newton_step_holds_all_coordinates():
    """The step is lr_min long in every coordinate."""
    p = nn.Parameter(torch.linspace(0.5, 2.0, 8))
    optimizer = paper_alice([p], lr=100.0, lr_min=50.0, limit="fixed", probe_radius=0.01)
    optimizer.step(lambda: p.square().sum().backward())
    found = optimizer.telemetry().groups[0]
    assert (found.at_upper, found.at_lower, found.quasi_newton) == (0.0, 1.0, 0.0)
    assert found.step_norm == pytest.approx(50.0 * math.sqrt(8))


def test_a_huge_bound_leaves_every_coordinate_on_the_quasi_newton_step():
    """On h x^2/2 the step is x itself, so its norm is that of the parameter."""
    start = torch.linspace(0.5, 2.0, 8, dtype=torch.double)
    p = nn.Parameter(start.clone())
    optimizer = paper_alice([p], lr=1e6, probe_radius=0.1)
    optimizer.step(lambda: (3 * p.square() / 2).sum().backward())
    found = optimizer.telemetry().groups[0]
    assert (found.at_upper, found.at_lower, found.quasi_newton) == (0.0, 0.0, 1.0)
    assert found.hess == pytest.approx(3.0)
    assert found.glass_density == pytest.approx(0.0, abs=1e-20)
    assert found.glass_share == pytest.approx(0.0, abs=1e-6)
    assert found.step_norm == pytest.approx(float(start.norm()), rel=1e-6)
    assert found.grad_norm == pytest.approx(3 * float(start.norm()))


def test_pure_glass_is_all_glass_share():
    """On |x| with the kink inside the probes and no Hessian term, glass is the whole curvature."""
    p = nn.Parameter(torch.full((4,), 0.01, dtype=torch.double))
    optimizer = paper_alice([p], lr=LR, probe_radius=0.1, hessian="none")
    optimizer.step(lambda: p.abs().sum().backward())
    found = optimizer.telemetry().groups[0]
    # g+ + g- = 0 and g0 = 1: the density is (2 / 0.1) * 1.
    assert found.glass_density == pytest.approx(20.0)
    assert found.hess == 0.0
    assert found.glass_share == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"limit": "adam", "lr_min": 1e-3},
        {"limit": "fixed", "lr_min": 1e-3},
        {"limit": "sgd", "lr_min": 1e-3, "probe_radius": 0.1},
    ],
    ids=str,
)
def test_a_coordinate_with_zero_gradient_sits_on_no_bound(options):
    """It does not move, so it is at neither, whatever the unit."""
    p = nn.Parameter(torch.ones(4))
    optimizer = paper_alice([p], lr=LR, **options)
    optimizer.step(lambda: (0.0 * p).sum().backward())
    found = optimizer.telemetry().groups[0]
    assert found.step_norm == 0.0
    assert (found.at_upper, found.at_lower, found.quasi_newton) == (0.0, 0.0, 1.0)


def test_skipped_coordinates_are_counted_where_they_were():
    """Per group and per block."""
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = paper_alice([("first.a", a), ("second.b", b)], lr=LR)

    def closure() -> None:
        (a.sum() + b.sum()).backward()
        b.grad[:2] = math.nan

    for _ in range(2):
        optimizer.step(closure)
    report = optimizer.telemetry()
    assert report.groups[0].skipped_coordinates == 4
    assert report.blocks["first"].skipped_coordinates == 0
    assert report.blocks["second"].skipped_coordinates == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_dict_is_strict_json(dtype):
    """Plain numbers, lists and dicts, and no NaN once every parameter has stepped."""
    model = network(dtype=dtype)
    optimizer = paper_alice(model.named_parameters(), lr=torch.tensor(LR))
    train(model, optimizer, 0, 3)
    found = optimizer.telemetry(depth=2).as_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_telemetry_before_the_first_step_works():
    """Nothing was counted, nothing is known, nothing fails, and the report still serialises."""
    model = network()
    optimizer = paper_alice(model.named_parameters(), lr=LR)
    report = optimizer.telemetry()
    assert (report.measuring_steps, report.quick_steps, report.gradient_evaluations) == (0, 0, 0)
    assert report.groups[0].coordinates == 0
    assert report.groups[0].step_norm == 0.0
    assert report.blocks == {}
    json.dumps(report.as_dict())


@pytest.mark.parametrize("depth", [0, -1, 1.0, "1", None, True])
def test_bad_depth_is_refused(depth):
    """With the value and the range."""
    _, optimizer = make({})
    with pytest.raises(ValueError, match=r"depth must be a whole number >= 1, got"):
        optimizer.telemetry(depth=depth)


def test_telemetry_describes_the_last_step_not_the_next():
    """A scheduler that already moved lr does not change what is said about the step taken."""
    model, optimizer = make({})
    train(model, optimizer, 0, 5)
    before = optimizer.telemetry()
    optimizer.param_groups[0]["lr"] = LR / 100
    assert optimizer.telemetry() == before
    optimizer.param_groups[0].update(hessian="none", glass=False)  # from the next step on
    assert optimizer.telemetry() == before


def test_asking_changes_nothing():
    """After steps, inside a loop and between loop and step: the run is the same without."""
    quiet, first = make({})
    asked, second = make({})
    for index in range(6):
        for optimizer, model in ((first, quiet), (second, asked)):
            for _ in optimizer.evaluations():
                loss_of(model, index).backward()
                if optimizer is second:
                    optimizer.telemetry(depth=2)
        second.telemetry()
        before = values(asked), memory(second), torch.get_rng_state()
        second.telemetry()
        assert same((values(asked), memory(second), torch.get_rng_state()), before)
        first.step()
        second.step()
    assert same(values(quiet), values(asked))
    assert same(memory(first), memory(second))


def test_an_average_counts_reports_by_the_length_of_their_steps() -> None:
    """So that the end of a schedule, where all is at the bound, does not drown the rest."""
    p = nn.Parameter(torch.linspace(0.1, 3.0, 50, dtype=torch.float64))
    optimizer = paper_alice([("a.p", p)], lr=1.0, probe_radius=0.01, quick_steps=0)
    reports = []
    for step in range(40):
        for group in optimizer.param_groups:
            group["lr"] = 1.0 if step < 20 else 1e-9
        optimizer.step(lambda: (p.square().sum() * 3).backward())
        reports.append(optimizer.telemetry())
    assert reports[-1].groups[0].at_upper > 0.9
    found = average(reports)
    summaries = [report.groups[0] for report in reports]
    norms = np.array([s.step_norm for s in summaries])
    for name in ("at_upper", "at_lower", "quasi_newton", "hess", "glass_density", "glass_share"):
        values = np.array([getattr(s, name) for s in summaries])
        assert getattr(found.groups[0], name) == pytest.approx((values * norms).sum() / norms.sum())
    assert found.groups[0].at_upper < 0.5
    assert found.blocks["a"] == found.groups[0]
    assert found.gradient_evaluations == reports[-1].gradient_evaluations == 120
    assert average(reports[-1:]) == reports[-1]


def test_reports_that_do_not_belong_together_are_refused() -> None:
    def report(*groups: list[tuple[str, nn.Parameter]]) -> Telemetry:
        optimizer = paper_alice([{"params": group} for group in groups], lr=LR)
        params = [p for group in groups for _, p in group]
        optimizer.step(lambda: sum(p.square().sum() for p in params).backward())
        return optimizer.telemetry()

    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    one, other, two = report([("x", a)]), report([("y", a)]), report([("x", a)], [("z", b)])
    for wrong in ([one, other], [one, two]):
        with pytest.raises(ValueError, match="other groups or blocks"):
            average(wrong)
    with pytest.raises(ValueError, match="no report to average"):
        average([])
