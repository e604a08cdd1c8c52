import { make } from "./dom.js";
export class LabView { constructor(app) { this.node = make("div", {}, "lab"); } }
