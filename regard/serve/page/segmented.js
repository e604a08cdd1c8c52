/* A text whose parts can be coloured and pointed at: spans between offsets. */

import { make, setStyle } from "./dom.js";

export class SegmentedText {
  constructor(node, text = "") {
    this.node = node;
    this.text = text;
    this.offsets = new Set([0]);
    this.render();
  }

  /** Another text, without cuts. */
  reset(text = "") {
    this.text = text;
    this.offsets = new Set([0]);
    this.render();
  }

  /** Adds a part at the end. The spaces before a word are a part of their own. */
  append(piece) {
    const word = piece.trimStart();
    for (const part of [piece.slice(0, piece.length - word.length), word]) {
      if (!part) continue;
      const start = this.text.length;
      this.text += part;
      this.offsets.add(start);
      this.node.append(this.segment(start, this.text.length));
    }
  }

  /** Also cut at these offsets. */
  cut(offsets) {
    const before = this.offsets.size;
    for (const offset of offsets) {
      if (offset > 0 && offset < this.text.length) this.offsets.add(offset);
    }
    if (this.offsets.size !== before) this.render();
  }

  render() {
    const cuts = [...this.offsets].sort((a, b) => a - b);
    this.node.replaceChildren();
    cuts.forEach((start, i) => {
      const end = cuts[i + 1] ?? this.text.length;
      if (end > start) this.node.append(this.segment(start, end));
    });
  }

  segment(start, end) {
    const node = make("span", { class: "segment" }, this.text.slice(start, end));
    node.range = [start, end];
    return node;
  }

  /** Colours ranges: { start, end, weight, effect }, each from 0 to 1, and `isChosen`. Only what
      changes is touched: a long answer has many segments, and is coloured at every word. */
  tint(ranges) {
    const from = Math.min(...ranges.map((range) => range.start));
    const to = Math.max(...ranges.map((range) => range.end));
    for (const node of this.node.children) {
      const [start, end] = node.range;
      const isNear = start < to && end > from;
      if (!isNear && !node.classList.contains("tinted")) continue;
      const over = isNear ? ranges.filter((range) => range.start < end && range.end > start) : [];
      const most = (name) => over.reduce((sum, range) => Math.max(sum, range[name] ?? 0), 0);
      const weight = most("weight");
      setStyle(node, { "--weight": weight.toFixed(3), "--effect-size": most("effect").toFixed(3) });
      node.classList.toggle("tinted", over.length > 0);
      node.classList.toggle("strong", weight > 0.6);
      node.classList.toggle("chosen", over.some((range) => range.isChosen));
    }
  }

  clear() {
    this.tint([]);
  }

  /** Tells the offset under the pointer, or null. */
  onPoint(point, click = null) {
    const offset = (event) => event.target.closest?.(".segment")?.range?.[0] ?? null;
    this.node.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") point(offset(event));
    });
    this.node.addEventListener("pointerleave", () => point(null));
    if (click) {
      this.node.addEventListener("click", (event) => {
        const at = offset(event);
        if (at !== null && getSelection().isCollapsed) click(at);
      });
    }
  }
}

/** Where each place of a source lies in the texts it was read from: { turn, start, end } or null.

    A name is a token without its spaces, or several with spaces between; names in parentheses are
    special tokens. `(other)` and `(self)` begin a turn; without them there is the last turn only.
    A tokenizer may change the case of a text, so case is not compared. */
export function placesInTexts(names, texts) {
  const groups = turnsOf(names);
  const places = new Array(names.length).fill(null);
  groups.forEach((group, i) => {
    const turn = texts.length - groups.length + i;
    if (turn < 0) return;
    placesInText(group.map((place) => names[place]), texts[turn]).forEach((range, j) => {
      if (range) places[group[j]] = { turn, ...range };
    });
  });
  return places;
}

const TURN = /^\((other|self)\)$/;

/** The places of each turn. */
function turnsOf(names) {
  const groups = [];
  names.forEach((name, place) => {
    if (TURN.test(name) || groups.length === 0) groups.push([]);
    groups.at(-1).push(place);
  });
  return groups;
}

function placesInText(names, text) {
  const lower = [...text].map((letter) => (letter.toLowerCase().length === letter.length ? letter.toLowerCase() : letter)).join("");
  let cursor = 0;
  let isLost = false; // after a name that is not in the text, the next one may be further on
  return names.map((name) => {
    if (name.trim() === "") return null; // a token of spaces
    const range = find(lower, name.toLowerCase(), cursor, isLost);
    isLost = range === null;
    if (range) cursor = range.end;
    return range;
  });
}

function find(text, name, cursor, mayJump) {
  let start = null;
  let end = cursor;
  for (const part of name.split(" ")) {
    if (!part) continue;
    const at = text.indexOf(part, end);
    const isNext = at >= 0 && (mayJump || text.slice(end, at).trim() === "");
    if (!isNext) return null;
    start ??= at;
    end = at + part.length;
    mayJump = false;
  }
  return start === null ? null : { start, end };
}
