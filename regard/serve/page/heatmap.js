/* A heat map of an answer: a row for each word written, a column for each place read. */

import { css, paintCanvas, ramp, redrawWith } from "./colours.js";
import { clamp, make, percent, quoted, short, visible } from "./dom.js";

const FONT = "12px ui-monospace, 'DejaVu Sans Mono', monospace";
const measure = document.createElement("canvas").getContext("2d");

function widthOf(text) {
  measure.font = FONT;
  return measure.measureText(text).width;
}

function fitted(text, width) {
  if (widthOf(text) <= width) return text;
  let length = text.length;
  while (length > 1 && widthOf(`${text.slice(0, length)}…`) > width) length--;
  return `${text.slice(0, length)}…`;
}

/** `onChoose(step)` for a row that is clicked. Sound has no names of columns: there are too many. */
export function heatMap({ rows, columns, values, rampName = "weight", label, onChoose }) {
  const canvas = make("canvas", {});
  const say = make("p", { class: "map-says", "aria-hidden": "true" });
  const node = make("div", { class: "heat", role: "img", "aria-label": label }, canvas);
  const largest = Math.max(1e-9, ...values.flat().map(Math.abs));
  const signed = rampName === "effect";
  const rowNames = rows.map(visible);
  const left = Math.min(110, Math.max(...rowNames.map(widthOf))) + 10;
  const nameWidth = Math.min(90, Math.max(...columns.map(widthOf)));
  let cell = { width: 20, height: 20, top: 20 };

  function draw() {
    const room = node.parentElement?.clientWidth || node.clientWidth || 600;
    const hasNames = (room - left) / columns.length >= 13;
    const top = hasNames ? nameWidth + 12 : 6;
    const width = clamp((room - left - 4) / columns.length, 3, 40);
    const height = rows.length > 40 ? 14 : 22;
    cell = { width, height, top };
    paintCanvas(canvas, left + width * columns.length + 4, top + height * rows.length + 4, (context) => {
      paint(context, hasNames);
    });
  }

  function paint(context, hasNames) {
    const colours = ramp(rampName);
    const ink = getComputedStyle(node).color;
    context.font = FONT;
    context.fillStyle = ink;
    context.textBaseline = "middle";
    if (hasNames) {
      columns.forEach((name, i) => {
        context.save();
        context.translate(left + (i + 0.5) * cell.width, cell.top - 6);
        context.rotate(-Math.PI / 2);
        context.fillText(fitted(name, 90), 0, 0);
        context.restore();
      });
    }
    rowNames.forEach((name, row) => {
      const y = cell.top + row * cell.height;
      context.fillStyle = ink;
      context.textAlign = "right";
      context.fillText(fitted(name, 110), left - 8, y + cell.height / 2);
      context.textAlign = "left";
      values[row].forEach((value, column) => {
        const share = value / largest;
        const level = Math.round(signed ? 127.5 + 127.5 * share : 255 * share);
        context.fillStyle = css(colours, clamp(level, 0, 255));
        context.fillRect(left + column * cell.width, y, Math.max(1, cell.width - (cell.width > 8 ? 1 : 0)), cell.height - 1);
      });
    });
  }

  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - cell.top) / cell.height);
    const column = Math.floor((event.clientX - box.left - left) / cell.width);
    return row in rows && column in columns ? { row, column } : null;
  }

  canvas.addEventListener("pointermove", (event) => {
    const at = cellAt(event);
    if (!at) {
      say.textContent = "";
      return;
    }
    const value = values[at.row][at.column];
    const amount = signed ? `${short(value)} nats` : percent(value);
    say.textContent = `${quoted(visible(rows[at.row]))} → ${quoted(columns[at.column])}: ${amount}`;
  });
  canvas.addEventListener("pointerleave", () => { say.textContent = ""; });
  canvas.addEventListener("click", (event) => {
    const at = cellAt(event);
    if (at) onChoose(at.row);
  });
  new ResizeObserver(draw).observe(node);
  redrawWith(node, draw);
  return make("div", { class: "map" }, node, say);
}
