import { make } from "./dom.js";
export class DeskView { constructor(app) { this.node = make("div", {}, "desk"); } }
