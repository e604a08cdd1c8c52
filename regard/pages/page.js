"use strict";
/* The script of every page, in eight parts:

     1  elements, numbers, theme, tables      for any page
     2  arrays and colours                    for any page
     3  HeatMap, a canvas that scrolls        for any page
     4  what is selected, and the link        pages with attention
     5  the view of an answer
     6  two answers, and their difference
     7  tables of heads and steps, the beam
     8  saving what is seen, and the start

   It asks nothing of the network and never assigns HTML: every text becomes a node of text. */
(() => {

// 1  Elements, numbers, theme, tables ---------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set([
  "svg", "path", "text", "g", "rect", "title", "image", "tspan", "defs", "clipPath", "line", "circle",
]);

const byId = (id) => document.getElementById(id);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

/** An element with attributes and children; `on…` are listeners, strings become text. */
function make(tag, attributes = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const withMinus = (text) => text.replace("-", "\u2212");

/** A number as people read it: 0.873, 1.2e-5, –. */
function number(value, digits = 3) {
  if (isMissing(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 10 ** -digits) return value.toExponential(1).replace(/^-/, "\u2212");
  return withMinus(value.toFixed(size >= 100 ? 1 : digits));
}

/** A number in a narrow column: 0.87, 0.00, 12.3. */
function short(value, digits = 2) {
  if (isMissing(value)) return "–";
  const text = value.toFixed(Math.abs(value) >= 10 ? 1 : digits);
  return Number(text) === 0 ? text.replace("-", "") : withMinus(text);
}

/** How many digits a column needs whose largest number is this. */
const digitsFor = (largest) => clamp(2 - Math.floor(Math.log10(largest + 1e-12) + 1), 2, 5);

function percent(value) {
  if (value >= 0.9995) return "100 %";
  if (value < 0.001) return "< 0.1 %";
  return `${(100 * value).toFixed(1)} %`;
}

const quoted = (text) => `“${text}”`;
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function isDark() {
  const theme = document.documentElement.dataset.theme;
  if (theme) return theme === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

const redraws = new Set(); // functions that draw with colours of the theme

// A frame of a notebook may have no storage: reading and writing it then fails.
function storedTheme() {
  try {
    return localStorage.getItem("regard-theme");
  } catch {
    return null;
  }
}

function storeTheme(theme) {
  try {
    localStorage.setItem("regard-theme", theme);
  } catch { /* the theme is that of the system again next time */ }
}

function setUpTheme(tools) {
  const root = document.documentElement;
  const stored = storedTheme();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;

  const button = make("button", { id: "theme" });
  const changed = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    redraws.forEach((redraw) => redraw());
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    storeTheme(root.dataset.theme);
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  changed();
  tools.append(button);
}

const OPENED = "regard-opened"; // what was open before a page was loaded again

/** The page of a run under way is loaded again and again. Its place stays (browsers see to that), and
    so does what is open. It waits for a person who selects text or listens. */
function setUpRefresh() {
  const { refresh } = document.documentElement.dataset;
  const details = [...document.querySelectorAll("section[id] > details")];
  const nameOf = (node) => node.parentElement.id;
  try {
    const opened = sessionStorage.getItem(OPENED)?.split(" ") ?? [];
    details.forEach((node) => { node.open ||= opened.includes(nameOf(node)); });
    sessionStorage.removeItem(OPENED);
  } catch { /* no storage: everything is closed again */ }
  if (!refresh || window !== top) return; // a notebook has the page as it was
  setInterval(() => {
    const isHeard = [...document.querySelectorAll("audio")].some((sound) => !sound.paused);
    if (isHeard || String(getSelection())) return;
    try {
      const opened = details.filter((node) => node.open).map(nameOf);
      sessionStorage.setItem(OPENED, opened.join(" "));
    } catch { /* as above */ }
    location.reload();
  }, 1000 * refresh);
}

/** Make the rows of a table sortable by each column; rows without a value come last. */
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (head.dataset.fixed !== undefined) return;
    const title = head.title || "sort";
    const button = make("button", { type: "button", title }, ...head.childNodes);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const isNumber = head.classList.contains("number");
      const order = head.getAttribute("aria-sort");
      const isUp = order === "descending" || (order === null && !isNumber);
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      sortRows(table.tBodies[0], column, isNumber, isUp);
    });
  });
}

function sortRows(body, column, isNumber, isUp) {
  const key = (row) => {
    const cell = row.cells[column];
    if (!isNumber) return cell.textContent;
    return cell.dataset.value ? Number(cell.dataset.value) : null;
  };
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    const order = isNumber ? x - y : x.localeCompare(y, undefined, { numeric: true });
    return isUp ? order : -order;
  });
  body.append(...rows);
}

/** Choices side by side: a radio group that arrow keys move through. */
function segments(label, choices, isChosen, choose) {
  const group = make("div", { class: "segments", role: "radiogroup", "aria-label": label });
  choices.forEach(({ value, text, title, disabled }) => {
    const chosen = isChosen(value);
    group.append(make("button", {
      type: "button",
      role: "radio",
      title,
      disabled,
      "data-value": value,
      "aria-checked": String(chosen),
      tabindex: chosen ? 0 : -1,
      onclick: () => choose(value),
    }, text));
  });
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...group.querySelectorAll("button:not(:disabled)")];
    const chosen = buttons.findIndex((button) => button.getAttribute("aria-checked") === "true");
    const next = buttons[(chosen + step + buttons.length) % buttons.length];
    next.click();
    // The click may have made the buttons again.
    document.querySelector(`[aria-label="${label}"] [data-value="${next.dataset.value}"]`)?.focus();
  });
  return make("div", { class: "control" }, make("span", {}, label), group);
}

function chooseSegment(control, value) {
  control.querySelectorAll("[role=radio]").forEach((button) => {
    const chosen = button.dataset.value === String(value);
    button.setAttribute("aria-checked", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  });
}

const tip = make("div", { class: "tip", role: "tooltip" });

/** A small text beside the pointer, inside the window. */
function showTip(event, ...children) {
  tip.replaceChildren(...children);
  const box = tip.getBoundingClientRect();
  const below = event.clientY + 18;
  const above = event.clientY - box.height - 12;
  tip.style.left = `${clamp(event.clientX + 14, 4, innerWidth - box.width - 8)}px`;
  tip.style.top = `${below + box.height > innerHeight ? above : below}px`;
}

const hideTip = () => tip.replaceChildren();

// 2  Arrays and colours -------------------------------------------------------------------------

const arrays = new Map(); // id -> promise of Uint8Array
let loading = 0; // arrays that are not there yet

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** The bytes of an array of the page: base64 of zlib. */
function loadArray(id) {
  if (!arrays.has(id)) {
    const stream = new Blob([bytesOf(byId(id).textContent)]).stream();
    const inflated = stream.pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Response(inflated).arrayBuffer().then((buffer) => new Uint8Array(buffer));
    arrays.set(id, bytes);
    countLoading(1);
    bytes.finally(() => setTimeout(() => countLoading(-1))); // after those who wait have drawn
  }
  return arrays.get(id);
}

/** The page is busy while arrays are loading. */
function countLoading(change) {
  loading += change;
  document.documentElement.setAttribute("aria-busy", String(loading > 0));
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
const ramps = new Map();

/** 256 colours of a ramp, as bytes RGBA. */
function ramp(name) {
  const theme = isDark() ? "dark" : "light";
  const key = `${name} ${theme}`;
  if (!ramps.has(key)) ramps.set(key, interpolated(RAMPS[name][theme]));
  return ramps.get(key);
}

function interpolated(colours) {
  const stops = colours.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const table = new Uint8ClampedArray(4 * 256).fill(255);
  for (let level = 0; level < 256; level++) {
    const place = (level / 255) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(place));
    for (let i = 0; i < 3; i++) {
      const [from, to] = [stops[low][i], stops[low + 1][i]];
      table[4 * level + i] = from + (place - low) * (to - from);
    }
  }
  return table;
}

const css = (table, level) => `rgb(${table.slice(4 * level, 4 * level + 3).join(", ")})`;

/** Black or white, whichever can be read on a colour of a ramp. */
function inkOn(table, level) {
  const [red, green, blue] = table.slice(4 * level, 4 * level + 3);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#12161e" : "#ffffff";
}

/** A canvas with a pixel for each level (0 … 255), row by row. */
function levelImage(levels, rows, columns, rampName) {
  const colours = ramp(rampName);
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    image.data.set(colours.subarray(4 * levels[i], 4 * levels[i] + 4), 4 * i);
  }
  return imageCanvas(image);
}

function imageCanvas(image) {
  const canvas = make("canvas", { width: image.width, height: image.height });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// 3  HeatMap ------------------------------------------------------------------------------------

const FONT = "12px ui-monospace, 'DejaVu Sans Mono', monospace";
const NUMBER_FONT = "11px system-ui, sans-serif";
const VECTOR_CELLS = 10000; // of a map that is saved as rectangles; larger ones are an image
const measure = document.createElement("canvas").getContext("2d");
const painters = new WeakMap(); // canvas -> function that paints it in any context, to save it

function widthOf(text) {
  measure.font = FONT;
  return measure.measureText(text).width;
}

/** The width of the widest of many names; the search ends at `most`. */
function widest(names, most) {
  let width = 0;
  for (const name of names) {
    width = Math.max(width, widthOf(name));
    if (width >= most) return most;
  }
  return width;
}

function shortened(text, width) {
  if (widthOf(text) <= width) return text;
  let length = text.length;
  while (length > 1 && widthOf(`${text.slice(0, length)}…`) > width) length--;
  return `${text.slice(0, length)}…`;
}

/** A heat map with names at its sides. Only what is visible is drawn, so its size does not matter.

    map     { rows, columns, levels (0 … 255, row by row), rowNames, columnNames, ramp }
            zero    the level that stands for 0, if there are negative values
            value   (row, column) -> number, for the texts of large cells
            notes   { title, texts }: a text at the right of each row
    header  { height, paint(context, xOf) } instead of the names of the columns
    margin  pixels at the right that stay free, so that maps below each other are aligned */
class HeatMap {
  constructor({ label, onSelect, onHover, largest = 46 }) {
    this.canvas = make("canvas");
    this.spacer = make("div", {}, this.canvas);
    this.node = make("div", {
      class: "heat",
      tabindex: 0,
      role: "application",
      "aria-label": label,
      "aria-roledescription": "heat map",
      "aria-describedby": "announce",
    }, this.spacer);
    this.onSelect = onSelect;
    this.onHover = onHover;
    this.largest = largest; // pixels of a cell
    this.zoom = 1;
    this.selected = null;
    this.hovered = null;
    this.header = null;
    this.margin = 0;
    this.scale = "map";
    this.listen();
    redraws.add(() => this.draw());
    painters.set(this.canvas, (context) => this.paint(context));
  }

  listen() {
    this.node.addEventListener("scroll", () => this.draw());
    this.node.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("pointermove", (event) => this.point(this.cellAt(event), event));
    this.canvas.addEventListener("pointerleave", (event) => this.point(null, event));
    this.canvas.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) this.choose(cell.row, cell.column);
      this.node.focus({ preventScroll: true });
    });
    new ResizeObserver(() => {
      if (!this.map || this.node.clientWidth === this.width) return;
      this.layout();
      this.draw();
    }).observe(this.node);
  }

  show(map, { header = null, scale = "map", margin = 0 } = {}) {
    this.map = map;
    this.header = header;
    this.scale = scale;
    this.margin = margin;
    this.most = this.largestLevels();
    this.layout();
    this.draw();
  }

  /** The largest distance from zero, of the map or of each row, in levels. */
  largestLevels() {
    const { rows, columns, levels, zero = 0 } = this.map;
    const most = new Float32Array(rows);
    for (let row = 0; row < rows; row++) {
      for (let i = row * columns; i < (row + 1) * columns; i++) {
        most[row] = Math.max(most[row], Math.abs(levels[i] - zero));
      }
    }
    if (this.scale === "row") return most;
    const all = most.reduce((a, b) => Math.max(a, b), 0);
    return most.fill(this.scale === "map" ? all : 255 - zero);
  }

  /** Sizes: of the margins, of a cell, and of the whole. */
  layout() {
    const { rows, columns, rowNames, columnNames } = this.map;
    const width = this.node.clientWidth || 600;
    const tallest = clamp(innerHeight * 0.62, 280, 680);
    this.width = width;
    this.left = Math.ceil(clamp(widest(rowNames, 150) + 14, 34, Math.min(150, width * 0.3)));

    const slanted = Math.ceil(Math.min(104, widest(columnNames, 140) * 0.72 + 14));
    const room = width - this.left - Math.max(2, this.margin);
    this.named = !this.header && (room / columns) * this.zoom >= 13;
    this.right = Math.max(2, this.margin, this.named ? Math.ceil(slanted * 0.8) : 0);
    this.top = this.headerHeight(slanted);
    this.setCellSize((width - this.left - this.right) / columns, tallest);

    const fullWidth = this.left + columns * this.x + this.right;
    const fullHeight = this.top + rows * this.y;
    const scrollbar = fullWidth > width ? 14 : 0;
    this.height = Math.ceil(Math.min(fullHeight, this.top + tallest)) + 1;
    this.spacer.style.width = `${Math.floor(Math.max(width - 1, fullWidth))}px`;
    this.spacer.style.height = `${Math.ceil(fullHeight) + 1}px`;
    this.node.style.height = `${this.height + scrollbar}px`;
    const geometry = [this.left, this.top, this.x, this.y]; // for tests
    this.node.dataset.geometry = geometry.map((size) => size.toFixed(3)).join(" ");
  }

  headerHeight(slanted) {
    if (this.header) return this.header.height;
    return this.named ? slanted : 22;
  }

  /** A cell is as large as there is room for the whole map; zoom makes it larger. */
  setCellSize(across, tallest) {
    const { rows, square } = this.map;
    let x = Math.min(this.largest, across);
    let y = rows * 20 <= tallest ? clamp(x, 20, 34) : tallest / rows;
    if (square && rows * 20 > tallest) {
      x = Math.min(x, y);
      y = x;
    }
    this.x = this.header ? x * this.zoom : Math.min(this.largest, x * this.zoom);
    this.y = Math.min(34, y * this.zoom);
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
    const [width, height] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${this.height}px`;
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.paint(context);
  }

  /** Paint in the context of a canvas, or in one that makes SVG. */
  paint(context) {
    if (!this.map) return;
    this.clipped(context, this.left, this.top, this.width, this.height, () => {
      this.paintCells(context);
      this.paintGrid(context);
      this.paintNumbers(context);
      this.paintNotes(context);
    });
    this.clipped(context, this.left - 2, this.top - 2, this.width + 2, this.height + 2, () => {
      this.paintMarks(context);
    });
    const above = this.top - 6; // the name of a thin first row sticks out
    this.clipped(context, 0, above, this.left, this.height, () => this.paintRowNames(context));
    const left = this.left - (this.header ? 0 : 4);
    this.clipped(context, left, 0, this.width, this.top, () => {
      if (this.header) this.header.paint(context, (column) => this.xOf(column));
      else this.paintColumnNames(context);
      this.paintNotesTitle(context);
    });
  }

  clipped(context, left, top, right, bottom, paint) {
    context.save();
    context.beginPath();
    context.rect(left, top, right - left, bottom - top);
    context.clip();
    paint();
    context.restore();
  }

  visible() {
    const { rows, columns } = this.map;
    const { scrollLeft, scrollTop } = this.node;
    const right = scrollLeft + this.width - this.left;
    const bottom = scrollTop + this.height - this.top;
    return {
      firstRow: clamp(Math.floor(scrollTop / this.y), 0, rows - 1),
      lastRow: clamp(Math.ceil(bottom / this.y), 1, rows),
      firstColumn: clamp(Math.floor(scrollLeft / this.x), 0, columns - 1),
      lastColumn: clamp(Math.ceil(right / this.x), 1, columns),
    };
  }

  xOf(column) { return this.left + column * this.x - this.node.scrollLeft; }
  yOf(row) { return this.top + row * this.y - this.node.scrollTop; }

  /** The level of a cell as it is drawn, 0 … 255. */
  level(row, column) {
    const { columns, levels, zero = 0 } = this.map;
    const share = (levels[row * columns + column] - zero) / (this.most[row] || 1);
    const level = Math.round(zero ? 127.5 + 127.5 * share : 255 * share);
    return clamp(level, 0, 255);
  }

  paintCells(context) {
    const { firstRow, lastRow, firstColumn, lastColumn } = this.visible();
    const cells = (lastRow - firstRow) * (lastColumn - firstColumn);
    if (context.isVector && cells <= VECTOR_CELLS) {
      this.paintRectangles(context);
      return;
    }
    context.imageSmoothingEnabled = false;
    const width = (lastColumn - firstColumn) * this.x;
    const height = (lastRow - firstRow) * this.y;
    context.drawImage(this.pixels(), this.xOf(firstColumn), this.yOf(firstRow), width, height);
  }

  /** Cells as a small image. Where several share a pixel, the strongest is drawn. */
  pixels() {
    const { firstRow, lastRow, firstColumn, lastColumn } = this.visible();
    const across = Math.min(1, this.x);
    const down = Math.min(1, this.y);
    const width = Math.max(1, Math.ceil((lastColumn - firstColumn) * across));
    const height = Math.max(1, Math.ceil((lastRow - firstRow) * down));
    const zero = this.map.zero ? 127.5 : 0;
    const strengths = new Float32Array(width * height).fill(-1);
    const levels = new Uint8Array(width * height);
    for (let row = firstRow; row < lastRow; row++) {
      const start = Math.floor((row - firstRow) * down) * width;
      for (let column = firstColumn; column < lastColumn; column++) {
        const pixel = start + Math.floor((column - firstColumn) * across);
        const level = this.level(row, column);
        const strength = Math.abs(level - zero);
        if (strength <= strengths[pixel]) continue;
        strengths[pixel] = strength;
        levels[pixel] = level;
      }
    }
    return levelImage(levels, height, width, this.map.ramp);
  }

  /** Cells as rectangles of SVG, each with its number. */
  paintRectangles(context) {
    const colours = ramp(this.map.ramp);
    const { rowNames, columnNames, value } = this.map;
    this.eachCell((row, column) => {
      const title = `${rowNames[row]} → ${columnNames[column]}: ${number(value(row, column), 4)}`;
      context.fillStyle = css(colours, this.level(row, column));
      context.fillRect(this.xOf(column), this.yOf(row), this.x, this.y, title);
    });
  }

  eachCell(visit) {
    const { firstRow, lastRow, firstColumn, lastColumn } = this.visible();
    for (let row = firstRow; row < lastRow; row++) {
      for (let column = firstColumn; column < lastColumn; column++) visit(row, column);
    }
  }

  /** Lines between cells, if cells are large, and a line around all. */
  paintGrid(context) {
    const { firstRow, lastRow, firstColumn, lastColumn } = this.visible();
    const [left, right] = [this.xOf(firstColumn), this.xOf(lastColumn)];
    const [top, bottom] = [this.yOf(firstRow), this.yOf(lastRow)];
    context.lineWidth = 1;
    if (this.x >= 9 && this.y >= 9) {
      context.strokeStyle = colourOf("--surface");
      context.beginPath();
      for (let row = firstRow; row <= lastRow; row++) {
        context.moveTo(left, this.yOf(row));
        context.lineTo(right, this.yOf(row));
      }
      for (let column = firstColumn; column <= lastColumn; column++) {
        context.moveTo(this.xOf(column), top);
        context.lineTo(this.xOf(column), bottom);
      }
      context.stroke();
    }
    context.strokeStyle = colourOf("--line");
    context.strokeRect(left, top, right - left, bottom - top);
  }

  paintNumbers(context) {
    if (this.x < 40 || this.y < 20 || !this.map.value) return;
    const colours = ramp(this.map.ramp);
    context.font = NUMBER_FONT;
    context.textAlign = "center";
    context.textBaseline = "middle";
    this.eachCell((row, column) => {
      const value = this.map.value(row, column);
      if (Math.abs(value) < 0.005) return;
      context.fillStyle = inkOn(colours, this.level(row, column));
      context.fillText(short(value), this.xOf(column + 0.5), this.yOf(row + 0.5) + 0.5);
    });
  }

  /** Outlines of the cell under the pointer and of the selected one, and a mark at its row. */
  paintMarks(context) {
    if (this.selected && this.map.rows > 1) {
      context.fillStyle = colourOf("--accent");
      context.fillRect(this.left - 2, this.yOf(this.selected.row), 2, Math.max(2, this.y));
    }
    this.outline(context, this.hovered, colourOf("--muted"), 1.5);
    this.outline(context, this.selected, colourOf("--ink"), 2);
  }

  outline(context, cell, colour, thickness) {
    if (!cell) return;
    const [width, height] = [Math.max(4, this.x), Math.max(4, this.y)];
    const [x, y] = [this.xOf(cell.column + 0.5), this.yOf(cell.row + 0.5)];
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.strokeRect(x - width / 2, y - height / 2, width, height);
  }

  paintRowNames(context) {
    context.textAlign = "right";
    context.textBaseline = "middle";
    this.eachNamedRow((row) => {
      const isSelected = this.selected?.row === row;
      const name = shortened(this.map.rowNames[row], this.left - 12);
      context.fillStyle = colourOf(isSelected ? "--ink" : "--muted");
      context.font = isSelected ? `bold ${FONT}` : FONT;
      context.fillText(name, this.left - 7, this.yOf(row + 0.5));
    });
  }

  /** Every row that has room for a text. */
  eachNamedRow(visit) {
    const { firstRow, lastRow } = this.visible();
    const every = Math.max(1, Math.ceil(13 / this.y));
    for (let row = firstRow - (firstRow % every); row < lastRow; row += every) visit(row);
  }

  paintNotes(context) {
    if (!this.map.notes) return;
    const { texts } = this.map.notes;
    context.font = NUMBER_FONT;
    context.textAlign = "left";
    context.textBaseline = "middle";
    this.eachNamedRow((row) => {
      context.fillStyle = colourOf(this.selected?.row === row ? "--ink" : "--muted");
      context.fillText(texts[row], this.xOf(this.map.columns) + 8, this.yOf(row + 0.5));
    });
  }

  paintNotesTitle(context) {
    if (!this.map.notes) return;
    context.font = NUMBER_FONT;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = colourOf("--muted");
    context.fillText(this.map.notes.title, this.xOf(this.map.columns) + 8, this.top - 7);
  }

  paintColumnNames(context) {
    const { firstColumn, lastColumn } = this.visible();
    const { columnNames } = this.map;
    const every = this.named ? 1 : Math.max(1, Math.ceil(84 / this.x));
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (let column = firstColumn - (firstColumn % every); column < lastColumn; column += every) {
      const isSelected = this.selected?.column === column;
      context.fillStyle = colourOf(isSelected ? "--ink" : "--muted");
      context.font = isSelected ? `bold ${FONT}` : FONT;
      context.save();
      context.translate(this.xOf(column + 0.5), this.top - 7);
      if (this.named) {
        context.rotate(-Math.PI / 4);
        context.fillText(shortened(columnNames[column], (this.top - 10) / 0.72), 0, 0);
      } else {
        context.fillText(shortened(columnNames[column], 78), 0, -3);
      }
      context.restore();
    }
  }

  /** The cell at a pointer. Left of the map it is the strongest of the row. */
  cellAt(event) {
    const { rows, columns } = this.map;
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - this.left + this.node.scrollLeft;
    const y = event.clientY - box.top - this.top + this.node.scrollTop;
    const isAbove = event.clientY - box.top < this.top;
    if (isAbove && !this.header) return null;
    const row = isAbove ? (this.selected?.row ?? 0) : Math.floor(y / this.y);
    const column = Math.floor(x / this.x);
    if (row < 0 || row >= rows || column >= columns) return null;
    return { row, column: column < 0 ? this.strongest(row) : column };
  }

  strongest(row) {
    const { columns, levels, zero = 0 } = this.map;
    const strength = (column) => Math.abs(levels[row * columns + column] - zero);
    let best = 0;
    for (let column = 1; column < columns; column++) {
      if (strength(column) > strength(best)) best = column;
    }
    return best;
  }

  point(cell, event) {
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
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      Home: [row, 0],
      End: [row, columns - 1],
      PageUp: [row - page, column],
      PageDown: [row + page, column],
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

  /** Show a cell as selected. */
  select(row, column) {
    this.selected = { row, column };
    if (!this.map) return;
    this.reveal();
    this.draw();
  }

  /** Scroll so that the selected cell is visible. */
  reveal() {
    if (!this.selected) return;
    const { node } = this;
    const [x, y] = [this.selected.column * this.x, this.selected.row * this.y];
    const width = this.width - this.left - this.right;
    const height = this.height - this.top;
    if (x < node.scrollLeft) node.scrollLeft = x - this.x;
    if (x + this.x > node.scrollLeft + width) node.scrollLeft = x + 2 * this.x - width;
    if (y < node.scrollTop) node.scrollTop = y - this.y;
    if (y + this.y > node.scrollTop + height) node.scrollTop = y + 2 * this.y - height;
  }
}

/** The colours of a map from its least to its largest value, its size, and buttons to zoom. */
function legendOf(heat, ...texts) {
  const { map, scale } = heat;
  const levels = Uint8Array.from({ length: 120 }, (_, x) => Math.round((x / 119) * 255));
  const bar = levelImage(levels, 1, 120, map.ramp);
  Object.assign(bar.style, { width: "120px", height: "10px" });
  const most = (heat.most.reduce((a, b) => Math.max(a, b), 0) / 255) * (map.high - map.low);
  const end = scale === "row" ? "row’s largest" : number(most, 2);
  const zooms = [["\u2212", "Zoom out", 1 / 1.5], ["+", "Zoom in", 1.5], ["Fit", "Show the whole map", 0]];
  return [
    make("span", {}, map.zero ? `\u2212${end}` : "0"),
    bar,
    make("span", {}, end),
    make("span", {}, `· ${[sizeOf(map), ...texts].join(" · ")}`),
    make("span", { class: "zooms" }, ...zooms.map(([text, label, factor]) => make("button", {
      type: "button",
      "aria-label": label,
      onclick: () => heat.setZoom(factor ? heat.zoom * factor : 1),
    }, text))),
  ];
}

const sizeOf = ({ rows, columns }) => `${rows.toLocaleString("en")} × ${columns.toLocaleString("en")}`;

// 4  What is selected, and the link -------------------------------------------------------------

const page = JSON.parse(byId("data").textContent);
const state = {
  part: null, // which map: "cross", "encoder", "decoder", "weights" or "effect"
  layer: null,
  head: null, // a number or "mean"
  token: 0, // the selected row and column
  place: 0,
  token2: null, // those of the second view
  place2: null,
  scale: "map", // what the darkest colour stands for
  effects: true, // whether effects are shown beside weights
  ...page.start,
};
const CELL_KEYS = [["token", "place"], ["token2", "place2"]]; // of each view: row, column
const SCALES = [["map", "largest in the map"], ["row", "largest in each row"], ["one", "0 to 1"]];
const listeners = new Set(); // called when something else is selected
let preview = null; // the view and row of a token that the pointer is over; it is not selected
let views = [];

const partOf = (view, id) => view.parts.find((part) => part.id === id);
const layerOf = (part) => part.layers.find(({ layer }) => layer === state.layer) ?? part.layers.at(-1);
const headName = (head) => (head === "mean" ? "mean of the heads" : `head ${head}`);

/** The part of a view that is drawn: the chosen one, or effects for a model without attention. */
const shownPart = (view) => partOf(view, state.part) ?? partOf(view, "effect");

/** The chosen part, of the first view that has it. */
const leadPart = () => page.views.map((view) => partOf(view, state.part)).find(Boolean);

/** The parts that can be chosen. Effects stand beside the weights of an answer, if it has any. */
function partChoices() {
  const parts = new Map();
  page.views.flatMap((view) => view.parts).forEach((part) => {
    if (!parts.has(part.id)) parts.set(part.id, part);
  });
  if (parts.has("cross")) parts.delete("effect");
  return [...parts.values()];
}

const hasEffects = () => page.views.some((view) => partOf(view, "effect") && partOf(view, "cross"));

/** Change what is selected, and draw it. */
function set(changes, { announce = true } = {}) {
  Object.assign(state, changes);
  const part = leadPart();
  if (part) {
    fitLayerAndHead(part);
    page.views.forEach(fitCell);
  }
  writeLink();
  listeners.forEach((listener) => listener(announce));
}

/** Choose a layer and a head that the page has. */
function fitLayerAndHead(part) {
  const layers = part.layers.map((entry) => entry.layer);
  if (!layers.includes(state.layer)) state.layer = layers.at(-1);
  const { heads } = layerOf(part);
  const hasAll = heads.every((head) => head.array);
  const isThere = state.head === "mean" ? hasAll : heads[state.head]?.array;
  if (heads.length === 1) state.head = 0;
  else if (hasAll && !isThere) state.head = "mean";
  else if (!isThere) state.head = Math.max(0, heads.findIndex((head) => head.array));
}

/** Choose a cell that the view has; of a second view, the one that belongs to the first’s. */
function fitCell(view, n) {
  const part = shownPart(view);
  if (!part) return;
  [part.rows, part.columns].forEach((names, axis) => {
    const key = CELL_KEYS[n][axis];
    const index = state[key] ?? partnerOf(0, axis, state[CELL_KEYS[0][axis]]) ?? state[CELL_KEYS[0][axis]];
    state[key] = clamp(index, 0, view.names[names].length - 1);
  });
}

/** The selected row and column of a view. */
function cellOf(view) {
  const [token, place] = CELL_KEYS[page.views.indexOf(view)];
  return { token: state[token], place: state[place] };
}

/** Select a row, a column or both in a view, and what belongs to them in the other view. */
function selectIn(view, cell) {
  preview = null;
  const n = page.views.indexOf(view);
  const changes = {};
  [cell.token, cell.place].forEach((index, axis) => {
    if (index === undefined) return;
    changes[CELL_KEYS[n][axis]] = index;
    const partner = page.views.length > 1 ? partnerOf(n, axis, index) : null;
    if (partner !== null) changes[CELL_KEYS[1 - n][axis]] = partner;
  });
  set(changes);
}

/** Select a token of the answer, in a map that has a row for it. */
function selectStep(view, step) {
  if (shownPart(view).rows === "places") {
    const part = view.parts.find(({ rows }) => rows !== "places");
    if (part) state.part = part.id;
  }
  selectIn(view, { token: step });
}

/** Show a token of the answer while the pointer is over it. */
function previewStep(view, row) {
  if (shownPart(view).rows === "places") return;
  preview = row === null ? null : { view, row };
  views.forEach((each) => each.updateRow());
}

/** The row of a view that is shown: under the pointer, or selected. */
function activeRow(view) {
  if (!preview) return cellOf(view).token;
  if (preview.view === view) return preview.row;
  return partnerOf(page.views.indexOf(preview.view), 0, preview.row) ?? cellOf(view).token;
}

/** The address of the view, as in #layer=2&head=3&token=7. */
function writeLink() {
  const { part, layer, head, token, place } = state;
  const words = new URLSearchParams({ part: part ?? "", layer: layer ?? "", head: head ?? "", token, place });
  if (page.views.length > 1) {
    CELL_KEYS[1].forEach((key, axis) => {
      const usual = partnerOf(0, axis, state[CELL_KEYS[0][axis]]);
      if (state[key] !== null && state[key] !== usual) words.set(key, state[key]);
    });
  }
  if (state.scale !== "map") words.set("scale", state.scale);
  if (!state.effects) words.set("effects", "off");
  try {
    history.replaceState(null, "", `#${words}`);
  } catch { /* a frame of a notebook has no address */ }
}

/** What an address selects; anything that it does not name stays as it is. */
function readLink() {
  const words = new URLSearchParams(location.hash.slice(1));
  const whole = (name) => (/^\d{1,9}$/.test(words.get(name) ?? "") ? Number(words.get(name)) : null);
  const changes = { token2: whole("token2"), place2: whole("place2") };
  for (const name of ["layer", "token", "place", "head"]) {
    if (whole(name) !== null) changes[name] = whole(name);
  }
  if (words.get("head") === "mean") changes.head = "mean";
  if (partChoices().some((part) => part.id === words.get("part"))) changes.part = words.get("part");
  if (SCALES.some(([scale]) => scale === words.get("scale"))) changes.scale = words.get("scale");
  if (words.has("effects")) changes.effects = words.get("effects") !== "off";
  return changes;
}

/** The map of a head, or the mean of all heads of a layer; null if the page does not have it. */
async function loadMap(view, part, { heads }, head) {
  const chosen = head === "mean" ? heads : [heads[head] ?? heads[0]];
  if (chosen.some(({ array }) => !array)) return null;
  const drawn = await Promise.all(chosen.map(({ array }) => loadArray(array)));
  const hasNumbers = chosen.every(({ exact }) => exact);
  const exact = hasNumbers ? await Promise.all(chosen.map((entry) => loadArray(entry.exact))) : null;
  const [rowNames, columnNames] = [view.names[part.rows], view.names[part.columns]];
  const levels = drawn.length > 1 ? meanOf(drawn) : drawn[0];
  const value = (row, column) => {
    const i = row * columnNames.length + column;
    if (!exact) return part.low + (levels[i] / 255) * (part.high - part.low);
    return exact.reduce((sum, bytes) => sum + float16(bytes, i), 0) / exact.length;
  };
  return {
    part,
    rows: rowNames.length,
    columns: columnNames.length,
    rowNames,
    columnNames,
    levels,
    value,
    isExact: hasNumbers,
    low: part.low,
    high: part.high,
    zero: part.low < 0 ? 127.5 : 0,
    ramp: part.low < 0 ? "effect" : "weight",
    square: part.square,
  };
}

function meanOf(arrays) {
  const mean = new Float32Array(arrays[0].length);
  for (const array of arrays) {
    for (let i = 0; i < mean.length; i++) mean[i] += array[i] / arrays.length;
  }
  return mean;
}

const rowOf = (map, row) => Array.from({ length: map.columns }, (_, column) => map.value(row, column));

// The controls above the views.
function setUpControls(mount) {
  const controls = make("div", { class: "controls", role: "group", "aria-label": "What is shown" });
  mount.append(controls);
  const parts = partChoices();
  if (parts.length > 1) controls.append(partControl(parts));
  controls.append(numberControl("Layer", layerChoices, "layer"));
  controls.append(numberControl("Head", headChoices, "head"));
  controls.append(scaleControl());
  if (hasEffects()) controls.append(effectsControl());
  const view = page.views.find(({ effectReason }) => effectReason);
  if (view) mount.append(...effectCommand(view, controls));
}

function partControl(parts) {
  const choices = parts.map(({ id, title, about }) => ({ value: id, text: title, title: about }));
  const control = segments("Show", choices, (id) => id === state.part, (id) => set({ part: id }));
  listeners.add(() => chooseSegment(control, state.part));
  return control;
}

function layerChoices(part) {
  return part.layers.map(({ layer, heads }) => ({
    value: layer,
    text: String(layer),
    disabled: heads.every(({ array }) => !array),
  }));
}

function headChoices(part) {
  const { heads } = layerOf(part);
  const choices = heads.map(({ array }, n) => ({ value: n, text: String(n), disabled: !array }));
  const lacksOne = heads.some(({ array }) => !array);
  if (heads.length > 1) choices.unshift({ value: "mean", text: "mean", disabled: lacksOne });
  return choices;
}

/** Layers or heads: side by side, or as a list if there are many. */
function numberControl(name, choicesOf, key) {
  const control = make("div", { class: "control" });
  let drawn = "";
  const choose = (value) => set({ [key]: value === "mean" ? "mean" : Number(value) });
  listeners.add(() => {
    const choices = choicesOf(leadPart());
    const wanted = JSON.stringify(choices);
    if (drawn !== wanted) {
      drawn = wanted;
      control.replaceChildren();
      if (choices.length > 17) control.append(...listOf(name, choices, choose));
      else if (choices.length > 1) control.append(segments(name, choices, () => false, choose));
    }
    chooseSegment(control, state[key]);
    const list = control.querySelector("select");
    if (list) list.value = String(state[key]);
  });
  return control;
}

function listOf(name, choices, choose) {
  const options = choices.map(({ value, text, disabled }) => make("option", { value, disabled }, text));
  const list = make("select", { "aria-label": name, onchange: () => choose(list.value) }, ...options);
  return [make("span", {}, name), list];
}

function scaleControl() {
  const choices = SCALES.map(([value, text]) => ({ value, text }));
  const [label, list] = listOf("Darkest colour", choices, (scale) => set({ scale }));
  listeners.add(() => { list.value = state.scale; });
  return make("label", { class: "control" }, label, list);
}

/** The button that shows effects beside weights, or hides them. */
function effectsControl() {
  const button = make("button", {
    type: "button",
    id: "effects",
    onclick: () => set({ effects: !state.effects }),
  }, "Effects");
  listeners.add(() => {
    button.setAttribute("aria-pressed", String(state.effects));
    button.disabled = state.part !== "cross";
    button.title = button.disabled
      ? "Effects stand beside the weights of the answer on the source"
      : "Show or hide the effect of hiding each place, beside its weight";
  });
  return button;
}

/** The same button where there are no effects: it says why, and what to type. */
function effectCommand(view, controls) {
  const notice = make("div", { class: "notice", id: "effect-command", hidden: true },
    make("p", {}, `${view.effectReason} A page cannot run the model. This adds them:`),
    make("pre", {}, view.effectCommand));
  controls.append(make("button", {
    type: "button",
    id: "effects",
    "aria-expanded": "false",
    "aria-controls": "effect-command",
    onclick: (event) => {
      notice.hidden = !notice.hidden;
      event.target.setAttribute("aria-expanded", String(!notice.hidden));
    },
  }, "Effects"));
  return [notice];
}

// 5  The view of an answer ----------------------------------------------------------------------

const NOTES_MARGIN = 44; // pixels right of a map for the correlation of each row
const PAIRS = 8; // places of the panel of weights and effects

function captionOf(part) {
  const layer = part.layers.length > 1 ? `, layer ${layerOf(part).layer}` : "";
  const head = layerOf(part).heads.length > 1 ? `, ${headName(state.head)}` : "";
  const form = part.form === "quadratic" ? " (linear attention: the weights of its quadratic form)" : "";
  return `${part.about}${layer}${head}${form}`;
}

/** One answer: what was read, what was written, the map, and what is selected. */
class View {
  constructor(view, mount, isOnly) {
    this.view = view;
    this.body = make("div", { class: "body" });
    this.side = make("div", { class: "side" });
    const name = isOnly ? null : make("h3", { class: "name" }, view.name);
    mount.append(make("div", { class: "view" }, name, this.body, this.side));
    this.addRead();
    this.addWritten();
    this.addMaps();
    this.cellPanel = make("div");
    this.alternatives = make("div");
    this.pairs = make("div");
    this.turns = make("div");
    this.side.append(this.cellPanel, this.turns, this.alternatives, this.pairs);
    listeners.add((announce) => this.update(announce));
    redraws.add(() => this.update(false));
    new ResizeObserver(() => this.arrange()).observe(this.body);
  }

  addRead() {
    const { view } = this;
    const { kind, title = "Read" } = view.source;
    if (kind === "picture") this.picture = new Picture(view, this.body);
    if (kind === "sound") this.player = new Player(view, this.body, () => this.heat.draw());
    if (kind !== "text" || !view.names.places.length) return;
    this.placeChips = this.chips(title, view.names.places, "place", (i) => {
      const part = shownPart(view);
      if (part.columns === "places") selectIn(view, { place: i });
      else if (part.rows === "places") selectIn(view, { token: i });
    });
  }

  addWritten() {
    const { view } = this;
    if (!view.names.steps.length) return;
    this.stepChips = this.chips("Wrote", view.names.steps, "step", (i) => selectStep(view, i));
    this.stepChips.forEach((chip, i) => {
      const logprob = view.steps[i]?.logprob;
      if (isMissing(logprob)) return;
      const probability = Math.exp(logprob);
      const width = `${Math.max(4, 100 * probability)}%`;
      chip.title = `probability ${percent(probability)}`;
      chip.append(make("span", { class: "sure", style: { width } }));
      chip.addEventListener("pointerenter", () => previewStep(view, i));
      chip.addEventListener("pointerleave", () => previewStep(view, null));
    });
  }

  chips(title, names, kind, choose) {
    const chips = names.map((name, i) => {
      const special = /^\(.+\)$/.test(name) ? " special" : "";
      return make("button", {
        type: "button",
        class: `chip ${kind}${special}`,
        "aria-pressed": "false",
        onclick: () => choose(i),
      }, name);
    });
    const list = make("div", { class: "chips" }, ...chips);
    this.body.append(make("div", {}, make("h3", {}, title), list));
    return chips;
  }

  /** The map, and the one of effects beside it. */
  addMaps() {
    const { view } = this;
    const keys = "Arrow keys move the selected cell, + and - zoom.";
    const listening = {
      onSelect: (row, column) => selectIn(view, { token: row, place: column }),
      onHover: (cell, event) => this.hover(cell, event),
    };
    this.heat = new HeatMap({ label: `Attention, ${view.name}. ${keys}`, ...listening });
    this.effectHeat = new HeatMap({ label: `Effects, ${view.name}. ${keys}`, ...listening });
    this.caption = make("h3");
    this.effectCaption = make("h3");
    this.legend = make("div", { class: "legend" });
    this.effectLegend = make("div", { class: "legend" });
    const main = make("div", {}, this.caption, this.heat.node, this.legend);
    const beside = [this.effectCaption, this.effectHeat.node, this.effectLegend];
    this.effectBlock = make("div", { class: "effects", hidden: true }, ...beside);
    this.maps = make("div", { class: "maps" }, main, this.effectBlock);
    this.body.append(this.maps);
  }

  async update(announce) {
    const { view } = this;
    const part = shownPart(view);
    if (!part) return;
    const wanted = `${part.id} ${state.layer} ${state.head}`;
    this.wanted = wanted;
    const effects = partOf(view, "effect");
    const [map, effectMap, weights] = await Promise.all([
      loadMap(view, part, layerOf(part), state.head),
      effects ? loadMap(view, effects, effects.layers[0], 0) : null,
      this.loadWeights(),
    ]);
    if (this.wanted !== wanted || !map) return;
    this.map = map;
    this.effects = state.effects || part.id === "effect" ? effectMap : null;
    this.weights = part.id === "weights" ? map : weights;
    this.drawMaps();
    this.updateRow();
    document.documentElement.dataset.drawnAfter ??= performance.now().toFixed(0); // for tests
    if (announce && views[0] === this) this.announce();
  }

  /** The weights of the answer on the source: of the chosen head, or the mean of the last layer. */
  loadWeights() {
    const part = partOf(this.view, "cross");
    if (!part) return null;
    if (state.part === "cross") return loadMap(this.view, part, layerOf(part), state.head);
    return loadMap(this.view, part, part.layers.at(-1), "mean");
  }

  /** How weights and effects correlate: on average, and for each token. */
  correlations() {
    const part = partOf(this.view, "cross");
    if (!part) return {};
    if (state.part !== "cross") return part.layers.at(-1);
    const layer = layerOf(part);
    return state.head === "mean" ? layer : layer.heads[state.head] ?? layer.heads[0];
  }

  get hasBeside() { return this.effects !== null && this.map.part.id === "cross"; }

  drawMaps() {
    const { view, map, effects } = this;
    const { token, place } = cellOf(view);
    const margin = this.hasBeside ? NOTES_MARGIN : 0;
    this.effectBlock.hidden = !this.hasBeside;
    this.arrange();
    this.caption.textContent = captionOf(map.part);
    this.heat.show(map, { header: this.header(), scale: state.scale, margin });
    this.heat.select(token, place);
    const accuracy = number((map.high - map.low) / 510, 4);
    const exactness = map.isExact ? "numbers: float16" : `numbers: to ±${accuracy}`;
    this.legend.replaceChildren(...legendOf(this.heat, exactness));
    if (!this.hasBeside) return;
    this.effectCaption.textContent = effects.part.about;
    const notes = { title: "ρ", texts: this.correlations().correlations.map((value) => short(value)) };
    const header = this.axisHeader();
    this.effectHeat.show({ ...effects, notes }, { header, scale: state.scale, margin });
    this.effectHeat.select(token, place);
    const explained = "ρ: rank correlation with the weights";
    this.effectLegend.replaceChildren(...legendOf(this.effectHeat, "nats", explained));
  }

  /** Put the maps side by side if their cells then are large enough, else below each other. */
  arrange() {
    if (!this.map) return;
    const half = this.body.clientWidth / 2 - 20;
    const names = Math.min(150, widest(this.map.rowNames, 150)) + NOTES_MARGIN + 40;
    const hasRoom = names + 22 * this.map.columns <= half;
    const canBe = this.hasBeside && this.view.source.kind === "text" && page.views.length === 1;
    this.maps.classList.toggle("side-by-side", canBe && hasRoom);
  }

  /** What is painted above the columns of the map: a sound, or the rows of a picture. */
  header() {
    if (this.map.part.columns !== "places") return null;
    if (this.player) return this.player.header(() => this.rowValues(), () => this.effectValues());
    return this.axisHeader();
  }

  axisHeader() {
    if (this.player) return this.player.axisHeader();
    return this.picture ? gridHeader(this.view.source.grid) : null;
  }

  /** The values of the active row of the map. */
  rowValues() {
    const row = activeRow(this.view);
    return row < this.map.rows ? rowOf(this.map, row) : [];
  }

  effectValues() {
    return this.hasBeside ? rowOf(this.effects, activeRow(this.view)) : [];
  }

  updateRow() {
    const { view, map } = this;
    if (!map) return;
    const { part } = map;
    const row = Math.min(activeRow(view), map.rows - 1);
    const { place } = cellOf(view);
    const isPlaces = part.rows === "places";
    this.paintChips(row, place);
    this.picture?.show(this.rowValues(), this.effectValues(), isPlaces ? row : null, part.columns === "places");
    for (const heat of [this.heat, this.effectHeat]) {
      heat.selected = { row, column: place };
      heat.draw();
    }
    this.updateCell(row, place);
    this.updateAlternatives(isPlaces ? null : row);
    this.updatePairs(isPlaces && part.id !== "weights" ? null : row);
    this.updateTurns(isPlaces ? null : row);
  }

  /** Colour the tokens that were read by the weights of a row. */
  paintChips(row, place) {
    const { map } = this;
    const { rows, columns } = map.part;
    const colours = ramp(map.ramp);
    this.placeChips?.forEach((chip, i) => {
      const isSelected = i === (columns === "places" && rows !== "places" ? place : row);
      const level = columns === "places" ? this.heat.level(row, i) : null;
      chip.setAttribute("aria-pressed", String(isSelected && (columns === "places" || rows === "places")));
      chip.style.backgroundColor = level === null ? "" : css(colours, level);
      chip.style.color = level === null ? "" : inkOn(colours, level);
    });
    this.stepChips?.forEach((chip, i) => {
      chip.setAttribute("aria-pressed", String(rows !== "places" && i === row));
    });
  }

  updateCell(row, place) {
    const { view, map, effects, weights } = this;
    const { part } = map;
    const value = number(map.value(row, place), 4);
    const rowLabel = { steps: "writes", read: "reads", places: "row" }[part.rows];
    const lines = [[rowLabel, map.rowNames[row]]];
    if (part.rows === "read" && view.names.steps[row]) lines.push(["then writes", view.names.steps[row]]);
    if (part.id === "effect") {
      lines.push(["without", map.columnNames[place]], ["log p falls by", value]);
    } else {
      const name = part.form === "quadratic" ? "weight (quadratic form)" : "weight";
      lines.push(["attends to", map.columnNames[place]], [name, value]);
    }
    if (this.hasBeside) lines.push(["effect (nats)", number(effects.value(row, place), 4)]);
    if (part.id === "effect" && weights) {
      lines.push(["weight (mean)", number(weights.value(row, place), 4)]);
    }
    const terms = lines.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]);
    this.cellPanel.replaceChildren(make("h3", {}, "Selected"), make("dl", { class: "cell" }, ...terms));
  }

  updateAlternatives(row) {
    const step = row === null ? null : this.view.steps[row];
    this.alternatives.replaceChildren();
    if (!step?.alternatives?.length) return;
    const bars = make("div", { class: "bars" });
    step.alternatives.forEach(([name, probability, isTaken]) => bars.append(
      make("span", { class: `label${isTaken ? " taken" : ""}`, title: name }, name),
      track(probability),
      make("span", { class: "value" }, percent(probability)),
    ));
    this.alternatives.append(make("h3", {}, `Likeliest at step ${row}`), bars);
  }

  /** The weights of the turns of a conversation: of the selected token, and of the whole answer. */
  updateTurns(row) {
    const { view, weights } = this;
    this.turns.replaceChildren();
    if (!view.turns?.length || !weights) return;
    const sumOf = (values, { places }) => places.reduce((sum, place) => sum + values[place], 0);
    const token = row === null ? null : rowOf(weights, row);
    const answer = meanRow(weights);
    const bars = make("div", { class: "bars turns" });
    for (const turn of view.turns) {
      const sums = [token, answer].filter((values) => values).map((values) => sumOf(values, turn));
      const tracks = sums.map((sum, i) => track(clamp(sum, 0, 1), i < sums.length - 1 ? "" : "whole"));
      bars.append(
        make("span", { class: "label" }, turn.name),
        make("span", { class: "pairs" }, ...tracks),
        make("span", { class: "value" }, sums.map((sum) => short(sum)).join(" · ")),
      );
      if (turn.text) bars.append(make("span", { class: "said", title: turn.text }, turn.text));
    }
    const key = make("div", { class: "key" },
      token ? make("span", {}, make("i"), "this token") : null,
      make("span", {}, make("i", { class: "whole" }), "whole answer"));
    this.turns.append(make("h3", {}, "Weight by turn"), key, bars);
  }

  /** For a token, the places with the largest weights or effects, both beside each other. */
  updatePairs(row) {
    const { view, weights, effects } = this;
    this.pairs.replaceChildren();
    if (row === null || !view.names.places.length || (!weights && !effects)) return;
    const w = weights ? rowOf(weights, row) : null;
    const e = effects ? rowOf(effects, row) : null;
    const both = w && e;
    const title = both ? "Weight beside effect" : w ? "Largest weights" : "Effect of hiding";
    const key = make("div", { class: "key" },
      w ? make("span", {}, make("i"), "weight") : null,
      e ? make("span", {}, make("i", { class: "effect" }), "effect: fall of log p, in nats") : null);
    this.pairs.append(make("h3", {}, title), key, pairBars(view.names.places, w, e));
    if (both) this.pairs.append(this.comparison(row, largestOf(w), largestOf(e)));
  }

  /** How weights and effects compare, in words. */
  comparison(row, place, effectPlace) {
    const { correlation, correlations } = this.correlations();
    const names = this.view.names.places;
    const where = place === effectPlace
      ? `Both are largest at ${quoted(names[place])}. `
      : `The weight is largest at ${quoted(names[place])}, the effect at ${quoted(names[effectPlace])}. `;
    return make("p", { class: "statement" },
      where,
      "Rank correlation of weight and effect: ",
      make("b", {}, short(correlations[row])),
      " at this token, ",
      make("b", {}, short(correlation)),
      " on average over the tokens.");
  }

  hover(cell, event) {
    if (!cell || !this.map) {
      hideTip();
      return;
    }
    const { map } = this;
    const isEffect = map.part.id === "effect";
    const value = number(map.value(cell.row, cell.column), 4);
    const effect = this.hasBeside ? `, effect ${number(this.effects.value(cell.row, cell.column), 3)}` : "";
    showTip(event,
      make("b", {}, map.rowNames[cell.row]),
      isEffect ? " without " : " → ",
      make("b", {}, map.columnNames[cell.column]),
      make("br"),
      `${isEffect ? "log p falls by" : "weight"} ${value}${effect}`);
  }

  /** Tell a screen reader the selected cell. */
  announce() {
    const { map } = this;
    const { part } = map;
    const { token, place } = cellOf(this.view);
    const value = number(map.value(token, place), 3);
    const [row, column] = [quoted(map.rowNames[token]), quoted(map.columnNames[place])];
    const hasMany = part.layers.length > 1 || layerOf(part).heads.length > 1;
    const where = hasMany ? `, layer ${state.layer}, ${headName(state.head)}` : "";
    const effect = this.hasBeside ? `, effect ${number(this.effects.value(token, place), 3)}` : "";
    byId("announce").textContent = part.id === "effect"
      ? `Without ${column}, the log-probability of ${row} falls by ${value}.`
      : `${row} attends to ${column}: weight ${value}${where}${effect}.`;
  }
}

const track = (share, kind = "") => make("span", { class: "track" },
  make("i", { class: kind, style: { width: `${100 * share}%` } }));

const meanRows = new WeakMap(); // of maps: a pointer that moves asks for the same ones again and again

/** The mean of the rows of a map. */
function meanRow(map) {
  if (meanRows.has(map)) return meanRows.get(map);
  const sums = new Float64Array(map.columns);
  for (let row = 0; row < map.rows; row++) {
    rowOf(map, row).forEach((value, column) => { sums[column] += value / map.rows; });
  }
  meanRows.set(map, sums);
  return sums;
}

const largestOf = (values) => values.indexOf(Math.max(...values));

/** Sizes of values as shares of the largest. */
function shares(values) {
  const most = values.reduce((largest, value) => Math.max(largest, Math.abs(value)), 1e-12);
  return values.map((value) => Math.abs(value) / most);
}

/** A bar for the weight and one for the effect of the places where one of them is largest. */
function pairBars(names, weights, effects) {
  const weightShares = weights ? shares(weights) : null;
  const effectShares = effects ? shares(effects) : null;
  const size = (i) => Math.max(weightShares?.[i] ?? 0, effectShares?.[i] ?? 0);
  const largest = [...names.keys()].sort((i, j) => size(j) - size(i)).slice(0, PAIRS);
  const digitsOf = (values) => digitsFor(Math.max(...values.map(Math.abs)));
  const bars = make("div", { class: "bars" });
  for (const i of largest.sort((a, b) => a - b)) {
    const tracks = make("span", { class: "pairs" });
    const values = [];
    if (weights) {
      tracks.append(track(weightShares[i]));
      values.push(short(weights[i], digitsOf(weights)));
    }
    if (effects) {
      tracks.append(track(effectShares[i], effects[i] < 0 ? "less" : "effect"));
      values.push(short(effects[i], digitsOf(effects)));
    }
    const label = make("span", { class: "label", title: names[i] }, names[i]);
    bars.append(label, tracks, make("span", { class: "value" }, values.join(" · ")));
  }
  return bars;
}

/** What is painted above the columns of a map of a picture: the rows of its grid. */
function gridHeader([rows, columns]) {
  return {
    height: 26,
    paint: (context, xOf) => {
      const every = Math.max(1, Math.ceil(52 / (xOf(columns) - xOf(0))));
      context.font = FONT;
      context.textAlign = "left";
      context.textBaseline = "middle";
      for (let row = 0; row < rows; row += every) {
        const x = xOf(row * columns);
        context.fillStyle = colourOf("--line");
        context.fillRect(x, 4, 1, 22);
        context.fillStyle = colourOf("--muted");
        context.fillText(`row ${row + 1}`, x + 5, 13);
      }
    },
  };
}

const PICTURE_SIDE = 360; // pixels of the larger side of a picture
const WORD_SIDE = 240; // and of a small one, on screens with two pixels to one

/** The picture that the model read. It is lit where the active row attends. */
class Picture {
  constructor(view, mount) {
    this.view = view;
    this.image = new Image();
    this.ready = new Promise((resolve) => { this.image.onload = resolve; });
    this.image.src = view.source.url;
    this.canvas = this.addCanvas("The picture, lit where the selected token attends");
    this.effectCanvas = this.addCanvas("The picture, lit where the selected token depends on it");
    this.effectFigure = make("div", { class: "picture", hidden: true }, make("h3", {}, "Effect"), this.effectCanvas);
    const read = make("div", { class: "picture" }, make("h3", {}, "Read"), this.canvas);
    this.words = view.names.steps.map((name, i) => this.word(name, i));
    this.wordsTitle = make("h3");
    const words = make("div", { class: "words" }, ...this.words.map(({ button }) => button));
    this.node = make("div", { class: "beside" },
      make("div", { class: "pictures" }, read, this.effectFigure),
      make("div", {}, this.wordsTitle, words));
    mount.append(this.node);
    listeners.add(() => this.showWords());
  }

  addCanvas(label) {
    const { view } = this;
    const [height, width] = view.source.size;
    const scale = PICTURE_SIDE / Math.max(width, height);
    const canvas = make("canvas", {
      width: 2 * Math.round(width * scale),
      height: 2 * Math.round(height * scale),
      style: { width: `${Math.round(width * scale)}px` },
      "aria-label": label,
      role: "img",
    });
    canvas.addEventListener("click", (event) => {
      const place = this.placeAt(canvas, event);
      selectIn(view, shownPart(view).rows === "places" ? { token: place } : { place });
    });
    canvas.addEventListener("pointermove", (event) => {
      const place = this.placeAt(canvas, event);
      const values = canvas === this.canvas ? this.values : this.effects;
      showTip(event, make("b", {}, view.names.places[place]), ` ${number(values?.[place], 4)}`);
    });
    canvas.addEventListener("pointerleave", hideTip);
    return canvas;
  }

  /** A token of the answer with a small picture for its weights and one for its effects. */
  word(name, i) {
    const { view } = this;
    const [height, width] = view.source.size;
    const small = () => make("canvas", { width: WORD_SIDE, height: Math.round((WORD_SIDE * height) / width) });
    const [canvas, effectCanvas] = [small(), small()];
    const largest = make("em");
    const button = make("button", {
      type: "button",
      "aria-pressed": "false",
      onclick: () => selectStep(view, i),
    }, make("div", { class: "pair" }, canvas, effectCanvas), make("span", {}, name, largest));
    button.addEventListener("pointerenter", () => previewStep(view, i));
    button.addEventListener("pointerleave", () => previewStep(view, null));
    return { canvas, effectCanvas, button, largest };
  }

  /** Draw the picture once for each token; with effects, twice. */
  async showWords() {
    const { view } = this;
    const current = shownPart(view);
    const part = current?.rows === "steps" ? current : view.parts.find(({ rows }) => rows === "steps");
    const effectPart = part?.id === "cross" && state.effects ? partOf(view, "effect") : null;
    const map = part ? await loadMap(view, part, layerOf(part), state.head) : null;
    const effects = effectPart ? await loadMap(view, effectPart, effectPart.layers[0], 0) : null;
    await this.ready;
    if (!map) return;
    const largest = effects ? "largest weight and effect" : map.low < 0 ? "largest effect" : "largest weight";
    this.wordsTitle.textContent = `Every token of the answer, and its ${largest}`;
    this.words.forEach((word, i) => this.showWord(word, i, map, effects));
  }

  showWord({ canvas, effectCanvas, button, largest }, i, map, effects) {
    const { view } = this;
    const isSelected = shownPart(view).rows === "steps" && i === cellOf(view).token;
    const values = rowOf(map, i);
    const texts = [short(Math.max(...values))];
    light(canvas, this.image, view.source.grid, values);
    effectCanvas.hidden = !effects;
    if (effects) {
      const row = rowOf(effects, i);
      texts.push(short(Math.max(...row)));
      light(effectCanvas, this.image, view.source.grid, row);
    }
    button.setAttribute("aria-pressed", String(isSelected));
    largest.textContent = texts.join(" · ");
  }

  placeAt(canvas, event) {
    const [rows, columns] = this.view.source.grid;
    const box = canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return clamp(row, 0, rows - 1) * columns + clamp(column, 0, columns - 1);
  }

  /** Light the picture by the values of a row; `place` is outlined, if it is a row of the map. */
  async show(values, effects, place, isLit) {
    const { grid } = this.view.source;
    this.values = isLit ? values : [];
    this.effects = effects;
    this.effectFigure.hidden = !effects.length;
    this.node.classList.toggle("with-effects", effects.length > 0);
    await this.ready;
    light(this.canvas, this.image, grid, this.values, place);
    if (effects.length) light(this.effectCanvas, this.image, grid, effects);
  }
}

/** Draw a picture that is dark but where the values of its grid are large. */
function light(canvas, image, [rows, columns], values, place = null) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.imageSmoothingEnabled = image.width > width / 4;
  context.drawImage(image, 0, 0, width, height);
  if (!values.length) return;
  const most = Math.max(1e-12, ...values);
  const shade = new ImageData(columns, rows);
  values.forEach((value, i) => {
    const darkness = 1 - Math.max(0, value) / most;
    shade.data.set([8, 10, 16, Math.round(215 * darkness)], 4 * i);
  });
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(imageCanvas(shade), 0, 0, width, height);
  if (place === null) return;
  const [cellWidth, cellHeight] = [width / columns, height / rows];
  const [x, y] = [(place % columns) * cellWidth, Math.floor(place / columns) * cellHeight];
  context.strokeStyle = "#ffb000";
  context.lineWidth = Math.max(2, width / 160);
  context.strokeRect(x, y, cellWidth, cellHeight);
}

const WAVE = 44; // pixels of the wave form,
const MELS = 96; // the spectrogram
const AXIS = 24; // and the time axis
const TIME_STEPS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20]; // seconds between marks of the axis

/** The sound that the model read: played, and painted above the map as wave form and spectrogram. */
class Player {
  constructor(view, mount, redraw) {
    const { source } = view;
    this.source = source;
    this.redraw = redraw;
    this.time = null; // seconds, while it is played
    this.start = source.times[0][0];
    this.end = source.times.at(-1)[1];
    this.audio = source.url ? new Audio(source.url) : null;
    this.output = make("output", {}, `${source.duration.toFixed(2)} s`);
    this.button = make("button", {
      type: "button",
      class: "play",
      disabled: !this.audio,
      onclick: () => this.toggle(),
    }, "Play");
    const title = make("h3", { style: { margin: 0 } }, "Read");
    mount.append(make("div", { class: "player" }, title, this.button, this.output));
    this.loadSpectrogram();
    if (this.audio) this.listen();
  }

  async loadSpectrogram() {
    if (!this.source.spectrogram) return;
    this.levels = await loadArray(this.source.spectrogram.array);
    this.redraw();
  }

  listen() {
    this.audio.addEventListener("play", () => {
      this.button.textContent = "Pause";
      this.follow();
    });
    this.audio.addEventListener("pause", () => { this.button.textContent = "Play"; });
    this.audio.addEventListener("seeked", () => this.follow());
    this.audio.addEventListener("ended", () => {
      this.time = null;
      this.redraw();
    });
  }

  toggle() {
    if (!this.audio.paused) {
      this.audio.pause();
      return;
    }
    this.audio.play().catch(() => { this.output.textContent = "this browser cannot play it"; });
  }

  /** Move the cursor along while the sound is played. */
  follow() {
    this.time = this.audio.currentTime;
    this.output.textContent = `${this.time.toFixed(2)} of ${this.source.duration.toFixed(2)} s`;
    this.redraw();
    if (!this.audio.paused) requestAnimationFrame(() => this.follow());
  }

  /** A function from seconds to pixels, by that from columns to pixels. */
  timeScale(xOf) {
    const places = this.source.times.length;
    return (seconds) => xOf(((seconds - this.start) / (this.end - this.start)) * places);
  }

  /** Wave form, spectrogram, the weights and effects of a row, and the time axis. */
  header(rowValues, effectValues) {
    return {
      height: WAVE + MELS + AXIS,
      paint: (context, xOf) => {
        const x = this.timeScale(xOf);
        this.paintWave(context, x);
        this.paintSpectrogram(context, x);
        paintRow(context, xOf, rowValues(), "--accent");
        paintRow(context, xOf, effectValues(), "--effect");
        this.paintAxis(context, x, WAVE + MELS);
        this.paintCursor(context, x);
      },
    };
  }

  /** The time axis alone. */
  axisHeader() {
    return {
      height: AXIS,
      paint: (context, xOf) => this.paintAxis(context, this.timeScale(xOf), 0),
    };
  }

  paintWave(context, x) {
    const { peaks, duration } = this.source;
    const seconds = duration / peaks.length;
    context.fillStyle = colourOf("--muted");
    peaks.forEach((peak, i) => {
      const time = i * seconds;
      if (time + seconds < this.start || time > this.end) return;
      const height = Math.max(1, (peak / 255) * (WAVE - 6));
      const width = Math.max(1, x(time + seconds) - x(time) - 0.3);
      context.fillRect(x(time), (WAVE - height) / 2, width, height);
    });
  }

  paintSpectrogram(context, x) {
    if (!this.levels) return;
    const { rows, columns, start, end } = this.source.spectrogram;
    if (this.imageIsDark !== isDark()) {
      this.image = levelImage(this.levels, rows, columns, "sound");
      this.imageIsDark = isDark();
    }
    context.imageSmoothingEnabled = true;
    context.drawImage(this.image, x(start), WAVE, x(end) - x(start), MELS);
  }

  paintAxis(context, x, top) {
    const isWide = (step) => x(this.start + step) - x(this.start) >= 56;
    const step = TIME_STEPS.find(isWide) ?? TIME_STEPS.at(-1);
    const first = Math.ceil(this.start / step - 1e-9);
    context.fillStyle = colourOf("--muted");
    context.font = FONT;
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (let i = first; i * step <= this.end + 1e-9; i++) {
      const time = i * step;
      const label = `${time.toFixed(step < 0.1 ? 2 : 1)} s`;
      context.fillRect(x(time), top, 1, 5);
      context.fillText(label, Math.min(x(time) + 3, x(this.end) - 34), top + 13);
    }
  }

  paintCursor(context, x) {
    if (this.time === null) return;
    context.fillStyle = colourOf("--ink");
    context.fillRect(x(clamp(this.time, this.start, this.end)) - 1, 0, 2, WAVE + MELS + AXIS);
  }
}

/** The values of a row as a line over the spectrogram; its largest value reaches the top. */
function paintRow(context, xOf, values, colour) {
  if (!values.length) return;
  const bottom = WAVE + MELS;
  const most = Math.max(1e-12, ...values.map(Math.abs));
  context.beginPath();
  context.moveTo(xOf(0), bottom);
  values.forEach((value, column) => {
    const y = bottom - 2 - (Math.max(0, value) / most) * (MELS - 6);
    context.lineTo(xOf(column), y);
    context.lineTo(xOf(column + 1), y);
  });
  context.lineTo(xOf(values.length), bottom);
  context.fillStyle = colourOf(colour);
  context.globalAlpha = 0.2;
  context.fill();
  context.globalAlpha = 1;
  context.strokeStyle = colourOf(colour);
  context.lineWidth = 1.5;
  context.stroke();
  context.lineWidth = 1;
}

// 6  Two answers, and their difference ----------------------------------------------------------

const LEFT_OUT = 12; // names that are listed at most
const pairings = new Map(); // parts -> pairing

/** Which rows and columns of two views belong together: pairs of indices [first, second].
    Maps of one size are paired position by position, others by the names of their tokens.
    null if the two views show different kinds of maps. */
function pairing() {
  const [first, second] = page.views;
  const [a, b] = [shownPart(first), shownPart(second)];
  if (!a || a.id !== b?.id) return null;
  if (!pairings.has(a.id)) {
    const names = (view, part) => [view.names[part.rows], view.names[part.columns]];
    pairings.set(a.id, pairNames(names(first, a), names(second, b)));
  }
  return pairings.get(a.id);
}

function pairNames(first, second) {
  const isSameSize = first.every((names, axis) => names.length === second[axis].length);
  const axes = first.map((names, axis) => {
    if (isSameSize) return names.map((_, i) => [i, i]);
    return commonPairs(names, second[axis]);
  });
  return { isSameSize, axes, names: [first, second] };
}

/** The longest common subsequence of two lists of names, as pairs of indices. */
function commonPairs(a, b) {
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width); // of a[i:] and b[j:]
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const here = i * width + j;
      const skipping = Math.max(lengths[here + width], lengths[here + 1]);
      lengths[here] = a[i] === b[j] ? 1 + lengths[here + width + 1] : skipping;
    }
  }
  const pairs = [];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) pairs.push([i++, j++]);
    else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++;
    else j++;
  }
  return pairs;
}

/** The index in the other view that belongs to one of view n; axis 0 are rows, 1 columns. */
function partnerOf(n, axis, index) {
  if (page.views.length < 2) return null;
  const pairs = pairing()?.axes[axis] ?? [];
  return pairs.find((pair) => pair[n] === index)?.[1 - n] ?? null;
}

/** What the pairs leave out, in words; "" if that is nothing. */
function leftOut({ axes, names }, n) {
  const missing = axes.flatMap((pairs, axis) => {
    const paired = new Set(pairs.map((pair) => pair[n]));
    return names[n][axis].filter((_, i) => !paired.has(i));
  });
  const unique = [...new Set(missing)].map(quoted);
  if (!unique.length) return "";
  const more = unique.length > LEFT_OUT ? ` and ${unique.length - LEFT_OUT} more` : "";
  return `${unique.slice(0, LEFT_OUT).join(", ")}${more}`;
}

/** The difference of two maps over the rows and columns that they share. */
function differenceMap(a, b, { axes: [rows, columns] }) {
  const value = (row, column) => {
    const [i, j] = [rows[row], columns[column]];
    return b.value(i[1], j[1]) - a.value(i[0], j[0]);
  };
  const range = Math.max(a.high - a.low, b.high - b.low);
  const levels = new Float32Array(rows.length * columns.length);
  for (let row = 0; row < rows.length; row++) {
    for (let column = 0; column < columns.length; column++) {
      levels[row * columns.length + column] = 127.5 + (value(row, column) / range) * 127.5;
    }
  }
  return {
    rows: rows.length,
    columns: columns.length,
    rowNames: rows.map(([i, j]) => jointName(a.rowNames[i], b.rowNames[j])),
    columnNames: columns.map(([i, j]) => jointName(a.columnNames[i], b.columnNames[j])),
    levels,
    value,
    low: -range,
    high: range,
    zero: 127.5,
    ramp: "effect",
    square: a.square,
  };
}

const jointName = (first, second) => (first === second ? first : `${first} | ${second}`);

/** The map of the second view minus that of the first. */
class Difference {
  constructor(mount) {
    this.note = make("p", { class: "muted" });
    this.legend = make("div", { class: "legend" });
    this.heat = new HeatMap({
      label: "Difference of the two maps. Arrow keys move the selected cell, + and - zoom.",
      onSelect: (row, column) => this.selectCell(row, column),
      onHover: (cell, event) => this.hover(cell, event),
    });
    const title = make("h3", {}, "Difference: second minus first");
    mount.append(make("div", { class: "difference" }, title, this.note, this.heat.node, this.legend));
    listeners.add(() => this.update());
    redraws.add(() => this.update());
  }

  async update() {
    const maps = await Promise.all(page.views.map((view) => {
      const part = shownPart(view);
      return part ? loadMap(view, part, layerOf(part), state.head) : null;
    }));
    this.pairing = pairing();
    const isThere = maps.every(Boolean) && this.pairing?.axes.every((pairs) => pairs.length);
    this.note.textContent = this.noteText(isThere);
    this.heat.node.hidden = !isThere;
    this.legend.hidden = !isThere;
    if (!isThere) return;
    this.map = differenceMap(...maps, this.pairing);
    this.heat.show(this.map, { scale: state.scale });
    this.legend.replaceChildren(...legendOf(this.heat));
    const { token, place } = cellOf(page.views[0]);
    const [row, column] = [token, place].map((index, axis) =>
      this.pairing.axes[axis].findIndex(([i]) => i === index));
    this.heat.selected = null;
    if (row >= 0 && column >= 0) this.heat.select(row, column);
    else this.heat.draw();
  }

  noteText(isThere) {
    if (!this.pairing) return "There is none: one of the two has no such map.";
    if (!isThere) return "There is none: the two maps have no tokens in common.";
    const colours = "Orange: more in the second. Blue: less.";
    if (this.pairing.isSameSize) return colours;
    const missing = [leftOut(this.pairing, 0), leftOut(this.pairing, 1)];
    const sentences = ["first", "second"].flatMap((name, n) => (missing[n] ? [`of the ${name} ${missing[n]}`] : []));
    const rest = sentences.length ? ` Left out: ${sentences.join("; ")}.` : "";
    return `${colours} The maps differ in size, so tokens are aligned by their names.${rest}`;
  }

  /** Select the cell in both views. */
  selectCell(row, column) {
    const { axes: [rows, columns] } = this.pairing;
    const [[token, token2], [place, place2]] = [rows[row], columns[column]];
    set({ token, token2, place, place2 });
  }

  hover(cell, event) {
    if (!cell) {
      hideTip();
      return;
    }
    showTip(event,
      make("b", {}, this.map.rowNames[cell.row]),
      " → ",
      make("b", {}, this.map.columnNames[cell.column]),
      make("br"),
      `difference ${number(this.map.value(cell.row, cell.column), 4)}`);
  }
}

// 7  Tables of heads and steps, the beam --------------------------------------------------------

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

/** A table in a region that scrolls, with the name of its view if there are two. */
function tableRegion(view, label, table) {
  sortable(table);
  const name = page.views.length > 1 ? make("h3", {}, view.name) : null;
  const region = make("div", { class: "scroll heads", tabindex: 0, role: "region", "aria-label": label }, table);
  return make("div", { class: "of-view" }, name, region);
}

const columnHead = (text, attributes = {}) => make("th", { scope: "col", ...attributes }, text);
const numberHead = (text, title) => columnHead(text, { class: "number", title });
const numberCell = (value, ...children) =>
  make("td", { class: "number", "data-value": value ?? "" }, ...children);

/** The heads of a view, each with its numbers; a click shows the head. */
function headTable(view) {
  const parts = view.parts.filter(({ id }) => id !== "effect");
  const entries = parts.flatMap((part) => part.layers.flatMap(({ layer, heads }) =>
    heads.map((head, n) => ({ ...head, part, layer, n }))));
  const columns = HEAD_COLUMNS.filter(([key]) => entries.some(({ numbers }) => !isMissing(numbers[key])));
  const largest = columns.map(([key]) => Math.max(1e-9, ...entries.map(({ numbers }) => Math.abs(numbers[key] ?? 0))));
  const head = make("tr", {},
    columnHead("map", { "data-fixed": "" }),
    parts.length > 1 ? columnHead("part") : null,
    numberHead("layer"),
    numberHead("head"),
    ...columns.map(([, name, title]) => numberHead(name, title)));
  const rows = entries.map((entry) => headRow(entry, parts.length > 1, columns, largest));
  listeners.add(() => rows.forEach((row) => {
    row.classList.toggle("chosen", row.dataset.key === `${state.part} ${state.layer} ${state.head}`);
  }));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

function headRow({ part, layer, n, array, thumb, numbers }, hasParts, columns, largest) {
  const choose = () => { if (array) set({ part: part.id, layer, head: n }); };
  const button = make("button", {
    type: "button",
    disabled: !array,
    title: array ? "show this head" : "not in this page",
  }, String(n));
  const cells = columns.map(([key], i) => {
    const value = numbers[key];
    if (isMissing(value)) return numberCell(null, "–");
    const width = `${(100 * Math.abs(value)) / largest[i]}%`;
    const bar = make("span", { class: "mini", "aria-hidden": "true" }, make("i", { style: { width } }));
    return numberCell(value, short(value), bar);
  });
  return make("tr", { "data-key": `${part.id} ${layer} ${n}`, onclick: choose },
    make("td", {}, thumbnail(thumb)),
    hasParts ? make("td", {}, part.title) : null,
    numberCell(layer, String(layer)),
    numberCell(n, button),
    ...cells);
}

/** A small map, with a pixel for each of its cells. */
function thumbnail({ rows, columns, cells }) {
  const bytes = bytesOf(cells);
  const most = Math.max(1, ...bytes);
  const levels = bytes.map((cell) => Math.round((255 * cell) / most));
  const height = `${clamp((44 * rows) / columns, 14, 44)}px`;
  const style = { width: "44px", height, imageRendering: "pixelated" };
  const canvas = make("canvas", { width: columns, height: rows, style });
  const paint = () => {
    canvas.getContext("2d").drawImage(levelImage(levels, rows, columns, "weight"), 0, 0);
  };
  paint();
  redraws.add(paint);
  return canvas;
}

/** The steps of a view, each with its likeliest tokens. */
function stepTable(view) {
  const most = Math.max(...view.steps.map(({ alternatives }) => alternatives?.length ?? 0));
  const ranks = Array.from({ length: most }, (_, i) => columnHead(i ? `${i + 1}.` : "likeliest"));
  const head = make("tr", {}, numberHead("step"), columnHead("wrote"), numberHead("probability"), ...ranks);
  const rows = view.steps.map(({ name, logprob, alternatives }, i) => make("tr", {},
    numberCell(i, String(i)),
    make("td", {}, make("code", {}, name)),
    numberCell(logprob, percent(Math.exp(logprob))),
    ...(alternatives ?? []).map(alternativeCell)));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

const alternativeCell = ([name, probability]) => make("td", {},
  make("code", {}, name),
  make("span", { class: "muted" }, ` ${percent(probability)}`));

const TREE = { left: 16, top: 30, down: 34 }; // pixels

/** The hypotheses that a beam search kept: a column for each step, a row for each beam. */
function beamTree(view) {
  const { nodes } = view.beam;
  const steps = 1 + Math.max(...nodes.map(({ step }) => step));
  const beams = 1 + Math.max(...nodes.map(({ beam }) => beam));
  const across = clamp(Math.max(...nodes.map(({ name }) => widthOf(name))) + 58, 84, 190);
  const svg = make("svg", {
    width: TREE.left + steps * across + 60,
    height: TREE.top + beams * TREE.down + 14,
    role: "img",
    "aria-label": `Beam search with ${beams} beams over ${steps} steps; the best answer is ${view.answer.text}`,
  });
  svg.append(make("text", { x: TREE.left, y: TREE.top + 16 }, "•"));
  const sorted = [...nodes].sort((a, b) => Number(a.best) - Number(b.best)); // the best on top
  svg.append(...sorted.map((node) => beamLine(node, nodes, across)));
  svg.append(...sorted.map((node) => beamText(node, across)));
  const name = page.views.length > 1 ? make("h3", {}, view.name) : null;
  return make("div", { class: "tree", tabindex: 0, role: "region", "aria-label": "Beam" }, name, svg);
}

const beamX = ({ step }, across) => TREE.left + step * across + 44;
const beamY = ({ beam }) => TREE.top + beam * TREE.down + 12;

function beamLine(node, nodes, across) {
  const parent = nodes[node.parent];
  let [x, y] = [TREE.left + 8, TREE.top + 12];
  if (parent) {
    x = beamX(parent, across) + Math.min(widthOf(parent.name), across - 52) + 4;
    y = beamY(parent);
  }
  const [endX, endY] = [beamX(node, across) - 5, beamY(node)];
  const d = `M${x} ${y}C${x + 18} ${y} ${endX - 18} ${endY} ${endX} ${endY}`;
  return make("path", { class: node.best ? "best" : "", d });
}

function beamText(node, across) {
  const [x, y] = [beamX(node, across), beamY(node)];
  const probability = percent(Math.exp(node.logprob));
  const title = `${node.name}: probability ${probability}, log p of the hypothesis ${number(node.score, 3)}`;
  return make("g", { class: node.best ? "best" : "" },
    make("title", {}, title),
    make("text", { x, y: y + 4 }, shortened(node.name, across - 52)),
    make("text", { class: "p", x, y: y + 16 }, short(node.score)));
}

const widgets = {
  attention(mount) {
    const hasTwo = page.views.length > 1;
    const grid = make("div", { class: hasTwo ? "views two" : "views" });
    setUpControls(mount);
    mount.append(grid);
    views = page.views.map((view) => new View(view, grid, !hasTwo));
    if (hasTwo) new Difference(grid);
  },

  heads(mount) {
    const shown = page.views.filter(({ parts }) => parts.some(({ id }) => id !== "effect"));
    mount.append(...shown.map((view) => tableRegion(view, "Heads", headTable(view))));
  },

  steps(mount) {
    mount.append(...page.views.map((view) => tableRegion(view, "Alternatives", stepTable(view))));
  },

  beam(mount) {
    const shown = page.views.filter(({ beam }) => beam);
    mount.append(...shown.map(beamTree));
  },
};

// 8  Saving what is seen, and the start ---------------------------------------------------------

const NOT_SAVED = ".controls, .notice, .legend button, .player button, [hidden]";
const LARGEST_PNG = 16000; // pixels of a side; browsers draw no larger canvas
const DRAWING_STYLES = [
  "node", "moves", "fillStyle", "strokeStyle", "lineWidth", "font", "textAlign", "textBaseline",
  "globalAlpha", "imageSmoothingEnabled",
];
let clips = 0;

const rounded = (value) => Math.round(value * 100) / 100;

/** The methods of a canvas that this script paints with, as elements of SVG. */
class SvgContext {
  constructor(node) {
    this.isVector = true;
    this.node = node; // that gets the elements
    this.moves = ""; // translations and rotations
    this.stack = [];
    this.path = "";
    this.lineWidth = 1;
    this.globalAlpha = 1;
    this.textAlign = "left";
  }

  save() {
    this.stack.push(Object.fromEntries(DRAWING_STYLES.map((name) => [name, this[name]])));
  }

  restore() { Object.assign(this, this.stack.pop()); }
  translate(x, y) { this.moves += `translate(${rounded(x)} ${rounded(y)}) `; }
  rotate(angle) { this.moves += `rotate(${rounded((angle * 180) / Math.PI)}) `; }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${rounded(x)} ${rounded(y)}`; }
  lineTo(x, y) { this.path += `L${rounded(x)} ${rounded(y)}`; }

  rect(x, y, width, height) {
    this.moveTo(x, y);
    this.path += `h${rounded(width)}v${rounded(height)}h${rounded(-width)}z`;
  }

  clip() {
    const id = `clip-${clips++}`;
    const group = make("g", { "clip-path": `url(#${id})` });
    this.node.append(make("clipPath", { id }, make("path", { d: this.path })), group);
    this.node = group;
  }

  add(tag, attributes, ...children) {
    const opacity = this.globalAlpha < 1 ? this.globalAlpha : null;
    const transform = this.moves.trim() || null;
    const node = make(tag, { ...attributes, opacity, transform }, ...children);
    this.node.append(node);
    return node;
  }

  fill() { this.add("path", { d: this.path, fill: this.fillStyle }); }

  stroke() {
    const width = this.lineWidth;
    this.add("path", { d: this.path, fill: "none", stroke: this.strokeStyle, "stroke-width": width });
  }

  fillRect(x, y, width, height, title) {
    const box = boxAttributes(x, y, width, height);
    this.add("rect", { ...box, fill: this.fillStyle }, title ? make("title", {}, title) : null);
  }

  strokeRect(x, y, width, height) {
    const box = boxAttributes(x, y, width, height);
    this.add("rect", { ...box, fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth });
  }

  fillText(text, x, y) {
    const [, weight, size, family] = /^(bold )?([\d.]+)px (.*)$/.exec(this.font);
    const middle = this.textBaseline === "middle" ? 0.35 * Number(size) : 0;
    this.add("text", {
      x: rounded(x),
      y: rounded(y + middle),
      fill: this.fillStyle,
      "font-family": family,
      "font-size": size,
      "font-weight": weight ? "bold" : null,
      "text-anchor": { left: "start", center: "middle", right: "end" }[this.textAlign],
    }, text);
  }

  drawImage(canvas, x, y, width, height) {
    const image = this.add("image", {
      ...boxAttributes(x, y, width, height),
      href: canvas.toDataURL(),
      preserveAspectRatio: "none",
    });
    if (this.imageSmoothingEnabled === false) image.style.imageRendering = "pixelated";
  }
}

function boxAttributes(x, y, width, height) {
  return { x: rounded(x), y: rounded(y), width: rounded(width), height: rounded(height) };
}

/** Draw an element and what is in it, where it is on the screen moved by (dx, dy). */
function drawNode(context, node, dx, dy) {
  const box = node.getBoundingClientRect();
  if (node.matches(NOT_SAVED) || !box.width || !box.height) return;
  const style = getComputedStyle(node);
  const [x, y] = [box.left + dx, box.top + dy];
  context.save();
  context.globalAlpha = Number(style.opacity);
  drawBox(context, style, x, y, box.width, box.height);
  if (node.tagName === "CANVAS") {
    drawCanvas(context, node, x, y, box);
  } else {
    if (style.overflowX !== "visible" || style.overflowY !== "visible") {
      context.beginPath();
      context.rect(x, y, box.width, box.height);
      context.clip();
    }
    node.childNodes.forEach((child) => {
      if (child.nodeType === Node.TEXT_NODE) drawText(context, child, style, dx, dy);
      else if (child.nodeType === Node.ELEMENT_NODE) drawNode(context, child, dx, dy);
    });
  }
  context.restore();
}

/** The background and the border of an element. */
function drawBox(context, style, x, y, width, height) {
  const isClear = style.backgroundColor === "rgba(0, 0, 0, 0)";
  const border = parseFloat(style.borderTopWidth);
  const hasBorder = border > 0 && style.borderTopStyle !== "none" && style.borderTopColor !== "rgba(0, 0, 0, 0)";
  if (isClear && !hasBorder) return;
  context.add("rect", {
    ...boxAttributes(x + border / 2, y + border / 2, width - border, height - border),
    rx: parseFloat(style.borderTopLeftRadius) || null,
    fill: isClear ? "none" : style.backgroundColor,
    stroke: hasBorder ? style.borderTopColor : null,
    "stroke-width": hasBorder ? border : null,
  });
}

/** A canvas: painted again as SVG if that is known, else as an image. */
function drawCanvas(context, canvas, x, y, box) {
  const paint = painters.get(canvas);
  if (!paint) {
    context.imageSmoothingEnabled = getComputedStyle(canvas).imageRendering !== "pixelated";
    context.drawImage(canvas, x, y, box.width, box.height);
    return;
  }
  const group = make("g", { transform: `translate(${rounded(x)} ${rounded(y)})` });
  context.node.append(group);
  paint(new SvgContext(group));
}

/** The lines of a text, each where the browser has put it. */
function drawText(context, text, style, dx, dy) {
  const size = parseFloat(style.fontSize);
  for (const line of textLines(text)) {
    const baseline = (line.top + line.bottom) / 2 + 0.35 * size;
    const node = context.add("text", {
      x: rounded(line.left + dx),
      y: rounded(baseline + dy),
      fill: style.color,
      "font-family": style.fontFamily,
      "font-size": style.fontSize,
      "font-weight": style.fontWeight,
      "font-style": style.fontStyle,
      "letter-spacing": style.letterSpacing,
    }, line.text);
    node.style.whiteSpace = "pre";
  }
}

function textLines(text) {
  const range = document.createRange();
  const lines = [];
  let start = 0;
  for (const character of text.data) {
    range.setStart(text, start);
    start += character.length;
    range.setEnd(text, start);
    const [box] = range.getClientRects();
    if (!box || !box.width) continue; // a space that is not shown
    const line = lines.at(-1);
    if (line && Math.abs(line.top - box.top) < 2) {
      line.text += character;
      line.left = Math.min(line.left, box.left);
    } else {
      lines.push({ text: character, left: box.left, top: box.top, bottom: box.bottom });
    }
  }
  return lines;
}

const SAVE_MARGIN = 16; // pixels around what is saved

/** The title and the views as they are seen, as an SVG: text stays text, small maps rectangles. */
function viewSvg() {
  const roots = [document.querySelector("h1"), document.querySelector(".views")];
  const boxes = roots.map((root) => root.getBoundingClientRect());
  const width = Math.ceil(Math.max(...boxes.map((box) => box.width)) + 2 * SAVE_MARGIN);
  const heights = boxes.map((box) => box.height + SAVE_MARGIN);
  const height = Math.ceil(heights.reduce((sum, part) => sum + part, SAVE_MARGIN));
  const svg = make("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  svg.append(make("title", {}, "made by regard"));
  svg.append(make("rect", { width, height, fill: colourOf("--surface") }));
  const context = new SvgContext(svg);
  let top = SAVE_MARGIN;
  roots.forEach((root, i) => {
    drawNode(context, root, SAVE_MARGIN - boxes[i].left, top - boxes[i].top);
    top += heights[i];
  });
  return { text: new XMLSerializer().serializeToString(svg), width, height };
}

/** An SVG as PNG, with two pixels to one if it is not too large. */
async function pngOf({ text, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const scale = Math.min(2, LARGEST_PNG / Math.max(width, height));
  const size = { width: Math.floor(scale * width), height: Math.floor(scale * height) };
  const canvas = make("canvas", size);
  canvas.getContext("2d").drawImage(image, 0, 0, size.width, size.height);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

function download(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function save(kind) {
  const { part, layer, head } = state;
  const svg = viewSvg();
  const blob = kind === "png" ? await pngOf(svg) : new Blob([svg.text], { type: "image/svg+xml" });
  download(blob, `attention-${part}-layer-${layer}-head-${head}.${kind}`);
}

function saveButton(kind) {
  const name = kind.toUpperCase();
  const title = `Save this view as ${name}`;
  const word = make("span", { class: "word" }, "Save ");
  return make("button", { id: `save-${kind}`, title, onclick: () => save(kind) }, word, name);
}

function linkButton() {
  const label = [make("span", { class: "word" }, "Copy "), "link"];
  const button = make("button", { id: "link", title: "Copy the address of this view" }, ...label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      button.textContent = "Copied";
    } catch { // not allowed: the address bar has it
      button.textContent = "See address bar";
    }
    setTimeout(() => button.replaceChildren(...label), 1600);
  });
  return button;
}

/** Keys that work anywhere on the page: [ ] the head, { } the layer, E the effects. */
function globalKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
  const part = leadPart();
  if (!part) return;
  const layers = part.layers.map((entry) => entry.layer);
  const heads = layerOf(part).heads.length;
  const headAfter = (step) => {
    const head = state.head === "mean" ? (step > 0 ? -1 : 0) : state.head;
    return (head + step + heads) % heads;
  };
  const layerAfter = (step) => layers[(layers.indexOf(state.layer) + step + layers.length) % layers.length];
  if (event.key === "]") set({ head: headAfter(1) });
  else if (event.key === "[") set({ head: headAfter(-1) });
  else if (event.key === "}") set({ layer: layerAfter(1) });
  else if (event.key === "{") set({ layer: layerAfter(-1) });
  else if (event.key.toLowerCase() === "e") byId("effects")?.click();
}

function start() {
  const tools = byId("tools");
  const hasViews = page.views?.length > 0;
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.body.append(tip);
  if (hasViews) tools.append(linkButton(), saveButton("svg"), saveButton("png"));
  setUpTheme(tools);
  setUpRefresh();
  document.querySelectorAll("[data-widget]").forEach((mount) => widgets[mount.dataset.widget]?.(mount));
  if (!hasViews) return;
  const parts = partChoices().map(({ id }) => id);
  if (!parts.includes(state.part)) [state.part] = parts;
  set(readLink(), { announce: false });
  addEventListener("hashchange", () => set(readLink()));
  document.addEventListener("keydown", globalKey);
  document.documentElement.dataset.ready = "yes";
}

start();
})();
