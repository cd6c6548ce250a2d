for (const box of document.querySelectorAll("[data-tree]")) {
  const rows = Array.from(box.querySelectorAll("tbody tr"));
  const paths = rows.map((row) => row.cells[0].textContent.trim());
  const bar = document.createElement("div");
  bar.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Filter blocks";
  input.setAttribute("aria-label", "Filter blocks");
  const deepest = Math.max(...rows.map((row) => Number(row.dataset.family)));
  let most = Math.min(2, deepest);
  const show = () => rows.forEach((row, i) => {
    const found = paths[i].toLowerCase().includes(input.value.toLowerCase());
    row.hidden = !found || (input.value === "" && Number(row.dataset.family) > most);
  });
  input.addEventListener("input", show);
  bar.append(input);
  for (let depth = 1; depth <= deepest; depth++) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = depth === deepest ? "all" : "depth " + depth;
    button.setAttribute("aria-pressed", String(depth === most));
    button.addEventListener("click", () => {
      most = depth;
      for (const b of bar.querySelectorAll("button"))
        b.setAttribute("aria-pressed", String(b === button));
      show();
    });
    bar.append(button);
  }
  box.prepend(bar);
  show();
}
