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
  return { ...changedOptions(model), ...drawn, seed: randomSeed() };
}

export function bodyOf(model, input, { options = null, prefix = [], effect = false } = {}) {
  const body = {
    model: model.id,
    input,
    options: options ?? changedOptions(model),
    attention: model.regard.attends,
    alternatives: isLabelTask(model.regard.task) ? LABELS : WORDS,
  };
  if (prefix.length) body.prefix = prefix;
  if (effect) body.effect = true;
  return body;
}

/** Asks and shows; resolves to the version to keep, whatever happens. */
export async function answerInto(view, model, input, { signal, ...how } = {}) {
  const speaker = new Speaker();
  view.say("Reading…");
  const onWait = (seconds) => view.say(seconds ? `The server is busy. Trying again in ${seconds} s.` : "Reading…");
  const onEvent = (event) => {
    if (event.type === "start") {
      view.begin(event.place_names ?? [], event.grid ?? null);
    } else if (event.type === "token") {
      view.say("");
      view.add(event);
      speaker.add(event.text);
    }
  };
  try {
    const end = await ask(bodyOf(model, input, how), { signal, onEvent, onWait });
    speaker.finish();
    view.say("");
    return { ...version(end.answer), usage: end.usage ?? null };
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const isStop = error.kind === "stopped";
    return version(structuredClone(view.answer), isStop ? "stopped" : "failed", isStop ? "" : noteOf(error));
  }
}

/** Asks for the effects of an answer that is there: the same tokens again, as a prefix. */
export async function effectsOf(model, input, answer, signal) {
  const isWhole = isLabelTask(model.regard.task);
  const how = { effect: true, prefix: isWhole ? [] : answer.tokens, options: effectOptions(model, answer) };
  const { answer: second } = await ask(bodyOf(model, input, how), { signal });
  return second.effects ? second : null;
}

/** The answer is given, so nothing is searched; it ends where it ended. */
function effectOptions(model, answer) {
  if (isLabelTask(model.regard.task)) return {};
  return { do_sample: false, num_beams: 1, candidates: 1, max_new_tokens: Math.max(1, answer.step_names.length), min_new_tokens: 0 };
}

function noteOf(problem) {
  if (problem.kind === "gone") {
    return connection.isGone ? `${problem.message} It goes on when you try again.` : problem.message;
  }
  if (problem.kind === "key") return "The server asks for a key, and got none that fits.";
  if (problem.kind === "busy") return "The server is too busy. Try again later.";
  return problem.message;
}
