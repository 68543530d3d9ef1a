"use strict";

// A click on a heading sorts by that column, a second click reverses the order. Cells without a value stay at the bottom.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const numeric = head.classList.contains("number");
      const first = numeric ? "descending" : "ascending";
      const second = numeric ? "ascending" : "descending";
      const order = head.getAttribute("aria-sort") === first ? second : first;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order);
      sort(table.tBodies[0], column, numeric, order === "ascending" ? 1 : -1);
    });
  });
}

function sort(body, column, numeric, direction) {
  const key = (row) => {
    const cell = row.cells[column];
    if (!numeric) return cell.textContent.trim();
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  };
  const rows = [...body.rows].map((row) => ({ row, key: key(row) }));
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    return direction * (numeric ? a.key - b.key : a.key.localeCompare(b.key, "en", { numeric: true }));
  });
  body.append(...rows.map((entry) => entry.row));
}

// Show values on hover, or on a tap on touch screens. The SVG titles, which serve pages without a script, would duplicate them.
const tip = document.getElementById("tip");
for (const title of document.querySelectorAll("figure svg title")) title.remove();

function show(event) {
  const target = event.target.closest("[data-tip]");
  if (!target) {
    tip.hidden = true;
    return;
  }
  tip.textContent = target.dataset.tip;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, event.clientX + 12), document.documentElement.clientWidth - box.width - 8);
  const below = event.clientY + 16 + box.height < document.documentElement.clientHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below ? event.clientY + 16 : event.clientY - box.height - 12}px`;
}
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

// Pointing at a name in a legend highlights its series.
for (const item of document.querySelectorAll(".legend li")) {
  const figure = item.closest("figure");
  const series = figure.querySelector(`.series[data-series="${item.dataset.series}"]`);
  item.addEventListener("pointerenter", () => { figure.classList.add("dimmed"); series.classList.add("chosen"); });
  item.addEventListener("pointerleave", () => { figure.classList.remove("dimmed"); series.classList.remove("chosen"); });
}
