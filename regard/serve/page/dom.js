/* Elements, numbers, icons and messages. Everything that is shown goes through `make`, which
   turns strings into nodes of text: nothing a model writes is ever read as HTML. */

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "text", "g", "rect", "title", "line", "circle", "polyline"]);

export const byId = (id) => document.getElementById(id);
export const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
export const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

/** An element with attributes and children; `on…` are listeners, strings become text. */
export function make(tag, attributes = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") setStyle(node, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Styles through the object model: the page's policy forbids the attribute. */
export function setStyle(node, styles) {
  for (const [name, value] of Object.entries(styles)) node.style.setProperty(name, value);
}

const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  send: "M12 19V5M5.5 11.5 12 5l6.5 6.5",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  again: "M20 12a8 8 0 1 1-2.5-5.8M20 3v4.5h-4.5",
  edit: "M4 20l1-4L16 5l3 3L8 19z",
  dots: "M6 12h.01M12 12h.01M18 12h.01",
  plus: "M12 5v14M5 12h14",
  sliders: "M4 8h9M18 8h2M4 16h2M11 16h9M13 8a2.5 2.5 0 1 0 5 0 2.5 2.5 0 1 0-5 0M6 16a2.5 2.5 0 1 0 5 0 2.5 2.5 0 1 0-5 0",
  map: "M4 4h16v16H4zM4 9.3h16M4 14.7h16M9.3 4v16M14.7 4v16",
  scale: "M12 4v16M7 20h10M5 8l7-2 7 2M5 8l-2.5 6h5zM19 8l-2.5 6h5z",
  back: "M14.5 6 8.5 12l6 6",
  next: "M9.5 6l6 6-6 6",
  mic: "M12 3a3 3 0 0 1 3 3v5a3 3 0 0 1-6 0V6a3 3 0 0 1 3-3zM6 11a6 6 0 0 0 12 0M12 17v4",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  brush: "M4 20c3 0 4-1 4-3l9-11 2 2-10 9c0 2-2 4-5 3z",
  play: "M8 5.5v13l11-6.5z",
  pause: "M8 5.5v13M16 5.5v13",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 1 0 0-8M12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  moon: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z",
  open: "M14 4h6v6M20 4l-9 9M18 14v6H4V6h6",
  down: "M12 4v11M6.5 10 12 15.5 17.5 10M5 20h14",
};

export function icon(name, size = 18) {
  return make("svg", { class: "icon-svg", viewBox: "0 0 24 24", width: size, height: size, "aria-hidden": "true" },
    make("path", { d: ICONS[name] }));
}

/** A button with an icon and, unless it has a label for screen readers only, a text. */
export function button(text, { icon: iconName, label, ...attributes } = {}, onclick = null) {
  return make("button", { type: "button", "aria-label": label, title: label, onclick, ...attributes },
    iconName ? icon(iconName) : null, text ? make("span", {}, text) : null);
}

// Numbers ---------------------------------------------------------------------------------------

export const withMinus = (text) => text.replace("-", "\u2212");

export function percent(value) {
  if (isMissing(value)) return "–";
  if (value >= 0.9995) return "100 %";
  if (value < 0.001) return "< 0.1 %";
  return `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
}

/** A number in a narrow column: 0.87, 0.00, 12.3. */
export function short(value, digits = 2) {
  if (isMissing(value)) return "–";
  const text = value.toFixed(Math.abs(value) >= 10 ? 1 : digits);
  return Number(text) === 0 ? text.replace("-", "") : withMinus(text);
}

const UNITS = [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]];

/** A large number: 823 k, 1.24 M. */
export function large(value) {
  if (isMissing(value)) return "–";
  for (const [size, unit] of UNITS) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(Number(value.toPrecision(3)));
}

/** A text with formulas as they are typed: N^2, W_v^T and sum_h get raised and lowered letters. */
export function formula(text) {
  const plain = text.replace(/\bsum(?=_)/g, "∑").replace(/\b([A-Z]) x ([A-Z])\b/g, "$1 × $2").replace(/\bsqrt\(/g, "√(");
  return plain.split(/([\^_](?:\([^)]*\)|[A-Za-z0-9]+))/).filter(Boolean).map((part) => {
    if (!/^[\^_]./.test(part)) return part;
    return make(part[0] === "^" ? "sup" : "sub", {}, part.slice(1));
  });
}

export const quoted = (text) => `“${text}”`;
export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** A token as it can be seen: spaces and line ends have a sign. */
export function visible(piece) {
  if (piece === "") return "·";
  const text = piece.replace(/\n/g, "⏎").trim();
  return text || "␣";
}

// Messages --------------------------------------------------------------------------------------

/** Read by a screen reader, not shown. */
export function announce(text) {
  byId("announce").textContent = text;
}

/** A short message at the bottom, with at most one thing to do about it. */
export function toast(text, { action = null, act = null, seconds = 7 } = {}) {
  const node = make("div", { class: "toast" }, make("span", {}, text));
  const close = () => node.remove();
  if (action) {
    node.append(button(action, { class: "plain" }, () => {
      close();
      act();
    }));
  }
  node.append(button("", { icon: "close", label: "Close this message", class: "plain icon" }, close));
  byId("toasts").append(node);
  setTimeout(close, seconds * 1000);
}

/** Saves a text as a file of the browser. */
export function save(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.", { seconds: 2 });
  } catch { // without a secure address browsers have no clipboard
    const field = make("textarea", { class: "hidden" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    toast(done ? "Copied." : "This browser does not let the page copy.", { seconds: 3 });
  }
}

/** A dialog over the page. The browser keeps the focus inside and gives it back at the end. */
export function dialog(title, body, { name, onclose = null } = {}) {
  const heading = make("h2", { id: `${name}-title` }, title);
  const close = button("", { icon: "close", label: "Close", class: "plain icon" });
  const node = make("dialog", { class: `dialog ${name}`, "aria-labelledby": `${name}-title` },
    make("div", { class: "dialog-head" }, heading, close), body);
  close.addEventListener("click", () => node.close());
  node.addEventListener("click", (event) => {
    if (event.target === node) node.close(); // the backdrop
  });
  node.addEventListener("close", () => {
    node.remove();
    onclose?.();
  });
  document.body.append(node);
  node.showModal();
  return node;
}

/** A menu under a button: arrow keys move, Escape closes. */
export function menu(anchor, items) {
  const node = make("div", { class: "menu", role: "menu" });
  const close = (back = true) => {
    node.remove();
    anchor.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside, true);
    if (back) anchor.focus();
  };
  const outside = (event) => {
    if (!node.contains(event.target)) close(false);
  };
  for (const { text, act, danger } of items) {
    node.append(make("button", {
      type: "button",
      role: "menuitem",
      class: danger ? "danger" : null,
      onclick: () => {
        close();
        act();
      },
    }, text));
  }
  node.addEventListener("keydown", (event) => {
    const buttons = [...node.children];
    const at = buttons.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) buttons[(at + step + buttons.length) % buttons.length].focus();
    else if (event.key === "Escape" || event.key === "Tab") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  document.body.append(node);
  const box = anchor.getBoundingClientRect();
  const size = node.getBoundingClientRect();
  const fits = box.bottom + size.height + 8 < innerHeight;
  setStyle(node, {
    left: `${clamp(box.right - size.width, 8, innerWidth - size.width - 8)}px`,
    top: `${fits ? box.bottom + 4 : box.top - size.height - 4}px`,
  });
  anchor.setAttribute("aria-expanded", "true");
  document.addEventListener("pointerdown", outside, true);
  node.firstChild.focus();
}

/** Choices side by side: a radio group that arrow keys move through. */
export function segments(label, choices, value, choose) {
  const group = make("div", { class: "segments", role: "radiogroup", "aria-label": label });
  const paint = (chosen) => {
    for (const node of group.children) {
      const is = node.dataset.value === String(chosen);
      node.setAttribute("aria-checked", String(is));
      node.tabIndex = is ? 0 : -1;
    }
  };
  choices.forEach(([key, text]) => {
    group.append(make("button", {
      type: "button",
      role: "radio",
      "data-value": key,
      onclick: () => {
        paint(key);
        choose(key);
      },
    }, text));
  });
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...group.children];
    const at = buttons.findIndex((node) => node.getAttribute("aria-checked") === "true");
    const next = buttons[(at + step + buttons.length) % buttons.length];
    next.click();
    next.focus();
  });
  paint(value);
  return group;
}
