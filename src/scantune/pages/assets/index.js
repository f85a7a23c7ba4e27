"use strict";
(() => {
  const table = document.querySelector(".cases");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const filter = document.getElementById("filter");

  // Return the number of a numeric cell, or the text of another; unknown numbers are sorted last.
  function value(row, column, numeric) {
    const cell = row.cells[column];
    if (!numeric) return cell.textContent;
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  }

  function sortBy(column) {
    const head = heads[column];
    const numeric = head.classList.contains("number");
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const keyed = rows.map((row) => [value(row, column, numeric), row]);
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      const order = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
      return up ? order : -order;
    });
    body.append(...keyed.map(([, row]) => row));
  }

  function applyFilter() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    document.getElementById("count").textContent = words.length ? `${shown} of ${rows.length} shown` : "";
  }

  // Give a page the list in the order that is shown, so that it can lead to its neighbours. Long lists are cut.
  const reach = 100;
  const page = (link) => link.getAttribute("href").split("#")[0];
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link) return;
    const links = [...body.rows].filter((row) => !row.hidden).flatMap((row) => [...row.querySelectorAll("a[href]")]);
    const place = links.findIndex((each) => page(each) === page(link));
    if (place < 0) return;
    const start = Math.max(place - reach, 0);
    const up = "../".repeat(link.getAttribute("href").split("/").length - 1);
    const pages = links.slice(start, place + reach + 1).map((each) => up + page(each));
    const list = { index: up + (location.pathname.split("/").pop() || "index.html"), pages, at: place - start };
    link.hash = encodeURIComponent(JSON.stringify(list));
  }, true);

  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => sortBy(column)));
  filter.addEventListener("input", applyFilter);
})();
