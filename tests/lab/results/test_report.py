"""The report holds what the records say, escapes what they quote, and needs nothing but itself."""

import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from aliceopt.lab.figures import style
from aliceopt.lab.figures.study_all import draw_study
from aliceopt.lab.figures.study_curvature import merge_blocks
from aliceopt.lab.figures.study_look import limits
from aliceopt.lab.records import RecordError, read_plan, read_runs
from aliceopt.lab.results.report import write_report
from study_cases import grid_plan, invented_results, write_folder

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
    write_folder(folder, {**plan, **changes.pop("plan", {})}, results, **changes)
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
    images = page.find("img")
    assert len(images) == 4
    assert all(len(image["alt"] or "") > 40 for image in images)
    assert re.search(r"glass with NAQ steps \d\d\.\d\d%", images[0]["alt"] or "")
    assert all(head.get("scope") in ("col", "row") for head in page.find("th"))
    scrolling = [d for d in page.find("div") if d.get("class") == "scroll"]
    assert len(scrolling) == len(page.find("table")) == 4
    assert all(d.get("aria-label") and d.get("tabindex") == "0" for d in scrolling)


def test_what_records_quote_cannot_become_markup(tmp_path: Path) -> None:
    """Labels, titles, reasons, notes: shown literally, dollar signs and all."""
    plan = grid_plan(2, terms=("none", "glass"), baselines=("adam", "sgd"))
    plan |= {"title": NASTY, "command": f"aliceopt study --problem '{NASTY}'"}
    for about in plan["methods"].values():
        about["label"] += NASTY
        about["options"]["note"] = NASTY
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
    assert page.find("img") == []
    assert "Adam, seed 0: interrupted" in page.text


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
    assert ("What does it cost?" in page.text) is not all_of_them


def test_a_report_is_written_anew_and_drops_figures_without_records(tmp_path: Path) -> None:
    """A second report of a smaller study keeps no picture of the first."""
    study(tmp_path)
    assert (tmp_path / "figures" / "study-terms.svg").exists()
    plan = grid_plan(1, terms=(), baselines=("adam",))
    write_folder(tmp_path, plan, invented_results(plan))
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert not (tmp_path / "figures" / "study-terms.svg").exists()
    assert "Which curvature terms help?" not in page.text


def test_an_experiment_shows_the_papers_values_and_its_redrawn_figure(tmp_path: Path) -> None:
    """With the paper's median beside ours, what it is, and the figure that was drawn."""
    plan = grid_plan(2, terms=("none",), baselines=("adam",), kind="experiment", scale="smoke")
    plan |= {"name": "resnet18-methods", "paper": {"adam": [93.23, 93.41, 93.73]}}
    plan |= {"reference": "Figure 6: CIFAR-10 test accuracy"}
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
        plan["methods"][name] |= {"label": "Adam", "options": {"lr": rate}}
    write_folder(tmp_path, plan, invented_results(plan))
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "Adam, lr 0.001" in page.text
    assert "Adam, lr 0.0025" in page.text


def test_tuned_rates_are_listed_with_those_tried(tmp_path: Path) -> None:
    """A rate chosen at the edge of those tried is marked."""
    tried = [{"lr": rate, "finals": [90.0]} for rate in (1e-3, 3e-3, 1e-2)]
    about = {"seeds": [7, 8], "most": 3, "runs": 14, "gradients": 999, "seconds": 188.0}
    chosen = {"adam": {"tried": tried, "lr": 1e-2, "edge": True}}
    page = study(tmp_path, plan={"tuned": {**about, "chosen": chosen}})
    assert "0.001, 0.003, 0.01 (at the edge)" in page.text
    assert "at seeds 7 and 8: 14 runs, 3.13 min, not counted here" in page.text


def test_a_folder_without_records_is_refused_by_name(tmp_path: Path) -> None:
    """The folder that was looked in is named."""
    with pytest.raises(RecordError, match=str(tmp_path)):
        write_report(tmp_path)


def test_figures_are_valid_deterministic_and_one_a_question(tmp_path: Path) -> None:
    """The same records give the same bytes, and every SVG parses."""
    study(tmp_path)
    plan, runs = read_plan(tmp_path), read_runs(tmp_path)
    first = draw_study(plan, runs, tmp_path / "one")
    again = draw_study(plan, runs, tmp_path / "two")
    questions = [picture.question for picture in first]
    assert questions == [
        "Which curvature terms help?",
        "How do the baselines compare?",
        "What does it cost?",
        "Which curvature is there?",
    ]
    for one, two in zip(first, again, strict=True):
        assert one.path.read_bytes() == two.path.read_bytes()
        assert ET.parse(one.path).getroot().tag.endswith("svg")


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
