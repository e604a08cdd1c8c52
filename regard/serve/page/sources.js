/* A text that a model has read, as a source of `AnswerView`. */

import { make, percent } from "./dom.js";
import { placesInTexts } from "./segmented.js";

const WORTH_SAYING = 0.15; // of the attention on tokens that are not in the text

export class TextSource {
  /** texts() -> the SegmentedTexts of the turns, the last one is what was asked. */
  constructor(texts) {
    this.texts = texts;
    this.names = [];
    this.places = [];
    this.elsewhere = make("span", { class: "elsewhere", "aria-hidden": "true" });
  }

  begin(names) {
    this.names = names;
    const texts = this.texts();
    this.places = placesInTexts(names, texts.map((text) => text.text));
    texts.forEach((text, turn) => {
      const here = this.places.filter((place) => place?.turn === turn);
      text.cut(here.flatMap(({ start, end }) => [start, end]));
    });
  }

  tint(weights, effects) {
    const texts = this.texts();
    texts.forEach((text, turn) => {
      const ranges = [];
      if (weights) {
        this.places.forEach((place, i) => {
          if (place?.turn === turn) ranges.push({ ...place, weight: weights[i], effect: effects?.[i] ?? 0 });
        });
      }
      text.tint(ranges);
    });
    this.sayElsewhere(weights);
  }

  /** Special tokens, the end token above all, have no place in the text but may have weight. */
  sayElsewhere(weights) {
    const total = weights?.reduce((sum, x) => sum + x, 0) ?? 0;
    const parts = [];
    this.places.forEach((place, i) => {
      const share = total ? weights[i] / total : 0;
      if (!place && share > WORTH_SAYING) parts.push(`${percent(share)} on ${this.names[i]}`);
    });
    this.elsewhere.textContent = parts.join(", ");
  }

  onPoint(act) {
    const last = this.texts().length - 1;
    this.texts()[last].onPoint((offset) => {
      const at = this.places.findIndex((place) => place?.turn === last && place.start <= offset && offset < place.end);
      act(offset === null || at < 0 ? null : at);
    });
  }
}
