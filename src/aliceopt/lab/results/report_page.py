"""The page around a report: one file, no requests, readable with scripts off and on paper."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aliceopt.lab.figures.study_look import Picture

__all__ = ["data_uri", "escape", "figures_section", "folded", "page", "pairs", "section"]

_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}

_CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f6f7f9; --ink: #1c1e21;
  --soft: #5a6069; --line: #d9dde3; --accent: #0067a3; --plot: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --paper: #121417; --card: #1b1e23; --ink: #e6e8eb;
  --soft: #a4abb5; --line: #343a43; --accent: #6cb8ee; --plot: #1a1a1a; }
  figure img { filter: invert(0.9) hue-rotate(180deg); } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.6 system-ui,
  -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
header p { margin: 0; color: var(--soft); }
h1 { font-size: 1.85rem; line-height: 1.25; margin: 0.2rem 0 0.5rem; letter-spacing: -0.01em;
  overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 0.75rem; padding-bottom: 0.3rem;
  border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 0 0 0.75rem; }
p, li, dd { overflow-wrap: anywhere; }
.kind { text-transform: uppercase; letter-spacing: 0.08em; font-size: 0.78rem; font-weight: 600; }
.finding { background: var(--card); border-left: 4px solid var(--accent);
  border-radius: 0 8px 8px 0; padding: 1.1rem 1.35rem; }
.finding .decision { margin: 0; font-size: 1.12rem; font-weight: 500; }
.finding pre { margin: 0.8rem 0; background: var(--paper); } .finding ul { margin: 0; }
.finding li { color: var(--soft); font-size: 0.92rem; }
.note { color: var(--soft); font-size: 0.9rem; margin: 0.6rem 0 0; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
.scroll:focus-visible { outline: 2px solid var(--accent); }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: 0.42rem 0.55rem; text-align: right; white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child, .text { text-align: left; }
td.wrap { white-space: normal; min-width: 14rem; }
thead th { background: var(--card); border-bottom: 1px solid var(--line); font-weight: 600;
  vertical-align: bottom; white-space: normal; line-height: 1.3; }
tr > th:first-child { position: sticky; left: 0; background: var(--paper); }
thead tr > th:first-child { background: var(--card); }
tbody th { font-weight: 500; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
tbody tr.best > * { font-weight: 700; }
tbody tr:hover > * { background: var(--card); }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
th button::after { content: "\\2195"; color: var(--soft); opacity: 0.55; margin-left: 0.3em;
  font-size: 0.85em; }
th[aria-sort="ascending"] button::after { content: "\\2191"; color: var(--accent); opacity: 1; }
th[aria-sort="descending"] button::after { content: "\\2193"; color: var(--accent); opacity: 1; }
.filter { display: flex; gap: 0.4rem; margin: 0 0 0.6rem; flex-wrap: wrap; }
.filter button { font: inherit; font-size: 0.85rem; padding: 0.15rem 0.8rem; cursor: pointer;
  border: 1px solid var(--line); border-radius: 99px; background: none; color: var(--ink); }
.filter button[aria-pressed="true"] { background: var(--accent); border-color: var(--accent);
  color: var(--paper); }
figure { margin: 0 0 1.5rem; padding: 1.1rem 1.25rem 1rem; background: var(--plot);
  border: 1px solid var(--line); border-radius: 8px; break-inside: avoid; }
figure img { display: block; width: 100%; max-width: 46rem; height: auto; margin: 0 auto; }
figcaption { color: var(--soft); font-size: 0.9rem; max-width: 46rem; margin: 0.75rem auto 0; }
figure h3 { max-width: 46rem; margin-left: auto; margin-right: auto; }
dl { display: grid; grid-template-columns: minmax(7rem, 11rem) 1fr; gap: 0.35rem 1rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
details { margin-top: 1rem; } summary { cursor: pointer; font-weight: 500; }
details > .scroll, details > dl { margin-top: 0.75rem; }
code { font: 0.88em ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 0.8rem 1rem; overflow-x: auto; margin: 0 0 0.5rem; }
ul { padding-left: 1.2rem; } li + li { margin-top: 0.25rem; }
@media (max-width: 40rem) { main { padding: 1.5rem 1rem 3rem; } h1 { font-size: 1.5rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 0.6rem; }
  figure { padding: 0.9rem 0.6rem; } .finding { padding: 0.9rem 1rem; }
  tbody th { white-space: normal; min-width: 8rem; } }
@media print { html { font-size: 13px; } main { max-width: none; padding: 0; }
  body { font-size: 1rem; }
  .filter, th button::after { display: none; } .scroll { overflow: visible; border: 0; }
  tr > th:first-child { position: static; }
  table { font-size: 8pt; } th, td { padding: 0.2rem 0.35rem; } h2 { break-after: avoid; }
  tr { break-inside: avoid; } }
"""

_JS = """
const cells = (row) => Array.from(row.children);
function key(cell) {
  if (!("value" in cell.dataset)) return cell.textContent.trim().toLowerCase();
  return cell.dataset.value === "" ? null : Number(cell.dataset.value);
}
function order(a, b) { return typeof a === "number" ? a - b : String(a).localeCompare(String(b)); }
function sort(table, column, head) {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const th of table.tHead.querySelectorAll("th")) th.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = Array.from(table.tBodies[0].rows);
  rows.sort((r, s) => {
    const a = key(cells(r)[column]), b = key(cells(s)[column]);
    if (a === null || b === null) return (a === null) - (b === null);
    return down ? order(b, a) : order(a, b);
  });
  table.tBodies[0].append(...rows);
}
for (const table of document.querySelectorAll("table.sortable")) {
  cells(table.tHead.rows[0]).forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, column, head));
    head.append(button);
  });
}
for (const table of document.querySelectorAll("table[data-filter]")) {
  const families = new Set(Array.from(table.tBodies[0].rows, (row) => row.dataset.family));
  if (families.size < 2) continue;
  const bar = document.createElement("div");
  bar.className = "filter";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Show");
  for (const [name, label] of [["", "All"], ["alice", "Alice"], ["baseline", "Baselines"]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.setAttribute("aria-pressed", String(name === ""));
    button.addEventListener("click", () => {
      for (const b of bar.children) b.setAttribute("aria-pressed", String(b === button));
      for (const row of table.tBodies[0].rows) row.hidden = name && row.dataset.family !== name;
    });
    bar.append(button);
  }
  table.closest(".scroll").before(bar);
}
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
"""

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def escape(text: object) -> str:
    """Text that cannot become markup, also within an attribute."""
    return html.escape(str(text), quote=True)


def data_uri(path: Path) -> str:
    """A figure as an address that holds the whole file; .svg or .png."""
    content = base64.b64encode(path.read_bytes()).decode("ascii")
    return f"data:{_TYPES[path.suffix.lower()]};base64,{content}"


def section(title: str, body: str) -> str:
    """A part of the page under a heading; ``body`` is markup."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>"


def folded(title: str, body: str) -> str:
    """Markup that is shown on demand."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def pairs(named: Mapping[str, str]) -> str:
    """A list of names and values; empty values are left out."""
    told = (f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in named.items() if v)
    return f"<dl>{''.join(told)}</dl>"


def figures_section(pictures: Sequence[Picture]) -> str:
    """Figures, each under its question; nothing if there are none."""
    if not pictures:
        return ""
    shown = (
        f"<figure><h3>{escape(p.question)}</h3>"
        f'<img src="{data_uri(p.path)}" alt="{escape(p.alt)}">'
        f"<figcaption>{escape(p.caption)}</figcaption></figure>"
        for p in pictures
    )
    return section("Figures", "\n".join(shown))


def page(title: str, body: str) -> str:
    """A complete document; ``body`` is markup, ``title`` is not."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="aliceopt">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{_CSS}</style>
</head>
<body>
<main>
{body}
</main>
<script>{_JS}</script>
</body>
</html>
"""
