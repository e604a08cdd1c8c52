/* The page: which tab, which model, which conversation. */

import { connection, models as fetchModels, showConnection } from "./api.js";
import { BudgetView } from "./budget.js";
import { ChatView } from "./chat.js";
import { setUpTheme } from "./colours.js";
import { all, keep, newConversation, onChangeElsewhere } from "./conversations.js";
import { DeskView } from "./desk.js";
import { button, byId, icon, make } from "./dom.js";
import { LabView } from "./lab.js";
import { RunsView } from "./runs.js";
import { hasSettings, openSettings, summary } from "./settings.js";
import { isLike, Sidebar } from "./sidebar.js";
import { taskOf } from "./welcome.js";

const main = byId("main");

class App {
  models = [];
  model = null;
  conversation = null;
  tab = "talk";
  view = null;

  async start() {
    showConnection(byId("connection"));
    this.settingsButton = button("", { icon: "sliders", label: "How it answers", class: "plain icon", id: "settings" }, () => openSettings(this.model, () => this.drawTools()));
    byId("tools").append(this.settingsButton);
    setUpTheme(byId("tools"), icon);
    this.setUpTabs();
    this.sidebar = new Sidebar(this);
    await this.load();
    onChangeElsewhere(() => this.sidebar.drawConversations());
  }

  /** The models of the server. If it does not answer, again when it does. */
  async load() {
    main.replaceChildren(make("p", { class: "loading muted" }, "Asking the server for its models…"));
    try {
      this.models = await fetchModels();
    } catch (error) {
      if (error.kind === "gone") {
        main.replaceChildren(make("p", { class: "loading muted" }, "The page goes on as soon as the server answers."));
        await connection.isBack();
        return this.load();
      }
      main.replaceChildren(make("div", { class: "loading" }, make("p", {}, error.message), button("Try again", { class: "primary" }, () => this.load())));
      return undefined;
    }
    const last = all()[0];
    const model = this.modelNamed(last?.model) ?? this.models[0];
    this.model = model;
    this.conversation = newConversation(model);
    this.sidebar.draw();
    this.show(tabOfAddress());
    document.documentElement.dataset.ready = "yes";
    return undefined;
  }

  // What views ask for --------------------------------------------------------------------------

  modelNamed(id) {
    return this.models.find((model) => model.id === id) ?? null;
  }

  /** The models that answer in a conversation: one, or two that read the same kind of input. */
  modelsOf(conversation) {
    const first = this.modelNamed(conversation.model);
    const second = this.modelNamed(conversation.beside);
    if (!first) return [];
    return second && second.id !== first.id && isLike(first, second) ? [first, second] : [first];
  }

  /** A conversation has changed: its title and place in the list may have too. */
  changed() {
    this.sidebar.drawConversations();
  }

  renamed(conversation, name) {
    const open = this.conversation.id === conversation.id ? this.conversation : conversation;
    open.title = name;
    open.isNamed = true;
    keep(open);
  }

  choose(model) {
    this.model = model;
    const isEmpty = this.conversation.exchanges.length === 0;
    if (!isEmpty || this.conversation.model !== model.id) this.conversation = newConversation(model);
    this.redraw();
  }

  beside(id) {
    this.conversation.beside = id;
    if (this.conversation.exchanges.length) keep(this.conversation);
    this.redraw();
  }

  open(conversation) {
    const isOpen = conversation.id === this.conversation.id;
    if (isOpen && this.tab === "talk") return;
    if (!isOpen) this.conversation = conversation;
    this.model = this.modelNamed(conversation.model) ?? this.model;
    this.tab = "talk";
    this.redraw();
  }

  fresh() {
    this.conversation = newConversation(this.model);
    this.tab = "talk";
    this.redraw();
    this.view.focus?.();
  }

  // Tabs ----------------------------------------------------------------------------------------

  setUpTabs() {
    const tabs = [...byId("tabs").children];
    tabs.forEach((tab, i) => {
      tab.addEventListener("click", () => this.show(tab.dataset.tab));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = tabs[(i + step + tabs.length) % tabs.length];
        next.focus();
        next.click();
      });
    });
    addEventListener("hashchange", () => this.show(tabOfAddress()));
  }

  show(tab) {
    if (!this.model) return;
    this.tab = tab;
    history.replaceState(null, "", tab === "talk" ? location.pathname : `#${tab}`);
    this.redraw(false);
  }

  redraw(withSidebar = true) {
    this.view?.destroy?.();
    const isChat = (this.conversation.task ?? this.model.regard.task) === "chat";
    const views = { talk: isChat ? ChatView : DeskView, budget: BudgetView, runs: RunsView, lab: LabView };
    this.view = new views[this.tab](this);
    main.replaceChildren(this.view.node);
    main.scrollTop = 0; // whatever was there before
    main.dataset.tab = this.tab;
    main.setAttribute("aria-labelledby", `tab-${this.tab}`);
    for (const tab of byId("tabs").children) {
      const is = tab.dataset.tab === this.tab;
      tab.setAttribute("aria-selected", String(is));
      tab.tabIndex = is ? 0 : -1;
    }
    this.drawTools();
    if (withSidebar) this.sidebar.draw();
  }

  drawTools() {
    byId("tab-talk").textContent = taskOf(this.model).tab;
    this.settingsButton.hidden = this.tab !== "talk" || !hasSettings(this.model);
    const label = `How it answers: ${summary(this.model)}`;
    this.settingsButton.setAttribute("aria-label", label);
    this.settingsButton.title = label;
    document.title = `${this.model.id} · regard`;
  }
}

function tabOfAddress() {
  const name = location.hash.slice(1);
  return ["budget", "runs", "lab"].includes(name) ? name : "talk";
}

new App().start();
