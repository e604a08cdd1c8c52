/* An answer that is one label or one word: bars for the candidates. */

import { AnswerView, track } from "./answer.js";
import { make, percent } from "./dom.js";

export class LabelView extends AnswerView {
  /** onCandidate(text): what is shown of a candidate that is pointed at; null: of the answer. */
  constructor({ onCandidate = null, ...options }) {
    super(options);
    this.onCandidate = onCandidate;
    this.bars = make("div", { class: "candidates", role: "list", "aria-label": "Candidates" });
    this.node.classList.add("label-answer");
    this.strip.replaceWith(this.bars);
  }

  begin(names, grid) {
    super.begin(names, grid);
    this.bars.replaceChildren();
  }

  show(answer) {
    super.show(answer);
    this.selected = 0; // there is one word: the source is coloured by it
    this.preview(null);
    const list = answer.alternatives?.[0] ?? [];
    this.bars.replaceChildren(...list.map((one) => this.candidate(one, one.text === answer.text)));
    this.onCandidate?.(null);
  }

  candidate(one, isAnswer) {
    const point = (text) => this.onCandidate?.(text);
    return make("div", {
      class: `candidate${isAnswer ? " taken" : ""}`, role: "listitem",
      onpointerenter: () => point(one.text), onpointerleave: () => point(null),
    }, make("span", { class: "label" }, one.text), track(one.probability), make("span", { class: "value" }, percent(one.probability)));
  }

  select() {}

  drawInside() {
    const places = this.answer.effects ? this.placeList(0) : null;
    this.inside.hidden = places === null;
    if (places) this.inside.replaceChildren(places);
  }

  insideButtons() {
    return super.insideButtons().filter((node) => node.classList.contains("effects-button"));
  }

  openMaps() {
    this.drawInside();
  }
}
