"use strict";
/* The script of every page, in five parts:

     1  elements, numbers, theme, tables      for any page
     2  arrays and colours                    for any page
     3  HeatMap, a canvas that scrolls        for any page
     4  the attention of answers              pages with the widget "attention"
     5  saving a view, and the start

   It asks nothing of the network and never assigns HTML: every text becomes a node of text. */
(() => {

// 1  Elements, numbers, theme, tables ---------------------------------------------------------

const byId = (id) => document.getElementById(id);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; `on…` are listeners, strings become text. */
function make(tag, attributes = {}, ...children) {
  const isSvg = ["svg", "path", "text", "g", "rect", "title", "image", "tspan"].includes(tag);
  const node = isSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A number as people read it: 0.873, 1.2e-5, –. */
function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 10 ** -digits) return value.toExponential(1).replace("-", "\u2212").replace("e\u2212", "e-");
  return value.toFixed(size >= 100 ? 1 : digits).replace("-", "\u2212");
}
/** A number in a narrow column: 0.87, 0.00, 12.3. */
const short = (value) => (value === null || value === undefined || Number.isNaN(value) ? "–"
  : value.toFixed(Math.abs(value) >= 10 ? 1 : 2).replace("-", "\u2212").replace(/^\u22120\.00$/, "0.00"));
const percent = (value) => (value >= 0.9995 ? "100 %" : value < 0.001 ? "< 0.1 %" : `${(100 * value).toFixed(1)} %`);
const quoted = (text) => `“${text}”`;
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function isDark() {
  const theme = document.documentElement.dataset.theme;
  if (theme) return theme === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

const redraws = new Set(); // functions that draw with colours of the theme

function setUpTheme(tools) {
  const root = document.documentElement;
  const remember = (theme) => { try { localStorage.setItem("regard-theme", theme); } catch { /* a frame may have no storage */ } };
  try {
    const theme = localStorage.getItem("regard-theme");
    if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  } catch { /* the same */ }
  const button = make("button", { id: "theme", onclick: () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    label();
    redraws.forEach((redraw) => redraw());
  } });
  const label = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
  };
  label();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    label();
    redraws.forEach((redraw) => redraw());
  });
  tools.append(button);
}

/** Make the rows of a table sortable by each column; rows without a value come last. */
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (head.dataset.fixed !== undefined) return;
    const button = make("button", { type: "button", title: head.title || "sort" }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "descending"
        || (head.getAttribute("aria-sort") === null && !head.classList.contains("number"));
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      const key = (row) => {
        const cell = row.cells[column];
        if (!head.classList.contains("number")) return cell.textContent;
        return cell.dataset.value === "" || cell.dataset.value === undefined ? null : Number(cell.dataset.value);
      };
      rows.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        const order = typeof x === "number" ? x - y : x.localeCompare(y, undefined, { numeric: true });
        return down ? order : -order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

/** Choices side by side: a radio group that arrow keys move through. */
function segments(label, choices, isChosen, choose) {
  const group = make("div", { class: "segments", role: "radiogroup", "aria-label": label });
  choices.forEach(({ value, text, title, disabled }) => {
    group.append(make("button", {
      type: "button", role: "radio", title, disabled, "data-value": value,
      "aria-checked": String(isChosen(value)), tabindex: isChosen(value) ? 0 : -1,
      onclick: () => choose(value),
    }, text));
  });
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...group.querySelectorAll("button:not(:disabled)")];
    const next = (buttons.findIndex((b) => b.getAttribute("aria-checked") === "true") + step + buttons.length) % buttons.length;
    buttons[next].click();
    group.querySelector(`[data-value="${buttons[next].dataset.value}"]`)?.focus();
  });
  return make("div", { class: "control" }, make("span", {}, label), group);
}

function chosenSegment(control, value) {
  control.querySelectorAll("[role=radio]").forEach((button) => {
    const chosen = button.dataset.value === String(value);
    button.setAttribute("aria-checked", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  });
}

// 2  Arrays and colours -------------------------------------------------------------------------

const decoded = new Map(); // id -> promise of Uint8Array

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** The bytes of an array of the page: base64 of zlib. */
function loadArray(id) {
  if (!decoded.has(id)) {
    const stream = new Blob([bytesOf(byId(id).textContent)]).stream();
    const inflated = stream.pipeThrough(new DecompressionStream("deflate"));
    decoded.set(id, new Response(inflated).arrayBuffer().then((buffer) => new Uint8Array(buffer)));
  }
  return decoded.get(id);
}

/** Number i of an array of float16: all low bytes, then all high bytes. */
function float16(bytes, i) {
  const bits = bytes[i] | (bytes[bytes.length / 2 + i] << 8);
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

const RAMPS = {
  weight: {
    light: ["#ffffff", "#d3e3f6", "#7eaee3", "#2b69c4", "#0a2a5e"],
    dark: ["#191d25", "#1d3a68", "#2e6cc0", "#7fb4fb", "#e9f3ff"],
  },
  effect: { // from less likely without the place (orange) to likelier (blue)
    light: ["#0a2a5e", "#5f93d2", "#ffffff", "#e89a55", "#7a3205"],
    dark: ["#bfdcff", "#3a72bd", "#191d25", "#b8621f", "#ffd9b5"],
  },
  sound: {
    light: ["#ffffff", "#e4e2dd", "#b3b0ab", "#6f6d6b", "#2b2a2a"],
    dark: ["#11141a", "#2a303b", "#566072", "#98a2b5", "#e7eaf1"],
  },
};
const tables = new Map();

/** 256 colours of a ramp, as bytes RGBA. */
function ramp(name) {
  const key = `${name} ${isDark()}`;
  if (!tables.has(key)) {
    const stops = RAMPS[name][isDark() ? "dark" : "light"]
      .map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
    const table = new Uint8ClampedArray(1024);
    for (let level = 0; level < 256; level++) {
      const place = (level / 255) * (stops.length - 1);
      const low = Math.min(stops.length - 2, Math.floor(place));
      for (let i = 0; i < 3; i++) table[4 * level + i] = stops[low][i] + (place - low) * (stops[low + 1][i] - stops[low][i]);
      table[4 * level + 3] = 255;
    }
    tables.set(key, table);
  }
  return tables.get(key);
}
const css = (table, level) => `rgb(${table[4 * level]} ${table[4 * level + 1]} ${table[4 * level + 2]})`;
/** Black or white, whichever can be read on a colour of a ramp. */
function inkOn(table, level) {
  const light = 0.299 * table[4 * level] + 0.587 * table[4 * level + 1] + 0.114 * table[4 * level + 2];
  return light > 140 ? "#12161e" : "#ffffff";
}

// 3  HeatMap ------------------------------------------------------------------------------------

const FONT = "12px ui-monospace, 'DejaVu Sans Mono', monospace";
const measure = document.createElement("canvas").getContext("2d");
function widthOf(text) { measure.font = FONT; return measure.measureText(text).width; }
function shortened(text, width) {
  if (widthOf(text) <= width) return text;
  let length = text.length;
  while (length > 1 && widthOf(text.slice(0, length) + "…") > width) length--;
  return text.slice(0, length) + "…";
}

/** A heat map with names at its sides. Only what is visible is drawn, so its size does not matter.

    map     { rows, columns, levels (0 … 255, row by row), rowNames, columnNames, ramp }
    header  { height, paint(context, xOf, left, right) } instead of the names of the columns */
class HeatMap {
  constructor({ label, onSelect, onHover, largest = 46 }) {
    this.canvas = make("canvas");
    this.spacer = make("div", {}, this.canvas);
    this.node = make("div", { class: "heat", tabindex: 0, role: "application", "aria-label": label,
      "aria-roledescription": "heat map", "aria-describedby": "announce" }, this.spacer);
    this.onSelect = onSelect;
    this.onHover = onHover;
    this.largest = largest;
    this.zoom = 1;
    this.selected = null;
    this.hovered = null;
    this.header = null;
    this.scale = "map";
    this.node.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.hovered = null; this.onHover(null); this.draw(); });
    this.canvas.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) this.choose(cell.row, cell.column);
      this.node.focus({ preventScroll: true });
    });
    this.node.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => { if (this.map && this.node.clientWidth !== this.lastWidth) { this.layout(); this.draw(); } }).observe(this.node);
    redraws.add(() => this.draw());
  }

  show(map, { header = null, scale = "map" } = {}) {
    this.map = map;
    this.header = header;
    this.scale = scale;
    this.most = this.largestLevels();
    this.layout();
    this.draw();
  }

  /** The largest distance from zero, of the map or of each row, in levels. */
  largestLevels() {
    const { rows, columns, levels, zero = 0 } = this.map;
    const most = new Float32Array(rows);
    let all = 0;
    for (let row = 0; row < rows; row++) {
      let largest = 0;
      for (let i = row * columns; i < (row + 1) * columns; i++) {
        const size = Math.abs(levels[i] - zero);
        if (size > largest) largest = size;
      }
      most[row] = largest;
      if (largest > all) all = largest;
    }
    if (this.scale === "row") return most;
    return most.fill(this.scale === "map" ? all : 255 - zero);
  }

  layout() {
    const { rows, columns, rowNames, columnNames, square } = this.map;
    const width = this.node.clientWidth || 600;
    this.lastWidth = width;
    const tallest = clamp(innerHeight * 0.62, 280, 680);
    const widest = (names, most) => names.reduce((w, name) => (w >= most ? w : Math.max(w, widthOf(name))), 0);
    this.left = Math.ceil(clamp(widest(rowNames, 150) + 14, 34, Math.min(150, width * 0.3)));

    const slanted = this.header ? 0 : Math.min(104, widest(columnNames, 140) * 0.72 + 14);
    let room = width - this.left - 2;
    let cell = room / columns;
    this.named = !this.header && cell * this.zoom >= 13;
    if (this.named) {
      room -= slanted * 0.8;
      cell = room / columns;
    }
    this.right = this.named ? Math.ceil(slanted * 0.8) : 2;
    this.top = this.header ? this.header.height : this.named ? Math.ceil(slanted) : 22;

    let [x, y] = [Math.min(this.largest, cell), 22];
    if (rows * 20 <= tallest) y = clamp(x, 20, 34);
    else if (rows * 13 <= tallest) y = tallest / rows;
    else y = tallest / rows;
    if (square && rows * 20 > tallest) x = y = Math.min(x, y);
    this.x = Math.min(this.largest, x * this.zoom);
    this.y = Math.min(34, y * this.zoom);
    if (this.header) this.x = x * this.zoom;

    this.node.dataset.geometry = [this.left, this.top, this.x, this.y].map((size) => size.toFixed(3)).join(" "); // for tests
    this.width = width;
    const total = this.top + rows * this.y;
    this.height = Math.ceil(Math.min(total, this.top + tallest)) + 1;
    this.spacer.style.width = `${Math.floor(Math.max(width - 1, this.left + columns * this.x + this.right))}px`;
    this.spacer.style.height = `${Math.ceil(total) + 1}px`;
    this.node.style.height = `${this.height + (this.left + columns * this.x + this.right > width ? 14 : 0)}px`;
  }

  setZoom(zoom) {
    this.zoom = clamp(zoom, 1, 64);
    this.layout();
    this.reveal();
    this.draw();
  }

  draw() {
    if (!this.map) return;
    const { canvas } = this;
    const ratio = devicePixelRatio || 1;
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${this.height}px`;
    if (canvas.width !== Math.round(this.width * ratio)) canvas.width = Math.round(this.width * ratio);
    if (canvas.height !== Math.round(this.height * ratio)) canvas.height = Math.round(this.height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.paintCells(context);
    this.paintMarks(context);
    this.paintRowNames(context);
    this.paintColumnNames(context);
  }

  visible() {
    const { rows, columns } = this.map;
    const [sx, sy] = [this.node.scrollLeft, this.node.scrollTop];
    return {
      firstRow: clamp(Math.floor(sy / this.y), 0, rows - 1),
      lastRow: clamp(Math.ceil((sy + this.height - this.top) / this.y), 1, rows),
      firstColumn: clamp(Math.floor(sx / this.x), 0, columns - 1),
      lastColumn: clamp(Math.ceil((sx + this.width - this.left) / this.x), 1, columns),
    };
  }

  xOf(column) { return this.left + column * this.x - this.node.scrollLeft; }
  yOf(row) { return this.top + row * this.y - this.node.scrollTop; }

  level(row, column) {
    const { columns, levels, zero = 0 } = this.map;
    const most = this.most[row] || 1;
    const share = (levels[row * columns + column] - zero) / most;
    return Math.round(zero ? 127.5 + 127.5 * share : 255 * share);
  }

  paintCells(context) {
    const { firstRow, lastRow, firstColumn, lastColumn } = this.visible();
    const colours = ramp(this.map.ramp || "weight");
    const across = Math.min(1, this.x); // several cells share a pixel: the largest is drawn
    const down = Math.min(1, this.y);
    const width = Math.max(1, Math.ceil((lastColumn - firstColumn) * across));
    const height = Math.max(1, Math.ceil((lastRow - firstRow) * down));
    const image = new ImageData(width, height);
    const filled = new Float32Array(width * height).fill(-1);
    const zero = this.map.zero ? 127.5 : 0;
    for (let row = firstRow; row < lastRow; row++) {
      const top = Math.floor((row - firstRow) * down) * width;
      for (let column = firstColumn; column < lastColumn; column++) {
        const pixel = top + Math.floor((column - firstColumn) * across);
        const level = clamp(this.level(row, column), 0, 255);
        const strength = Math.abs(level - zero);
        if (strength <= filled[pixel]) continue;
        filled[pixel] = strength;
        image.data.set(colours.subarray(4 * level, 4 * level + 4), 4 * pixel);
      }
    }
    const small = make("canvas", { width, height });
    small.getContext("2d").putImageData(image, 0, 0);
    context.save();
    context.beginPath();
    context.rect(this.left, this.top, this.width - this.left, this.height - this.top);
    context.clip();
    context.imageSmoothingEnabled = false;
    const [x, y] = [this.xOf(firstColumn), this.yOf(firstRow)];
    const [w, h] = [(lastColumn - firstColumn) * this.x, (lastRow - firstRow) * this.y];
    context.drawImage(small, x, y, w, h);
    context.strokeStyle = colourOf("--line");
    if (this.x >= 9 && this.y >= 9) {
      context.strokeStyle = colourOf("--surface");
      context.beginPath();
      for (let row = firstRow; row <= lastRow; row++) { context.moveTo(x, this.yOf(row)); context.lineTo(x + w, this.yOf(row)); }
      for (let column = firstColumn; column <= lastColumn; column++) { context.moveTo(this.xOf(column), y); context.lineTo(this.xOf(column), y + h); }
      context.stroke();
      context.strokeStyle = colourOf("--line");
    }
    context.strokeRect(x, y, w, h);
    if (this.x >= 40 && this.y >= 20 && this.map.value) {
      context.font = "11px system-ui, sans-serif";
      context.textAlign = "center";
      context.textBaseline = "middle";
      for (let row = firstRow; row < lastRow; row++) {
        for (let column = firstColumn; column < lastColumn; column++) {
          const value = this.map.value(row, column);
          if (Math.abs(value) < 0.005) continue;
          context.fillStyle = inkOn(colours, clamp(this.level(row, column), 0, 255));
          context.fillText(value.toFixed(2).replace("-", "\u2212"), this.xOf(column + 0.5), this.yOf(row + 0.5) + 0.5);
        }
      }
    }
    context.restore();
  }

  paintMarks(context) {
    context.save();
    context.beginPath();
    context.rect(this.left - 2, this.top - 2, this.width - this.left + 4, this.height - this.top + 4);
    context.clip();
    const outline = (cell, colour, thick) => {
      if (!cell) return;
      context.strokeStyle = colour;
      context.lineWidth = thick;
      const [w, h] = [Math.max(4, this.x), Math.max(4, this.y)];
      context.strokeRect(this.xOf(cell.column + 0.5) - w / 2, this.yOf(cell.row + 0.5) - h / 2, w, h);
    };
    if (this.selected && this.map.rows > 1) {
      context.fillStyle = colourOf("--accent");
      context.globalAlpha = 0.9;
      context.fillRect(this.left - 2, this.yOf(this.selected.row), 2, Math.max(2, this.y));
      context.globalAlpha = 1;
    }
    outline(this.hovered, colourOf("--muted"), 1.5);
    outline(this.selected, colourOf("--ink"), 2);
    context.restore();
  }

  paintRowNames(context) {
    const { firstRow, lastRow } = this.visible();
    context.save();
    context.beginPath();
    context.rect(0, this.top, this.left, this.height - this.top);
    context.clip();
    context.font = FONT;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(13 / this.y));
    for (let row = firstRow - (firstRow % every); row < lastRow; row += every) {
      const chosen = this.selected?.row === row;
      context.fillStyle = colourOf(chosen ? "--ink" : "--muted");
      context.font = chosen ? `bold ${FONT}` : FONT;
      context.fillText(shortened(this.map.rowNames[row], this.left - 12), this.left - 7, this.yOf(row + 0.5));
    }
    context.restore();
  }

  paintColumnNames(context) {
    const { firstColumn, lastColumn } = this.visible();
    context.save();
    context.beginPath();
    context.rect(this.left - (this.header ? 0 : 4), 0, this.width - this.left + 4, this.top);
    context.clip();
    if (this.header) {
      this.header.paint(context, (column) => this.xOf(column), this);
      context.restore();
      return;
    }
    context.font = FONT;
    context.textBaseline = "middle";
    const every = this.named ? 1 : Math.max(1, Math.ceil(84 / this.x));
    for (let column = firstColumn - (firstColumn % every); column < lastColumn; column += every) {
      const chosen = this.selected?.column === column;
      context.fillStyle = colourOf(chosen ? "--ink" : "--muted");
      context.font = chosen ? `bold ${FONT}` : FONT;
      context.save();
      context.translate(this.xOf(column + 0.5), this.top - 7);
      if (this.named) {
        context.rotate(-Math.PI / 4);
        context.fillText(shortened(this.map.columnNames[column], (this.top - 10) / 0.72), 0, 0);
      } else {
        context.fillText(shortened(this.map.columnNames[column], 78), 0, -3);
      }
      context.restore();
    }
    context.restore();
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    if (py < this.top && !this.header) return null;
    const column = Math.floor((px - this.left + this.node.scrollLeft) / this.x);
    const row = py < this.top ? (this.selected?.row ?? 0) : Math.floor((py - this.top + this.node.scrollTop) / this.y);
    const { rows, columns } = this.map;
    if (row < 0 || row >= rows || column >= columns) return null;
    return { row, column: column < 0 ? this.strongest(row) : column };
  }

  strongest(row) {
    const { columns, levels, zero = 0 } = this.map;
    let best = 0;
    for (let column = 1; column < columns; column++) {
      if (Math.abs(levels[row * columns + column] - zero) > Math.abs(levels[row * columns + best] - zero)) best = column;
    }
    return best;
  }

  point(event) {
    const cell = this.cellAt(event);
    this.hovered = cell;
    this.onHover(cell, event);
    this.draw();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.map) return;
    const { rows, columns } = this.map;
    const { row, column } = this.selected ?? { row: 0, column: 0 };
    const page = Math.max(1, Math.floor((this.height - this.top) / this.y) - 1);
    const target = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
      Home: [row, 0], End: [row, columns - 1], PageUp: [row - page, column], PageDown: [row + page, column],
    }[event.key];
    if (event.key === "+" || event.key === "=") this.setZoom(this.zoom * 1.5);
    else if (event.key === "-") this.setZoom(this.zoom / 1.5);
    else if (target) this.choose(clamp(target[0], 0, rows - 1), clamp(target[1], 0, columns - 1));
    else return;
    event.preventDefault();
  }

  /** Select a cell at once: the next key may come before the page has drawn this one. */
  choose(row, column) {
    this.selected = { row, column };
    this.onSelect(row, column);
  }

  select(row, column) {
    this.selected = row === null ? null : { row, column };
    if (this.map) { this.reveal(); this.draw(); }
  }

  /** Scroll so that the selected cell is visible. */
  reveal() {
    if (!this.selected) return;
    const { row, column } = this.selected;
    const [x, y] = [column * this.x, row * this.y];
    const [w, h] = [this.width - this.left - this.right, this.height - this.top];
    if (x < this.node.scrollLeft) this.node.scrollLeft = x - this.x;
    if (x + this.x > this.node.scrollLeft + w) this.node.scrollLeft = x + 2 * this.x - w;
    if (y < this.node.scrollTop) this.node.scrollTop = y - this.y;
    if (y + this.y > this.node.scrollTop + h) this.node.scrollTop = y + 2 * this.y - h;
  }
}

// 4  The attention of answers -------------------------------------------------------------------

const page = JSON.parse(byId("data").textContent);
const state = { part: null, layer: null, head: null, token: 0, place: 0, scale: "map", ...page.start };
let hoveredRow = null; // of a token that the pointer is over; it is shown, not selected
const listeners = new Set();
const activeRow = () => hoveredRow ?? state.token;
const partOf = (view, id = state.part) => view.parts.find((part) => part.id === id);
const layerOf = (part, layer = state.layer) => part.layers.find((entry) => entry.layer === layer) ?? part.layers.at(-1);
const headName = (head) => (head === "mean" ? "mean of the heads" : `head ${head}`);
const tip = make("div", { class: "tip", role: "tooltip" });

function set(changes, { announce = true } = {}) {
  Object.assign(state, changes);
  const part = partOf(page.views[0]);
  if (part) {
    const layers = part.layers.map((entry) => entry.layer);
    if (!layers.includes(state.layer)) state.layer = layers.at(-1);
    const heads = layerOf(part).heads;
    const chosen = heads[state.head];
    if (heads.length === 1) state.head = 0;
    else if (state.head === "mean" ? heads.some((head) => !head.array) : !chosen?.array) {
      state.head = heads.every((head) => head.array) ? "mean" : Math.max(0, heads.findIndex((head) => head.array));
    }
    const names = page.views[0].names;
    state.token = clamp(state.token, 0, names[part.rows].length - 1);
    state.place = clamp(state.place, 0, names[part.columns].length - 1);
  }
  writeLink();
  listeners.forEach((listener) => listener(announce));
}

// The link: #layer=2&head=3&token=7 restores the view.
function writeLink() {
  const words = new URLSearchParams({ part: state.part ?? "", layer: state.layer ?? "", head: state.head ?? "", token: state.token, place: state.place });
  if (state.scale !== "map") words.set("scale", state.scale);
  try { history.replaceState(null, "", `#${words}`); } catch { /* a frame of a notebook has no address */ }
}

function readLink() {
  const words = new URLSearchParams(location.hash.slice(1));
  const changes = {};
  const whole = (name) => (/^\d{1,9}$/.test(words.get(name) ?? "") ? Number(words.get(name)) : null);
  for (const name of ["layer", "token", "place"]) if (whole(name) !== null) changes[name] = whole(name);
  if (words.get("head") === "mean") changes.head = "mean";
  else if (whole("head") !== null) changes.head = whole("head");
  if (page.views[0].parts.some((part) => part.id === words.get("part"))) changes.part = words.get("part");
  if (["map", "row", "one"].includes(words.get("scale"))) changes.scale = words.get("scale");
  return changes;
}

/** The map of a head, or the mean of all heads of a layer. */
async function loadMap(view, part, layer, head) {
  const entry = layerOf(part, layer);
  const heads = head === "mean" ? entry.heads : [entry.heads[head] ?? entry.heads[0]];
  if (heads.some((one) => !one.array)) return null;
  const drawn = await Promise.all(heads.map((one) => loadArray(one.array)));
  const exact = heads.every((one) => one.exact) ? await Promise.all(heads.map((one) => loadArray(one.exact))) : null;
  const [rowNames, columnNames] = [view.names[part.rows], view.names[part.columns]];
  const columns = columnNames.length;
  let levels = drawn[0];
  if (drawn.length > 1) {
    levels = new Float32Array(levels.length);
    for (const one of drawn) for (let i = 0; i < levels.length; i++) levels[i] += one[i] / drawn.length;
  }
  const width = part.high - part.low;
  const value = (row, column) => {
    const i = row * columns + column;
    if (exact) return exact.reduce((sum, one) => sum + float16(one, i), 0) / exact.length;
    return part.low + (levels[i] / 255) * width;
  };
  return {
    rows: rowNames.length, columns, levels, rowNames, columnNames, value, exact: exact !== null,
    ramp: part.low < 0 ? "effect" : "weight", zero: part.low < 0 ? 127.5 : 0, square: part.square, part,
  };
}

/** Spearman's rank correlation; null if one of them is constant. */
function rankCorrelation(a, b) {
  const ranks = (values) => {
    const order = [...values.keys()].sort((i, j) => values[i] - values[j]);
    const result = new Float64Array(values.length);
    for (let i = 0; i < order.length;) {
      let j = i;
      while (j + 1 < order.length && values[order[j + 1]] === values[order[i]]) j++;
      for (let k = i; k <= j; k++) result[order[k]] = (i + j) / 2;
      i = j + 1;
    }
    return result;
  };
  if (a.length < 3) return null;
  const [x, y, middle] = [ranks(a), ranks(b), (a.length - 1) / 2];
  let [xy, xx, yy] = [0, 0, 0];
  for (let i = 0; i < x.length; i++) {
    xy += (x[i] - middle) * (y[i] - middle);
    xx += (x[i] - middle) ** 2;
    yy += (y[i] - middle) ** 2;
  }
  return xx && yy ? xy / Math.sqrt(xx * yy) : null;
}

function setUpControls(mount) {
  const [first] = page.views;
  const controls = make("div", { class: "controls", role: "group", "aria-label": "What is shown" });
  const bar = {};
  if (first.parts.length > 1) {
    bar.part = segments("Show", first.parts.map((part) => ({ value: part.id, text: part.title, title: part.about })),
      (value) => value === state.part, (value) => set({ part: value }));
    controls.append(bar.part);
  }
  bar.layer = make("div", { class: "control" });
  bar.head = make("div", { class: "control" });
  const scales = [["map", "largest in the map"], ["row", "largest in each row"], ["one", "0 to 1"]];
  bar.scale = make("select", { "aria-label": "Darkest colour", onchange: () => set({ scale: bar.scale.value }) },
    ...scales.map(([value, text]) => make("option", { value }, text)));
  controls.append(bar.layer, bar.head, make("label", { class: "control" }, make("span", {}, "Darkest colour"), bar.scale));
  mount.append(controls);

  let shownPart = null;
  let shownLayer = null;
  listeners.add(() => {
    const part = partOf(first);
    if (shownPart !== part || shownLayer !== state.layer) {
      const numbered = (name, count, choices, key, choose) => (count > 16
        ? make("label", { class: "control" }, make("span", {}, name),
          make("select", { "aria-label": name, onchange: (event) => choose(event.target.value) },
            ...choices.map(({ value, text, disabled }) => make("option", { value, disabled }, text))))
        : segments(name, choices, (value) => String(value) === String(state[key]), choose));
      const layers = part.layers.map((entry) => ({ value: entry.layer, text: String(entry.layer),
        disabled: entry.heads.every((head) => !head.array) }));
      const heads = layerOf(part).heads.map((head, n) => ({ value: n, text: String(n), disabled: !head.array }));
      const all = layerOf(part).heads.every((head) => head.array);
      bar.layer.replaceChildren();
      bar.head.replaceChildren();
      if (layers.length > 1) bar.layer.append(numbered("Layer", layers.length, layers, "layer", (value) => set({ layer: Number(value) })));
      if (heads.length > 1) {
        bar.head.append(numbered("Head", heads.length + 1, [{ value: "mean", text: "mean", disabled: !all }, ...heads], "head",
          (value) => set({ head: value === "mean" ? "mean" : Number(value) })));
      }
      shownPart = part;
      shownLayer = state.layer;
    }
    if (bar.part) chosenSegment(bar.part, state.part);
    for (const key of ["layer", "head"]) {
      chosenSegment(bar[key], state[key]);
      const select = bar[key].querySelector("select");
      if (select) select.value = String(state[key]);
    }
    bar.scale.value = state.scale;
  });
}

/** One answer: what was read, what was written, the map, and what is selected. */
class View {
  constructor(view, mount, isOnly) {
    this.view = view;
    this.heat = new HeatMap({
      label: `Attention, ${view.name}. Arrow keys move the selected cell, + and - zoom.`,
      onSelect: (row, column) => { hoveredRow = null; set({ token: row, place: column }); },
      onHover: (cell, event) => this.hover(cell, event),
    });
    this.body = make("div", { class: "body" });
    this.side = make("div", { class: "side" });
    const node = make("div", { class: "view" }, isOnly ? null : make("h3", { class: "name" }, view.name), this.body, this.side);
    mount.append(node);
    this.readPanel();
    this.writtenPanel();
    this.legend = make("div", { class: "legend" });
    this.body.append(make("div", {}, this.caption = make("h3"), this.heat.node, this.legend));
    this.cellPanel = make("div");
    this.alternatives = make("div");
    this.pairs = make("div");
    this.side.append(this.cellPanel, this.alternatives, this.pairs);
    listeners.add((announce) => this.update(announce));
    redraws.add(() => this.update(false));
  }

  chips(title, names, kind, choose) {
    const list = make("div", { class: "chips" });
    const chips = names.map((name, i) => make("button", {
      type: "button", class: `chip ${kind}${/^\(.+\)$/.test(name) ? " special" : ""}`, "aria-pressed": "false",
      onclick: () => choose(i),
    }, name));
    list.append(...chips);
    this.body.append(make("div", {}, make("h3", {}, title), list));
    return chips;
  }

  readPanel() {
    const { view } = this;
    if (view.source.kind === "picture") this.picture = new Picture(view, this.body);
    else if (view.source.kind === "sound") this.player = new Player(view, this.body, () => this.heat.draw());
    if (view.names.places.length && view.source.kind === "text") {
      this.placeChips = this.chips(view.source.title ?? "Read", view.names.places, "place", (i) => {
        if (partOf(view).columns === "places") set({ place: i });
        else if (partOf(view).rows === "places") set({ token: i });
      });
    }
  }

  writtenPanel() {
    const { view } = this;
    if (!view.names.steps.length || view.source.kind === "tensor") return;
    this.stepChips = this.chips("Wrote", view.names.steps, "step", (i) => chooseStep(view, i));
    this.stepChips.forEach((chip, i) => {
      const step = view.steps[i];
      if (step?.logprob === undefined || step.logprob === null) return;
      const p = Math.exp(step.logprob);
      chip.title = `probability ${percent(p)}`;
      chip.append(make("span", { class: "sure", style: { width: `${Math.max(4, 100 * p)}%` } }));
      chip.addEventListener("pointerenter", () => preview(view, i));
      chip.addEventListener("pointerleave", () => preview(view, null));
    });
  }

  async update(announce) {
    const { view } = this;
    const part = partOf(view);
    if (!part) return;
    const wanted = `${part.id} ${state.layer} ${state.head}`;
    this.wanted = wanted;
    const map = await loadMap(view, part, state.layer, state.head);
    if (this.wanted !== wanted) return;
    this.map = map;
    const effects = partOf(view, "effect");
    this.effects = effects ? await loadMap(view, effects, 0, 0) : null;
    const isDrawn = part.id === "cross" || part.id === "weights";
    const weights = partOf(view, "cross");
    this.weights = isDrawn ? map : weights ? await loadMap(view, weights, null, part.id === "effect" ? "mean" : state.head) : null;
    if (this.wanted !== wanted) return;
    if (!map) return;
    this.caption.textContent = captionOf(view, part);
    const isSound = view.source.kind === "sound" && part.columns === "places";
    const isPicture = view.source.kind === "picture" && part.columns === "places";
    const header = isSound ? this.player.header(() => this.rowValues()) : isPicture ? gridHeader(view.source.grid) : null;
    this.heat.show(map, { header, scale: state.scale });
    this.heat.select(state.token, state.place);
    this.updateLegend();
    this.updateRow();
    document.documentElement.dataset.drawnAfter ??= performance.now().toFixed(0); // milliseconds, for tests
    if (announce && views[0] === this) this.announce();
  }

  /** The values of the active row of the map. */
  rowValues(map = this.map, row = activeRow()) {
    if (!map || row >= map.rows) return [];
    return Array.from({ length: map.columns }, (_, column) => map.value(row, column));
  }

  updateRow() {
    const { view, map } = this;
    if (!map) return;
    const part = map.part;
    const row = Math.min(activeRow(), map.rows - 1);
    const colours = ramp(map.ramp);
    const paint = (chips, isColumns, pressed) => chips?.forEach((chip, i) => {
      chip.setAttribute("aria-pressed", String(i === pressed));
      const level = isColumns && i < map.columns ? clamp(this.heat.level(row, i), 0, 255) : null;
      chip.style.backgroundColor = level === null ? "" : css(colours, level);
      chip.style.color = level === null ? "" : inkOn(colours, level);
    });
    const placeRow = part.rows === "places" ? row : null;
    paint(this.placeChips, part.columns === "places", part.columns === "places" && part.rows !== "places" ? state.place : placeRow);
    paint(this.stepChips, false, part.rows === "places" ? null : row);
    this.picture?.show(this.rowValues(), placeRow, part.low < 0, part.columns === "places");
    this.heat.selected = { row, column: state.place };
    this.heat.draw();
    this.updateCell(row);
    this.updateAlternatives(part.rows === "places" ? null : row);
    this.updatePairs(part.rows === "places" && part.id !== "weights" ? null : row);
  }

  updateLegend() {
    const { map } = this;
    const canvas = make("canvas", { width: 120, height: 10 });
    const context = canvas.getContext("2d");
    const colours = ramp(map.ramp);
    for (let x = 0; x < 120; x++) { context.fillStyle = css(colours, Math.round((x / 119) * 255)); context.fillRect(x, 0, 1, 10); }
    const width = map.part.high - map.part.low;
    const most = (this.heat.most.reduce((a, b) => Math.max(a, b), 0) / 255) * width;
    const end = state.scale === "row" ? "each row’s largest" : number(most, 2);
    const start = map.zero ? `\u2212${number(most, 2)}` : "0";
    const zooms = [["\u2212", "Zoom out", 1 / 1.5], ["+", "Zoom in", 1.5], ["Fit", "Show the whole map", 0]].map(([text, label, by]) =>
      make("button", { type: "button", "aria-label": label, onclick: () => this.heat.setZoom(by ? this.heat.zoom * by : 1) }, text));
    const exactness = map.exact ? "numbers: float16" : `numbers: to ±${number(width / 510, 4)}`;
    this.legend.replaceChildren(make("span", {}, start), canvas, make("span", {}, end),
      make("span", {}, `· ${map.rows.toLocaleString("en")} × ${map.columns.toLocaleString("en")} · ${exactness}`),
      make("span", { class: "grow" }), ...zooms);
  }

  updateCell(row) {
    const { view, map } = this;
    const part = map.part;
    const place = Math.min(state.place, map.columns - 1);
    const lines = [
      [part.rows === "steps" ? "writes" : part.rows === "read" ? "reads" : "row", `${map.rowNames[row]}`],
      [part.id === "effect" ? "without" : "attends to", `${map.columnNames[place]}`],
      [part.id === "effect" ? "log p falls by" : part.form === "quadratic" ? "weight (quadratic form)" : "weight", number(map.value(row, place), 4)],
    ];
    if (part.rows === "read" && view.names.steps[row]) lines.splice(1, 0, ["then writes", view.names.steps[row]]);
    if (part.id === "cross" && this.effects) lines.push(["effect (nats)", number(this.effects.value(row, place), 4)]);
    if (part.id === "effect" && this.weights) lines.push(["weight (mean)", number(this.weights.value(row, place), 4)]);
    this.cellPanel.replaceChildren(make("h3", {}, "Selected"), make("dl", { class: "cell" },
      ...lines.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
  }

  updateAlternatives(row) {
    const step = row === null ? null : this.view.steps[row];
    if (!step?.alternatives?.length) { this.alternatives.replaceChildren(); return; }
    const bars = make("div", { class: "bars" });
    step.alternatives.forEach(([name, p, taken]) => bars.append(
      make("span", { class: `label${taken ? " taken" : ""}`, title: name }, name),
      make("span", { class: "track" }, make("i", { style: { width: `${100 * p}%` } })),
      make("span", { class: "value" }, percent(p))));
    this.alternatives.replaceChildren(make("h3", {}, `Likeliest at step ${row}`), bars);
  }

  updatePairs(row) {
    const { view, weights, effects } = this;
    if (row === null || !view.names.places.length || (!weights && !effects)) { this.pairs.replaceChildren(); return; }
    const w = weights ? this.rowValues(weights, row) : null;
    const e = effects ? this.rowValues(effects, row) : null;
    const shares = (values) => {
      if (!values) return null;
      const most = values.reduce((largest, value) => Math.max(largest, Math.abs(value)), 1e-12);
      return values.map((value) => Math.abs(value) / most);
    };
    const [shareW, shareE] = [shares(w), shares(e)];
    const order = view.names.places.map((_, i) => i)
      .sort((i, j) => Math.max(shareW?.[j] ?? 0, shareE?.[j] ?? 0) - Math.max(shareW?.[i] ?? 0, shareE?.[i] ?? 0))
      .slice(0, 8).sort((i, j) => i - j);
    const bars = make("div", { class: "bars" });
    for (const i of order) {
      const tracks = make("span", { class: "pairs" });
      if (w) tracks.append(make("span", { class: "track" }, make("i", { style: { width: `${100 * shareW[i]}%` } })));
      if (e) tracks.append(make("span", { class: "track" }, make("i", { class: e[i] < 0 ? "less" : "effect", style: { width: `${100 * shareE[i]}%` } })));
      const values = [w ? short(w[i]) : null, e ? short(e[i]) : null].filter((text) => text !== null).join(" · ");
      bars.append(make("span", { class: "label", title: view.names.places[i] }, view.names.places[i]), tracks, make("span", { class: "value" }, values));
    }
    const key = make("div", { class: "key" }, w ? make("span", {}, make("i"), "weight") : null,
      e ? make("span", {}, make("i", { class: "effect" }), "effect: fall of log p, in nats") : null);
    const parts = [make("h3", {}, w && e ? "Weight beside effect" : w ? "Largest weights" : "Effect of hiding"), key, bars];
    if (w && e) {
      const rho = rankCorrelation(w, e);
      const entry = layerOf(partOf(view, "cross"));
      const overall = state.part === "cross" && state.head !== "mean" ? entry.heads[state.head]?.numbers.correlation : entry.correlation;
      parts.push(make("p", { class: "statement" }, "Rank correlation of weight and effect: ", make("b", {}, short(rho)), " at this token, ",
        make("b", {}, short(overall)), " on average."));
    }
    if (!e && view.effectHint) parts.push(make("button", { type: "button", class: "ask-effect", "aria-expanded": "false", onclick: (event) => {
      event.target.setAttribute("aria-expanded", "true");
      event.target.replaceWith(make("p", { class: "statement" }, "A page cannot run the model. This command adds the effect of hiding each place:"), make("pre", {}, view.effectHint));
    } }, "Show the effect of hiding each place"));
    this.pairs.replaceChildren(...parts);
  }

  hover(cell, event) {
    if (!cell || !this.map) { tip.replaceChildren(); return; }
    const { map } = this;
    const value = map.value(cell.row, cell.column);
    const link = map.part.id === "effect" ? " without " : " → ";
    tip.replaceChildren(make("b", {}, map.rowNames[cell.row]), link, make("b", {}, map.columnNames[cell.column]), make("br"),
      `${map.part.id === "effect" ? "log p falls by" : "weight"} ${number(value, 4)}`,
      ...(map.part.id === "cross" && this.effects ? [`, effect ${number(this.effects.value(cell.row, cell.column), 3)}`] : []));
    const box = tip.getBoundingClientRect();
    tip.style.left = `${clamp(event.clientX + 14, 4, innerWidth - box.width - 8)}px`;
    tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18}px`;
  }

  announce() {
    const { map } = this;
    const part = map.part;
    const value = number(map.value(state.token, state.place), 3);
    const [row, column] = [quoted(map.rowNames[state.token]), quoted(map.columnNames[state.place])];
    const where = part.layers.length > 1 || layerOf(part).heads.length > 1 ? `, layer ${state.layer}, ${headName(state.head)}` : "";
    byId("announce").textContent = part.id === "effect"
      ? `Without ${column}, the log-probability of ${row} falls by ${value}.`
      : `${row} attends to ${column}: weight ${value}${where}.`;
  }
}

/** Select a token of the answer, in a map that has a row for it. */
function chooseStep(view, i) {
  const rows = partOf(view).rows;
  set(rows === "places" ? { part: view.parts.find((part) => part.rows !== "places")?.id ?? state.part, token: i } : { token: i });
}

/** Show a token of the answer while the pointer is over it. */
function preview(view, row) {
  if (partOf(view).rows === "places") return;
  hoveredRow = row;
  views.forEach((one) => one.updateRow());
}

function captionOf(view, part) {
  const layer = part.layers.length > 1 ? `, layer ${state.layer}` : "";
  const head = layerOf(part).heads.length > 1 ? `, ${headName(state.head)}` : "";
  const form = part.form === "quadratic" ? " (linear attention: the weights of its quadratic form)" : "";
  return `${part.about}${layer}${head}${form}`;
}

/** What is painted above the columns of a map of a picture: the rows of its grid. */
function gridHeader([rows, columns]) {
  return {
    height: 26,
    paint: (context, xOf) => {
      context.font = FONT;
      context.textBaseline = "middle";
      const every = Math.max(1, Math.ceil(52 / (xOf(columns) - xOf(0))));
      for (let row = 0; row < rows; row += every) {
        context.fillStyle = colourOf("--line");
        context.fillRect(xOf(row * columns), 4, 1, 22);
        context.fillStyle = colourOf("--muted");
        context.fillText(`row ${row + 1}`, xOf(row * columns) + 5, 13);
      }
    },
  };
}

/** The picture that the model read. It is lit where the active row attends. */
class Picture {
  constructor(view, mount) {
    this.view = view;
    const [height, width] = view.source.size;
    const scale = Math.min(360 / width, 360 / height);
    this.canvas = make("canvas", { width: 2 * Math.round(width * scale), height: 2 * Math.round(height * scale),
      style: { width: `${Math.round(width * scale)}px` }, "aria-label": "The picture, lit where the selected token attends", role: "img" });
    this.canvas.addEventListener("click", (event) => {
      const place = this.placeAt(event);
      if (partOf(view).columns === "places" && partOf(view).rows === "places") set({ token: place });
      else set({ place });
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const place = this.placeAt(event);
      tip.replaceChildren(make("b", {}, view.names.places[place]), ` ${number(this.values?.[place], 4)}`);
      tip.style.left = `${event.clientX + 14}px`;
      tip.style.top = `${event.clientY + 18}px`;
    });
    this.canvas.addEventListener("pointerleave", () => tip.replaceChildren());
    this.image = new Image();
    this.ready = new Promise((resolve) => { this.image.onload = resolve; });
    this.image.src = view.source.url;
    const read = make("div", { class: "picture" }, make("h3", {}, "Read"), this.canvas);
    this.words = view.names.steps.map((name, i) => this.word(name, i));
    const words = make("div", {}, make("h3", {}, "Every token of the answer, and its largest weight"),
      make("div", { class: "words" }, ...this.words.map(({ button }) => button)));
    mount.append(make("div", { class: "beside" }, read, words));
    listeners.add(() => this.showWords());
  }

  word(name, i) {
    const [height, width] = this.view.source.size;
    const canvas = make("canvas", { width: 240, height: Math.round((240 * height) / width) });
    const largest = make("em");
    const button = make("button", { type: "button", "aria-pressed": "false", onclick: () => chooseStep(this.view, i) }, canvas, make("span", {}, name, largest));
    button.addEventListener("pointerenter", () => preview(this.view, i));
    button.addEventListener("pointerleave", () => preview(this.view, null));
    return { canvas, button, largest };
  }

  /** Draw the picture once for each token. */
  async showWords() {
    const { view } = this;
    const current = partOf(view);
    const part = current?.rows === "steps" ? current : view.parts.find((one) => one.rows === "steps");
    const map = part ? await loadMap(view, part, state.layer, state.head) : null;
    await this.ready;
    if (!map) return;
    this.words.forEach(({ canvas, button, largest }, i) => {
      const values = Array.from({ length: map.columns }, (_, column) => map.value(i, column));
      lit(canvas, this.image, view.source.grid, values, null);
      button.setAttribute("aria-pressed", String(current.rows === "steps" && i === state.token));
      largest.textContent = short(Math.max(...values));
    });
  }

  placeAt(event) {
    const [rows, columns] = this.view.source.grid;
    const box = this.canvas.getBoundingClientRect();
    const row = clamp(Math.floor(((event.clientY - box.top) / box.height) * rows), 0, rows - 1);
    const column = clamp(Math.floor(((event.clientX - box.left) / box.width) * columns), 0, columns - 1);
    return row * columns + column;
  }

  show(values, place, isEffect, isPlaces) {
    this.values = values;
    this.ready.then(() => lit(this.canvas, this.image, this.view.source.grid, isPlaces ? values : [], place));
  }
}

/** Draw a picture that is dark but where the values of its grid are large. */
function lit(canvas, image, [rows, columns], values, place) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.imageSmoothingEnabled = image.width > width / 4;
  context.drawImage(image, 0, 0, width, height);
  if (!values.length) return;
  const most = Math.max(1e-12, ...values);
  const shade = new ImageData(columns, rows);
  for (let i = 0; i < values.length; i++) {
    shade.data.set([8, 10, 16, Math.round(215 * (1 - Math.max(0, values[i]) / most))], 4 * i);
  }
  const small = make("canvas", { width: columns, height: rows });
  small.getContext("2d").putImageData(shade, 0, 0);
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, width, height);
  if (place === null || place === undefined) return;
  context.strokeStyle = "#ffb000";
  context.lineWidth = Math.max(2, width / 160);
  context.strokeRect(((place % columns) * width) / columns, (Math.floor(place / columns) * height) / rows, width / columns, height / rows);
}

/** The sound that the model read: played, and painted above the map as wave form and spectrogram. */
class Player {
  constructor(view, mount, redraw) {
    this.view = view;
    const { source } = view;
    this.audio = source.url ? new Audio(source.url) : null;
    this.time = null;
    const output = make("output", {}, `${source.duration.toFixed(2)} s`);
    const button = make("button", { type: "button", class: "play", disabled: !this.audio, onclick: () => {
      if (!this.audio.paused) this.audio.pause();
      else this.audio.play().catch(() => { output.textContent = "this browser cannot play it"; });
    } }, "Play");
    mount.append(make("div", { class: "player" }, make("h3", { style: { margin: 0 } }, "Read"), button, output));
    if (source.spectrogram) loadArray(source.spectrogram.array).then((levels) => { this.levels = levels; redraw(); });
    if (!this.audio) return;
    const follow = () => {
      this.time = this.audio.currentTime;
      output.textContent = `${this.time.toFixed(2)} of ${source.duration.toFixed(2)} s`;
      redraw();
      if (!this.audio.paused) requestAnimationFrame(follow);
    };
    this.audio.addEventListener("play", () => { button.textContent = "Pause"; follow(); });
    this.audio.addEventListener("pause", () => { button.textContent = "Play"; });
    this.audio.addEventListener("ended", () => { this.time = null; redraw(); });
    this.audio.addEventListener("seeked", follow);
  }

  /** What is painted above the columns of a map: wave form, spectrogram, weights, time axis. */
  header(rowValues) {
    const [wave, mels, axis] = [44, 96, 24];
    const { source } = this.view;
    const [start, end] = [source.times[0][0], source.times.at(-1)[1]];
    return {
      height: wave + mels + axis,
      paint: (context, xOf) => {
        const columns = source.times.length;
        const x = (seconds) => xOf(((seconds - start) / (end - start)) * columns);
        const [left, right] = [x(start), x(end)];
        context.fillStyle = colourOf("--muted");
        const { peaks } = source;
        const bar = source.duration / peaks.length;
        peaks.forEach((peak, i) => {
          const seconds = i * bar;
          if (seconds + bar < start || seconds > end) return;
          const h = Math.max(1, (peak / 255) * (wave - 6));
          context.fillRect(x(seconds), (wave - h) / 2, Math.max(1, x(seconds + bar) - x(seconds) - 0.3), h);
        });
        if (this.levels) {
          context.imageSmoothingEnabled = true;
          context.drawImage(this.spectrogram(), x(source.spectrogram.start), wave, x(source.spectrogram.end) - x(source.spectrogram.start), mels);
        }
        this.paintRow(context, xOf, rowValues(), wave, mels);
        context.fillStyle = colourOf("--muted");
        context.font = FONT;
        context.textBaseline = "middle";
        const step = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10].find((s) => x(start + s) - left >= 56) ?? 20;
        for (let t = Math.ceil(start / step - 1e-9) * step; t <= end + 1e-9; t += step) {
          context.fillRect(x(t), wave + mels, 1, 5);
          context.fillText(`${t.toFixed(step < 0.1 ? 2 : 1)} s`, Math.min(x(t) + 3, right - 34), wave + mels + 13);
        }
        if (this.time !== null) {
          context.fillStyle = colourOf("--effect");
          context.fillRect(x(clamp(this.time, start, end)) - 1, 0, 2, wave + mels + axis);
        }
      },
    };
  }

  /** The weights of the active row as a line over the spectrogram. */
  paintRow(context, xOf, values, top, height) {
    if (!values.length) return;
    const most = Math.max(1e-12, ...values.map(Math.abs));
    context.beginPath();
    context.moveTo(xOf(0), top + height);
    values.forEach((value, column) => {
      const y = top + height - 2 - (Math.max(0, value) / most) * (height - 6);
      context.lineTo(xOf(column), y);
      context.lineTo(xOf(column + 1), y);
    });
    context.lineTo(xOf(values.length), top + height);
    context.fillStyle = colourOf("--accent");
    context.globalAlpha = 0.22;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = colourOf("--accent");
    context.lineWidth = 1.5;
    context.stroke();
    context.lineWidth = 1;
  }

  spectrogram() {
    const { rows, columns } = this.view.source.spectrogram;
    if (this.drawnDark === isDark()) return this.drawn;
    const image = new ImageData(columns, rows);
    const colours = ramp("sound");
    for (let i = 0; i < rows * columns; i++) image.data.set(colours.subarray(4 * this.levels[i], 4 * this.levels[i] + 4), 4 * i);
    this.drawn = make("canvas", { width: columns, height: rows });
    this.drawn.getContext("2d").putImageData(image, 0, 0);
    this.drawnDark = isDark();
    return this.drawn;
  }
}

/** The difference of two views, if both have the same rows and columns. */
class Difference {
  constructor(mount) {
    this.node = make("div", { class: "difference" }, make("h3", {}, "Difference: second minus first"));
    this.note = make("p", { class: "muted" });
    this.heat = new HeatMap({ label: "Difference of the two maps", onSelect: (row, column) => set({ token: row, place: column }),
      onHover: (cell, event) => this.hover(cell, event) });
    this.node.append(this.note, this.heat.node);
    mount.append(this.node);
    listeners.add(() => this.update());
  }

  async update() {
    const [a, b] = await Promise.all(page.views.map((view) => {
      const part = partOf(view);
      return part ? loadMap(view, part, state.layer, state.head) : null;
    }));
    const fits = a && b && a.rows === b.rows && a.columns === b.columns;
    this.heat.node.hidden = !fits;
    this.note.textContent = fits ? "Orange: more in the second. Blue: less." : "There is none here: the two maps do not have the same number of tokens.";
    if (!fits) return;
    const width = a.part.high - a.part.low;
    const levels = Float32Array.from(a.levels, (_, i) => {
      const [row, column] = [Math.floor(i / a.columns), i % a.columns];
      return 127.5 + ((b.value(row, column) - a.value(row, column)) / width) * 127.5;
    });
    const both = (x, y) => x.map((name, i) => (name === y[i] ? name : `${name} | ${y[i]}`));
    const [rowNames, columnNames] = [both(a.rowNames, b.rowNames), both(a.columnNames, b.columnNames)];
    this.map = { ...a, levels, rowNames, columnNames, ramp: "effect", zero: 127.5, value: (row, column) => b.value(row, column) - a.value(row, column) };
    this.heat.show(this.map, { scale: state.scale });
    this.heat.select(state.token, state.place);
  }

  hover(cell, event) {
    if (!cell) { tip.replaceChildren(); return; }
    tip.replaceChildren(make("b", {}, this.map.rowNames[cell.row]), " → ", make("b", {}, this.map.columnNames[cell.column]), make("br"),
      `difference ${number(this.map.value(cell.row, cell.column), 4)}`);
    tip.style.left = `${event.clientX + 14}px`;
    tip.style.top = `${event.clientY + 18}px`;
  }
}

let views = [];

const HEAD_COLUMNS = [
  ["entropy", "entropy", "Mean over the rows of −Σ w log w, in nats: 0 if each row attends to one place"],
  ["peak", "peak", "The largest weight of a row, on average"],
  ["distance", "distance", "Mean distance between a row and the places it attends to, in places (self-attention)"],
  ["first", "first", "The weight of the first place, on average"],
  ["last", "last", "The weight of the last place, on average"],
  ["previous", "previous", "The weight of the place before (self-attention)"],
  ["itself", "itself", "The weight of the row’s own place (self-attention)"],
  ["correlation", "ρ effect", "Rank correlation of weights and effects over the places, mean over the tokens"],
];

const widgets = {
  attention(mount) {
    setUpControls(mount);
    const grid = make("div", { class: `views${page.views.length > 1 ? " two" : ""}` });
    mount.append(grid);
    views = page.views.map((view) => new View(view, grid, page.views.length === 1));
    if (page.views.length > 1) new Difference(grid);
  },

  heads(mount) {
    const [view] = page.views;
    const entries = view.parts.filter((part) => part.id !== "effect").flatMap((part) => part.layers.flatMap((entry) =>
      entry.heads.map((head, n) => ({ part, layer: entry.layer, head: n, ...head }))));
    const columns = HEAD_COLUMNS.filter(([key]) => entries.some((entry) => entry.numbers[key] !== null && entry.numbers[key] !== undefined));
    const most = Object.fromEntries(columns.map(([key]) => [key, Math.max(1e-9, ...entries.map((entry) => Math.abs(entry.numbers[key] ?? 0)))]));
    const many = view.parts.filter((part) => part.id !== "effect").length > 1;
    const table = make("table", {}, make("thead", {}, make("tr", {}, make("th", { "data-fixed": "" }, "map"),
      many ? make("th", { scope: "col" }, "part") : null, make("th", { class: "number", scope: "col" }, "layer"), make("th", { class: "number", scope: "col" }, "head"),
      ...columns.map(([, name, title]) => make("th", { class: "number", scope: "col", title }, name)))), make("tbody"));
    const rows = entries.map((entry) => {
      const canvas = make("canvas", { width: entry.thumb.columns, height: entry.thumb.rows, style: { width: "44px", height: `${clamp((44 * entry.thumb.rows) / entry.thumb.columns, 14, 44)}px`, imageRendering: "pixelated" } });
      const choose = () => set({ part: entry.part.id, layer: entry.layer, head: entry.head });
      const row = make("tr", { "data-key": `${entry.part.id} ${entry.layer} ${entry.head}`, onclick: () => { if (entry.array) choose(); } },
        make("td", {}, canvas), many ? make("td", {}, entry.part.title) : null,
        make("td", { class: "number", "data-value": entry.layer }, String(entry.layer)),
        make("td", { class: "number", "data-value": entry.head }, make("button", { type: "button", disabled: !entry.array, title: entry.array ? "show this head" : "not in this page", style: { minHeight: 0, padding: "0 .5rem" }, onclick: choose }, String(entry.head))),
        ...columns.map(([key]) => {
          const value = entry.numbers[key];
          return make("td", { class: "number", "data-value": value ?? "" }, short(value),
            value === null || value === undefined ? null : make("span", { class: "mini", "aria-hidden": "true" }, make("i", { style: { width: `${(100 * Math.abs(value)) / most[key]}%` } })));
        }));
      const paint = () => paintThumbnail(canvas, entry.thumb);
      paint();
      redraws.add(paint);
      return row;
    });
    table.tBodies[0].append(...rows);
    sortable(table);
    mount.append(make("div", { class: "scroll heads", tabindex: 0, role: "region", "aria-label": "Heads" }, table));
    listeners.add(() => rows.forEach((row) => row.classList.toggle("chosen", row.dataset.key === `${state.part} ${state.layer} ${state.head}`)));
  },

  steps(mount) {
    const [view] = page.views;
    const most = Math.max(...view.steps.map((step) => step.alternatives?.length ?? 0));
    const table = make("table", {}, make("thead", {}, make("tr", {}, make("th", { class: "number" }, "step"), make("th", {}, "wrote"), make("th", { class: "number" }, "probability"),
      ...Array.from({ length: most }, (_, i) => make("th", {}, i ? `${i + 1}.` : "likeliest")))), make("tbody"));
    view.steps.forEach((step, i) => table.tBodies[0].append(make("tr", {}, make("td", { class: "number", "data-value": i }, String(i)), make("td", {}, make("code", {}, step.name)),
      make("td", { class: "number", "data-value": step.logprob }, percent(Math.exp(step.logprob))),
      ...(step.alternatives ?? []).map(([name, p]) => make("td", {}, make("code", {}, name), make("span", { class: "muted" }, ` ${percent(p)}`))))));
    sortable(table);
    mount.append(make("div", { class: "scroll heads", tabindex: 0, role: "region", "aria-label": "Alternatives" }, table));
  },

  beam(mount) {
    page.views.forEach((view) => { if (view.beam) mount.append(beamTree(view)); });
  },
};

function paintThumbnail(canvas, thumb) {
  const cells = bytesOf(thumb.cells);
  const most = Math.max(1, ...cells);
  const image = new ImageData(thumb.columns, thumb.rows);
  const colours = ramp("weight");
  cells.forEach((cell, i) => { const level = Math.round((255 * cell) / most); image.data.set(colours.subarray(4 * level, 4 * level + 4), 4 * i); });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** The hypotheses that a beam search kept: a column for each step, a row for each beam. */
function beamTree(view) {
  const { nodes } = view.beam;
  const steps = 1 + Math.max(...nodes.map((node) => node.step));
  const widest = Math.max(...nodes.map((node) => widthOf(node.name)));
  const [across, down, left, top] = [clamp(widest + 58, 84, 190), 34, 16, 30];
  const beams = 1 + Math.max(...nodes.map((node) => node.beam));
  const x = (node) => left + node.step * across + 44;
  const y = (node) => top + node.beam * down + 12;
  const svg = make("svg", { width: left + steps * across + 60, height: top + beams * down + 14, role: "img",
    "aria-label": `Beam search with ${beams} beams over ${steps} steps; the best answer is ${view.answer.text}` });
  const sorted = [...nodes].sort((a, b) => Number(a.best) - Number(b.best));
  const rootY = top + 12;
  svg.append(make("text", { x: left, y: rootY + 4 }, "•"));
  for (const node of sorted) {
    const parent = node.parent === null ? { x: left + 8, y: rootY } : { x: x(nodes[node.parent]) + Math.min(widthOf(nodes[node.parent].name), across - 52) + 4, y: y(nodes[node.parent]) };
    const [endX, endY] = [x(node) - 5, y(node)];
    svg.append(make("path", { class: node.best ? "best" : "", d: `M${parent.x} ${parent.y}C${parent.x + 18} ${parent.y} ${endX - 18} ${endY} ${endX} ${endY}` }));
  }
  for (const node of sorted) {
    const name = shortened(node.name, across - 52);
    svg.append(make("g", { class: node.best ? "best" : "" },
      make("title", {}, `${node.name}: probability ${percent(Math.exp(node.logprob))}, log p of the hypothesis ${number(node.score, 3)}`),
      make("text", { x: x(node), y: y(node) + 4 }, name),
      make("text", { class: "p", x: x(node), y: y(node) + 16 }, short(node.score))));
  }
  return make("div", { class: "tree", tabindex: 0, role: "region", "aria-label": "Beam" }, page.views.length > 1 ? make("h3", {}, view.name) : null, svg);
}

// 5  Saving a view, and the start ---------------------------------------------------------------

/** The current map as the text of an SVG file: rectangles if they are few, else an image. */
function mapSvg(view) {
  const { heat, map } = view;
  const cell = map.columns <= 60 && map.rows <= 60 ? 22 : Math.max(1, Math.min(12, 1400 / Math.max(map.columns, map.rows)));
  const names = cell >= 9;
  const left = names ? 20 + Math.max(...map.rowNames.map(widthOf)) : 20;
  const top = (names ? 30 + Math.max(...map.columnNames.map(widthOf)) * 0.72 : 20) + 30;
  const [width, height] = [Math.ceil(left + map.columns * cell + top * 0.8), Math.ceil(top + map.rows * cell + 16)];
  const svg = make("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "monospace", "font-size": 12 });
  svg.append(make("title", {}, "made by regard"), make("rect", { width, height, fill: colourOf("--surface") }),
    make("text", { x: 10, y: 20, fill: colourOf("--ink"), "font-family": "sans-serif" }, captionOf(view.view, map.part)));
  const colours = ramp(map.ramp);
  if (map.rows * map.columns <= 10000) {
    for (let row = 0; row < map.rows; row++) {
      for (let column = 0; column < map.columns; column++) {
        svg.append(make("rect", { x: left + column * cell, y: top + row * cell, width: cell - 1, height: cell - 1, fill: css(colours, clamp(heat.level(row, column), 0, 255)) },
          make("title", {}, `${map.rowNames[row]} → ${map.columnNames[column]}: ${number(map.value(row, column), 4)}`)));
      }
    }
  } else {
    const canvas = make("canvas", { width: map.columns, height: map.rows });
    const image = new ImageData(map.columns, map.rows);
    for (let i = 0; i < map.rows * map.columns; i++) {
      const level = clamp(heat.level(Math.floor(i / map.columns), i % map.columns), 0, 255);
      image.data.set(colours.subarray(4 * level, 4 * level + 4), 4 * i);
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    svg.append(make("image", { x: left, y: top, width: map.columns * cell, height: map.rows * cell, href: canvas.toDataURL(), style: { imageRendering: "pixelated" }, preserveAspectRatio: "none" }));
  }
  if (names) {
    map.rowNames.forEach((name, row) => svg.append(make("text", { x: left - 6, y: top + (row + 0.5) * cell + 4, "text-anchor": "end", fill: colourOf("--ink") }, name)));
    map.columnNames.forEach((name, column) => svg.append(make("text", { transform: `translate(${left + (column + 0.6) * cell} ${top - 6}) rotate(-45)`, fill: colourOf("--ink") }, name)));
  }
  return { text: new XMLSerializer().serializeToString(svg), width, height };
}

function download(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function save(kind) {
  const [view] = views;
  const { text, width, height } = mapSvg(view);
  const name = `attention-${state.part}-layer-${state.layer}-head-${state.head}.${kind}`;
  if (kind === "svg") { download(new Blob([text], { type: "image/svg+xml" }), name); return; }
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = make("canvas", { width: 2 * width, height: 2 * height });
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  context.drawImage(image, 0, 0, width, height);
  canvas.toBlob((blob) => download(blob, name), "image/png");
}

function start() {
  const tools = byId("tools");
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.body.append(tip);
  if (page.views?.length) {
    const copy = make("button", { id: "link", title: "Copy the address of this view", onclick: async () => {
      let done = false;
      try { await navigator.clipboard.writeText(location.href); done = true; } catch { /* not allowed: the address bar has it */ }
      copy.textContent = done ? "Copied" : "See address bar";
      setTimeout(() => { copy.textContent = "Copy link"; }, 1600);
    } }, "Copy link");
    tools.append(copy,
      make("button", { id: "save-svg", title: "Save this view as SVG", onclick: () => save("svg") }, make("span", { class: "word" }, "Save "), "SVG"),
      make("button", { id: "save-png", title: "Save this view as PNG", onclick: () => save("png") }, make("span", { class: "word" }, "Save "), "PNG"));
  }
  setUpTheme(tools);
  document.querySelectorAll("[data-widget]").forEach((mount) => widgets[mount.dataset.widget]?.(mount));
  if (!page.views?.length) return;
  const [part] = page.views[0].parts;
  state.part ??= part?.id;
  set(readLink(), { announce: false });
  addEventListener("hashchange", () => set(readLink()));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
    const heads = layerOf(partOf(page.views[0])).heads.length;
    const at = state.head === "mean" ? -1 : state.head;
    const layers = partOf(page.views[0]).layers.map((entry) => entry.layer);
    if (event.key === "]") set({ head: (at + 1) % heads });
    else if (event.key === "[") set({ head: (at - 1 + heads) % heads });
    else if (event.key === "}") set({ layer: layers[(layers.indexOf(state.layer) + 1) % layers.length] });
    else if (event.key === "{") set({ layer: layers[(layers.indexOf(state.layer) - 1 + layers.length) % layers.length] });
  });
  document.documentElement.dataset.ready = "yes";
}

start();
})();
