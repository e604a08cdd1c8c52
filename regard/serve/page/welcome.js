/* What a first visit sees: what this is, in three sentences, and something to try. */

import { getFile } from "./api.js";
import { button, large, make, toast } from "./dom.js";

export const TASKS = {
  chat: { tab: "Talk", verb: "Write something", noun: "chat" },
  translate: { tab: "Translate", verb: "Write something to translate", noun: "translation" },
  speech: { tab: "Transcribe", verb: "Record something, or choose a file", noun: "speech" },
  caption: { tab: "Describe", verb: "Choose or draw a picture", noun: "captions" },
  classify: { tab: "Classify", verb: "Give it something to classify", noun: "labels" },
  blank: { tab: "Fill in", verb: "Write a sentence with ___ for one word", noun: "missing words" },
};

export const taskOf = (model) => TASKS[model?.regard.task] ?? TASKS.chat;

export function facts(model) {
  const { task, parameters, attends } = model.regard;
  const parts = [(TASKS[task] ?? TASKS.chat).noun, `${large(parameters)} parameters`];
  if (!attends) parts.push("no attention");
  return parts.join(" · ");
}

/** The three sentences. */
export function sentences(model) {
  const { task, attends } = model.regard;
  const isLabel = task === "classify" || task === "blank";
  const beside = isLabel ? "how sure it is of it and of others" : "what else it could have written";
  const inside = attends ? `what the model attended to, and ${beside}` : beside;
  const look = isLabel ? `Its answer appears here, with ${inside}.` : `Its answer appears here; point at a word of it to see ${inside}.`;
  return `This is a small model, trained with regard, that runs on the machine which serves this page. ${taskOf(model).verb}. ${look}`;
}

export function welcome(app, use) {
  const [model] = app.modelsOf(app.conversation);
  if (!model) {
    return make("div", { class: "welcome" }, make("h1", {}, "Choose a model"),
      make("p", {}, `The server does not have ${app.conversation.model} now.`));
  }
  return make("div", { class: "welcome" },
    make("h1", {}, model.id),
    make("p", { class: "facts" }, facts(model)),
    make("p", { class: "lead" }, sentences(model)),
    model.regard.summary ? make("p", { class: "muted" }, model.regard.summary) : null,
    examples(model, use));
}

/** Texts, pictures or sounds to try; `use` gets the text, or the file. */
export function examples(model, use) {
  const { examples: names = [], input } = model.regard;
  if (names.length === 0) return null;
  const one = { text: textExample, picture: pictureExample, sound: soundExample }[input];
  return make("div", { class: "examples" }, make("h3", {}, "From its own data"),
    make("div", { class: "example-list" }, ...names.map((name, i) => one(model, name, i + 1, use))));
}

const textExample = (model, text, number, use) => button(text, { class: "example" }, () => use(text));

const fileOf = (model, name) =>
  getFile(`v1/models/${encodeURIComponent(model.id)}/examples/${encodeURIComponent(name)}`);

/** Uses a file once it is here. */
async function useFile(promise, use) {
  try {
    use(await promise);
  } catch (error) {
    toast(error.message);
  }
}

/** The picture itself is the button. */
function pictureExample(model, name, number, use) {
  const file = fileOf(model, name);
  const image = make("img", { alt: "", width: 96 });
  file.then((content) => {
    image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
    image.src = URL.createObjectURL(content);
  }, () => image.remove());
  const node = button("", { class: "example-picture", "aria-label": `Picture ${number}` }, () => useFile(file, use));
  node.append(image);
  return node;
}

const soundExample = (model, name, number, use) =>
  button(`Sound ${number}`, { class: "example" }, () => useFile(fileOf(model, name), use));
