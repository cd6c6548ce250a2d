"""Planted problems are what they are said to be, and right decisions about them are counted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.decisions import carried_out, interval, is_right, main
from benchmarks.planted import PROBLEMS, Point, logs, newton, on_the_right, sgd, spread, tie

from aliceopt.lab.results.finding import Finding, find
from study_cases import grid_plan, in_memory, invented_results


def hessian(problem) -> torch.Tensor:
    """Of the validation loss, by differentiating twice."""
    inputs, targets = next(problem.validation.in_order())

    def loss(position):
        return problem.loss(position - inputs, targets)

    return torch.autograd.functional.hessian(loss, problem.model.position.detach())


def test_newtons_bowl_lies_along_the_axes_with_as_much_to_gain_in_each() -> None:
    """The Hessian is diagonal, over six powers of ten; a start is worth about 1e-6 in each."""
    torch.manual_seed(0)
    problem = newton(0)
    found = hessian(problem)
    diagonal = found.diagonal()
    assert torch.equal(found, diagonal.diag())
    assert float(diagonal.max() / diagonal.min()) == pytest.approx(1e6, rel=1e-3)
    gains = 1e6 * diagonal * problem.model.position.detach().square()
    assert float(gains.sqrt().mean()) == pytest.approx(1, abs=0.05)  # a tenth of luck, 64 times
    assert float(gains.sqrt().std()) == pytest.approx(0.1, abs=0.04)


def test_logs_are_powers_of_ten_of_the_same_loss() -> None:
    """The problem is that of `spread`, start and all."""
    torch.manual_seed(0)
    plain = spread(2)
    torch.manual_seed(0)
    other = logs(2)
    assert torch.equal(plain.model.position, other.model.position)
    inputs, targets = next(other.validation.in_order())
    outputs = other.model(inputs).detach()
    found = float(other.measure.of(outputs, targets))
    assert found == pytest.approx(math.log10(float(plain.loss(outputs, targets))))
    assert other.measure.better == "lower"


def test_sgds_bowl_is_round_but_for_one_direction() -> None:
    """All eigenvalues are equal but that of the mean, which has a share in every coordinate."""
    found = hessian(sgd(0)).double()
    values, vectors = torch.linalg.eigh(found)
    size = len(found)
    assert torch.allclose(values[:-1], values[0].expand(size - 1), rtol=1e-3)
    assert float(values[-1] / values[0]) == pytest.approx(1 + size, rel=1e-3)
    assert torch.allclose(vectors[:, -1].abs(), torch.full((size,), size**-0.5).double())


def test_the_tie_is_the_same_with_all_signs_turned_round() -> None:
    """Loss, examples and chances of a start; the metric turns with them."""
    problem = tie(3)
    inputs = torch.cat([x for x, _ in problem.train.in_order()])
    rows = {tuple(row) for row in inputs.tolist()}
    assert rows == {tuple(-x for x in row) for row in rows}
    targets = torch.zeros(len(inputs))
    here, there = (sign * problem.model.position.detach() for sign in (1, -1))
    losses = [problem.loss(p - s * inputs, targets) for p, s in ((here, 1), (there, -1))]
    assert torch.allclose(*losses)
    assert float(on_the_right(here, targets) + on_the_right(there, targets)) == 100


@pytest.mark.parametrize("make", [newton, spread, logs, sgd, tie])
def test_studies_differ_in_data_and_start_and_seeds_in_the_start_alone(make) -> None:
    made = {}
    for seed, study in ((0, 0), (0, 1), (1, 0)):
        torch.manual_seed(seed)
        made[seed, study] = make(study)
    first = made[0, 0]
    for key, problem in made.items():
        assert isinstance(problem.model, Point)
        same = torch.equal(problem.model.position, first.model.position)
        assert same == (key == (0, 0))
        batches = (p.train.batch(0, 0, 0)[0] for p in (problem, first))
        assert torch.equal(*batches) == (key[1] == 0)


def test_an_interval_has_two_and_a_half_percent_on_either_side() -> None:
    """By summing the binomial distribution; none right and all right have one side."""

    def at_least(right: int, studies: int, share: float) -> float:
        terms = (
            math.comb(studies, k) * share**k * (1 - share) ** (studies - k)
            for k in range(right, studies + 1)
        )
        return math.fsum(terms)

    for right in range(21):
        low, high = interval(right, 20)
        assert right == 0 or at_least(right, 20, low) == pytest.approx(0.025)
        assert right == 20 or at_least(right + 1, 20, high) == pytest.approx(0.975)
    assert interval(0, 20)[0] == 0
    assert interval(20, 20)[1] == 1


def test_what_counts_as_right() -> None:
    """The winner chosen and established; for a tie, nothing."""
    plan = grid_plan(5)
    clear = find(plan, in_memory(plan, invented_results(plan, {"sgd": 3.0}, noise=0.1)))
    assert is_right(clear, "sgd")
    assert not is_right(clear, "adam")
    assert not is_right(clear, None)
    none = find(plan, in_memory(plan, invented_results(plan)))
    assert is_right(none, None)
    assert none.choice is not None
    assert not is_right(none, none.choice)  # chosen for its cost, and nothing established
    nothing = find(plan, in_memory(plan, {}))
    assert not any(is_right(nothing, winner) for winner in (None, "sgd"))


def test_a_whole_study_finds_the_planted_winner(tmp_path: Path) -> None:
    """Two methods, few rates and seeds: rules, tuning, runs and finding, by the package's own."""
    few = {"terms": ("abs",), "baselines": ("sgd-m",), "seeds": 3, "tune": 3}
    finding = carried_out("sgd", 0, tmp_path, **few)
    assert is_right(finding, PROBLEMS["sgd"].winner)
    assert not is_right(finding, "naq-abs")


@pytest.mark.parametrize(
    ("problem", "wrong", "status"),
    [("tie", 2, 0), ("tie", 3, 1), ("sgd", 0, 0), ("newton", 1, 1)],
)
def test_the_command_counts_and_its_status_says_whether_it_is_often_enough(
    problem: str,
    wrong: int,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Studies are invented here; those decided wrongly are named."""
    plan = grid_plan(5, terms=("none", "glass"), baselines=("adam", "sgd"))
    winner = None if problem == "tie" else "sgd"
    monkeypatch.setitem(PROBLEMS, problem, replace(PROBLEMS[problem], winner=winner))

    def invented(problem: str, number: int, folder: Path) -> Finding:
        best = winner if number >= wrong else "adam"
        effects = {best: 3.0} if best else {}
        results = invented_results(plan, effects, seed=number, noise=0.1)
        return find(plan, in_memory(plan, results))

    monkeypatch.setattr("benchmarks.decisions.carried_out", invented)
    assert main(["--problem", problem]) == status
    printed = capsys.readouterr()
    row = printed.out.splitlines()[-1].split()
    assert row[:4] == [problem, "20", str(20 - wrong), "18" if problem == "tie" else "20"]
    assert printed.err.count(f"{problem}, study ") == wrong


@pytest.mark.parametrize("studies", ["0", "-1"])
def test_too_few_studies_are_refused(studies: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--studies", studies])
    assert left.value.code == 2
    assert f"--studies must be a whole number >= 1, got {studies}" in capsys.readouterr().err
