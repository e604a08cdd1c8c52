/* What a conversation and a desk have in common: models that are asked, answers in versions.

   entry    { exchange, columns }            column   { reply, view }
   A view of exchanges has `inputFor(entry, column, model)`: what a model is to read. */

import { answerInto, effectsOf, isLabelTask, otherOptions } from "./asking.js";
import { chosenVersion, isKept, keep } from "./conversations.js";
import { announce, button, copy, make, toast } from "./dom.js";

export class ExchangeView {
  controller = null; // of the answers that are being written

  /** app: { conversation, modelNamed(id), modelsOf(conversation), changed() } */
  constructor(app) {
    this.app = app;
    this.conversation = app.conversation; // another one gets another view
    this.isOver = false;
  }

  destroy() {
    this.isOver = true;
    this.stop();
  }

  stop() {
    this.controller?.abort();
  }

  /** One thing at a time: while it runs, the button stops it. */
  async during(work) {
    if (this.controller) return;
    this.controller = new AbortController();
    this.paintBusy(true);
    try {
      await work(this.controller.signal);
    } finally {
      this.controller = null;
      this.paintBusy(false);
      this.changed();
    }
  }

  /** Lets the model of a column answer; the answer becomes its newest version. */
  async write(entry, column, how) {
    const model = this.app.modelNamed(column.reply.model);
    if (!model) return;
    column.view.tools.replaceChildren();
    const before = chosenVersion(column.reply);
    const version = await answerInto(column.view, model, await this.inputFor(entry, column, model), how);
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
    this.written();
  }

  /** Called when an answer has been written. */
  written() {}

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
    const canVary = model && !isLabelTask(model.regard.task); // a label is not drawn
    view.tools.replaceChildren(...[
      ...this.versionButtons(entry, column),
      !version.text ? null : button("", { icon: "copy", label: "Copy the answer", class: "plain icon" }, () => copy(version.text)),
      canVary ? button("", { icon: "again", label: "Another answer", class: "plain icon" }, () => this.again(entry, column, isFailure ? {} : { options: otherOptions(model) })) : null,
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
        const effects = await effectsOf(model, await this.inputFor(entry, column, model), version, signal);
        if (effects) version.effects = effects;
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

  /** Keeps the conversation, unless it was deleted while an answer was still coming. */
  changed() {
    const { conversation } = this;
    const isDeleted = this.isOver && !isKept(conversation);
    if (isDeleted || conversation.exchanges.length === 0) return;
    conversation.changed = Date.now();
    keep(conversation);
    this.app.changed();
  }
}
