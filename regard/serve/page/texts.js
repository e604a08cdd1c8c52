/* A text to be read: a field while it is written, words that can be pointed at when it was read. */

import { make } from "./dom.js";
import { SegmentedText } from "./segmented.js";
import { TextSource } from "./sources.js";

const PLACEHOLDERS = {
  translate: "Write something to translate",
  classify: "Write something to classify",
  blank: "Write a sentence with ___ for one word",
};

export class TextInput {
  constructor(model, { go, changed, send }) {
    this.isBlank = model.regard.task === "blank";
    const placeholder = PLACEHOLDERS[model.regard.task] ?? "Write something";
    this.field = make("textarea", { id: "prompt", rows: 4, placeholder, "aria-label": placeholder });
    this.field.addEventListener("input", () => {
      this.fit();
      changed();
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    });
    this.reading = make("div", { class: "reading", hidden: true });
    this.text = null;
    this.edit = make("button", { type: "button", class: "plain", hidden: true, onclick: () => this.write() }, "Edit");
    this.clear = make("button", { type: "button", class: "plain", hidden: true, onclick: () => {
      this.field.value = "";
      this.write();
      changed();
    } }, "Clear");
    this.node = make("div", { class: "pane source" }, this.field, this.reading,
      make("div", { class: "row between pane-foot" }, make("span", {}, this.edit, this.clear), go));
    this.reading.addEventListener("dblclick", () => this.write());
  }

  fit() {
    this.clear.hidden = this.field.value === "";
    this.field.style.setProperty("height", "auto");
    this.field.style.setProperty("height", `${Math.max(120, Math.min(360, this.field.scrollHeight))}px`);
  }

  focus() {
    if (matchMedia("(hover: hover)").matches) this.field.focus({ preventScroll: true });
  }

  isReady() {
    return this.field.value.trim() !== "";
  }

  canAsk() {
    return true;
  }

  record() {
    return { text: this.field.value.trim() };
  }

  value(record) {
    return record.text;
  }

  /** An example. */
  give(text) {
    this.show({ text });
  }

  show(record) {
    this.field.value = record.text ?? "";
    this.read();
  }

  /** Words instead of the field. */
  read() {
    const text = this.field.value.trim();
    if (this.text?.text !== text || this.reading.hidden) {
      const body = make("div", { class: "reading-text" });
      this.text = new SegmentedText(body, text);
      const gap = this.isBlank ? /_{2,}/.exec(text) : null;
      if (gap) this.text.cut([gap.index, gap.index + gap[0].length]);
      this.reading.replaceChildren(body);
    }
    this.setReading(true);
  }

  write() {
    this.setReading(false);
    this.fit();
    this.field.focus();
  }

  setReading(isReading) {
    this.reading.hidden = !isReading;
    this.edit.hidden = !isReading;
    this.clear.hidden = this.field.value === "";
    this.field.hidden = isReading;
  }

  source() {
    const source = new TextSource(() => [this.text]);
    this.reading.append(source.elsewhere);
    return source;
  }

  /** Of a sentence with a gap: the sentence with a word in it. */
  fill(word) {
    const gap = this.reading.querySelector(".filled") ?? [...this.reading.querySelectorAll(".segment")].find((node) => /_{2,}/.test(node.textContent));
    if (!gap || !word) return;
    gap.classList.add("filled");
    gap.textContent = word;
  }
}
