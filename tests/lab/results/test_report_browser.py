"""The report in a real browser: it loads alone, sorts, filters, fits, and has a dark side."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aliceopt.lab.plans.study import study_plan
from aliceopt.lab.records import read_plan, read_runs
from aliceopt.lab.report import write_report
from aliceopt.lab.results.finding import find
from study_cases import grid_plan, invented_results, tuned_as, write_folder

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the path"
)
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--disable-component-update", "--disable-sync", "--disable-quic"),
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole study with a diverged and a missing run."""
    folder = tmp_path_factory.mktemp("study")
    plan = grid_plan(3)
    effects = {"alice-glass-abs-naq": 2.0, "muon": 1.0}
    results: dict[tuple[str, int], Any] = {**invented_results(plan, effects)}
    results["alice-none-full", 0] = "diverged"
    tried = [(10.0**k, [96.0 + k, 96.5 + k]) for k in (-2, -3, -1)]
    plan = replace(plan, tuned=tuned_as(**dict.fromkeys(plan.methods, tried)))
    del results["sgd", 2]
    write_folder(folder, plan, results, reason='the loss is <nan> & "inf"')
    return write_report(folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture
def trouble() -> list[str]:
    """What went wrong on the page: must stay empty."""
    return []


def open_page(browser: Any, report: Path, trouble: list[str], **options: Any) -> Any:
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()

    def route(request: Any) -> None:
        if request.request.url.startswith(("file:", "data:")):
            request.continue_()
        else:
            trouble.append(f"asked for {request.request.url}")
            request.abort()

    page.route("**/*", route)
    page.on("console", lambda m: trouble.append(f"{m.type}: {m.text}"))
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("requestfailed", lambda r: trouble.append(f"failed: {r.url[:80]}"))
    page.goto(report.as_uri())
    return page


def column(page: Any, number: int) -> list[str]:
    shown = "(rows) => rows.filter((r) => !r.hidden).map((r) => r.children[%d].textContent)"
    found: list[str] = page.locator("table[data-filter] tbody tr").evaluate_all(shown % number)
    return found


def test_it_loads_alone_and_shows_the_finding(
    browser: Any, report: Path, trouble: list[str]
) -> None:
    """No errors, no requests; decision, forest, lines and evidence are on the page."""
    page = open_page(browser, report, trouble)
    folder = report.parent
    finding = find(read_plan(folder), read_runs(folder))
    shown = {
        part: " ".join(page.locator(part).inner_text().replace("\u00a0", " ").split())
        for part in (".decision", "#lines", "#evidence")
    }
    assert shown[".decision"] == finding.decision.replace("`", "")
    assert shown["#lines"] == " ".join(finding.lines.split())
    assert shown["#evidence"] == " ".join(finding.bullets)
    assert page.locator("#finding .strip:not(.axis)").count() == 18
    assert 'the loss is <nan> & "inf"' in page.locator("main").inner_text()
    assert trouble == []


def stroke(page: Any, name: str) -> tuple[str, str]:
    """Colour and width of a method's line among the rates."""
    line = page.locator(f'figure g[data-m="{name}"] .line').first
    return tuple(  # type: ignore[return-value]
        line.evaluate("(e) => [getComputedStyle(e).stroke, getComputedStyle(e).strokeWidth]")
    )


@pytest.mark.parametrize("how", ["hover", "focus"])
def test_a_method_stands_out_everywhere(
    browser: Any, report: Path, trouble: list[str], how: str
) -> None:
    """Rates, curves and forest, on hover and on keyboard focus; no longer once that has ended."""
    page = open_page(browser, report, trouble)
    before = stroke(page, "adamw")
    assert before == stroke(page, "nesterov")
    chip = page.locator('.chip[data-m="adamw"]')
    getattr(chip, how)()
    after = stroke(page, "adamw")
    assert after != before
    assert stroke(page, "nesterov") == before
    on = page.locator("[data-m].on").evaluate_all("(all) => all.map((e) => e.dataset.m)")
    assert set(on) == {"adamw"}
    assert len(on) > 10  # chip, forest, results, and the lines and tags of seven panels
    assert page.locator("figure .tag.on:visible").first.inner_text() == "AdamW"
    page.mouse.move(2, 2)
    page.evaluate("document.activeElement.blur()")
    assert page.locator("[data-m].on").count() == 0
    assert stroke(page, "adamw") == before
    assert trouble == []


def test_hovering_a_line_names_it_and_a_pressed_button_holds_it(
    browser: Any, report: Path, trouble: list[str]
) -> None:
    """With the pointer on the line itself; Enter on its button keeps the method lit."""
    page = open_page(browser, report, trouble)
    page.locator('figure g[data-m="muon"] .hit').nth(1).dispatch_event("pointerover")
    assert page.locator(".chip.on").all_inner_texts() == ["Muon"]
    chip = page.locator('.chip[data-m="adam"]')
    chip.focus()
    page.keyboard.press("Enter")
    page.evaluate("document.activeElement.blur()")
    assert page.locator(".chip.on").all_inner_texts() == ["Adam"]
    assert chip.get_attribute("aria-pressed") == "true"
    assert trouble == []


def test_curves_are_shown_against_each_cost(browser: Any, report: Path, trouble: list[str]) -> None:
    """Training and validation; the keyboard reaches the other costs."""
    page = open_page(browser, report, trouble)
    page.locator("#cost-step").focus()
    for cost in ("steps", "gradient evaluations", "seconds of training"):
        shown = page.locator(".curves .panel:visible")
        assert shown.locator(".title").all_inner_texts() == [
            "training loss", "validation accuracy"
        ]  # fmt: skip
        assert shown.locator(".across").all_inner_texts() == [cost, cost]
        page.keyboard.press("ArrowRight")
    assert trouble == []


def test_figures_fill_their_cards_and_the_finding_a_phone(
    browser: Any, report: Path, trouble: list[str]
) -> None:
    """Nineteen methods: decision and forest are on the first screen of a phone."""
    page = open_page(browser, report, trouble, viewport={"width": 390, "height": 844})
    box = page.locator("#finding").bounding_box()
    assert box["y"] + box["height"] <= 844
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        for card in page.locator("figure").all():
            room = card.bounding_box()["width"]
            inside = card.locator(".strips, .pair, .panel").first.bounding_box()["width"]
            assert inside >= 0.9 * room
    assert trouble == []


def test_the_finding_of_a_default_study_fills_a_phone_too(
    browser: Any, trouble: list[str], tmp_path: Path
) -> None:
    """With what look-ahead and curvature are worth, and losses on a logarithmic axis."""
    pytest.importorskip("sklearn")
    plan = study_plan(tune=1, seeds=3).final
    exponents = invented_results(plan, {"alice": -0.3, "muon": -0.6}, base=-3.0, noise=0.08)
    write_folder(tmp_path, plan, {key: math.exp(value) for key, value in exponents.items()})
    screen = {"width": 390, "height": 844}
    page = open_page(browser, write_report(tmp_path), trouble, viewport=screen)
    assert page.locator("#finding .worth").inner_text().startswith("Look-ahead (against AdamW")
    assert "(log)" in page.locator("#finding .axis .name").inner_text()
    box = page.locator("#finding").bounding_box()
    assert box["y"] + box["height"] <= screen["height"]
    assert trouble == []


def test_a_phone_shows_which_method_to_use_and_what_was_lost(
    browser: Any, trouble: list[str], tmp_path: Path
) -> None:
    """In its own row, under the name and inside the card; numbers beside bars have no room."""
    plan = grid_plan(5, terms=("none", "glass"), baselines=("adam", "sgd"))
    results: dict[tuple[str, int], Any] = {**invented_results(plan, {"alice-glass-naq": 0.5})}
    results["sgd", 1] = "diverged"
    write_folder(tmp_path, plan, results)
    choice = find(plan, read_runs(tmp_path)).choice
    screen = {"width": 390, "height": 844}
    page = open_page(browser, write_report(tmp_path), trouble, viewport=screen)
    row = page.locator(f'#finding .strip[data-m="{choice}"]')
    assert row.locator("strong").inner_text() == "use this"
    assert row.locator("strong").is_visible()
    assert not row.locator(".said span").is_visible()
    card, mark = (part.bounding_box() for part in (page.locator("#finding"), row.locator("strong")))
    assert card["x"] <= mark["x"]
    assert mark["x"] + mark["width"] <= card["x"] + card["width"]
    assert page.locator('figure .strip[data-m="sgd"] strong').inner_text() == "1 diverged"
    assert page.locator('figure .strip[data-m="sgd"] strong').is_visible()
    assert trouble == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("better", ["alice-glass-naq", "adam"])
def test_labels_of_curves_are_in_order_apart_and_over_the_lines(
    browser: Any, trouble: list[str], tmp_path: Path, better: str, width: int
) -> None:
    """The line that ends lower has the lower label, whichever method it is."""
    plan = grid_plan(3, metric="loss", terms=("none", "glass"), baselines=("adam", "sgd"))
    exponents = invented_results(plan, {better: -0.6}, base=-2.0, noise=0.05)
    write_folder(tmp_path, plan, {key: math.exp(value) for key, value in exponents.items()})
    screen = {"width": width, "height": 844}
    page = open_page(browser, write_report(tmp_path), trouble, viewport=screen)
    panel = page.locator(".curves .panel:visible").filter(has_text="validation loss")
    tags = panel.locator(".tag:visible")
    assert tags.count() == 2
    upper, lower = sorted((tag.bounding_box() for tag in tags.all()), key=lambda box: box["y"])
    assert panel.locator(f'.tag[data-m="{better}"]').bounding_box() == lower
    assert upper["y"] + upper["height"] <= lower["y"]
    area = panel.locator(".area").bounding_box()
    assert area["y"] <= upper["y"]
    path = panel.locator(f'g[data-m="{better}"] .line').get_attribute("d")
    end = area["y"] + area["height"] * float(path.split()[-1]) / 1000
    assert end <= lower["y"]
    assert lower["y"] + lower["height"] <= area["y"] + area["height"]
    behind = tags.first.evaluate("(e) => getComputedStyle(e).backgroundColor")
    assert behind not in ("transparent", "rgba(0, 0, 0, 0)")
    assert trouble == []


def test_the_table_sorts_by_number_both_ways_with_gaps_last(
    browser: Any, report: Path, trouble: list[str]
) -> None:
    """Sorted by the number, not by its text; a dash is neither small nor large."""
    page = open_page(browser, report, trouble)
    head = page.locator("table[data-filter] thead th").nth(3)
    head.locator("button").click()
    up = [float(text.rstrip("%")) for text in column(page, 3)]
    assert up == sorted(up)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").click()
    assert [float(text.rstrip("%")) for text in column(page, 3)] == up[::-1]
    assert head.get_attribute("aria-sort") == "descending"
    page.locator("table[data-filter] thead th").nth(7).locator("button").click()
    costs = column(page, 7)
    gaps = [text == "\u2013" for text in costs]
    assert any(gaps)
    assert gaps == sorted(gaps)
    assert trouble == []


def test_the_table_filters_by_family(browser: Any, report: Path, trouble: list[str]) -> None:
    """All, Alice alone, baselines alone; the pressed button says which."""
    page = open_page(browser, report, trouble)
    assert len(column(page, 0)) == 19
    page.get_by_role("button", name="Baselines").click()
    assert len(column(page, 0)) == 7
    assert not any("Alice" in name for name in column(page, 0))
    page.get_by_role("button", name="Alice", exact=True).click()
    assert len(column(page, 0)) == 12
    page.get_by_role("button", name="All", exact=True).click()
    assert len(column(page, 0)) == 19
    assert trouble == []


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overflows_sideways(
    browser: Any, report: Path, trouble: list[str], width: int
) -> None:
    """On a desk and on a phone, also with everything unfolded; tables scroll in their own box."""
    page = open_page(browser, report, trouble, viewport={"width": width, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert trouble == []


@pytest.mark.parametrize("width", [1280, 390])
def test_ticks_below_rows_do_not_run_together(
    browser: Any, trouble: list[str], tmp_path: Path, width: int
) -> None:
    """Losses over more than a power of ten have seven of them; a phone shows every second."""
    plan = grid_plan(3, metric="loss", terms=("none", "glass"), baselines=("adam", "muon"))
    exponents = invented_results(plan, {"adam": 2.2, "muon": 1.1}, base=-2.0, noise=0.2)
    write_folder(tmp_path, plan, {run: math.exp(value) for run, value in exponents.items()})
    page = open_page(
        browser, write_report(tmp_path), trouble, viewport={"width": width, "height": 900}
    )
    axes = page.evaluate(
        """Array.from(document.querySelectorAll('.axis .track')).map((axis) =>
        Array.from(axis.querySelectorAll('.tick')).map((t) => t.getBoundingClientRect())
        .filter((box) => box.width > 0).map((box) => [box.left, box.right]))"""
    )
    assert max(map(len, axes)) >= 3
    for ticks in axes:
        assert all(left[1] + 4 < right[0] for left, right in itertools.pairwise(ticks))
    assert trouble == []


def test_dark_mode_is_dark_and_readable(browser: Any, report: Path, trouble: list[str]) -> None:
    """Background and ink change places, with a contrast of at least 7 to 1."""
    colors = {}
    for scheme in ("light", "dark"):
        page = open_page(browser, report, trouble, color_scheme=scheme)
        colors[scheme] = [
            luminance(page.evaluate(f"getComputedStyle(document.body).{name}"))
            for name in ("backgroundColor", "color")
        ]
    for scheme, (paper, ink) in colors.items():
        high, low = max(paper, ink), min(paper, ink)
        assert (high + 0.05) / (low + 0.05) > 7
        assert (paper > ink) == (scheme == "light")
    assert trouble == []


def test_it_reads_with_scripts_off(browser: Any, report: Path, trouble: list[str]) -> None:
    """Finding, table and figures are in the file itself; only sorting and filtering are gone."""
    page = open_page(browser, report, trouble, java_script_enabled=False)
    assert page.locator("#finding").is_visible()
    assert page.locator("table[data-filter] tbody tr").count() == 19
    assert page.locator("figure .line").count() > 19
    assert page.locator("figure .panel:visible").count() == 5
    assert page.locator("th button").count() == 0


def luminance(color: str) -> float:
    """Relative luminance of ``rgb(r, g, b)``."""
    parts = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
