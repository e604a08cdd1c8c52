/* Settings in plain words. What is not changed is the recipe's. */

import { button, dialog, make, segments } from "./dom.js";

const STORAGE = "regard-settings-";

function read(model) {
  try {
    const value = JSON.parse(localStorage.getItem(STORAGE + model.id));
    return value !== null && typeof value === "object" ? value : {};
  } catch {
    return {};
  }
}

function write(model, changes) {
  try {
    if (Object.keys(changes).length) localStorage.setItem(STORAGE + model.id, JSON.stringify(changes));
    else localStorage.removeItem(STORAGE + model.id);
  } catch { /* as in the recipe again next time */ }
}

/** All search options of a model: the recipe's, with what was changed here. */
export function optionsOf(model) {
  return { ...model.regard.options, ...changedOptions(model) };
}

/** What was changed, as a request has it. Without a seed the server draws a new one. */
export function changedOptions(model) {
  const known = model.regard.options;
  return Object.fromEntries(Object.entries(read(model)).filter(([name]) => name in known));
}

export const randomSeed = () => crypto.getRandomValues(new Uint32Array(1))[0] % 1_000_000;

export function howItChooses(options) {
  if (options.num_beams > 1) return "beams";
  return options.do_sample ? "draw" : "likeliest";
}

/** One line: how the model answers now. */
export function summary(model) {
  const options = optionsOf(model);
  const how = { beams: `best of ${options.num_beams} at once`, draw: "draws its words", likeliest: "takes the likeliest word" };
  return `${how[howItChooses(options)]}, at most ${options.max_new_tokens} tokens`;
}

const isLabel = (model) => ["classify", "blank"].includes(model.regard.task);
export const hasSettings = (model) => !isLabel(model);

/** The dialog. `changed()` is called after every change. */
export function openSettings(model, changed) {
  const body = make("div", { class: "settings-body" });
  const draw = () => {
    body.replaceChildren(...fields(model, (changes, redraw = false) => {
      write(model, onlyChanges(model, { ...read(model), ...changes }));
      changed();
      if (redraw) draw();
      else marks(model, body);
    }), footer(model, () => {
      write(model, {});
      changed();
      draw();
    }));
    marks(model, body);
  };
  draw();
  dialog("How it answers", body, { name: "settings" });
}

/** Values that equal the recipe's are not changes. A seed always is one. */
function onlyChanges(model, values) {
  const known = model.regard.options;
  const isChange = ([name, value]) => value !== undefined && (name === "seed" || value !== known[name]);
  return Object.fromEntries(Object.entries(values).filter(isChange));
}

function marks(model, body) {
  const changes = read(model);
  for (const field of body.querySelectorAll("[data-option]")) {
    field.classList.toggle("is-changed", field.dataset.option.split(" ").some((name) => name in changes));
  }
  const reset = body.querySelector(".reset");
  if (reset) reset.disabled = Object.keys(changes).length === 0;
}

function footer(model, reset) {
  return make("div", { class: "row between settings-foot" },
    make("p", { class: "muted" }, "Kept in this browser, for this model only."),
    button("As in the recipe", { class: "reset" }, reset));
}

function fields(model, change) {
  const options = optionsOf(model);
  const limits = model.regard.limits ?? {};
  const how = howItChooses(options);
  const setHow = (value) => change({
    likeliest: { do_sample: false, num_beams: 1, candidates: 1, retrieved: 0 },
    draw: { do_sample: true, num_beams: 1, candidates: model.regard.options.do_sample ? model.regard.options.candidates : 1, retrieved: model.regard.options.retrieved },
    beams: { do_sample: false, num_beams: Math.min(4, limits.num_beams ?? 4), candidates: 1, retrieved: 0 },
  }[value], true);
  const slider = (name, title, why, low, high, step, unit) => sliderField({ name, title, why, low, high, step, unit, value: options[name] }, change);

  return [
    make("div", { class: "field", "data-option": "do_sample num_beams candidates" },
      make("h3", {}, "How it chooses a word"),
      segments("How it chooses a word", [["likeliest", "The likeliest"], ["draw", "By chance"], ["beams", "Looks ahead"]], how, setHow),
      make("p", { class: "hint" }, {
        likeliest: "It always takes the word it finds likeliest. The same question has the same answer.",
        draw: "It draws each word; likelier words are drawn more often.",
        beams: "It follows several answers at once and keeps the best. The words come all at once, at the end.",
      }[how])),
    how === "draw" ? slider("temperature", "How adventurous", "Low: it stays with likely words. High: it surprises.", 0.1, 2, 0.05, "") : null,
    how === "draw" ? slider("top_p", "How many words it considers", "Only the likeliest words that together have this probability.", 0.05, 1, 0.05, "share") : null,
    how === "draw" ? slider("candidates", "Answers it draws before it picks one", "With 1 the words appear as they are written. With more they come all at once.", 1, limits.num_beams ?? 16, 1, "") : null,
    how === "beams" ? slider("num_beams", "Answers followed at once", "More takes longer.", 2, Math.min(16, limits.num_beams ?? 16), 1, "") : null,
    how === "beams" ? slider("length_penalty", "Taste for long answers", "Above 1 favours longer answers, below 1 shorter ones.", -1, 3, 0.1, "") : null,
    slider("max_new_tokens", "Most words", "The answer is cut off here. A long word may count as several.", 1, Math.min(512, limits.max_tokens ?? 512), 1, ""),
    slider("repetition_penalty", "Dislike of repeating itself", "1 is off.", 1, 3, 0.1, ""),
    how === "draw" ? seedField(model, change) : null,
  ].filter((field) => field !== null);
}

function sliderField({ name, title, why, low, high, step, unit, value }, change) {
  const shown = (x) => (unit === "share" ? `${Math.round(100 * x)} %` : String(x));
  const output = make("output", { for: `option-${name}` }, shown(value));
  const input = make("input", { type: "range", id: `option-${name}`, min: low, max: high, step, "aria-describedby": `why-${name}` });
  input.value = value;
  input.addEventListener("input", () => {
    output.textContent = shown(Number(input.value));
    change({ [name]: Number(input.value) });
  });
  return make("div", { class: "field", "data-option": name },
    make("div", { class: "row between" }, make("label", { for: `option-${name}` }, title), output),
    input, make("p", { class: "hint", id: `why-${name}` }, why));
}

function seedField(model, change) {
  const { seed } = read(model);
  const isNew = seed === undefined;
  const input = make("input", { type: "number", id: "option-seed", min: 0, max: 1_000_000_000, step: 1, disabled: isNew });
  input.value = seed ?? 1;
  input.addEventListener("change", () => {
    if (input.checkValidity() && input.value !== "") change({ seed: Number(input.value) });
  });
  const box = make("input", { type: "checkbox", id: "option-new-seed" });
  box.checked = isNew;
  box.addEventListener("change", () => change({ seed: box.checked ? undefined : Number(input.value) }, true));
  return make("div", { class: "field", "data-option": "seed" },
    make("label", { for: "option-seed" }, "Luck"),
    make("div", { class: "row" }, input, make("label", { class: "check" }, box, "new luck for every question")),
    make("p", { class: "hint" }, "The same number (the seed) draws the same answer again."));
}
