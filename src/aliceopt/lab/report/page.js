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

// One method stands out wherever it is drawn: on hover, on focus, or once its button is pressed.
let pinned = null;
function light(name) {
  document.body.classList.toggle("lit", Boolean(name));
  for (const part of document.querySelectorAll("[data-m]")) {
    const on = Boolean(name) && part.dataset.m === name;
    part.classList.toggle("on", on);
    if (on && part instanceof SVGElement) part.parentNode.append(part);
  }
}
const named = (event) => event.target.closest("[data-m]")?.dataset.m || pinned;
for (const kind of ["pointerover", "focusin"])
  document.addEventListener(kind, (event) => light(named(event)));
for (const kind of ["pointerleave", "focusout"])
  document.documentElement.addEventListener(kind, () => light(pinned));
for (const chip of document.querySelectorAll(".chip"))
  chip.addEventListener("click", () => {
    pinned = pinned === chip.dataset.m ? null : chip.dataset.m;
    for (const other of document.querySelectorAll(".chip"))
      other.setAttribute("aria-pressed", String(other.dataset.m === pinned));
    light(pinned);
  });
