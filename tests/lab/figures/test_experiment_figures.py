"""Figures of experiments: what is drawn is what was recorded, legible, and not flattering."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from aliceopt.lab.figures import draw_experiment
from aliceopt.lab.figures.experiment import draw_limit, draw_methods, draw_terms
from aliceopt.lab.figures.outcomes import LOOKS, look_of
from aliceopt.lab.figures.power_law import draw_power_law
from aliceopt.lab.records import RecordError, read_records, read_runs
from experiment_records import BLOCKS, exponent, near_paper, write_records
from figure_checks import assert_legible

EXPERIMENTS = (
    "resnet18-powerlaw",
    "resnet18-naq",
    "vit-naq",
    "tt-limit",
    "resnet18-methods",
    "tt-methods",
)


def axes_titled(figure: Figure, start: str) -> Axes:
    return next(a for a in figure.axes if a.get_title(loc="left").startswith(start))


def row_label(axes: Axes, name: str) -> str:
    """The whole label of the row that begins with this line."""
    return next(
        label.get_text()
        for label in axes.get_yticklabels()
        if label.get_text().split("\n")[0] == name
    )


def at_height(axes: Axes, name: str, labels: Axes | None = None) -> list[Line2D]:
    """Lines of the row of this name; a panel without labels takes those of its neighbour."""
    named = labels or axes
    texts = [label.get_text() for label in named.get_yticklabels()]
    place = named.get_yticks()[texts.index(row_label(named, name))]
    return [line for line in axes.lines if abs(float(line.get_ydata()[0]) - place) < 0.4]


def small_print(figure: Figure) -> str:
    assert figure._supxlabel is not None
    return " ".join(figure._supxlabel.get_text().split())


# ---- Figure 1 ---------------------------------------------------------------------------------


def test_the_power_law_has_a_line_a_block_with_median_band_and_seeds(tmp_path, kept):
    """Six blocks against epochs, p = 2 and p = 1 marked."""
    write_records(tmp_path, "resnet18-powerlaw", "paper", seeds=3, methods=["alice"])
    draw_power_law(read_records(tmp_path), tmp_path / "f.png")
    legend, axes, small = kept[0].axes
    assert [text.get_text() for text in legend.get_legend().get_texts()] == list(BLOCKS)
    titles = [one.get_title("left") for one in (axes, small)]
    assert titles == ["ReLU, radius 0.002", "ReLU, radius 2e-05"]
    lines = {line.get_label(): line for line in axes.lines if line.get_label() in BLOCKS}
    assert tuple(lines) == BLOCKS
    for i, name in enumerate(BLOCKS):
        x, y = lines[name].get_xdata(), lines[name].get_ydata()
        assert (x[0], x[-1]) == (0, 40)
        assert y[0] == pytest.approx(exponent(i, 1, 0.0))  # seed 1 is the median of three
        assert y[-1] == pytest.approx(exponent(i, 1, 1.0))
    seeds = [line for line in axes.lines if line.get_gid() == "seeds"]
    assert len(seeds) == 3 * len(BLOCKS)
    bands = [collection.get_paths()[0].vertices[:, 1] for collection in axes.collections]
    assert bands[0].min() == pytest.approx(exponent(0, 0, 0.0) - 0.05)
    assert bands[0].max() == pytest.approx(exponent(0, 2, 1.0) + 0.05)
    marked = {line.get_ydata()[0] for line in axes.lines if len(set(line.get_xdata())) == 2}
    assert {1, 2} <= marked
    assert {t.get_text() for t in small.texts} == {"p = 2\nHessian", "p = 1\nglass"}
    said = small_print(kept[0])
    assert "cifar10, paper scale, 40 epochs, batch size 100, 3 seeds" in said
    assert "0.002 against 0.004 and by 2e-05 against 4e-05, 4 directions" in said


def test_a_power_law_that_could_not_be_told_leaves_a_gap(tmp_path, kept):
    """Null exponents are left out, not drawn as zero."""
    write_records(tmp_path, "resnet18-powerlaw", seeds=1, methods=["alice"])
    path = tmp_path / "alice" / "seed-0" / "records.jsonl"
    lines = path.read_text().replace('"exponent": 2.0', '"exponent": null')
    path.write_text(lines)
    draw_power_law(read_records(tmp_path), tmp_path / "f.png")
    last = next(line for line in kept[0].axes[1].lines if line.get_label() == BLOCKS[-1])
    assert len(last.get_xdata()) == 0


def test_runs_without_exponents_are_refused(tmp_path):
    """Nothing to draw is said, not drawn."""
    write_records(tmp_path, "resnet18-powerlaw", seeds=1, methods=["alice"])
    path = tmp_path / "alice" / "seed-0" / "records.jsonl"
    told = path.read_text().splitlines()
    lines = [line for line in told if '"event": "power_law"' not in line]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match="no run has measured a power law"):
        draw_power_law(read_records(tmp_path), tmp_path / "f.png")


# ---- Figures 4, 5, 6 --------------------------------------------------------------------------


def finals_of(folder: Path, method: str) -> list[float]:
    return sorted(r.final for r in read_runs(folder) if r.method == method and r.final is not None)


def check_row(axes: Axes, label: str, values: list[float]) -> None:
    """A line over the range, every seed a dot, a filled marker at the median."""
    lines = at_height(axes, label)
    spans = [sorted(line.get_xdata()) for line in lines if line.get_linestyle() == "-"]
    assert [values[0], values[-1]] in [pytest.approx(span) for span in spans]
    dots = next(line for line in lines if line.get_gid() == "seeds")
    assert list(dots.get_xdata()) == pytest.approx(values)
    middle = lines[-1]
    assert list(middle.get_xdata()) == pytest.approx([median(values)])
    assert middle.get_markerfacecolor() != "white"


def check_paper(figure: Figure, label: str, values: list[float]) -> None:
    """Hollow, with the same three numbers."""
    paper, ours = axes_titled(figure, "Paper"), axes_titled(figure, "Ours")
    span, middle = at_height(paper, label, ours)
    assert list(span.get_xdata()) == [values[0], values[2]]
    assert list(middle.get_xdata()) == [values[1]]
    assert middle.get_markerfacecolor() == "white"


def test_what_ran_away_is_told_and_leaves_the_others_their_range(tmp_path, kept):
    """Higher than any run began: neither curves nor results are drawn to its scale."""

    def value(method: str, seed: int, done: float) -> float:
        lost = method == "adahessian" and seed == 1 and done > 0.5
        return 7e23 if lost else 1000 - 900 * done + seed

    write_records(tmp_path, "tt-methods", seeds=2, value=value)
    draw_methods(read_records(tmp_path), tmp_path / "f.png")
    curves, ours = kept[0].axes[0], axes_titled(kept[0], "Ours")
    assert curves.get_ylim()[1] < 1100
    assert ours.get_xlim()[1] < 110
    assert [text.get_text() for text in ours.texts] == ["ran away: 7.0e+23"]
    span, dots = at_height(ours, "AdaHessian")
    assert list(dots.get_xdata()) == list(span.get_xdata())[:1] == [100]


@pytest.mark.parametrize(
    ("draw", "name", "columns", "rows"),
    [
        (
            draw_terms,
            "resnet18-naq",
            {"a) Full": "full", "b) NAQ": "NAQ", "Full steps, \u03bb max 0.0005": "full 0.0005"},
            {
                "full-glass": "glass, full",
                "naq-glass-abs": "glass + abs, NAQ",
                "short-rms": "rms, full 0.0005",
            },
        ),
        (
            draw_limit,
            "tt-limit",
            {"\u03bb max = 0.001": "0.001", "\u03bb max = 0.0025": "0.0025"},
            {"low-glass": "glass, 0.001", "high-rms": "rms, 0.0025"},
        ),
    ],
)
def test_terms_by_columns_with_curves_and_results(draw, name, columns, rows, tmp_path, kept):
    """A column of curves for each setting, and a row for each term in each of them."""
    plan = write_records(tmp_path, name, seeds=5)
    draw(read_records(tmp_path), tmp_path / "f.png")
    figure = kept[0]
    for title, word in columns.items():
        axes = axes_titled(figure, title)
        named = [line for line in axes.lines if not line.get_label().startswith("_")]
        assert [line.get_label() for line in named] == ["glass", "abs", "glass + abs", "rms"]
        key = next(k for k, label in rows.items() if label.endswith(f", {word}"))
        run = next(r for r in plan.runs if r.method == key)
        assert named[0].get_xdata()[-1] == run.gradients
    ours = axes_titled(figure, "Ours")
    assert len([t for t in ours.get_yticklabels() if t.get_text()]) == 4 * len(columns)
    for key, label in rows.items():
        check_row(ours, label, finals_of(tmp_path, key))
        if key in plan.paper:
            check_paper(figure, label, plan.paper[key])


def test_no_two_of_many_methods_look_alike():
    """Fourteen, which is twice as many as there are colours."""
    looks = [look_of(i) for i in range(14)]
    assert len({(look["color"], look["marker"]) for look in looks}) == 14
    assert looks[:7] == list(LOOKS)


def test_methods_have_costs_and_the_papers_values(tmp_path, kept):
    """Gradients and seconds of a run under its name; methods the paper lacks are said to be."""
    plan = write_records(tmp_path, "resnet18-methods", "paper", seeds=5)
    draw_methods(read_records(tmp_path), tmp_path / "f.png")
    figure = kept[0]
    ours = axes_titled(figure, "Ours")
    assert "\n135k gradients, 2.25 min" in row_label(ours, "AdaHessian")
    check_row(ours, "AdaHessian", finals_of(tmp_path, "adahessian"))
    check_paper(figure, "AdaHessian", plan.paper["adahessian"])
    notes = [text.get_text() for text in axes_titled(figure, "Paper").texts]
    assert notes == ["not in the paper"] * 4
    curves = [line for line in figure.axes[0].lines if not line.get_label().startswith("_")]
    assert len(curves) == len(plan.methods)


def test_curves_are_medians_with_bands_over_finished_runs(tmp_path, kept):
    """At the last evaluation: the median, minimum and maximum of the seeds."""
    write_records(tmp_path, "resnet18-methods", seeds=5)
    draw_methods(read_records(tmp_path), tmp_path / "f.png")
    axes, values = kept[0].axes[0], finals_of(tmp_path, "adam")
    line = next(line for line in axes.lines if line.get_label() == "Adam")
    assert line.get_ydata()[-1] == pytest.approx(median(values))
    band = axes.collections[0].get_paths()[0].vertices
    last = band[band[:, 0] == line.get_xdata()[-1], 1]
    assert (last.min(), last.max()) == (pytest.approx(values[0]), pytest.approx(values[-1]))


# ---- honesty ----------------------------------------------------------------------------------


def test_the_papers_axis_is_shared_only_if_settings_are_the_same(tmp_path, kept):
    """At another scale the panel says so and has its own range."""
    for scale in ("paper", "lab"):
        folder = tmp_path / scale
        write_records(folder, "resnet18-methods", scale, seeds=2)
        draw_methods(read_records(folder), tmp_path / "f.png")
    same, other = kept
    assert axes_titled(same, "Ours").get_xlim() == axes_titled(same, "Paper").get_xlim()
    assert axes_titled(same, "Paper").get_title(loc="left") == "Paper"
    assert axes_titled(other, "Paper").get_title(loc="left") == "Paper (not comparable)"
    assert axes_titled(other, "Ours").get_xlim() != axes_titled(other, "Paper").get_xlim()
    assert "Settings are the paper's" in small_print(same)
    assert "10 instead of 90 epochs: not comparable" in small_print(other)


def test_generated_data_and_another_set_are_said(tmp_path, kept):
    """Nobody should take a smoke run for a result."""
    write_records(tmp_path, "vit-naq", "smoke", seeds=2, generated=True)
    draw_experiment(read_records(tmp_path))
    said = small_print(kept[0])
    assert said.startswith("tiny-imagenet-64 (generated), smoke scale, 6 steps, batch size 16")
    assert "tiny-imagenet-64 (generated) instead of imagenet64" in said
    assert kept[0]._suptitle is not None
    title = " ".join(kept[0]._suptitle.get_text().split())
    assert title.endswith("on ImageNet 64x64 (here: tiny-imagenet-64, generated data)")


def test_what_is_there_is_drawn_and_what_is_not_is_counted(tmp_path, kept):
    """Missing, diverged, interrupted: a figure all the same, with the numbers of each."""
    fates = {("adam", 0): "missing", ("sgd-m", 1): "interrupted", ("alice", 1): "failed"}
    fates |= {("adahessian", seed): "diverged" for seed in range(3)} | {("alice", 2): "null"}
    plan = write_records(tmp_path, "resnet18-methods", seeds=3, lost=fates)
    draw_methods(read_records(tmp_path), tmp_path / "f.png")
    said = small_print(kept[0])
    assert "Not finished, of 24 runs: 1 missing, 4 diverged, 1 interrupted, 1 failed." in said
    notes = [text.get_text() for text in axes_titled(kept[0], "Ours").texts]
    assert notes == ["no result (3 diverged)"]
    check_row(axes_titled(kept[0], "Ours"), "Adam", finals_of(tmp_path, "adam"))
    assert len(finals_of(tmp_path, "adam")) == 2
    crosses = [line for line in kept[0].axes[0].lines if line.get_marker() == "x"]
    assert len(crosses) == 6
    assert len(plan.runs) == 24


def test_a_run_that_only_began_can_be_drawn(tmp_path, kept):
    """One evaluation, nothing finished."""
    fates = {(m, s): "interrupted" for m in ("adam", "adahessian") for s in (0, 1)}
    fates |= {(m, s): "missing" for m in ("alice-glass", "alice-abs") for s in (0, 1)}
    write_records(tmp_path, "tt-methods", seeds=2, lost=fates, evaluations=1)
    draw_experiment(read_records(tmp_path))
    assert "4 missing, 4 interrupted" in small_print(kept[0])


def test_folders_without_records_are_refused(tmp_path):
    """No plan, a plan without runs, another experiment's records: each is named."""
    with pytest.raises(RecordError, match=r"no plan\.json"):
        draw_experiment(read_records(tmp_path))
    fates = {(method, 0): "missing" for method in ("adam", "adahessian")}
    fates |= {("alice-glass", 0): "missing", ("alice-abs", 0): "missing"}
    write_records(tmp_path, "tt-methods", seeds=1, lost=fates)
    with pytest.raises(RecordError, match=r"none of its 4 planned runs has begun.*run tt-methods"):
        draw_experiment(read_records(tmp_path))
    write_records(tmp_path / "b", "tt-methods", seeds=1)
    with pytest.raises(RecordError, match="figure is 'methods', not 'terms'"):
        draw_terms(read_records(tmp_path / "b"), tmp_path / "f.png")
    with pytest.raises(ValueError, match=r"\.jpg"):
        draw_experiment(read_records(tmp_path / "b"), tmp_path / "f.jpg")


# ---- legibility -------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["paper", "smoke"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_text_is_nine_points_inside_the_figure_and_never_overlaps(name, scale, tmp_path, kept):
    """Every word is legible at print size, whole, and clear of every other word."""
    plan = write_records(tmp_path, name, scale, seeds=3, generated=scale == "smoke")
    if scale == "smoke":
        write_records(
            tmp_path,
            name,
            scale,
            seeds=3,
            value=near_paper(plan, 0.3 * next(iter(plan.paper.values()), [0, 0])[1]),
            lost={(next(iter(plan.methods)), 2): "diverged"},
        )
    draw_experiment(read_records(tmp_path))
    assert_legible(kept[0], at_least=11)


def test_many_methods_with_long_names_leave_room_for_the_curves(tmp_path, kept):
    """Names that do not fit beside each other in the legend stand below each other."""
    names = [
        f"{m}@{r}" for m in ("adamw", "nadamw-steady", "schedule-free") for r in ("1e-3", "2e-3")
    ]
    write_records(tmp_path, "pays-small-gpt", seeds=2, methods=names)
    draw_experiment(read_records(tmp_path))
    assert_legible(kept[0], at_least=11)
    curves = kept[0].axes[0].get_window_extent()
    assert curves.height > 0.15 * kept[0].bbox.height


def test_a_figure_is_written_beside_its_records_in_the_same_bytes_again(tmp_path):
    """By default into figures/ of the folder; the same records give the same file."""
    write_records(tmp_path, "tt-methods", seeds=2)
    records = read_records(tmp_path)
    path = draw_experiment(records)
    assert path == tmp_path / "figures" / "tt-methods.png"
    assert draw_experiment(records, tmp_path / "b.png").read_bytes() == path.read_bytes()
