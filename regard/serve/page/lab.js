/* The lab: experiments that check a statement about attention, each with its page. */

import { getJson } from "./api.js";
import { formula, make } from "./dom.js";
import { documentButton } from "./viewer.js";

export class LabView {
  constructor() {
    this.list = make("div", { class: "lab-list" }, make("p", { class: "muted" }, "Asking the server…"));
    this.node = make("div", { class: "sheet" }, make("div", {}, make("h1", {}, "Lab"),
      make("p", { class: "lead" }, "Statements about attention, each checked by an experiment. A page is computed on the server when it is first opened, which may take a minute.")),
    this.list);
    this.load();
  }

  async load() {
    try {
      const experiments = await getJson("v1/lab");
      this.list.replaceChildren(...experiments.map(({ name, summary }) => make("section", { class: "card experiment" },
        make("h2", {}, title(name)), make("p", {}, ...formula(summary)), make("div", {}, documentButton(`v1/lab/${encodeURIComponent(name)}`, { text: "Open", title: title(name), fileName: `${name}.html` })))));
    } catch (error) {
      this.list.replaceChildren(make("p", { class: "muted" }, error.message));
    }
  }
}

const title = (name) => name.replaceAll("-", " ").replace(/^./, (letter) => letter.toUpperCase());
