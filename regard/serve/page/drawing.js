/* A picture drawn in the page: a brush and shapes, in the colours of the program's own pictures. */

import { make, segments } from "./dom.js";

const SIDE = 288;
const COLOURS = {
  red: "rgb(215, 40, 40)", green: "rgb(40, 165, 60)", blue: "rgb(45, 75, 215)", yellow: "rgb(225, 200, 30)",
  purple: "rgb(150, 50, 175)", black: "rgb(25, 25, 25)", white: "rgb(255, 255, 255)",
};

export class Drawing {
  /** isLight: white paper; otherwise black, with a white brush, as handwritten digits have it. */
  constructor({ isLight, changed }) {
    this.isLight = isLight;
    this.changed = changed;
    this.canvas = make("canvas", { width: SIDE, height: SIDE, class: "drawing", role: "img", "aria-label": "Paper to draw on with a pointer" });
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    this.colour = isLight ? "red" : "white";
    this.tool = isLight ? "circle" : "brush";
    this.size = isLight ? 45 : 26;
    this.past = [];
    this.clear();
    this.listen();
    this.controls = this.makeControls();
  }

  clear() {
    this.context.fillStyle = this.isLight ? "#ffffff" : "#000000";
    this.context.fillRect(0, 0, SIDE, SIDE);
    this.isEmpty = true;
    this.past = [];
  }

  remember() {
    this.past.push(this.context.getImageData(0, 0, SIDE, SIDE));
    this.past = this.past.slice(-20);
  }

  undo() {
    const image = this.past.pop();
    if (!image) return;
    this.context.putImageData(image, 0, 0);
    this.isEmpty = this.past.length === 0;
    this.changed();
  }

  listen() {
    let last = null;
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return { x: ((event.clientX - box.left) * SIDE) / box.width, y: ((event.clientY - box.top) * SIDE) / box.height };
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.canvas.setPointerCapture(event.pointerId);
      this.remember();
      this.isEmpty = false;
      last = at(event);
      if (this.tool === "brush") this.line(last, last);
      else this.stamp(last);
      this.changed();
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!last || this.tool !== "brush") return;
      const next = at(event);
      this.line(last, next);
      last = next;
    });
    const end = () => {
      if (last) this.changed();
      last = null;
    };
    this.canvas.addEventListener("pointerup", end);
    this.canvas.addEventListener("pointercancel", end);
  }

  line(from, to) {
    const { context } = this;
    context.strokeStyle = COLOURS[this.colour];
    context.lineWidth = this.size;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.lineTo(to.x + 0.01, to.y);
    context.stroke();
  }

  stamp({ x, y }) {
    const { context, size: r } = this;
    context.fillStyle = COLOURS[this.colour];
    context.beginPath();
    if (this.tool === "circle") context.arc(x, y, r, 0, 2 * Math.PI);
    if (this.tool === "square") context.rect(x - r, y - r, 2 * r, 2 * r);
    if (this.tool === "triangle") {
      context.moveTo(x, y - r);
      context.lineTo(x + r, y + r);
      context.lineTo(x - r, y + r);
    }
    if (this.tool === "cross") {
      context.rect(x - r, y - r / 3, 2 * r, (2 * r) / 3);
      context.rect(x - r / 3, y - r, (2 * r) / 3, 2 * r);
    }
    context.fill();
  }

  makeControls() {
    const tools = segments("What to draw with", [["brush", "Brush"], ["circle", "●"], ["square", "■"], ["triangle", "▲"], ["cross", "✚"]], this.tool, (tool) => { this.tool = tool; });
    for (const node of tools.children) node.setAttribute("aria-label", node.dataset.value);
    const swatches = make("div", { class: "swatches", role: "radiogroup", "aria-label": "Colour" });
    for (const [name, colour] of Object.entries(COLOURS)) {
      swatches.append(make("button", {
        type: "button", role: "radio", class: "swatch", "aria-label": name, title: name, "aria-checked": String(name === this.colour),
        style: { "--swatch": colour },
        onclick: (event) => {
          this.colour = name;
          for (const node of swatches.children) node.setAttribute("aria-checked", String(node === event.currentTarget));
        },
      }));
    }
    const size = make("input", { type: "range", min: 8, max: 80, "aria-label": "Size" });
    size.value = this.size;
    size.addEventListener("input", () => { this.size = Number(size.value); });
    return make("div", { class: "drawing-controls" }, tools, swatches, size);
  }
}
