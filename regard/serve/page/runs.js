import { make } from "./dom.js";
export class RunsView { constructor(app) { this.node = make("div", {}, "runs"); } }
