/* A desk for every task that is not a conversation: what is read on one side, the answer beside it. */

import { AnswerView } from "./answer.js";
import { continuationHint, isLabelTask } from "./asking.js";
import { chosenVersion, newId } from "./conversations.js";
import { button, make, toast } from "./dom.js";
import { ExchangeView } from "./exchanges.js";
import { LabelView } from "./label.js";
import { PictureInput } from "./pictures.js";
import { SoundInput } from "./sounds.js";
import { TextInput } from "./texts.js";
import { examples, facts, sentences } from "./welcome.js";

const INPUTS = { text: TextInput, picture: PictureInput, sound: SoundInput };
const VERBS = { translate: "Translate", speech: "Transcribe", caption: "Describe", classify: "Classify", blank: "Fill in" };

export class DeskView extends ExchangeView {
  constructor(app) {
    super(app);
    const [model] = app.modelsOf(this.conversation);
    if (!model) {
      this.node = make("div", { class: "desk" }, make("p", { class: "muted" }, `The server does not have ${this.conversation.model} now.`));
      return;
    }
    this.model = model;
    this.entry = null;
    this.go = make("button", { type: "button", class: "primary go", onclick: () => (this.controller ? this.stop() : this.ask()) });
    this.input = new INPUTS[model.regard.input](model, { go: this.go, changed: () => this.paintBusy(), send: () => this.ask() });
    this.answers = make("div", { class: "pane answers", "aria-label": "Answer" });
    this.earlier = make("div", { class: "earlier" });
    this.lead = make("div", {});
    this.body = make("div", { class: `desk-body ${model.regard.input}` }, this.input.node, this.answers);
    this.node = make("div", { class: "desk" }, make("div", { class: "desk-inner" }, this.lead, this.body, this.earlier));
    this.show(this.conversation.exchanges.at(-1) ?? null);
  }

  destroy() {
    super.destroy();
    this.input?.destroy?.();
  }

  focus() {
    this.input?.focus?.();
  }

  paintBusy() {
    const isBusy = this.controller !== null;
    this.go.textContent = isBusy ? "Stop" : VERBS[this.model.regard.task];
    this.go.disabled = !isBusy && !this.input?.isReady();
  }

  // One exchange --------------------------------------------------------------------------------

  async ask() {
    if (this.controller || !this.input.isReady()) return;
    const record = await this.input.record();
    const exchange = {
      id: newId(),
      input: record,
      replies: this.app.modelsOf(this.conversation).map((model) => ({ model: model.id, versions: [], chosen: 0 })),
    };
    this.conversation.exchanges.push(exchange);
    await this.show(exchange, true);
    this.changed();
    await this.during((signal) => Promise.all(this.entry.columns.map((column) => this.write(this.entry, column, { signal }))));
    this.drawEarlier();
  }

  /** Shows an exchange; what is new is on the desk already. A picture takes a moment to load. */
  async show(exchange, isNew = false) {
    if (exchange && isNew) this.input.read();
    if (exchange && !isNew) await this.input.show(exchange.input);
    this.entry = exchange ? { exchange, columns: [] } : null;
    this.answers.replaceChildren();
    if (exchange) this.answers.append(...exchange.replies.map((reply) => this.column(reply)));
    else this.answers.append(make("p", { class: "muted waiting" }, "The answer appears here."));
    this.answers.classList.toggle("two", (exchange?.replies.length ?? 1) > 1);
    this.drawLead();
    this.drawEarlier();
    this.paintBusy();
  }

  column(reply) {
    const { task, input } = this.model.regard;
    const View = isLabelTask(task) ? LabelView : AnswerView;
    const column = { reply, view: null };
    const canContinue = !isLabelTask(task);
    column.view = new View({
      source: this.input.source(),
      onContinue: canContinue ? (prefix) => this.again(this.entry, column, { prefix }) : null,
      continueHint: () => continuationHint(this.model),
      onEffects: () => this.effects(this.entry, column),
      onCandidate: task === "blank" ? (text) => this.input.fill(text ?? chosenVersion(reply)?.text) : null,
    });
    if (input === "picture" && canContinue) {
      column.view.keepsMaps = true;
      column.view.maps.hidden = false;
    }
    this.entry.columns.push(column);
    const version = chosenVersion(reply);
    if (version) column.view.show(version);
    this.paintTools(this.entry, column);
    return make("div", { class: "reply" }, make("div", { class: "reply-name" }, reply.model), column.view.node);
  }

  inputFor(entry) {
    return this.input.value(entry.exchange.input);
  }

  /** A recording is not kept when the page is closed: it cannot be asked about again. */
  again(entry, column, how) {
    if (this.input.canAsk(entry.exchange.input)) super.again(entry, column, how);
    else toast("The recording is not kept in the browser. Choose it again.");
  }

  effects(entry, column) {
    if (this.input.canAsk(entry.exchange.input)) super.effects(entry, column);
    else toast("The recording is not kept in the browser. Choose it again.");
  }

  written() {
    this.input.read();
  }

  // Around it -----------------------------------------------------------------------------------

  drawLead() {
    this.lead.replaceChildren();
    if (this.conversation.exchanges.length) return;
    const { model } = this;
    this.lead.append(make("div", { class: "welcome compact" },
      make("h1", {}, model.id), make("p", { class: "facts" }, facts(model)),
      make("p", { class: "lead" }, sentences(model)),
      model.regard.summary ? make("p", { class: "muted" }, model.regard.summary) : null,
      examples(model, async (given) => {
        await this.input.give(given);
        this.ask();
      })));
  }

  drawEarlier() {
    const list = this.conversation.exchanges.filter((exchange) => exchange !== this.entry?.exchange).reverse();
    this.earlier.replaceChildren();
    if (list.length === 0) return;
    this.earlier.append(make("h3", {}, "Earlier"), make("ul", {}, ...list.map((exchange) => this.earlierRow(exchange))));
  }

  earlierRow(exchange) {
    const { picture, sound, text } = exchange.input;
    const source = picture ? make("img", { src: picture, alt: "A picture" }) : make("span", { class: "was" }, text ?? sound ?? "");
    const answer = chosenVersion(exchange.replies[0])?.text ?? "";
    const open = button("", { class: "earlier-row" }, () => {
      if (!this.controller) this.show(exchange);
    });
    open.append(source, make("span", { class: "became" }, answer));
    return make("li", {}, open);
  }
}
