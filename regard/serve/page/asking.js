/* Asks a model and shows the answer in a view while it comes. */

import { ask, connection, Problem } from "./api.js";
import { announce } from "./dom.js";
import { version } from "./conversations.js";
import { changedOptions, optionsOf, randomSeed } from "./settings.js";

const WORDS = 6; // alternatives of each word
const LABELS = 10; // alternatives of a label
const SPEAK_EVERY = 1500; // milliseconds between two parts that a screen reader gets

export const isLabelTask = (task) => task === "classify" || task === "blank";

/** Reads an answer to a screen reader in parts that are whole words. */
class Speaker {
  #pending = "";
  #last = 0;

  add(text) {
    this.#pending += text;
    const end = this.#pending.lastIndexOf(" ");
    if (end > 0 && performance.now() - this.#last > SPEAK_EVERY) this.#say(end);
  }

  finish() {
    if (this.#pending.trim()) this.#say(this.#pending.length);
  }

  #say(end) {
    announce(this.#pending.slice(0, end));
    this.#pending = this.#pending.slice(end);
    this.#last = performance.now();
  }
}

/** Another answer to the same question: with other luck. A model that always takes the likeliest
    word would write the same again, so it draws this time. */
export function otherOptions(model) {
  const options = optionsOf(model);
  const drawn = options.do_sample ? {} : { do_sample: true, num_beams: 1, candidates: 1 };
  // a training answer that is retrieved would be the same again
  return { ...changedOptions(model), ...drawn, retrieved: 0, seed: randomSeed() };
}

/** Options with which an answer goes on from given tokens. A search that looks ahead compares whole
    answers, so it cannot: the likeliest words follow. There is room for one word more at least. */
function optionsAfter(model, prefix, { num_beams: _, length_penalty: __, ...options }) {
  const most = options.max_new_tokens ?? model.regard.options.max_new_tokens;
  return most > prefix.length ? options : { ...options, max_new_tokens: prefix.length + 1 };
}

/** What follows when an alternative is chosen. */
export function continuationHint(model) {
  const isBeams = model !== null && optionsOf(model).num_beams > 1;
  const how = isBeams ? " with the likeliest words: looking ahead needs whole answers" : "";
  return `Choose another word, and the answer goes on from there${how}.`;
}

export function bodyOf(model, input, { options = null, prefix = [], effect = false } = {}) {
  const chosen = options ?? changedOptions(model);
  const body = {
    model: model.id,
    input,
    options: prefix.length ? optionsAfter(model, prefix, chosen) : chosen,
    attention: model.regard.attends,
    alternatives: isLabelTask(model.regard.task) ? LABELS : WORDS,
  };
  if (prefix.length) body.prefix = prefix;
  if (effect) body.effect = true;
  return body;
}

function whileItWrites(model, { options, prefix = [] }) {
  const { candidates, retrieved, num_beams: beams } = { ...optionsOf(model), ...options };
  if (prefix.length || isLabelTask(model.regard.task)) return "";
  if (beams > 1) return `Following ${beams} answers…`;
  if (retrieved) return `Choosing one of ${candidates + retrieved} answers…`;
  return candidates > 1 ? `Drawing ${candidates} answers, to choose one…` : "";
}

/** Asks and shows; resolves to the version to keep, whatever happens. */
export async function answerInto(view, model, input, { signal, ...how } = {}) {
  try {
    const end = await askUntilThere(view, model, input, signal, how);
    view.say("");
    return version(end.answer);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const isStop = error.kind === "stopped";
    return version(structuredClone(view.answer), isStop ? "stopped" : "failed", isStop ? "" : noteOf(error));
  }
}

/** Asks; if the server is not there, again when it is back. What it lost in the middle of an answer
    is left to the reader, who may prefer what is there. */
async function askUntilThere(view, model, input, signal, how) {
  while (true) {
    let isBegun = false;
    const speaker = new Speaker();
    const onWait = (seconds) => view.say(seconds ? `The server is busy. Trying again in ${seconds} s.` : "Reading…");
    const onEvent = (event) => {
      isBegun = true;
      if (event.type === "start") {
        view.begin(event.place_names ?? [], event.grid ?? null);
        view.say(whileItWrites(model, how));
      } else if (event.type === "token") {
        view.say("");
        view.add(event);
        speaker.add(event.text);
      }
    };
    view.say("Reading…");
    try {
      const end = await ask(bodyOf(model, input, how), { signal, onEvent, onWait });
      speaker.finish();
      return end;
    } catch (error) {
      if (error.kind !== "gone" || isBegun) throw error;
      view.say("The server does not answer. This is sent again when it is back.");
      await connection.isBack(signal);
    }
  }
}

/** The effects of an answer that is there: the same tokens again, as a prefix, and one step more.
    If that step does not choose the end token again, its effects are those of another token. */
export async function effectsOf(model, input, answer, signal) {
  const isLabel = isLabelTask(model.regard.task);
  const prefix = isLabel ? [] : answer.tokens;
  const given = { do_sample: false, num_beams: 1, candidates: 1, retrieved: 0, min_new_tokens: 0, max_new_tokens: prefix.length + 1 };
  const how = { effect: true, prefix, options: isLabel ? {} : given };
  const { answer: second } = await ask(bodyOf(model, input, how), { signal });
  if (!second.effects) return null;
  const effects = second.effects.slice(0, answer.step_names.length);
  const isOtherEnd = !isLabel && second.tokens.length > prefix.length && effects.length > prefix.length;
  if (isOtherEnd) effects[prefix.length] = effects[prefix.length].map(() => 0);
  return effects.length === answer.step_names.length ? effects : null;
}

function noteOf(problem) {
  if (problem.kind === "key") return "The server asks for a key, and got none that fits.";
  if (problem.kind === "busy") return "The server is too busy. Try again later.";
  return problem.message;
}
