// Sorts, filters and reads out what the page already holds. Without it every figure is still there.
(() => {
  "use strict";
  document.documentElement.classList.add("js");
  const words = new Intl.Collator("en", { numeric: true });

  // Integers in decimal, of any size: the longer is the larger, then digit by digit.
  function compareNumbers(a, b) {
    return a.length - b.length || (a < b ? -1 : a > b ? 1 : 0);
  }

  function key(row, column, numeric) {
    const cell = row.cells[column];
    if (!cell) return null;
    return numeric ? cell.dataset.v ?? null : cell.textContent;
  }

  function sort(table, header, rows, direction) {
    const column = header.cellIndex;
    const numeric = header.dataset.sort === "number";
    const compare = numeric ? compareNumbers : words.compare;
    const keyed = rows.map((row, index) => ({ row, index, key: key(row, column, numeric) }));
    keyed.sort((a, b) => {
      // What has no value comes last in either direction.
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.index - b.index;
      return direction * compare(a.key, b.key) || a.index - b.index;
    });
    table.tBodies[0].append(...keyed.map((entry) => entry.row));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
  }

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    // The order of the file breaks ties, so it is kept as it was.
    const rows = Array.from(table.tBodies[0].rows);
    for (const header of table.querySelectorAll("th[data-sort]")) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => {
        const now = header.getAttribute("aria-sort");
        const first = header.dataset.sort === "number" ? -1 : 1;
        const direction = now === null ? first : now === "ascending" ? -1 : 1;
        sort(table, header, rows, direction);
      });
    }
  }

  // A row stays when each word is found in its names, or in its cells where nothing is a name.
  for (const input of document.querySelectorAll("input.filter")) {
    const body = document.getElementById(input.getAttribute("aria-controls"));
    const output = input.parentElement.querySelector("output");
    const all = output.textContent;
    const named = body.querySelector("[data-key]") !== null;
    const rows = Array.from(body.rows, (row) => ({
      row,
      text: Array.from(named ? row.querySelectorAll("[data-key]") : row.cells, (cell) => cell.textContent).join(" ").toLowerCase(),
    }));
    const apply = () => {
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const { row, text } of rows) {
        const keep = wanted.every((word) => text.includes(word));
        row.hidden = !keep;
        if (keep) shown += 1;
      }
      output.textContent = wanted.length ? `${shown.toLocaleString("en")} of ${all}` : all;
    };
    input.addEventListener("input", apply);
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && input.value) {
        input.value = "";
        apply();
        event.preventDefault();
      }
    });
    // A reload can bring back what was typed.
    if (input.value) apply();
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, textarea, select, [contenteditable]")) return;
    const filter = document.querySelector("input.filter");
    if (!filter) return;
    event.preventDefault();
    filter.focus();
    filter.select();
  });

  // The slot under the pointer, or the one the arrow keys chose, in words below its chart.
  for (const plot of document.querySelectorAll("[data-readout]")) {
    const readout = plot.parentElement.querySelector(".readout");
    const rest = readout.textContent;
    const slots = Array.from(plot.querySelectorAll(".hit"));
    let current = -1;
    const show = (index) => {
      slots[current]?.classList.remove("current");
      current = index;
      slots[current]?.classList.add("current");
      readout.textContent = slots[current]?.querySelector("title").textContent ?? rest;
    };
    plot.addEventListener("pointerover", (event) => show(slots.indexOf(event.target)));
    plot.addEventListener("pointerleave", () => show(-1));
    plot.addEventListener("blur", () => show(-1));
    plot.addEventListener("keydown", (event) => {
      const last = slots.length - 1;
      const next = { ArrowRight: Math.min(current + 1, last), ArrowLeft: Math.max(current - 1, 0), Home: 0, End: last }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      show(next);
      readout.removeAttribute("aria-hidden");
      readout.setAttribute("aria-live", "polite");
    });
  }

  // The exact figure behind a rounded time.
  document.addEventListener("pointerover", (event) => {
    const cell = event.target.closest?.("td[data-ns]");
    if (cell && !cell.title) cell.title = `${BigInt(cell.dataset.ns).toLocaleString("en")} ns`;
  });

  // Paper has no way to open a list.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = Array.from(document.querySelectorAll("details:not([open], .more)"));
    for (const list of closed) list.open = true;
  });
  addEventListener("afterprint", () => {
    for (const list of closed) list.open = false;
  });
})();
