"""The report holds what the records say, escapes what they quote, and needs nothing but itself."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from aliceopt.lab.figures import style
from aliceopt.lab.records import RecordError, read_runs
from aliceopt.lab.report import write_report
from aliceopt.lab.report.axes import Axis
from aliceopt.lab.report.panels import Line, merge_blocks, place_tags, rate_panel
from aliceopt.lab.report.strips import forest
from aliceopt.lab.results.finding import find
from aliceopt.lab.results.numbers import limits
from study_cases import grid_plan, invented_results, tuned_as, write_folder

NASTY = "a <b> & \"c\" 'd' </script><script>alert(1)</script> $x_1$"
_VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """Tags with attributes, the visible text, and whether the tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).replace("\u00a0", " ").split())

    def find(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def study(folder: Path, seeds: int = 3, **changes: Any) -> Page:
    plan = grid_plan(seeds, terms=("none", "glass", "glass+abs"), baselines=("adam", "sgd"))
    results: dict[tuple[str, int], Any] = {**invented_results(plan), **changes.pop("results", {})}
    write_folder(folder, replace(plan, **changes.pop("plan", {})), results, **changes)
    return Page(write_report(folder).read_text(encoding="utf-8"))


def test_a_study_has_finding_table_figures_and_how_it_was_run(tmp_path: Path) -> None:
    """All that a reader needs is there, in this order."""
    page = study(tmp_path)
    heads = (
        *("Finding", "Results", "Figures", "What is missing", "How to read this"),
        *("How it was run", "All runs", "How to reproduce it"),
    )
    places = [page.text.index(f" {head} ") for head in heads]
    assert places == sorted(places)
    assert "Which curvature terms help: a small convnet on digits" in page.text
    assert "Nothing: every planned run finished." in page.text
    for fact in ("12,345", "torch 2.13.0", "commit 0123456789abcdef", "batch size 64", "cosine"):
        assert fact in page.text
    rate = "learning rate rising over the first 5% of the run, then falling to zero along a cosine"
    assert f"12 epochs of 22 batches; batch size 64; float32; {rate}; 20 evaluations" in page.text
    assert '{"' not in page.text
    assert "aliceopt study --seeds 3" in page.text
    assert "not tuned: each method's usual one" in page.text


def test_the_precision_stands_under_every_table(tmp_path: Path) -> None:
    """Between each table and whatever comes after it."""
    study(tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    _, *after = text.split("</table>")
    assert len(after) == 4
    for rest in after:
        assert "Precision: float32." in rest.split("</section>")[0].split("<table")[0]


def test_it_is_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    """No address but its own data; the policy forbids others."""
    page = study(tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    for tag in ("img", "link", "script", "iframe", "a", "source"):
        for attrs in page.find(tag):
            for name in ("src", "href"):
                assert (attrs.get(name) or "data:").startswith("data:")
    outside = re.sub(r'src="data:[^"]*"', "", text)
    assert not re.search(r"https?://|@import|url\(", outside)
    policy = next(a for a in page.find("meta") if a.get("http-equiv"))
    assert "default-src 'none'" in (policy["content"] or "")
    assert list(tmp_path.glob("*.writing")) == []


def test_it_is_accessible(tmp_path: Path) -> None:
    """Language, alt texts with the numbers, table heads with a scope, named regions."""
    page = study(tmp_path)
    assert page.find("html")[0]["lang"] == "en"
    drawn = [d["aria-label"] or "" for d in page.find("div") if d.get("role") == "img"]
    assert len(drawn) == 11  # forest, six of curves, terms, results, two of curvature
    assert all(len(alt) > 40 for alt in drawn)
    assert any(re.search(r"Alice, glass, NAQ \d\d\.\d\d%", alt) for alt in drawn)
    assert all(head.get("scope") in ("col", "row") for head in page.find("th"))
    scrolling = [d for d in page.find("div") if d.get("class") == "scroll"]
    assert len(scrolling) == len(page.find("table")) == 4
    assert all(d.get("aria-label") and d.get("tabindex") == "0" for d in scrolling)


def test_what_records_quote_cannot_become_markup(tmp_path: Path) -> None:
    """Labels, titles, reasons, notes: shown literally, dollar signs and all."""
    plan = grid_plan(2, terms=("none", "glass"), baselines=("adam", "sgd"))
    methods = {
        key: replace(m, label=m.label + NASTY, options={**m.options, "note": NASTY})
        for key, m in plan.methods.items()
    }
    command = f"aliceopt study '{NASTY}'"
    plan = replace(plan, title=NASTY, command=command, methods=methods)
    results: dict[tuple[str, int], Any] = {**invented_results(plan), ("adam", 0): "diverged"}
    write_folder(tmp_path, plan, results, reason=NASTY)
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert len(page.find("script")) == 1
    assert page.find("b") == []
    assert page.text.count("</script><script>alert(1)</script>") > 10
    assert f"Adam{NASTY}, seed 0: diverged: {NASTY}" in page.text


def test_what_is_missing_is_named_with_reasons(tmp_path: Path) -> None:
    """Diverged with its reason, interrupted, missing: by method and seeds."""
    page = study(
        tmp_path,
        results={
            ("adam", 0): "diverged",
            ("adam", 2): "diverged",
            ("sgd", 1): "interrupted",
            ("sgd", 2): None,
        },
    )
    assert "Adam, seeds 0, 2: diverged: the loss became nan at step 37" in page.text
    assert "SGD with momentum, seed 1: interrupted" in page.text
    assert "SGD with momentum, seed 2: missing" in page.text
    assert "2 diverged" in page.text


def test_nothing_finished_still_makes_a_report(tmp_path: Path) -> None:
    """Ctrl-C at once: no figures, no finding, and it says so."""
    plan = grid_plan(2, terms=("none", "glass"), baselines=("adam",))
    write_folder(tmp_path, plan, {("adam", 0): "interrupted"})
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "nothing to find" in page.text
    assert page.find("figure") == []
    assert "Adam, seed 0: interrupted" in page.text


def test_an_account_of_the_curvature_without_a_number_is_none(tmp_path: Path) -> None:
    """Null by null, as of runs that were lost at once: no figure, and still a report."""
    study(tmp_path)
    for path in tmp_path.rglob("records.jsonl"):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r'"(glass_share|at_upper)": [\d.e+-]+', r'"\1": null', text))
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "Which curvature terms help?" in page.text
    assert "Which curvature is there?" not in page.text


@pytest.mark.parametrize("all_of_them", [False, True])
def test_null_metrics_are_missing_results(tmp_path: Path, all_of_them: bool) -> None:
    """Early records call such runs finished; the report is written all the same, and says so."""
    plan = grid_plan(2, terms=("none", "glass"), baselines=("adam",))
    results = dict.fromkeys(invented_results(plan), math.nan)
    results |= {} if all_of_them else {k: 97.0 for k in results if k[0] != "adam"}
    write_folder(tmp_path, plan, results)
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "Adam, seeds 0, 1: diverged: the metric is not finite" in page.text
    assert "0 of 2, 2 diverged" in page.text
    assert f"{10 if all_of_them else 2} of 10 runs diverged" in page.text
    assert ("nothing to find" in page.text) is all_of_them
    assert ("what does it cost?" in page.text) is not all_of_them


def test_an_experiment_shows_the_papers_values_and_its_redrawn_figure(tmp_path: Path) -> None:
    """With the paper's median beside ours, what it is, and the figure that was drawn."""
    plan = grid_plan(2, terms=("none",), baselines=("adam",), kind="experiment", scale="smoke")
    plan = replace(
        plan,
        name="resnet18-methods",
        paper={"adam": [93.23, 93.41, 93.73]},
        reference="Figure 6: CIFAR-10 test accuracy",
    )
    write_folder(tmp_path, plan, invented_results(plan))
    figure = style.new_figure(height=1.0)
    style.save(figure, tmp_path / "figures" / "resnet18-methods.png")
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "93.41%" in page.text
    assert "The paper: Figure 6: CIFAR-10 test accuracy." in page.text
    assert "not comparable with the paper's values" in page.text
    assert "The paper's figure, redrawn" in page.text
    assert "aliceopt run resnet18-methods --scale smoke --seeds 2" in page.text
    assert any((i["src"] or "").startswith("data:image/png") for i in page.find("img"))
    assert "How do the methods compare?" not in page.text
    (tmp_path / "figures" / "resnet18-methods.png").unlink()
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "How do the methods compare?" in page.text


def test_methods_with_the_same_label_are_told_apart(tmp_path: Path) -> None:
    """By the option that differs, as two learning rates of one method."""
    plan = grid_plan(1, terms=(), baselines=("adam", "adamw"))
    for name, rate in (("adam", 0.001), ("adamw", 0.0025)):
        plan.methods[name] = replace(plan.methods[name], label="Adam", options={"lr": rate})
    write_folder(tmp_path, plan, invented_results(plan))
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "Adam, lr 0.001" in page.text
    assert "Adam, lr 0.0025" in page.text


def test_tuned_rates_are_listed_with_those_tried(tmp_path: Path) -> None:
    """A rate chosen at the edge of those tried is marked."""
    tuned = tuned_as(edge=["adam"], adam=[(1e-2, [90.0]), (1e-3, [90.0]), (3e-3, [90.0])])
    page = study(tmp_path, plan={"tuned": tuned})
    assert "0.001, 0.003, 0.01 (at the edge)" in page.text
    assert "at seeds 8 and 9: 14 runs, 3.13 min, not counted here" in page.text


def test_a_folder_without_records_is_refused_by_name(tmp_path: Path) -> None:
    """The folder that was looked in is named."""
    with pytest.raises(RecordError, match=str(tmp_path)):
        write_report(tmp_path)


def test_figures_are_one_a_question_and_the_same_every_time(tmp_path: Path) -> None:
    """The same records give the same bytes."""
    tuned = tuned_as(adam=[(0.01, [90.0, 91.0]), (0.03, [None])])
    page = study(tmp_path, plan={"tuned": tuned})
    first = (tmp_path / "report.html").read_bytes()
    assert write_report(tmp_path).read_bytes() == first
    questions = (
        *("Which learning rate?", "How do they train, and what does it cost?"),
        *("Which curvature terms help?", "How do the methods compare?"),
        "Which curvature is there?",
    )
    assert all(page.text.count(question) == 1 for question in questions)
    assert len(page.find("figure")) == len(questions)
    assert not (tmp_path / "figures").exists()


def test_the_forest_is_the_finding(tmp_path: Path) -> None:
    """Every difference from the best where it stands on the axis, and sure where it is claimed."""
    plan = grid_plan(5, terms=("none", "glass"), baselines=("adam", "sgd"))
    write_folder(tmp_path, plan, invented_results(plan, {"adam": 3.0, "sgd": 2.9}))
    runs = read_runs(tmp_path)
    finding = find(plan, runs)
    drawn = forest(plan, finding.comparisons, finding.choice)
    assert drawn is not None
    assert drawn.axis == "points behind Adam"
    found = {c.second: c for c in finding.comparisons if c.question == "best"}
    assert [row.method for row in drawn.rows] == sorted(found, key=lambda m: found[m].gain)
    assert drawn.zero is not None
    scale = [(row.middle - drawn.zero) / found[row.method].gain for row in drawn.rows]
    assert scale == pytest.approx([scale[0]] * len(scale), rel=0.05)
    for row in drawn.rows:
        assert row.low is not None
        assert row.sure == (row.low > drawn.zero) == (found[row.method].verdict == "better")
    assert [row.sure for row in drawn.rows] == [False, True, True, True, True]


def test_the_best_are_drawn_above_the_others_and_the_choice_is_marked(tmp_path: Path) -> None:
    """In every panel the best Alice and the best baseline come last, wherever the plan has them."""
    plan = grid_plan(5, terms=("none", "glass"), baselines=("adam", "sgd"))
    write_folder(tmp_path, plan, invented_results(plan, {"alice-none-naq": 2.0, "adam": 3.0}))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    panels = re.findall(r'<svg viewBox="0 0 1000 1000".*?</svg>', page, re.DOTALL)
    drawn = [re.findall(r'<g data-m="([^"]*)" class="([^"]*)"', panel) for panel in panels]
    mine = [lines for lines in drawn if ("adam", "baseline") in lines]
    assert mine
    for lines in mine:
        assert dict(lines[-2:]) == {"alice-none-naq": "alice", "adam": "baseline"}
        assert all(kind == "" for _, kind in lines[:-2])
    assert page.count('<th scope="row">Adam <strong class="use">use this</strong></th>') == 1
    assert page.count('class="use"') == 1


def tracks(page: str, heading: str) -> dict[str, str]:
    """Method by method, what is drawn in the figure after a heading."""
    figure = page[page.index(f">{heading}<") :].split('<div class="strip axis">')[0]
    row = r'data-m="([^"]*)"><span class="name">.*?class="track">(.*?)</span>'
    return dict(re.findall(row, figure, re.DOTALL))


def test_a_seed_outside_the_range_has_an_arrow(tmp_path: Path) -> None:
    """On the side it lies on, though the method's median is inside; other rows have none."""
    plan = grid_plan(3, terms=("none", "glass"), baselines=("adam", "sgd"))
    write_folder(tmp_path, plan, {**invented_results(plan), ("adam", 1): 20.0})
    page = write_report(tmp_path).read_text(encoding="utf-8")
    drawn = tracks(page, "How do the methods compare?")
    assert drawn.pop("adam").count("off low") == 1
    assert len(drawn) == 5
    assert not any('class="off' in track for track in drawn.values())


@pytest.mark.parametrize("seeds", [2, 5])
def test_a_bar_that_the_axis_cuts_has_an_arrow_at_each_end_cut(tmp_path: Path, seeds: int) -> None:
    """Intervals of two seeds reach out; those of five alike do not, and no arrow is explained."""
    plan = grid_plan(seeds, terms=("none", "glass"), baselines=("adam", "sgd"))
    write_folder(tmp_path, plan, invented_results(plan, {"adam": 9.0}, noise=4.0 / seeds**3))
    finding = find(plan, read_runs(tmp_path))
    rows = forest(plan, finding.comparisons, finding.choice)
    assert rows is not None
    cuts = {row.method: ((row.low or 0) < 0, (row.high or 0) > 100) for row in rows.rows}
    page = write_report(tmp_path).read_text(encoding="utf-8")
    drawn = tracks(page, "Finding")
    for method, cut in cuts.items():
        track = drawn[method]
        assert ('class="off low"' in track, 'class="off"' in track) == cut
        assert ("left:0.6rem" in track, "right:0.6rem" in track) == cut
    assert any(True in cut for cut in cuts.values()) is (seeds == 2)
    note = page.split('<p class="note">')[1].split("</p>")[0]
    assert ("arrows what lies outside" in note) is (seeds == 2)


def test_every_rate_tried_is_drawn_where_it_ended() -> None:
    """Dots for runs, a line through means, the chosen one larger, a cross where one diverged."""
    ends: dict[str, Any] = {"adam": [(0.01, [90.0, 92.0]), (0.1, [95.0]), (1.0, [None])]}
    ends["sgd"] = [(0.1, [94.0, 94.0])]
    drawn = rate_panel(grid_plan(2, tuned=tuned_as(**ends)))
    assert drawn is not None
    adam, sgd = drawn.lines
    assert (adam.label, sgd.label) == ("Adam", "SGD with momentum")
    assert adam.dots.count("h0") == 3
    assert adam.chosen == adam.path.split("L")[0] + "h0"
    assert adam.path.count("L") == 1
    assert [place for place, _ in drawn.xticks] == sorted(place for place, _ in drawn.xticks)
    (cross,) = adam.lost
    rates = {text: place for place, text in drawn.xticks}
    assert cross == rates["1"]
    assert float(adam.path[1:].split()[0]) == pytest.approx(10 * rates["0.01"], abs=1)
    assert rate_panel(grid_plan(2)) is None


@pytest.mark.parametrize("first", [0.0, 3.0, 50.0, 97.0, 100.0])
@pytest.mark.parametrize("second", [0.0, 1.0, 49.0, 80.0, 99.0])
def test_labels_stand_in_the_order_in_which_their_lines_end(first: float, second: float) -> None:
    """Whichever of two ends higher, its label does; neither hides the other or leaves the plot."""
    ends = {"adam": first, "alice": second, "sgd": 50.0}
    lines = [Line(name, name, "", (100.0, end)) for name, end in ends.items()]
    tags = {line.name: line.tag for line in place_tags(lines, ["alice", "adam"])}
    assert all(0 <= tag <= 91 for tag in tags.values())
    if first != second:
        assert (tags["adam"] > tags["alice"]) == (first > second)
    assert abs(tags["adam"] - tags["alice"]) >= 9
    assert tags["sgd"] == 52


@pytest.mark.parametrize("span", [1e-6, 0.3, 1.0, 7.0, 1e5])
def test_ticks_are_round_few_and_inside(span: float) -> None:
    """On both kinds of axis, wherever it lies."""
    for axis in (Axis(-span / 3, span), Axis(span, 3 * span, log=True), Axis(1e-5, span + 1, True)):
        places = [place for place, _ in axis.ticks()]
        assert 2 <= len(places) <= 8
        assert places == sorted(places)
        assert 0 <= places[0] <= places[-1] <= 100


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_one_failure_does_not_squeeze_the_rest_of_a_figure(better: str) -> None:
    """A run at 10% among runs at 97% to 98% stays outside the axis, on its bad side only."""
    sign = 1 if better == "higher" else -1
    values = [sign * v for v in (10.0, 97.0, 97.2, 97.5, 97.6, 98.0)]
    low, high = limits(values, better)
    assert high - low < 3
    assert all(low < v < high for v in values[1:])


def test_many_blocks_become_few_neighbours() -> None:
    """No more lines than can be told apart; none is lost and the order stays."""
    names = [f"layer{i}" for i in range(23)]
    merged = merge_blocks(names)
    assert len(merged) == 6
    assert [name for members in merged.values() for name in members] == names
    assert next(iter(merged)) == "layer0 to layer2"
