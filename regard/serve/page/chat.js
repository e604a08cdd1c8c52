/* A conversation: exchanges, each with an answer of one model or of two. */

import { AnswerView } from "./answer.js";
import { connection } from "./api.js";
import { continuationHint } from "./asking.js";
import { chosenVersion, newId } from "./conversations.js";
import { announce, button, copy, make, toast } from "./dom.js";
import { ExchangeView } from "./exchanges.js";
import { SegmentedText } from "./segmented.js";
import { TextSource } from "./sources.js";
import { welcome } from "./welcome.js";

/** What a model reads that was trained with so many turns; 0 if it reads no history. */
export function whatIsRead(turns) {
  if (turns < 2) return "It reads your message only, not the ones before.";
  if (turns === 2) return "It reads your message and the turn before it.";
  return `It reads your message and up to ${turns - 1} turns before it.`;
}

export class ChatView extends ExchangeView {
  constructor(app) {
    super(app);
    this.exchanges = []; // { exchange, prompt: SegmentedText, node, columns: [{ reply, view }] }
    this.thread = make("div", { class: "thread" });
    this.node = make("div", { class: "chat" }, make("div", { class: "scroller" }, this.thread), this.composer());
    this.scroller = this.node.firstChild;
    this.draw();
  }

  draw() {
    this.exchanges = [];
    this.thread.replaceChildren();
    this.thread.classList.toggle("two", this.app.modelsOf(this.conversation).length > 1 || this.conversation.exchanges.some(({ replies }) => replies.length > 1));
    if (this.conversation.exchanges.length === 0) {
      this.thread.append(welcome(this.app, (text) => this.send(text)));
    }
    this.conversation.exchanges.forEach((exchange) => this.addExchange(exchange));
    this.paintComposer();
    requestAnimationFrame(() => this.toEnd(true));
  }

  // The composer --------------------------------------------------------------------------------

  composer() {
    this.field = make("textarea", { id: "prompt", rows: 1, "aria-label": "Your message", placeholder: "Write a message", enterkeyhint: "send" });
    this.field.addEventListener("input", () => this.fit());
    this.field.addEventListener("keydown", (event) => {
      const sends = event.key === "Enter" && !event.shiftKey && !event.isComposing;
      if (!sends) return;
      event.preventDefault();
      this.send(this.field.value);
    });
    this.go = make("button", { type: "button", class: "send primary icon", onclick: () => this.onGo() });
    this.note = make("p", { class: "composer-note" });
    return make("div", { class: "composer" }, make("div", { class: "composer-box" }, this.field, this.go), this.note);
  }

  fit() {
    this.field.style.setProperty("height", "auto");
    this.field.style.setProperty("height", `${Math.min(220, this.field.scrollHeight)}px`);
    this.paintComposer();
  }

  paintComposer() {
    const isBusy = this.controller !== null;
    const label = isBusy ? "Stop" : "Send";
    this.go.replaceChildren(...button("", { icon: isBusy ? "stop" : "send" }).childNodes);
    this.go.setAttribute("aria-label", label);
    this.go.title = label;
    this.go.classList.toggle("stop", isBusy);
    this.go.disabled = !isBusy && this.field.value.trim() === "";
    this.note.textContent = this.whatItReads();
  }

  paintBusy() {
    this.paintComposer();
  }

  written() {
    this.toEnd();
  }

  whatItReads() {
    const [model] = this.app.modelsOf(this.conversation);
    if (!model) return `The server does not have the model ${this.conversation.model} now.`;
    return whatIsRead(model.regard.turns);
  }

  onGo() {
    if (this.controller) this.stop();
    else this.send(this.field.value);
  }

  focus() {
    if (matchMedia("(hover: hover)").matches) this.field.focus({ preventScroll: true });
  }

  // Sending -------------------------------------------------------------------------------------

  async send(text) {
    const message = text.trim();
    const models = this.app.modelsOf(this.conversation);
    if (!message || this.controller || models.length === 0) return;
    const exchange = {
      id: newId(),
      input: { text: message },
      replies: models.map((model) => ({ model: model.id, versions: [], chosen: 0 })),
    };
    if (this.conversation.exchanges.length === 0) this.thread.replaceChildren();
    this.conversation.exchanges.push(exchange);
    this.field.value = "";
    this.fit();
    const entry = this.addExchange(exchange);
    this.toEnd(true);
    this.changed();
    await this.during((signal) => Promise.all(entry.columns.map((column) => this.write(entry, column, { signal }))));
    this.focus();
  }

  /** What a model reads: the last turns, with its own answers. */
  inputFor(entry, column, model) {
    const { turns } = model.regard;
    if (!turns) return entry.exchange.input.text;
    const messages = [];
    const at = this.exchanges.indexOf(entry);
    for (const { exchange } of this.exchanges.slice(0, at)) {
      const reply = exchange.replies.find(({ model: id }) => id === column.reply.model) ?? exchange.replies[0];
      const answer = chosenVersion(reply)?.text;
      if (answer) messages.push({ role: "user", content: exchange.input.text }, { role: "assistant", content: answer });
    }
    return [...messages.slice(-turns), { role: "user", content: entry.exchange.input.text }];
  }

  /** The texts an answer may have looked at, oldest first. */
  textsBefore(entry, id) {
    const at = this.exchanges.indexOf(entry);
    const texts = [];
    for (const before of this.exchanges.slice(0, at)) {
      const column = before.columns.find(({ reply }) => reply.model === id) ?? before.columns[0];
      texts.push(before.prompt, column.view.text);
    }
    return [...texts, entry.prompt];
  }

  // Exchanges -----------------------------------------------------------------------------------

  addExchange(exchange) {
    const text = make("div", { class: "prompt-text" });
    const entry = { exchange, prompt: new SegmentedText(text, exchange.input.text ?? ""), columns: [] };
    this.exchanges.push(entry);
    const bubble = make("div", { class: "prompt" }, make("span", { class: "hidden" }, "You: "), text);
    const tools = make("div", { class: "prompt-tools" },
      button("", { icon: "edit", label: "Edit and send again", class: "plain icon" }, () => this.edit(entry)),
      button("", { icon: "copy", label: "Copy your message", class: "plain icon" }, () => copy(exchange.input.text)));
    entry.bubble = bubble;
    const columns = make("div", { class: "columns" });
    for (const reply of exchange.replies) columns.append(this.addColumn(entry, reply, bubble));
    entry.node = make("article", { class: "exchange", "aria-label": "Message and answer" }, make("div", { class: "prompt-row" }, tools, bubble), columns);
    this.thread.append(entry.node);
    return entry;
  }

  addColumn(entry, reply, bubble) {
    const source = new TextSource(() => this.textsBefore(entry, reply.model));
    bubble.append(source.elsewhere);
    const column = { reply, view: null };
    column.view = new AnswerView({
      source,
      onContinue: (prefix) => this.again(entry, column, { prefix }),
      continueHint: () => continuationHint(this.app.modelNamed(reply.model)),
      onEffects: () => this.effects(entry, column),
    });
    entry.columns.push(column);
    const version = chosenVersion(reply);
    if (version) column.view.show(version);
    this.paintTools(entry, column);
    return make("div", { class: "reply" }, make("div", { class: "reply-name" }, reply.model), column.view.node);
  }

  /** Edit a message: what came after it goes, with a way back. */
  edit(entry) {
    if (this.controller) return;
    const field = make("textarea", { class: "edit-field", rows: 2, "aria-label": "Your message" });
    field.value = entry.exchange.input.text;
    const close = () => form.replaceWith(entry.bubble);
    const send = () => {
      if (!field.value.trim()) return;
      close();
      this.resend(entry, field.value);
    };
    const form = make("div", { class: "edit-form" }, field, make("div", { class: "row end" },
      button("Cancel", {}, close), button("Send", { class: "primary" }, send)));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    });
    entry.bubble.replaceWith(form);
    field.focus();
    field.select();
  }

  resend(entry, text) {
    const { conversation } = this;
    const before = [...conversation.exchanges];
    conversation.exchanges = before.slice(0, this.exchanges.indexOf(entry));
    if (before.length > conversation.exchanges.length + 1) {
      toast("The messages after it were removed.", { action: "Undo", act: () => {
        if (this.isOver || this.controller) return;
        conversation.exchanges = before;
        this.changed();
        this.draw();
      } });
    }
    this.draw();
    this.send(text);
  }

  /** Scrolls to the end; while an answer comes, only if the reader is there already. */
  toEnd(isSure = false) {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    if (isSure || scrollHeight - scrollTop - clientHeight < 220) this.scroller.scrollTop = scrollHeight;
  }
}

connection.addEventListener("back", () => announce("The server is back."));
