/* The left side: which model, and the conversations. */

import { all, exportJson, exportMarkdown, imported, keep, remove, titleOf } from "./conversations.js";
import { button, byId, icon, make, menu, toast } from "./dom.js";
import { facts } from "./welcome.js";

/** app: { models, model, conversation, choose(model), beside(id), open(conversation), fresh() } */
export class Sidebar {
  constructor(app) {
    this.app = app;
    this.modelList = byId("models");
    this.list = byId("conversations");
    this.setUpDrawer();
  }

  // The drawer of a narrow window ---------------------------------------------------------------

  setUpDrawer() {
    const [drawer, opener, closer, veil] = ["drawer", "open-drawer", "close-drawer", "veil"].map(byId);
    opener.append(icon("menu", 20));
    closer.append(icon("close", 20));
    this.setOpen = (isOpen) => {
      const was = drawer.classList.contains("open");
      drawer.classList.toggle("open", isOpen);
      veil.hidden = !isOpen;
      document.querySelector(".frame").inert = isOpen;
      opener.setAttribute("aria-expanded", String(isOpen));
      if (isOpen) closer.focus();
      else if (was) opener.focus();
    };
    opener.addEventListener("click", () => this.setOpen(true));
    closer.addEventListener("click", () => this.setOpen(false));
    veil.addEventListener("click", () => this.setOpen(false));
    drawer.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.setOpen(false);
    });
  }

  draw() {
    this.drawModels();
    this.drawConversations();
  }

  // Models --------------------------------------------------------------------------------------

  drawModels() {
    const { models, model } = this.app;
    const group = make("div", { class: "model-list", role: "radiogroup", "aria-label": "Model" });
    for (const one of models) {
      const isChosen = one.id === model?.id;
      group.append(make("button", {
        type: "button", role: "radio", class: "model", "aria-checked": String(isChosen), "data-model": one.id,
        tabindex: isChosen || (!model && one === models[0]) ? 0 : -1,
        onclick: () => {
          this.app.choose(one);
          this.setOpen(false);
        },
      }, make("span", { class: "model-name" }, one.id), make("span", { class: "model-facts" }, facts(one))));
    }
    group.addEventListener("keydown", (event) => this.moveModel(event, group));
    this.modelList.replaceChildren(make("h2", {}, models.length === 1 ? "Model" : "Models"), group, this.besideField() ?? "");
  }

  moveModel(event, group) {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...group.children];
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    this.app.choose(this.app.models.find(({ id }) => id === next.dataset.model));
    this.modelList.querySelector("[aria-checked=true]")?.focus();
  }

  /** A second model for the same input, if there is one that reads the same kind. */
  besideField() {
    const { models, model, conversation } = this.app;
    const others = models.filter((one) => model && one.id !== model.id && isLike(one, model));
    if (others.length === 0) return null;
    const select = make("select", { id: "beside" }, make("option", { value: "" }, "no other model"));
    for (const one of others) select.append(make("option", { value: one.id }, one.id));
    select.value = conversation.beside ?? "";
    select.addEventListener("change", () => this.app.beside(select.value || null));
    return make("div", { class: "beside-field" }, make("label", { for: "beside" }, "Side by side with"), select);
  }

  // Conversations -------------------------------------------------------------------------------

  drawConversations() {
    const conversations = all();
    const list = make("ul", { class: "conversation-list" }, ...conversations.map((one) => this.row(one)));
    const file = make("input", { type: "file", accept: ".json,application/json", class: "hidden", tabindex: -1, "aria-hidden": "true", id: "import-file" });
    file.addEventListener("change", () => this.importFile(file.files[0]));
    this.list.replaceChildren(
      make("div", { class: "row between list-head" }, make("h2", {}, "Conversations"),
        button("New", { icon: "plus", id: "new-conversation" }, () => {
          this.app.fresh();
          this.setOpen(false);
        })),
      conversations.length ? list : make("p", { class: "muted empty" }, "None yet. They are kept in this browser, and nowhere else."),
      make("div", { class: "list-foot" },
        button("Import", { class: "plain", id: "import" }, () => file.click()),
        conversations.length ? button("Export all", { class: "plain", id: "export-all" }, () => exportJson(all())) : null, file),
    );
  }

  row(conversation) {
    const isOpen = conversation.id === this.app.conversation.id;
    const open = make("button", {
      type: "button", class: "conversation", "aria-current": isOpen ? "true" : null,
      onclick: () => {
        this.app.open(conversation);
        this.setOpen(false);
      },
    }, make("span", { class: "conversation-title" }, titleOf(conversation)),
    make("span", { class: "conversation-facts" }, `${conversation.model} · ${when(conversation.changed)}`));
    const more = button("", { icon: "dots", label: `More about ${titleOf(conversation)}`, class: "plain icon", "aria-haspopup": "menu", "aria-expanded": "false" });
    const item = make("li", { "data-id": conversation.id }, open, more);
    more.addEventListener("click", () => menu(more, [
      { text: "Rename", act: () => this.rename(item, conversation) },
      { text: "Export as Markdown", act: () => exportMarkdown(conversation) },
      { text: "Export as JSON", act: () => exportJson([conversation]) },
      { text: "Delete", danger: true, act: () => this.delete(conversation) },
    ]));
    return item;
  }

  rename(item, conversation) {
    const field = make("input", { class: "rename", "aria-label": "Name of the conversation", maxlength: 120 });
    field.value = titleOf(conversation);
    let isOver = false;
    const end = (isKept) => {
      if (isOver) return;
      isOver = true;
      const name = field.value.trim();
      if (isKept && name) this.app.renamed(conversation, name);
      this.drawConversations();
      this.list.querySelector(`[data-id="${conversation.id}"] .conversation`)?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") end(false);
      event.stopPropagation();
    });
    field.addEventListener("blur", () => end(true));
    item.replaceChildren(field);
    field.focus();
    field.select();
  }

  delete(conversation) {
    const isOpen = conversation.id === this.app.conversation.id;
    remove(conversation);
    if (isOpen) this.app.fresh();
    this.drawConversations();
    byId("new-conversation").focus();
    toast(`Deleted “${titleOf(conversation)}”.`, { action: "Undo", act: () => {
      keep(conversation);
      if (isOpen) this.app.open(conversation);
      else this.drawConversations();
    } });
  }

  async importFile(file) {
    if (!file) return;
    try {
      const conversations = imported(await file.text());
      conversations.forEach(keep);
      this.app.open(conversations[0]);
      toast(conversations.length === 1 ? "One conversation was added." : `${conversations.length} conversations were added.`);
    } catch (error) {
      toast(error.message);
    }
    this.drawConversations();
  }
}

export const isLike = (one, other) => one.regard.task === other.regard.task && one.regard.input === other.regard.input;

/** When something changed, in few words. */
function when(time) {
  const date = new Date(time);
  const minutes = (Date.now() - time) / 60_000;
  if (minutes < 1.5) return "now";
  if (minutes < 60) return `${Math.round(minutes)} min ago`;
  if (date.toDateString() === new Date().toDateString()) return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return date.toLocaleDateString([], { day: "numeric", month: "short" });
}
