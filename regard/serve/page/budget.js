import { make } from "./dom.js";
export class BudgetView { constructor(app) { this.node = make("div", {}, "budget"); } }
