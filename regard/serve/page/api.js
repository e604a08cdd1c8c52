/* Requests to the server that serves this page, and what to do when they fail.

   A wrong or missing key opens a dialog and the request is sent again. A server that is busy (429)
   is asked again when it said so. A server that does not answer is asked for its health until it
   does; whoever wants to know listens to `connection`. */

import { button, dialog, make } from "./dom.js";

const KEY = "regard-key";
const LONGEST_WAIT = 60; // seconds; a longer Retry-After is an error that is shown
const MOST_TRIES = 8;

export class Problem extends Error {
  /** kind: "gone", "key", "busy", "input", "server" or "stopped". */
  constructor(kind, message, { status = 0, seconds = 0 } = {}) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.seconds = seconds;
  }
}

export const stopped = () => new Problem("stopped", "Stopped.");
export const address = (path) => new URL(path, document.baseURI).href;

// The key ---------------------------------------------------------------------------------------

export function key() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function keepKey(value) {
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch { /* asked again after a reload */ }
}

let askingKey = null; // one dialog, however many requests wait for it

/** Asks for the key; resolves to whether there is a new one. */
function askForKey(wasWrong) {
  askingKey ??= new Promise((resolve) => {
    const field = make("input", {
      type: "password", id: "key", name: "key", autocomplete: "current-password", required: true,
      "aria-describedby": "key-why",
    });
    const why = wasWrong
      ? "The server did not accept this key. Look for a space or a missing character, or ask whoever started the server."
      : "This server asks for a key. Whoever started it knows the key. It stays in this tab and is forgotten when you close it.";
    const form = make("form", { method: "dialog" },
      make("p", { id: "key-why", class: wasWrong ? "wrong" : "" }, why),
      make("input", { type: "text", name: "username", value: "regard", autocomplete: "username", hidden: true }), // for password managers
      make("label", { for: "key" }, "Key"), field,
      make("div", { class: "row end" }, make("button", { class: "primary" }, "Use this key")));
    let given = false;
    form.addEventListener("submit", () => {
      given = true;
      keepKey(field.value.trim());
    });
    dialog(wasWrong ? "The key is wrong" : "A key, please", form, {
      name: "key-dialog",
      onclose: () => {
        askingKey = null;
        resolve(given);
      },
    });
    field.focus();
  });
  return askingKey;
}

// The connection --------------------------------------------------------------------------------

class Connection extends EventTarget {
  isGone = false;
  #tries = 0;
  #timer = null;

  /** No answer: ask for the health of the server until there is one. */
  lost() {
    if (this.isGone) return;
    this.isGone = true;
    this.#tries = 0;
    this.#plan();
  }

  #plan() {
    const seconds = Math.min(10, 1 + this.#tries);
    this.#tries += 1;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.check(), 1000 * seconds);
    this.dispatchEvent(new CustomEvent("gone", { detail: { seconds } }));
  }

  async check() {
    clearTimeout(this.#timer);
    try {
      const response = await fetch(address("health"), { cache: "no-store" });
      if (!response.ok) throw new Error("not healthy");
    } catch {
      this.#plan();
      return;
    }
    this.isGone = false;
    this.dispatchEvent(new Event("back"));
  }

  /** Resolves when the server answers again; rejects if `signal` says that nobody waits. */
  isBack(signal = null) {
    if (!this.isGone) return Promise.resolve();
    return new Promise((resolve, reject) => {
      this.addEventListener("back", resolve, { once: true });
      signal?.addEventListener("abort", () => reject(stopped()), { once: true });
    });
  }
}

export const connection = new Connection();

// Requests --------------------------------------------------------------------------------------

async function send(path, options) {
  const headers = { ...options.headers };
  if (key()) headers.Authorization = `Bearer ${key()}`;
  try {
    return await fetch(address(path), { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw stopped();
    connection.lost();
    throw new Problem("gone", "The server does not answer.");
  }
}

/** The server's messages as sentences. */
function sentence(message) {
  if (!message) return "";
  const text = message[0].toUpperCase() + message.slice(1);
  return /[.?!"”]$/.test(text) ? text : `${text}.`;
}

/** What a refused request means, in the server's words where it has some. */
async function problemOf(response) {
  let message = "";
  try {
    message = (await response.json()).error?.message ?? "";
  } catch { /* not JSON: a proxy's page, say */ }
  message = sentence(message);
  const { status } = response;
  const seconds = Number(response.headers.get("Retry-After")) || 0;
  const how = { status, seconds };
  if (status === 401) return new Problem("key", message || "The key is wrong.", how);
  if (status === 429) return new Problem("busy", message || "The server is busy.", { status, seconds: seconds || 2 });
  if (status === 413) return new Problem("input", message || "This is too large for the server.", how);
  if (status >= 500) return new Problem("server", message || `The server has a problem (${status}).`, how);
  return new Problem("input", message || `The server refused this (${status}).`, how);
}

export function wait(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(stopped());
    }, { once: true });
  });
}

/** A response that is not an error. `onWait(seconds)` is told of each second of waiting. */
export async function request(path, { onWait = null, signal, ...options } = {}) {
  for (let tries = 1; ; tries++) {
    const response = await send(path, { ...options, signal });
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (problem.kind === "key" && (await askForKey(key() !== null))) continue;
    const waits = problem.kind === "busy" && problem.seconds <= LONGEST_WAIT && tries < MOST_TRIES;
    if (!waits) throw problem;
    for (let left = Math.ceil(problem.seconds); left > 0; left--) {
      onWait?.(left);
      await wait(1, signal);
    }
    onWait?.(0);
  }
}

export const getJson = async (path) => (await request(path)).json();
/** A file of the server, as the browser would get it from a person. */
export async function getFile(path) {
  const content = await (await request(path)).blob();
  return new File([content], path.split("/").at(-1), { type: content.type });
}

export const models = async () => (await getJson("v1/models")).data;

/** Asks a model. With `onEvent`, events of the stream as they come; resolves to the last answer. */
export async function ask(body, { signal, onEvent = null, onWait = null } = {}) {
  const response = await request("v1/ask", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: onEvent !== null }),
    signal,
    onWait,
  });
  if (!onEvent) return response.json();
  let end = null;
  for await (const event of eventsOf(response, signal)) {
    if (event.error) throw new Problem("server", sentence(event.error.message) || "The server stopped.");
    if (event.type === "end") end = event;
    onEvent(event);
  }
  if (!end) throw lostInMiddle();
  return end;
}

function lostInMiddle() {
  connection.lost();
  return new Problem("gone", "The connection was lost in the middle of the answer.");
}

/** The events of a text/event-stream. */
async function* eventsOf(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (true) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch {
      throw signal?.aborted ? stopped() : lostInMiddle();
    }
    if (chunk.done) return;
    text += chunk.value.replaceAll("\r\n", "\n");
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const event = dataOf(text.slice(0, end));
      text = text.slice(end + 2);
      if (event === "[DONE]") return;
      if (event) yield JSON.parse(event);
    }
  }
}

function dataOf(block) {
  const lines = block.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

/** The line above the page while the server does not answer. */
export function showConnection(node) {
  let timer = null;
  connection.addEventListener("gone", ({ detail }) => {
    let left = detail.seconds;
    const say = make("span", {});
    const tell = () => { say.textContent = `The server does not answer. Trying again in ${left} s. Nothing you wrote is lost.`; };
    tell();
    clearInterval(timer);
    timer = setInterval(() => {
      left = Math.max(1, left - 1);
      tell();
    }, 1000);
    node.className = "connection";
    node.replaceChildren(say, button("Try now", {}, () => connection.check()));
    node.hidden = false;
  });
  connection.addEventListener("back", () => {
    clearInterval(timer);
    node.className = "connection good-news";
    node.replaceChildren(make("span", {}, "The server is back."));
    timer = setTimeout(() => { node.hidden = true; }, 3000);
  });
}
