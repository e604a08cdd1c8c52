/* The runs of the server: what they are, how they were trained, and their reports. */

import { getJson } from "./api.js";
import { lineChart } from "./chart.js";
import { large, make } from "./dom.js";
import { documentButton } from "./viewer.js";
import { facts } from "./welcome.js";

const NOT_SCORES = new Set(["step", "epoch", "seconds", "best", "kept", "speed", "rate"]);
const NAMES = {
  loss: "loss", perplexity: "perplexity", word_perplexity: "perplexity of words", bleu: "BLEU", chrf: "chrF", accuracy: "accuracy",
  cer: "characters wrong (CER)", wer: "words wrong (WER)", exact: "exactly right", mean_length: "mean length", mrr: "mean reciprocal rank", f1: "F1",
};

export class RunsView {
  constructor(app) {
    this.node = make("div", { class: "sheet" }, make("div", {}, make("h1", {}, "Runs"),
      make("p", { class: "lead" }, "The models of this server: how each was trained, and its report.")),
    ...app.models.map((model) => this.card(model)));
  }

  card(model) {
    const chart = make("div", { class: "curves" });
    const tools = make("div", { class: "row" });
    if (model.regard.report) {
      tools.append(documentButton(`v1/models/${encodeURIComponent(model.id)}/report`, { text: "Report", title: `Report of ${model.id}`, fileName: `${model.id}-report.html` }));
    }
    const options = Object.entries(model.regard.options).map(([name, value]) => `${name} = ${value}`).join(", ");
    if (model.regard.curves) this.curves(model, chart);
    else chart.append(make("p", { class: "muted" }, "There is no record of its training."));
    return make("section", { class: "card run" },
      make("div", { class: "row between" }, make("div", {}, make("h2", {}, model.id), make("p", { class: "muted" }, facts(model))), tools),
      model.regard.summary ? make("p", {}, model.regard.summary) : null,
      chart, make("details", {}, make("summary", {}, "Search options of its recipe"), make("p", { class: "mono" }, options)));
  }

  async curves(model, node) {
    let lines;
    try {
      lines = await getJson(`v1/models/${encodeURIComponent(model.id)}/curves`);
    } catch (error) {
      node.replaceChildren(make("p", { class: "muted" }, error.message));
      return;
    }
    const figures = [trainFigure(lines), validFigure(lines)].filter((figure) => figure !== null);
    node.replaceChildren(...(figures.length ? figures : [make("p", { class: "muted" }, "It was trained too briefly for a curve.")]));
  }
}

function trainFigure(lines) {
  const points = lines.filter(({ kind, loss }) => kind === "train" && Number.isFinite(loss)).map(({ step, loss }) => [step, loss]);
  if (points.length < 2) return null;
  return make("figure", {}, make("figcaption", {}, "Loss in training"),
    lineChart({ series: [{ name: "", points }], xLabel: "step", label: `Loss in training, from ${large(points[0][1])} to ${large(points.at(-1)[1])}` }));
}

/** Scores on validation data, or on training examples if nothing is held out; a list to choose from.
 * One value is said, not drawn. */
function validFigure(lines) {
  const heldOut = lines.filter(({ kind }) => kind === "valid");
  const valid = heldOut.length ? heldOut : lines.filter(({ kind }) => kind === "training_examples");
  const where = heldOut.length ? "validation data" : "training examples";
  const scores = new Set(valid.flatMap((line) => Object.keys(line)).filter((name) => !NOT_SCORES.has(name) && valid.some((line) => Number.isFinite(line[name]))));
  if (scores.size === 0) return null;
  const select = make("select", { "aria-label": `Score on ${where}` }, ...[...scores].map((name) => make("option", { value: name }, NAMES[name] ?? name.replaceAll("_", " "))));
  const body = make("div", {});
  const draw = () => {
    const name = select.value;
    const points = valid.filter((line) => Number.isFinite(line[name])).map((line) => [line.step, line[name]]);
    const title = NAMES[name] ?? name.replaceAll("_", " ");
    body.replaceChildren(points.length < 2
      ? make("p", { class: "big-number" }, large(points[0][1]), make("span", { class: "muted" }, ` after ${points[0][0].toLocaleString("en")} steps`))
      : lineChart({ series: [{ name: "", points }], xLabel: "step", label: `${title} on ${where}` }));
  };
  select.addEventListener("change", draw);
  draw();
  return make("figure", {}, make("figcaption", { class: "row between" }, `On ${where}`, select), body);
}
