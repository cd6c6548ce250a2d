"""Lines to paste run as printed and make the optimizer that the lab made."""

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

from aliceopt.lab.optimizers.methods import OPTIMIZERS, STEPS, TERMS, make_method
from aliceopt.lab.optimizers.muon import MatrixMuon
from aliceopt.lab.optimizers.paste import lines_to_paste, scheduler_lines
from aliceopt.lab.plans.study import SETTINGS, study_plan
from aliceopt.lab.problems.problem import build_problem
from aliceopt.lab.spec import Schedule


def run(code: str, model: nn.Module) -> list[Any]:
    """The optimizers that the lines make, in a room with nothing but ``model``."""
    room: dict[str, Any] = {"model": model}
    exec(code, room)
    return room["optimizers"] if "optimizers" in room else [room["optimizer"]]


def parameters(optimizer: Any) -> list[list[int]]:
    """Which parameters are in which group; Muon's group holds steps, one for each weight."""
    if isinstance(optimizer, MatrixMuon):
        return [[id(p) for p in optimizer.weights]]
    return [[id(p) for p in group["params"]] for group in optimizer.param_groups]


def installed() -> list[str]:
    """Baselines whose packages are here."""
    return [
        key
        for key, method in SETTINGS["baselines"].items()
        if importlib.util.find_spec(OPTIMIZERS[method["optimizer"]][0].partition(".")[0])
    ]


@pytest.mark.parametrize("limit", ["fixed", "adam"])
def test_the_lines_of_every_method_of_a_study_make_its_optimizer(limit: str) -> None:
    """The same class and the same options, learning rates to three digits, for all of the plan."""
    pytest.importorskip("sklearn")
    every = {"terms": list(TERMS), "steps": list(STEPS), "baselines": installed()}
    study = study_plan(**every, tune=1, limit=limit, lr=0.0123456)
    model = build_problem(study.final.problem, seed=0).model
    methods = study.final.methods
    assert len(methods) >= 2 * len(TERMS) + 5
    for about in methods.values():
        printed = run(lines_to_paste(about.optimizer, about.options), model)
        wanted = make_method(about.optimizer, model, about.options, seed=0).optimizers
        assert [type(o) for o in printed] == [type(o) for o in wanted]
        for mine, theirs in zip(printed, wanted, strict=True):
            rate = mine.defaults["lr"]
            assert rate == pytest.approx(theirs.defaults["lr"], rel=5e-3)
            assert {**mine.defaults, "lr": 0} == {**theirs.defaults, "lr": 0}
            assert parameters(mine) == parameters(theirs)


def test_only_what_differs_from_the_default_is_printed() -> None:
    """AdamW's own weight decay is left out, another is not; Alice's step is spelled out."""
    options = {"lr": 0.0158113883, "weight_decay": 0.01}
    adamw = lines_to_paste("adamw", options)
    assert adamw.splitlines() == [
        "import torch",
        "optimizer = torch.optim.AdamW(model.parameters(), lr=0.0158, fused=True)",
    ]
    other = lines_to_paste("adamw", {**options, "weight_decay": 0.1})
    assert "weight_decay=0.1" in other
    alice = {"lr": 0.03, "terms": "glass", "step": "full", "limit": "fixed", "quick_steps": 3}
    text = " ".join(lines_to_paste("alice", alice).split())
    said = 'lr=0.03, lookahead=1.0, limit="fixed", glass=True, weight_decay=0.0, model=model'
    assert said in text
    assert "hessian" not in text
    assert "quick_steps" not in text


@pytest.mark.parametrize(
    ("optimizer", "options", "note"),
    [
        ("adahessian", {"lr": 0.2}, "optimizer.backward(loss)"),
        ("schedule-free", {"lr": 0.2}, "optimizer.eval()"),
        ("alice", {"lr": 0.2, "terms": "abs"}, "step(closure)"),
        ("adam", {"lr": 0.2, "max_grad_norm": 1.5}, "clip first"),
        ("muon", {"lr": 0.2}, "zero_grad() and step() of each"),
    ],
)
def test_what_the_loop_must_do_is_a_comment(
    optimizer: str, options: dict[str, Any], note: str
) -> None:
    """And no method that needs nothing has one."""
    comments = [
        line for line in lines_to_paste(optimizer, options).splitlines() if line.startswith("# ")
    ]
    assert len(comments) == 1
    assert note in comments[0]
    assert "#" not in lines_to_paste("adam", {"lr": 0.2})
    assert "#" not in lines_to_paste("alice", {"lr": 0.2})


@pytest.mark.parametrize("name", ["adamw", "alice", "muon"])
@pytest.mark.parametrize(
    "schedule",
    [
        Schedule("cosine", warmup=0.05),
        Schedule("cosine"),
        Schedule("linear", warmup=0.3),
        Schedule("drops", drops=(0.5, 0.55), gamma=0.3),
        Schedule(warmup=0.2),
    ],
    ids=str,
)
def test_the_scheduler_goes_as_the_lab_did(name: str, schedule: Schedule) -> None:
    """The rate of every step, of every optimizer."""
    steps, options = 100, {"lr": 0.1}
    if name == "muon":
        options["adam_lr"] = 0.1
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    lines = lines_to_paste(name, options), scheduler_lines(name, schedule, steps)
    room: dict[str, Any] = {"model": model}
    exec("\n".join(lines), room)
    optimizers = room.get("optimizers") or [room["optimizer"]]
    assert len(optimizers) == (2 if name == "muon" else 1)
    for step in range(steps):
        wanted = 0.1 * schedule.factor(step, steps)
        for optimizer in optimizers:
            assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted, rel=1e-5, abs=1e-12)
            optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        for turn in (*optimizers, *(room.get("schedulers") or [room["scheduler"]])):
            turn.step()


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_the_scheduler_stays_at_zero(shape: str) -> None:
    """People train on beyond the steps of a study: the rate neither rises again nor turns."""
    room: dict[str, Any] = {"model": nn.Linear(2, 2)}
    exec(lines_to_paste("adamw", {"lr": 0.1}), room)
    exec(scheduler_lines("adamw", Schedule(shape), 5), room)
    for step in range(12):
        rate = room["optimizer"].param_groups[0]["lr"]
        assert rate == pytest.approx(0.1 * Schedule(shape).factor(min(step, 5), 5), abs=1e-12)
        room["optimizer"].step()
        room["scheduler"].step()


def test_a_constant_rate_needs_no_scheduler() -> None:
    assert scheduler_lines("adamw", Schedule(), 10) == ""
    assert scheduler_lines("adamw", Schedule("drops"), 10) == ""


def test_a_missing_package_prints_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report may be read where the baseline's package is not."""

    def missing(module: str) -> Any:
        raise ModuleNotFoundError(module)

    monkeypatch.setattr("aliceopt.lab.optimizers.methods.import_module", missing)
    text = lines_to_paste("adahessian", {"lr": 0.2, "num_samples": 1})
    assert "AdaHessian(model.parameters(), lr=0.2, num_samples=1)" in text
