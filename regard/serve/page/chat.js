/* A conversation: exchanges, each with an answer of one model or of two. */

import { AnswerView } from "./answer.js";
import { answerInto, effectsOf, otherOptions } from "./asking.js";
import { connection } from "./api.js";
import { chosenVersion, keep, newId } from "./conversations.js";
import { announce, button, copy, make, toast } from "./dom.js";
import { SegmentedText } from "./segmented.js";
import { TextSource } from "./sources.js";
import { welcome } from "./welcome.js";

export class ChatView {
  /** app: { conversation, modelNamed(id), modelsOf(conversation), changed() } */
  constructor(app) {
    this.app = app;
    this.exchanges = []; // { exchange, prompt: SegmentedText, node, columns: [{ reply, view }] }
    this.controller = null; // of the answers that are being written
    this.thread = make("div", { class: "thread" });
    this.node = make("div", { class: "chat" }, make("div", { class: "scroller" }, this.thread), this.composer());
    this.scroller = this.node.firstChild;
    this.draw();
  }

  get conversation() {
    return this.app.conversation;
  }

  destroy() {
    this.stop();
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

  whatItReads() {
    const [model] = this.app.modelsOf(this.conversation);
    if (!model) return `The server does not have the model ${this.conversation.model} now.`;
    const { turns } = model.regard;
    return turns > 0 ? `It reads your message and up to ${turns} turns before it.` : "It reads your message only, not the ones before.";
  }

  onGo() {
    if (this.controller) this.stop();
    else this.send(this.field.value);
  }

  focus() {
    if (matchMedia("(hover: hover)").matches) this.field.focus({ preventScroll: true });
  }

  stop() {
    this.controller?.abort();
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

  /** One thing at a time: while it runs, the button stops it. */
  async during(work) {
    if (this.controller) return;
    this.controller = new AbortController();
    this.paintComposer();
    try {
      await work(this.controller.signal);
    } finally {
      this.controller = null;
      this.paintComposer();
      this.changed();
    }
  }

  /** Lets the model of a column answer; the answer becomes its newest version. */
  async write(entry, column, how) {
    const model = this.app.modelNamed(column.reply.model);
    if (!model) return;
    column.view.tools.replaceChildren();
    const before = chosenVersion(column.reply);
    const version = await answerInto(column.view, model, this.inputFor(entry, column, model), how);
    const isNothing = version.state !== "done" && version.tokens.length === 0;
    if (isNothing && before) { // keep what was there
      column.view.show(before);
      this.paintTools(entry, column);
      if (version.note) toast(version.note);
      return;
    }
    column.reply.versions = column.reply.versions.filter(({ state, tokens }) => state !== "failed" || tokens.length > 0);
    column.reply.versions.push(version);
    column.reply.chosen = column.reply.versions.length - 1;
    column.view.show(version);
    this.paintTools(entry, column);
    this.toEnd();
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
      onEffects: () => this.effects(entry, column),
    });
    entry.columns.push(column);
    const version = chosenVersion(reply);
    if (version) column.view.show(version);
    this.paintTools(entry, column);
    return make("div", { class: "reply" }, make("div", { class: "reply-name" }, reply.model), column.view.node);
  }

  paintTools(entry, column) {
    const { reply, view } = column;
    const version = chosenVersion(reply);
    const model = this.app.modelNamed(reply.model);
    if (!version) {
      view.tools.replaceChildren();
      return;
    }
    const tryAgain = () => this.again(entry, column);
    if (version.state === "failed") view.say(version.note, button("Try again", {}, tryAgain));
    else if (version.state === "stopped") view.say("Stopped.");
    else if (version.finish === "length") view.say("Cut off at the most words it may write.");
    else view.say("");
    const isFailure = version.state === "failed";
    view.tools.replaceChildren(...[
      ...this.versionButtons(entry, column),
      button("", { icon: "copy", label: "Copy the answer", class: "plain icon" }, () => copy(version.text)),
      model ? button("", { icon: "again", label: "Another answer", class: "plain icon" }, () => this.again(entry, column, isFailure ? {} : { options: otherOptions(model) })) : null,
      ...view.insideButtons(),
    ].filter((node) => node !== null));
  }

  versionButtons(entry, column) {
    const { reply, view } = column;
    const count = reply.versions.length;
    if (count < 2) return [];
    const move = (step) => {
      reply.chosen = (reply.chosen + step + count) % count;
      view.show(chosenVersion(reply));
      view.select(null);
      this.paintTools(entry, column);
      this.changed();
      announce(`Answer ${reply.chosen + 1} of ${count}`);
    };
    return [make("span", { class: "versions" },
      button("", { icon: "back", label: "The answer before", class: "plain icon" }, () => move(-1)),
      make("span", {}, `${reply.chosen + 1} / ${count}`),
      button("", { icon: "next", label: "The next answer", class: "plain icon" }, () => move(1)))];
  }

  again(entry, column, how = {}) {
    this.during((signal) => this.write(entry, column, { ...how, signal }));
  }

  effects(entry, column) {
    this.during(async (signal) => {
      const version = chosenVersion(column.reply);
      const model = this.app.modelNamed(column.reply.model);
      column.view.say("Hiding each word from it in turn…");
      try {
        const second = await effectsOf(model, this.inputFor(entry, column, model), version, signal);
        if (second) Object.assign(version, { effects: second.effects.slice(0, version.step_names.length) });
        else toast("This model has no effects to show.");
      } catch (error) {
        if (error.kind !== "stopped") toast(error.message);
      }
      column.view.show(version);
      if (version.effects) {
        column.view.openMaps();
        if (column.view.selected === null) column.view.select(0);
        else column.view.drawInside();
      }
      this.paintTools(entry, column);
    });
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
        if (this.conversation !== conversation || this.controller) return;
        conversation.exchanges = before;
        this.changed();
        this.draw();
      } });
    }
    this.draw();
    this.send(text);
  }

  changed() {
    this.conversation.changed = Date.now();
    keep(this.conversation);
    this.app.changed();
  }

  /** Scrolls to the end; while an answer comes, only if the reader is there already. */
  toEnd(isSure = false) {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    if (isSure || scrollHeight - scrollTop - clientHeight < 220) this.scroller.scrollTop = scrollHeight;
  }
}

connection.addEventListener("back", () => announce("The server is back."));
