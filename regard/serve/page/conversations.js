/* Conversations, kept in the browser: one entry of localStorage each.

   conversation  { id, title, isNamed, model, beside, task, created, changed, exchanges }
   exchange      { id, input, replies }                    input: { text } or { picture } or { sound, seconds }
   reply         { model, versions, chosen }               one for each model that was asked
   version       an answer of the server, and { state: "done" | "stopped" | "failed", note } */

import { save, toast } from "./dom.js";

const PREFIX = "regard-conversation-";
const FORMAT = "regard-conversations-1";
const TITLE = 60; // characters

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36)).join("");

export function newConversation(model, beside = null) {
  const now = Date.now();
  return {
    id: newId(), title: "", isNamed: false, model: model.id, beside, task: model.regard.task,
    created: now, changed: now, exchanges: [],
  };
}

export const chosenVersion = (reply) => reply.versions[reply.chosen] ?? null;

/** What a conversation is called: its name, or how it begins. */
export function titleOf(conversation) {
  if (conversation.isNamed && conversation.title) return conversation.title;
  const first = conversation.exchanges[0];
  if (!first) return "New conversation";
  const text = first.input.text ?? chosenVersion(first.replies[0] ?? { versions: [] })?.text ?? "";
  const line = text.trim().replace(/\s+/g, " ");
  if (!line) return first.input.picture ? "A picture" : "A recording";
  return line.length > TITLE ? `${line.slice(0, TITLE - 1)}…` : line;
}

// Storage ---------------------------------------------------------------------------------------

let isFull = false; // said once

function read(name) {
  try {
    return cleaned(JSON.parse(localStorage.getItem(name)));
  } catch {
    return null;
  }
}

/** All conversations, the newest first. */
export function all() {
  const conversations = [];
  try {
    for (const name of Object.keys(localStorage)) {
      const conversation = name.startsWith(PREFIX) ? read(name) : null;
      if (conversation) conversations.push(conversation);
    }
  } catch { /* a browser that stores nothing */ }
  return conversations.sort((a, b) => b.changed - a.changed);
}

/** Keeps a conversation. If the browser has no room, its maps are left out, then it says so. */
export function keep(conversation) {
  for (const content of [conversation, withoutMaps(conversation)]) {
    try {
      localStorage.setItem(PREFIX + conversation.id, JSON.stringify(content));
      return;
    } catch { /* no room, or no storage at all */ }
  }
  if (!isFull) toast("This browser has no room left for conversations. Export or delete some.");
  isFull = true;
}

export function isKept(conversation) {
  try {
    return localStorage.getItem(PREFIX + conversation.id) !== null;
  } catch {
    return false;
  }
}

export function remove(conversation) {
  try {
    localStorage.removeItem(PREFIX + conversation.id);
  } catch { /* nothing was kept */ }
}

export function onChangeElsewhere(act) {
  addEventListener("storage", (event) => {
    if (event.key === null || event.key.startsWith(PREFIX)) act();
  });
}

function withoutMaps(conversation) {
  const copy = structuredClone(conversation);
  for (const exchange of copy.exchanges) {
    delete exchange.input.picture;
    for (const reply of exchange.replies) {
      for (const version of reply.versions) Object.assign(version, { weights: null, effects: null, alternatives: null });
    }
  }
  return copy;
}

const rounded = (matrix) => matrix?.map((row) => row.map((x) => Number(x.toFixed(4)))) ?? null;

/** An answer as it is kept: what the page shows, with as many digits as can be seen. */
export function version(answer, state = "done", note = "") {
  return {
    text: answer.text,
    finish: answer.finish,
    tokens: answer.tokens,
    pieces: answer.pieces,
    logprobs: answer.logprobs.map((x) => Number(x.toFixed(4))),
    step_names: answer.step_names,
    place_names: answer.place_names,
    grid: answer.grid,
    weights: rounded(answer.weights),
    effects: rounded(answer.effects),
    alternatives: answer.alternatives,
    state,
    note,
  };
}

// Files -----------------------------------------------------------------------------------------

const fileName = (conversation) => titleOf(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 40) || "conversation";

export function exportJson(conversations) {
  const name = conversations.length === 1 ? fileName(conversations[0]) : "conversations";
  save(`${name}.json`, JSON.stringify({ format: FORMAT, conversations }, null, 1), "application/json");
}

/** Every line of a text as a quotation, so that its signs do not become headings or lists. */
const quotation = (text) => text.split("\n").map((line) => `> ${line}`).join("\n");

export function markdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`, `${conversation.model}, ${new Date(conversation.created).toISOString().slice(0, 10)}`];
  for (const { input, replies } of conversation.exchanges) {
    parts.push("**You**", quotation(input.text ?? (input.picture ? "(a picture)" : `(a recording, ${input.sound ?? ""})`)));
    for (const reply of replies) {
      const chosen = chosenVersion(reply);
      if (chosen) parts.push(`**${reply.model}**`, quotation(chosen.text));
    }
  }
  return `${parts.join("\n\n")}\n`;
}

export const exportMarkdown = (conversation) => save(`${fileName(conversation)}.md`, markdown(conversation), "text/markdown");

/** Conversations of a file. Each gets a new id, so nothing is replaced. */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON. Choose a file that this page has exported.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("These are no conversations of this page. Choose a file that it has exported as JSON.");
  }
  const conversations = file.conversations.map(cleaned).filter((conversation) => conversation !== null);
  if (conversations.length === 0) throw new Error("There is no conversation in this file.");
  return conversations.map((conversation) => ({ ...conversation, id: newId() }));
}

// What is read from storage or a file is checked: a page must not break because of one entry.

const isText = (value) => typeof value === "string";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const texts = (value) => (Array.isArray(value) && value.every(isText) ? value : []);
const numbers = (value) => (Array.isArray(value) && value.every(isNumber) ? value : []);

function matrix(value, width) {
  const isRow = (row) => Array.isArray(row) && row.length === width && row.every(isNumber);
  return Array.isArray(value) && value.length > 0 && value.every(isRow) ? value : null;
}

function cleaned(value) {
  if (value === null || typeof value !== "object" || !isText(value.id) || !isText(value.model) || !Array.isArray(value.exchanges)) return null;
  return {
    id: value.id,
    title: isText(value.title) ? value.title : "",
    isNamed: value.isNamed === true,
    model: value.model,
    beside: isText(value.beside) ? value.beside : null,
    task: isText(value.task) ? value.task : "chat",
    created: isNumber(value.created) ? value.created : Date.now(),
    changed: isNumber(value.changed) ? value.changed : Date.now(),
    exchanges: value.exchanges.map(cleanedExchange).filter((exchange) => exchange !== null),
  };
}

function cleanedExchange(value) {
  if (typeof value?.input !== "object" || !Array.isArray(value.replies)) return null;
  const input = {};
  if (isText(value.input.text)) input.text = value.input.text;
  if (isText(value.input.picture) && /^data:image\/(png|jpeg);base64,/.test(value.input.picture)) input.picture = value.input.picture;
  if (isText(value.input.sound)) input.sound = value.input.sound;
  if (isNumber(value.input.seconds)) input.seconds = value.input.seconds;
  const replies = value.replies.filter((reply) => isText(reply?.model) && Array.isArray(reply.versions));
  return { id: isText(value.id) ? value.id : newId(), input, replies: replies.map(cleanedReply) };
}

function cleanedReply(value) {
  const versions = value.versions.map(cleanedVersion).filter((version) => version !== null);
  const chosen = Number.isInteger(value.chosen) && value.chosen in versions ? value.chosen : versions.length - 1;
  return { model: value.model, versions, chosen };
}

function cleanedVersion(value) {
  if (!isText(value?.text)) return null;
  const places = texts(value.place_names);
  const steps = texts(value.step_names);
  const grid = numbers(value.grid);
  return {
    text: value.text,
    finish: value.finish === "length" ? "length" : "stop",
    tokens: numbers(value.tokens),
    pieces: texts(value.pieces),
    logprobs: numbers(value.logprobs),
    step_names: steps,
    place_names: places,
    grid: grid.length === 2 ? grid : null,
    weights: matrix(value.weights, places.length),
    effects: matrix(value.effects, places.length),
    alternatives: cleanedAlternatives(value.alternatives),
    state: ["stopped", "failed"].includes(value.state) ? value.state : "done",
    note: isText(value.note) ? value.note : "",
  };
}

function cleanedAlternatives(value) {
  if (!Array.isArray(value)) return null;
  const isOne = (one) => isNumber(one?.token) && isText(one.text) && isNumber(one.probability);
  return value.map((list) => (Array.isArray(list) ? list.filter(isOne) : []));
}
