/* An answer and what is inside it: its words, where each looked, what else it could have been.

   A source is what the model has read (a text, a picture, a sound). It has
     begin(names, grid)       the places of the source
     tint(weights, effects)   colours its places; null: no colours
     onPoint(act)             tells `act` the place under the pointer, or null
     thumbnail(weights, effects)   optional: a small map of the source, for pictures */

import { announce, button, make, percent, quoted, setStyle, short, visible } from "./dom.js";
import { heatMap } from "./heatmap.js";
import { SegmentedText } from "./segmented.js";

const PLACES = 6; // shown in the list of a word

export function emptyAnswer() {
  return {
    text: "", finish: "stop", tokens: [], pieces: [], logprobs: [], step_names: [],
    place_names: [], grid: null, weights: null, alternatives: null, effects: null,
  };
}

/** The answer so far, with one more event of the stream. */
export function withToken(answer, event) {
  answer.text += event.text;
  answer.tokens.push(event.token);
  answer.pieces.push(event.text);
  answer.step_names.push(event.text);
  answer.logprobs.push(event.logprob);
  if (event.weights) (answer.weights ??= []).push(event.weights);
  if (event.alternatives) (answer.alternatives ??= []).push(event.alternatives);
}

/** Weights as shares of the full colour. Weights that are nearly equal stay faint: full is at least
    0.5, or four times the mean where there are many places. */
function shares(row, places = row.length) {
  const most = Math.max(Math.min(0.5, 4 / places), ...row);
  return row.map((x) => x / most);
}

/** Effects as shares of the largest one in the whole answer; negative ones count as none. */
function effectShares(effects, step) {
  if (!effects) return null;
  const most = Math.max(1e-6, ...effects.flat());
  return effects[step].map((x) => Math.max(0, x) / most);
}

export class AnswerView {
  /** onContinue(tokens) writes on from these tokens, and continueHint() says how; onEffects() asks
      what the answer depends on. */
  constructor({ source, onContinue = null, continueHint = null, onEffects = null }) {
    this.source = source;
    this.onContinue = onContinue;
    this.continueHint = continueHint;
    this.onEffects = onEffects;
    this.answer = emptyAnswer();
    this.selected = null;
    this.isLive = false;
    this.newest = null; // the step that is shown with the next frame
    this.keepsMaps = false; // whether maps stay open when another answer comes

    this.body = make("div", { class: "answer-text" });
    this.text = new SegmentedText(this.body);
    this.status = make("div", { class: "status" });
    this.strip = make("div", { class: "strip", role: "toolbar", "aria-label": "Words of the answer: choose one to look inside" });
    this.inside = make("div", { class: "inside", role: "group", "aria-label": "Inside the word", hidden: true });
    this.maps = make("div", { class: "maps", hidden: true });
    this.tools = make("div", { class: "answer-tools" });
    this.node = make("div", { class: "answer" }, this.body, this.status, this.strip, this.inside, this.maps, this.tools);
    this.listen();
  }

  listen() {
    const stepOf = (event) => event.target.closest(".word")?.dataset.step;
    this.strip.addEventListener("pointerover", (event) => {
      const step = stepOf(event);
      if (step !== undefined && event.pointerType !== "touch") this.preview(Number(step));
    });
    this.strip.addEventListener("pointerleave", () => this.preview(null));
    this.strip.addEventListener("focusin", (event) => {
      if (stepOf(event) !== undefined) this.preview(Number(stepOf(event)));
    });
    this.strip.addEventListener("focusout", () => this.preview(null));
    this.strip.addEventListener("click", (event) => {
      const step = stepOf(event);
      if (step !== undefined) this.select(Number(step) === this.selected ? null : Number(step));
    });
    this.strip.addEventListener("keydown", (event) => this.key(event));
    this.text.onPoint((offset) => this.preview(this.stepAt(offset)), (offset) => this.select(this.stepAt(offset)));
    this.source.onPoint((place) => this.showPlace(place));
  }

  key(event) {
    const words = [...this.strip.querySelectorAll(".word")];
    const at = words.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    let next = null;
    if (step) next = words[at + step];
    else if (event.key === "Home") next = words[0];
    else if (event.key === "End") next = words.at(-1);
    else if (event.key === "Escape" && this.selected !== null) this.select(null);
    else return;
    event.preventDefault();
    if (!next) return;
    next.focus();
    if (this.selected !== null) this.select(Number(next.dataset.step));
  }

  // While it streams ----------------------------------------------------------------------------

  begin(names, grid) {
    this.isLive = true;
    this.answer = { ...emptyAnswer(), place_names: names, grid };
    this.select(null);
    this.text.reset();
    this.strip.replaceChildren();
    if (!this.keepsMaps) this.maps.hidden = true;
    this.maps.replaceChildren();
    this.node.classList.add("live");
    this.source.begin(names, grid);
  }

  add(event) {
    withToken(this.answer, event);
    this.text.append(event.text);
    const step = this.answer.tokens.length - 1;
    this.strip.append(this.chip(step));
    this.follow(step);
  }

  /** The source follows the word that is being written, as often as the screen can show it. */
  follow(step) {
    const isPlanned = this.newest !== null;
    this.newest = step;
    if (isPlanned) return;
    requestAnimationFrame(() => {
      if (this.isLive && this.selected === null) this.preview(this.newest);
      this.newest = null;
    });
  }

  /** The whole answer, at the end of a stream or from storage. */
  show(answer) {
    const wasLive = this.isLive;
    this.isLive = false;
    this.answer = answer;
    this.node.classList.remove("live");
    const isSame = wasLive && this.text.text === answer.text;
    if (!isSame) {
      this.text.reset();
      answer.pieces.forEach((piece) => this.text.append(piece));
      if (this.text.text !== answer.text) { // a stop string ended it: the text is shorter
        this.text.reset();
        this.text.append(answer.text);
      }
    }
    this.strip.replaceChildren(...answer.step_names.map((_, step) => this.chip(step)));
    this.strip.classList.toggle("fine", answer.pieces.length > 3 && answer.text.length / answer.pieces.length < 1.7);
    this.strip.hidden = !answer.weights && !answer.alternatives;
    this.source.begin(answer.place_names, answer.grid);
    this.preview(null);
    this.drawMaps();
  }

  chip(step) {
    const { step_names: names, logprobs } = this.answer;
    const isSpecial = step >= this.answer.pieces.length;
    const sure = Math.exp(logprobs[step] ?? -Infinity);
    const bar = make("i", { class: "sure", style: { width: `${Math.round(100 * sure)}%` } });
    return make("button", {
      type: "button",
      class: `chip word${isSpecial ? " special" : ""}`,
      "data-step": step,
      "aria-pressed": "false",
      tabindex: step === 0 ? 0 : -1,
      "aria-label": `${visible(names[step])}, ${percent(sure)}`,
    }, visible(names[step]), bar);
  }

  say(text, ...buttons) {
    this.status.replaceChildren(...(text ? [make("span", {}, text), ...buttons] : []));
  }

  // One word ------------------------------------------------------------------------------------

  stepAt(offset) {
    if (offset === null) return null;
    let end = 0;
    for (let step = 0; step < this.answer.pieces.length; step++) {
      end += this.answer.pieces[step].length;
      if (offset < end) return step;
    }
    return null;
  }

  /** Colours the source by what a word attended to. Without a word, by the selected one. */
  preview(step) {
    const shown = step ?? this.selected;
    const { weights, effects } = this.answer;
    const row = shown === null ? null : weights?.[shown];
    this.source.tint(row ? shares(row) : null, row ? effectShares(effects, shown) : null);
    this.markWord(shown);
  }

  markWord(step) {
    let start = 0;
    for (let i = 0; i < step; i++) start += this.answer.pieces[i]?.length ?? 0;
    const piece = step === null ? "" : this.answer.pieces[step] ?? "";
    const from = start + piece.length - piece.trimStart().length;
    this.text.tint(piece ? [{ start: from, end: start + piece.length, isChosen: true }] : []);
    this.strip.querySelector(".pointed")?.classList.remove("pointed");
    if (step !== null) this.strip.children[step]?.classList.add("pointed");
  }

  /** Colours the words that attended to a place of the source. */
  showPlace(place) {
    const { weights, effects, pieces } = this.answer;
    if (place === null || !weights) {
      this.preview(null);
      for (const chip of this.strip.children) setStyle(chip, { "--weight": 0 });
      return;
    }
    const column = shares(weights.map((row) => row[place] ?? 0), weights[0].length);
    const caused = effects ? effects.map((_, step) => effectShares(effects, step)[place]) : null;
    let start = 0;
    const ranges = pieces.map((piece, step) => {
      start += piece.length;
      return { start: start - piece.length, end: start, weight: column[step], effect: caused?.[step] ?? 0 };
    });
    this.text.tint(ranges);
    for (const chip of this.strip.children) setStyle(chip, { "--weight": (column[chip.dataset.step] ?? 0).toFixed(3) });
    const only = weights[0].map((_, i) => (i === place ? 1 : 0));
    this.source.tint(only, null);
  }

  select(step) {
    this.selected = step;
    for (const chip of this.strip.children) {
      const is = Number(chip.dataset.step) === step;
      chip.setAttribute("aria-pressed", String(is));
      chip.tabIndex = is || (step === null && chip.dataset.step === "0") ? 0 : -1;
    }
    this.drawInside();
    if (!this.isLive) this.preview(null);
  }

  drawInside() {
    const step = this.selected;
    this.inside.hidden = step === null;
    if (step === null) {
      this.inside.replaceChildren();
      return;
    }
    const { step_names: names, logprobs } = this.answer;
    const sure = percent(Math.exp(logprobs[step]));
    const close = button("", { icon: "close", label: "Close", class: "plain icon" }, () => {
      this.select(null);
      this.strip.querySelector(".word")?.focus();
    });
    this.inside.replaceChildren(
      make("div", { class: "inside-head" }, make("b", {}, visible(names[step])), make("span", { class: "muted" }, `${sure} sure`), close),
      make("div", { class: "inside-columns" }, this.placeList(step), this.alternativeList(step)),
    );
    announce(`${visible(names[step])}: ${sure} sure. ${this.spoken(step)}`);
    const isBelow = this.inside.getBoundingClientRect().top > innerHeight - 160;
    if (isBelow) this.inside.scrollIntoView({ block: "nearest" });
  }

  /** What the list of a word says, for a screen reader. */
  spoken(step) {
    const { weights, place_names: names, alternatives } = this.answer;
    const parts = [];
    if (weights?.[step]) {
      const best = this.topPlaces(step).slice(0, 3);
      parts.push(`Looked at ${best.map((place) => `${names[place]}, ${percent(weights[step][place])}`).join("; ")}.`);
    }
    if (alternatives?.[step]) {
      parts.push(`Could have been ${alternatives[step].slice(0, 3).map((one) => `${visible(one.text)}, ${percent(one.probability)}`).join("; ")}.`);
    }
    return parts.join(" ");
  }

  topPlaces(step) {
    const { weights, effects } = this.answer;
    const tinted = effectShares(effects, step);
    const size = (place) => Math.max(weights[step][place], tinted?.[place] ?? 0);
    return weights[step].map((_, place) => place).sort((a, b) => size(b) - size(a)).slice(0, PLACES);
  }

  placeList(step) {
    const { weights, effects, place_names: names } = this.answer;
    if (!weights?.[step] || this.source.thumbnail) return null; // a picture shows it better
    const most = effects ? Math.max(1e-6, ...effects[step].map(Math.abs)) : 1;
    const bars = make("div", { class: "bars" });
    for (const place of this.topPlaces(step)) {
      const weight = weights[step][place];
      const tracks = make("div", { class: "pairs" }, track(weight));
      let value = percent(weight);
      if (effects) {
        const effect = effects[step][place];
        tracks.append(track(Math.abs(effect) / most, effect < 0 ? "less" : "effect"));
        value = `${value} · ${short(effect)}`;
      }
      bars.append(make("span", { class: "label" }, names[place] || "␣"), tracks, make("span", { class: "value" }, value));
    }
    const legend = effects
      ? make("p", { class: "key" }, make("span", {}, make("i", {}), "weight"), make("span", {}, make("i", { class: "effect" }), "effect, in nats"))
      : null;
    return make("div", {}, make("h3", {}, "Looked at"), legend, bars);
  }

  alternativeList(step) {
    const list = this.answer.alternatives?.[step];
    if (!list?.length) return null;
    const taken = this.answer.tokens[step];
    const rows = list.map((one) => {
      const isTaken = one.token === taken || (taken === undefined && one.text === this.answer.step_names[step]);
      const canGo = this.onContinue && !isTaken && !this.isLive && !isEnd(one.text);
      return make("button", {
        type: "button",
        class: `alternative${isTaken ? " taken" : ""}`,
        disabled: !canGo,
        title: canGo ? `Go on from ${quoted(visible(one.text))}` : null,
        onclick: () => this.onContinue([...this.answer.tokens.slice(0, step), one.token], one),
      }, make("span", { class: "label" }, visible(one.text)), track(one.probability), make("span", { class: "value" }, percent(one.probability)));
    });
    const hint = this.onContinue ? make("p", { class: "hint" }, this.continueHint()) : null;
    return make("div", {}, make("h3", {}, "Could have written"), make("div", { class: "alternatives" }, ...rows), hint);
  }

  // The whole answer ----------------------------------------------------------------------------

  /** Buttons of the whole answer: its map, and its effects. */
  insideButtons() {
    const { weights, effects } = this.answer;
    if (!weights?.length || this.isLive) return [];
    const isOpen = !this.maps.hidden;
    const map = button(this.source.thumbnail ? "Maps" : "Map", { icon: "map", class: "plain", "aria-expanded": String(isOpen) }, () => {
      this.maps.hidden = !this.maps.hidden;
      map.setAttribute("aria-expanded", String(!this.maps.hidden));
      this.drawMaps();
    });
    const buttons = [map];
    if (!effects && this.onEffects) {
      buttons.push(button("What did it depend on?", { icon: "scale", class: "plain effects-button" }, () => this.onEffects()));
    }
    return buttons;
  }

  openMaps() {
    this.maps.hidden = false;
    this.drawMaps();
  }

  drawMaps() {
    this.maps.replaceChildren();
    const { weights, effects, step_names: rows, place_names: columns } = this.answer;
    if (this.maps.hidden || !weights?.length) return;
    if (this.source.thumbnail) {
      this.maps.append(this.gallery());
      return;
    }
    const onChoose = (step) => this.select(step);
    const one = (title, values, rampName) => make("div", {}, make("h3", {}, title),
      heatMap({ rows, columns, values, rampName, onChoose, label: `${title}: ${rows.length} words by ${columns.length} places` }));
    this.maps.append(one("Where each word looked", weights, "weight"));
    if (effects) this.maps.append(one("What each word depended on", effects, "effect"));
  }

  /** A small map of the source for each word. */
  gallery() {
    const { weights, effects, step_names: names } = this.answer;
    const items = weights.map((row, step) => {
      const maps = [this.source.thumbnail(shares(row), null)];
      if (effects) maps.push(this.source.thumbnail(null, effectShares(effects, step)));
      return make("button", { type: "button", class: "thumb", onclick: () => this.select(step), onpointerenter: () => this.preview(step), onpointerleave: () => this.preview(null) },
        make("span", { class: "pair" }, ...maps), make("span", { class: "label" }, visible(names[step])));
    });
    return make("div", { class: "gallery" }, ...items);
  }
}

const isEnd = (text) => text === "(end)";

export function track(share, kind = "") {
  const width = `${Math.max(0, Math.min(100, 100 * share)).toFixed(1)}%`;
  return make("span", { class: "track" }, make("i", { class: kind, style: { width } }));
}
