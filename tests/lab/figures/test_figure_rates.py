"""Final metric against learning rate, from kept results."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.lab.figures import rates, style
from aliceopt.lab.records import RecordError
from figure_checks import assert_legible

ROOT = Path(__file__).parents[3]


def line(method: str, rate: float, seed: int, final: float | None, **more: Any) -> Any:
    given = {
        "experiment": "pays-gpt",
        "scale": "lab",
        "device": "a GPU",
        "precision": "bf16",
        "metric": "loss",
        "better": "lower",
        "called": f"{method.upper()}, lr {rate:g}",
    }
    config = SimpleNamespace(options={"lr": rate})
    name = f"{method}@{rate:g}"
    told = {"method": name, "seed": seed, "final": final, "config": config}
    return SimpleNamespace(**{**given, **told, **more})


LINES = [
    line("adamw", 1e-3, 0, 1.5),
    line("adamw", 1e-3, 1, 1.7),
    line("adamw", 2e-3, 0, 1.4),
    line("adamw", 4e-3, 0, None),
    line("ahead", 1e-3, 0, 1.3),
    line("ahead", 2e-3, 0, 1.2),
    line("muon", 4e-3, 0, 1.0),
]


def test_runs_are_put_together_by_method_and_rate() -> None:
    """Only those tried at two rates; a diverged run is there without a number."""
    found = rates.rates_of(LINES)
    assert list(found) == ["adamw", "ahead"]
    assert found["adamw"] == ("ADAMW", {1e-3: [1.5, 1.7], 2e-3: [1.4], 4e-3: [None]})
    assert list(rates.rates_of(LINES, ["muon", "adamw"])) == ["muon", "adamw"]


def test_the_figure_shows_every_seed_and_their_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines through the means, a dot a seed, a cross at the edge for what diverged."""
    drawn: list[Figure] = []
    save = style.save
    monkeypatch.setattr(style, "save", lambda f, p: drawn.append(f) or save(f, p))
    path = rates.draw_rates(LINES, tmp_path / "rates.svg")
    assert path.stat().st_size > 5_000
    (axes,) = drawn[0].axes
    curves = {c.get_label(): c for c in axes.lines if not c.get_label().startswith("_")}
    assert list(curves["ADAMW"].get_xdata()) == [1e-3, 2e-3]
    assert list(curves["ADAMW"].get_ydata()) == pytest.approx([1.6, 1.4])
    dots = [y for c in axes.lines if c.get_marker() == "." for y in c.get_ydata()]
    assert sorted(dots) == [1.2, 1.3, 1.4, 1.5, 1.7]
    crosses = [(*c.get_xdata(), *c.get_ydata()) for c in axes.lines if c.get_marker() == "x"]
    assert crosses == [(4e-3, axes.get_ylim()[1])]
    assert axes.get_ylim()[1] > 1.7
    assert_legible(drawn[0], at_least=8)


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_a_bad_rate_does_not_set_the_scale(
    better: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arrow with the mean's value stands at its rate, the furthest outermost, and no line goes.

    Rates at which methods differ by less take the axis; nothing is cut that would spare little.
    """
    drawn: list[Figure] = []
    save = style.save
    monkeypatch.setattr(style, "save", lambda f, p: drawn.append(f) or save(f, p))
    sign = 1 if better == "lower" else -1
    ends = {2.5e-4: (1.55, 1.5), 5e-4: (1.52, 1.45), 1e-3: (1.5, 1.4), 2e-3: (1.4, 1.3)}
    ends |= {4e-3: (1.45, 1.42), 8e-3: (1.6, 9.0), 16e-3: (7, 8)}
    lines = [
        line(method, rate, 0, sign * final, better=better)
        for rate, finals in ends.items()
        for method, final in zip(("adamw", "ahead"), finals, strict=True)
    ]
    rates.draw_rates(lines, tmp_path / "rates.png")
    (axes,) = drawn[0].axes
    low, high = sorted(sign * y for y in axes.get_ylim())
    assert low < 1.3 < 1.6 < high < 2.2
    outside = {(t.get_text(), t.xy[0]): t for t in axes.texts}
    arrow, minus = ("\u2191 ", "") if better == "lower" else ("\u2193 ", "\u2212")
    assert outside.keys() == {
        (f"{arrow}{minus}9.00", 8e-3),
        (f"{arrow}{minus}7.00", 16e-3),
        (f"{arrow}{minus}8.00", 16e-3),
    }
    heights = [abs(outside[f"{arrow}{minus}{n}.00", 16e-3].xyann[1]) for n in (8, 7)]
    assert heights == sorted(heights)
    shown = [y for c in axes.lines for y in c.get_ydata() if not math.isnan(y)]
    assert max(sign * y for y in shown) == 1.6
    assert axes.get_xlim()[1] > 16e-3
    assert_legible(drawn[0], at_least=10)
    more = [
        line("adamw", 2e-3, n, sign * v, better=better) for n, v in enumerate((1.3, 1.3, 1.3, 2.5))
    ]
    rates.draw_rates([*lines, *more], tmp_path / "b.png")
    marks = [c for c in drawn[1].axes[0].lines if c.get_marker() in "^v"]
    assert [(c.get_marker(), *c.get_xdata()) for c in marks] == [("^" if sign > 0 else "v", 2e-3)]
    every = rates.framed([84.0, 86.0, 88.0, 90.0, 91.0], "higher")
    assert every[0] < 84 < 91 < every[1]


def test_what_cannot_be_drawn_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no kept run of method 'lion'; there is adamw, ahead"):
        rates.draw_rates(LINES, tmp_path / "a.png", ["lion"])
    with pytest.raises(RecordError, match="one experiment, scale, device and precision"):
        rates.draw_rates([*LINES, line("sgd", 1, 0, 1.0, device="a CPU")], tmp_path / "a.png")
    with pytest.raises(RecordError, match="needed: none"):
        rates.draw_rates([], tmp_path / "a.png")
    with pytest.raises(RecordError, match="every run diverged"):
        rates.draw_rates([line("a", 1, 0, None), line("a", 2, 0, None)], tmp_path / "a.png")
    many = [line(f"m{i}", rate, 0, 1.0) for i in range(8) for rate in (1.0, 2.0)]
    with pytest.raises(RecordError, match="1 to 7 methods can be told apart, got 8"):
        rates.draw_rates(many, tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"\.gif"):
        rates.draw_rates(LINES, tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())


def test_the_command_draws_what_the_repository_keeps(tmp_path: Path) -> None:
    out = tmp_path / "rates.png"
    asked = ["--methods", "adamw,ahead-1_5,ahead-2", "--from", str(ROOT / "results")]
    result = CliRunner().invoke(build(), ["results", "draw", "pays-gpt", "--out", str(out), *asked])
    assert result.exit_code == 0, result.output
    assert out.stat().st_size > 10_000
    for wrong, told in (
        (["nope"], "no experiment 'nope'"),
        (["pays-gpt", "--scale", "huge"], "no scale 'huge' of pays-gpt"),
        (["pays-gpt", "--scale", "smoke"], "has no runs of scale 'smoke'"),
    ):
        result = CliRunner().invoke(build(), ["results", "draw", *wrong, *asked])
        assert result.exit_code == 2
        assert told in result.stderr
    nowhere = ["results", "draw", "pays-gpt", "--from", str(tmp_path)]
    assert "those of the documentation are in" in CliRunner().invoke(build(), nowhere).stderr
