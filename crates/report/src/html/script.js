// Sorts, filters, reads out and saves what the page already holds. Without it every figure is still there.
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

  // Charts as pictures of their own: as they look now, without the style sheet of the page.
  const SVG = document.querySelector("svg.patterns").namespaceURI;
  const INHERITED = [
    "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "font-family", "font-size",
    "font-weight", "text-anchor", "dominant-baseline", "shape-rendering",
  ];
  const MARGIN = 12;
  const OWN = { opacity: "1", overflow: "visible", "vector-effect": "none" };

  function element(name, attributes) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function copied(node, above) {
    const copy = node.cloneNode(false);
    if (node.nodeType !== Node.ELEMENT_NODE || node.tagName === "title") return node.cloneNode(true);
    const style = getComputedStyle(node);
    copy.removeAttribute("class");
    for (const look of INHERITED) {
      const value = style.getPropertyValue(look);
      if (value !== above?.getPropertyValue(look)) copy.setAttribute(look, value);
      else copy.removeAttribute(look);
    }
    for (const [look, usual] of Object.entries(OWN)) {
      const value = style.getPropertyValue(look);
      // Within another drawing it is cut off unless it says so.
      if (value !== usual || (look === "overflow" && node.tagName === "svg")) copy.setAttribute(look, value);
    }
    for (const child of node.childNodes) {
      if (child.nodeType !== Node.ELEMENT_NODE || getComputedStyle(child).display !== "none" || child.tagName === "title") {
        copy.append(copied(child, style));
      }
    }
    return copy;
  }

  // Each line of a text that the page wraps.
  function lines(text, x, y) {
    const style = getComputedStyle(text.parentElement);
    const range = document.createRange();
    const made = [];
    let top = null;
    for (const word of text.data.matchAll(/\S+/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const box = range.getBoundingClientRect();
      if (!box.width) continue;
      if (top !== null && Math.abs(box.top - top) < 2) {
        made.at(-1).textContent += ` ${word[0]}`;
        continue;
      }
      top = box.top;
      const at = { x: box.left - x, y: box.top - y + box.height * 0.78, fill: style.color };
      for (const look of ["font-family", "font-size", "font-weight"]) at[look] = style.getPropertyValue(look);
      made.push(element("text", at));
      made.at(-1).textContent = word[0];
    }
    return made;
  }

  function draw(node, x, y, into) {
    if (node.nodeType === Node.TEXT_NODE) into.append(...lines(node, x, y));
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches(".save, .readout") || !node.getClientRects().length) return;
    const box = node.getBoundingClientRect();
    const at = { x: box.left - x, y: box.top - y, width: box.width, height: box.height };
    const ground = getComputedStyle(node).backgroundColor;
    if (!/^rgba\(.*, 0\)$/.test(ground)) into.append(element("rect", { ...at, fill: ground }));
    if (node.tagName === "svg") {
      const copy = copied(node);
      for (const [key, value] of Object.entries(at)) copy.setAttribute(key, value);
      into.append(copy);
    } else {
      for (const child of node.childNodes) draw(child, x, y, into);
    }
  }

  function picture(chart) {
    const legend = chart.querySelector(".legend") ? null : chart.closest("section").querySelector(".legend");
    const above = legend?.offsetHeight ?? 0;
    const unused = Array.from(chart.querySelectorAll(".save, .readout"), (part) => part.offsetHeight);
    const inside = chart.scrollHeight - unused.reduce((sum, part) => sum + part, 0);
    const width = chart.scrollWidth + 2 * MARGIN;
    const height = inside + above + 2 * MARGIN;
    const made = element("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
    made.append(copied(document.querySelector(".patterns defs")));
    const panel = getComputedStyle(chart.closest("section")).backgroundColor;
    made.append(element("rect", { width, height, fill: panel }));
    const at = (part) => part.getBoundingClientRect();
    if (legend) draw(legend, at(legend).left - MARGIN, at(legend).top - MARGIN, made);
    draw(chart, at(chart).left - chart.scrollLeft - MARGIN, at(chart).top - chart.scrollTop - above - MARGIN, made);
    return { text: new XMLSerializer().serializeToString(made), width, height };
  }

  function keep(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  function keepPng({ text, width, height }, name) {
    const image = new Image();
    image.addEventListener("load", () => {
      const canvas = document.createElement("canvas");
      // Sharp on paper too.
      [canvas.width, canvas.height] = [2 * width, 2 * height];
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => keep(blob, name), "image/png");
    });
    image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  }

  Array.from(document.querySelectorAll("figure, .flame")).forEach((chart, index) => {
    const name = `vmtax-${chart.closest("section").id}-${index + 1}`;
    const save = document.createElement("p");
    save.className = "save";
    for (const kind of ["SVG", "PNG"]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = kind;
      button.setAttribute("aria-label", `Save the chart as ${kind}`);
      button.addEventListener("click", () => {
        const made = picture(chart);
        if (kind === "PNG") keepPng(made, `${name}.png`);
        else keep(new Blob([made.text], { type: "image/svg+xml" }), `${name}.svg`);
      });
      save.append(button);
    }
    if (chart.matches("figure")) chart.append(save);
    else chart.after(save);
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
