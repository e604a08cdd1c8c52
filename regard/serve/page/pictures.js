/* A picture to be read: dropped, pasted, chosen or drawn; and the maps over it. */

import { colourOf, redrawWith } from "./colours.js";
import { Drawing } from "./drawing.js";
import { button, make, segments, toast } from "./dom.js";
import { acceptDrops, cropped, keptPicture, loadImage } from "./media.js";

const LARGEST_FILE = 25e6; // bytes

export class PictureInput {
  constructor(model, { go, changed }) {
    this.size = model.regard.size ?? [1, 1];
    this.changed = changed;
    this.picture = null; // a canvas, as it is sent
    this.isDrawing = false;
    this.drawing = new Drawing({ isLight: model.regard.task === "caption", changed });
    this.file = make("input", { type: "file", accept: "image/*", class: "hidden", tabindex: -1, "aria-hidden": "true", id: "picture-file" });
    this.file.addEventListener("change", () => this.take(this.file.files[0]));
    this.stage = make("canvas", { class: "stage", role: "img", "aria-label": "The picture" });
    this.place = null; // listeners for the place under the pointer
    this.way = segments("How to give a picture", [["choose", "Choose"], ["draw", "Draw"]], "choose", (way) => this.setDrawing(way === "draw"));
    this.drop = make("button", { type: "button", class: "drop", onclick: () => this.file.click() },
      make("b", {}, "Drop a picture here"), make("span", { class: "muted" }, "or paste one, or click to choose a file"));
    this.board = make("div", { class: "board" });
    this.undo = button("Undo", { class: "plain" }, () => this.drawing.undo());
    this.clear = button("Clear", { class: "plain" }, () => this.empty());
    this.node = make("div", { class: "pane source" },
      make("div", { class: "row between" }, this.way, make("span", { class: "hint" }, `read as ${this.size[1]} × ${this.size[0]} pixels`)),
      this.board, this.file,
      make("div", { class: "row between pane-foot" }, make("span", {}, this.undo, this.clear), go));
    acceptDrops(this.node, "image/", (file) => this.take(file));
    this.paste = (event) => this.onPaste(event);
    document.addEventListener("paste", this.paste);
    redrawWith(this.stage, () => this.paint(null, null));
    this.draw();
  }

  destroy() {
    document.removeEventListener("paste", this.paste);
  }

  onPaste(event) {
    const file = [...(event.clipboardData?.files ?? [])].find(({ type }) => type.startsWith("image/"));
    if (file) this.take(file);
  }

  async take(file) {
    this.file.value = "";
    if (!file) return;
    if (file.size > LARGEST_FILE) {
      toast("This file is too large: at most 25 MB.");
      return;
    }
    const address = URL.createObjectURL(file);
    try {
      this.setPicture(cropped(await loadImage(address), this.size));
    } catch (error) {
      toast(error.message);
    } finally {
      URL.revokeObjectURL(address);
    }
  }

  /** An example. */
  give(file) {
    return this.take(file);
  }

  setPicture(canvas) {
    this.picture = canvas;
    this.isDrawing = false;
    this.way.firstChild.setAttribute("aria-checked", "true");
    this.way.lastChild.setAttribute("aria-checked", "false");
    this.draw();
    this.changed();
  }

  setDrawing(isDrawing) {
    this.isDrawing = isDrawing;
    this.picture = null;
    this.draw();
    this.changed();
  }

  empty() {
    this.drawing.clear();
    this.picture = null;
    this.draw();
    this.changed();
  }

  draw() {
    const isShown = this.picture !== null;
    this.undo.hidden = !this.isDrawing || isShown;
    this.clear.hidden = !isShown && !this.isDrawing;
    if (isShown) this.board.replaceChildren(this.stage);
    else if (this.isDrawing) this.board.replaceChildren(this.drawing.canvas, this.drawing.controls);
    else this.board.replaceChildren(this.drop);
    if (isShown) this.paint(null, null);
  }

  // What a desk asks for ------------------------------------------------------------------------

  isReady() {
    return this.picture !== null || (this.isDrawing && !this.drawing.isEmpty);
  }

  canAsk(record) {
    return Boolean(record.picture);
  }

  record() {
    this.picture ??= cropped(this.drawing.canvas, this.size);
    this.sent = this.picture.toDataURL("image/png");
    this.kept = keptPicture(this.picture);
    return { picture: this.kept };
  }

  /** What was just given is sent as it is; an earlier one as it was kept. */
  value(record) {
    return { picture: record.picture === this.kept ? this.sent : record.picture };
  }

  read() {
    this.draw();
  }

  async show(record) {
    if (!record.picture) return;
    this.kept = null;
    this.setPicture(cropped(await loadImage(record.picture), this.size));
  }

  /** A picture that was drawn goes back on the paper with the next stroke. */
  source() {
    return {
      begin: (names, grid) => { this.grid = grid; },
      tint: (weights, effects) => this.paint(weights, effects),
      onPoint: (act) => this.onPoint(act),
      thumbnail: (weights, effects) => this.thumbnail(weights, effects),
    };
  }

  onPoint(act) {
    this.stage.addEventListener("pointermove", (event) => {
      if (!this.grid) return;
      const box = this.stage.getBoundingClientRect();
      const [rows, columns] = this.grid;
      const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
      const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
      const place = Math.max(0, Math.min(rows - 1, row)) * columns + Math.max(0, Math.min(columns - 1, column));
      if (place !== this.pointed) act(place);
      this.pointed = place;
    });
    this.stage.addEventListener("pointerleave", () => {
      this.pointed = null;
      act(null);
    });
  }

  paint(weights, effects) {
    if (!this.picture) return;
    const side = 640;
    const ratio = this.picture.height / this.picture.width;
    this.stage.width = side;
    this.stage.height = Math.round(side * ratio);
    paintPicture(this.stage, this.picture, this.grid, weights, effects);
  }

  thumbnail(weights, effects) {
    const canvas = make("canvas", { width: 144, height: Math.round((144 * this.picture.height) / this.picture.width) });
    paintPicture(canvas, this.picture, this.grid, weights, effects);
    return canvas;
  }
}

/** The picture, darker where the model did not look; a frame of orange where it depends on it. */
function paintPicture(canvas, picture, grid, weights, effects) {
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = picture.width >= 64;
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  if (!grid) return;
  if (weights) veil(context, canvas, grid, weights, [17, 20, 26], (x) => 0.82 * (1 - x));
  if (effects) veil(context, canvas, grid, effects, rgb(colourOf("--effect")), (x) => (weights ? 0.6 : 0.85) * x);
}

/** A colour over the picture whose strength at each place is `alpha` of its value. */
function veil(context, canvas, [rows, columns], values, [red, green, blue], alpha) {
  const small = new OffscreenCanvas(columns, rows);
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) image.data.set([red, green, blue, 255 * alpha(values[i])], 4 * i);
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
