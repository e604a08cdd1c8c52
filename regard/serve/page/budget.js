/* What a Transformer costs: sizes to move, exact attention beside linear attention. */

import { getJson } from "./api.js";
import { lineChart } from "./chart.js";
import { large, make } from "./dom.js";

const WAIT = 120; // milliseconds after the last move
const SIZES = {
  width: { title: "Width", symbol: "D", values: [32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096], start: 256 },
  layers: { title: "Layers", symbol: "N", values: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48], start: 4, why: "in the encoder, and as many in the decoder" },
  heads: { title: "Heads", symbol: "H", values: [1, 2, 4, 8, 16, 32], start: 8 },
  length: { title: "Length", symbol: "S = T", values: [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768], start: 512, why: "tokens read, and as many written" },
};
const SYMBOLS = "B = 1 sequence; S and T tokens read and written; D width; H heads of width K = D / H; F = 4 D; V = 8,000 tokens; N layers; M′ features of linear attention; E width of the encoder.";

export class BudgetView {
  constructor() {
    this.sizes = Object.fromEntries(Object.entries(SIZES).map(([name, { start }]) => [name, start]));
    this.numbers = make("div", { class: "budget-numbers" });
    this.plot = make("div", {});
    this.formulas = make("div", {});
    this.status = make("p", { class: "status", role: "status" });
    const sliders = Object.entries(SIZES).map(([name, size]) => this.slider(name, size));
    this.node = make("div", { class: "sheet" },
      make("div", {}, make("h1", {}, "What would it cost?"),
        make("p", { class: "lead" }, "Move the sizes of a Transformer and see its parameters, its multiplications and its memory, with exact attention beside linear attention. All numbers are formulas; nothing is built or run.")),
      make("div", { class: "budget" },
        make("section", { class: "card sliders" }, ...sliders, this.status),
        make("div", { class: "budget-results" },
          make("section", { class: "card" }, this.numbers),
          make("section", { class: "card" }, make("h2", {}, "Multiplications of one pass, by length"), this.plot),
          make("section", { class: "card" }, make("h2", {}, "Formulas"), make("p", { class: "hint" }, SYMBOLS), this.formulas))));
    this.load();
  }

  destroy() {
    clearTimeout(this.timer);
  }

  slider(name, { title, symbol, values, why }) {
    const output = make("output", { for: `size-${name}` });
    const input = make("input", { type: "range", id: `size-${name}`, min: 0, max: values.length - 1, step: 1 });
    const paint = () => {
      output.textContent = this.sizes[name].toLocaleString("en");
      input.setAttribute("aria-valuetext", output.textContent);
    };
    input.value = values.indexOf(this.sizes[name]);
    input.addEventListener("input", () => {
      this.sizes[name] = values[Number(input.value)];
      paint();
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.load(), WAIT);
    });
    paint();
    return make("div", { class: "field" },
      make("div", { class: "row between" }, make("label", { for: `size-${name}` }, `${title} `, make("i", { class: "symbol" }, symbol)), output),
      input, why ? make("p", { class: "hint" }, why) : null);
  }

  async load() {
    const wanted = new URLSearchParams(this.sizes).toString();
    this.wanted = wanted;
    try {
      const budget = await getJson(`v1/budget?${wanted}`);
      if (this.wanted !== wanted) return; // the sizes have moved on
      this.status.textContent = "";
      this.draw(budget);
    } catch (error) {
      if (this.wanted === wanted) this.status.textContent = plain(error.message);
    }
  }

  draw({ softmax, linear, by_length: points, terms }) {
    const rows = [
      ["Parameters", softmax.parameters, linear.parameters, ""],
      ["Multiplications, one pass", softmax.multiplications.forward, linear.multiplications.forward, ""],
      ["Multiplications, a step of training", softmax.multiplications.training, linear.multiplications.training, ""],
      ["Multiplications, the next token", softmax.multiplications.token, linear.multiplications.token, ""],
      ["Memory to train", softmax.memory.training, linear.memory.training, "B"],
      ["Memory to answer", softmax.memory.inference, linear.memory.inference, "B"],
      ["Memory of the state while it writes", softmax.memory.state, linear.memory.state, "B"],
      ["Steps one after another, one pass", softmax.depth.forward, linear.depth.forward, ""],
    ];
    this.numbers.replaceChildren(table(["", "exact", `linear, ${terms} terms`], rows));
    const of = (name) => points.map((point) => [point.length, point[name]]);
    this.plot.replaceChildren(lineChart({
      series: [{ name: "exact", points: of("softmax") }, { name: "linear", points: of("linear") }],
      xLabel: "length, in tokens", isLog: true, mark: this.sizes.length, label: "Multiplications of one pass against length, for exact and for linear attention",
    }), make("p", { class: "hint" }, verdict(softmax, linear)));
    this.formulas.replaceChildren(formulaTable(softmax.parts, linear.parts));
  }
}

const plain = (message) => (/heads must divide width/.test(message) ? "The heads must divide the width: choose fewer heads, or another width." : message);

function verdict(softmax, linear) {
  const ratio = softmax.multiplications.forward / linear.multiplications.forward;
  if (ratio >= 1.05) return `At this length exact attention makes ${ratio.toFixed(1)} times as many multiplications.`;
  if (ratio <= 0.95) return `At this length linear attention makes ${(1 / ratio).toFixed(1)} times as many multiplications: it pays off with longer sequences only.`;
  return "At this length they cost about the same.";
}

const withUnit = (value, unit) => (unit ? `${large(value)}${/\D$/.test(large(value)) ? "" : " "}${unit}` : large(value));

function table(heads, rows) {
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((head, i) => make("th", { scope: "col", class: i ? "number" : null }, head)))),
    make("tbody", {}, ...rows.map(([name, exact, linear, unit]) => make("tr", {}, make("th", { scope: "row" }, name),
      make("td", { class: "number" }, withUnit(exact, unit)),
      make("td", { class: `number${linear < exact ? " less" : ""}` }, withUnit(linear, unit)))))));
}

/** Multiplications of one pass of each part, with symbols and with numbers. */
function formulaTable(exactParts, linearParts) {
  const rows = exactParts.flatMap((part, i) => {
    const exact = part.formulas.forward;
    const linear = linearParts[i]?.formulas.forward;
    if (!exact) return [];
    const isSame = linear?.symbols === exact.symbols;
    return [formulaRow(part.name, isSame ? "" : "exact", exact, part.forward), isSame || !linear ? null : formulaRow("", "linear", linear, linearParts[i].forward)];
  });
  return make("div", { class: "scroll" }, make("table", { class: "formulas" }, make("tbody", {}, ...rows.filter((row) => row !== null))));
}

function formulaRow(name, kind, { symbols, numbers }, value) {
  return make("tr", {}, make("th", { scope: "row" }, name, kind ? make("span", { class: "kind" }, kind) : null),
    make("td", {}, make("div", { class: "symbols" }, ...raised(symbols)), make("div", { class: "hint" }, ...raised(numbers))),
    make("td", { class: "number" }, large(value)));
}

/** D^2 with a raised 2. */
function raised(text) {
  return text.split(/(\^\d+)/).filter(Boolean).map((part) => (part.startsWith("^") ? make("sup", {}, part.slice(1)) : part.replaceAll("M'", "M′")));
}
