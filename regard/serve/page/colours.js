/* Themes and colours. Blue is a weight, orange an effect, as on the pages of attention. */

import { make } from "./dom.js";

export const redraws = new Set(); // functions that draw with colours of the theme

const RAMPS = {
  weight: {
    light: ["#ffffff", "#d3e3f6", "#7eaee3", "#2b69c4", "#0a2a5e"],
    dark: ["#191d25", "#1d3a68", "#2e6cc0", "#7fb4fb", "#e9f3ff"],
  },
  effect: { // from likelier without the place (blue) to less likely (orange)
    light: ["#0a2a5e", "#5f93d2", "#ffffff", "#e89a55", "#7a3205"],
    dark: ["#bfdcff", "#3a72bd", "#191d25", "#b8621f", "#ffd9b5"],
  },
  sound: {
    light: ["#ffffff", "#e4e2dd", "#b3b0ab", "#6f6d6b", "#2b2a2a"],
    dark: ["#11141a", "#2a303b", "#566072", "#98a2b5", "#e7eaf1"],
  },
};
const ramps = new Map();

export const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function isDark() {
  const theme = document.documentElement.dataset.theme;
  if (theme) return theme === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** 256 colours of a ramp, as bytes RGBA. */
export function ramp(name) {
  const theme = isDark() ? "dark" : "light";
  const key = `${name} ${theme}`;
  if (!ramps.has(key)) ramps.set(key, interpolated(RAMPS[name][theme]));
  return ramps.get(key);
}

function interpolated(colours) {
  const stops = colours.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const table = new Uint8ClampedArray(4 * 256).fill(255);
  for (let level = 0; level < 256; level++) {
    const place = (level / 255) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(place));
    for (let i = 0; i < 3; i++) {
      const [from, to] = [stops[low][i], stops[low + 1][i]];
      table[4 * level + i] = from + (place - low) * (to - from);
    }
  }
  return table;
}

export const css = (table, level) => `rgb(${table.slice(4 * level, 4 * level + 3).join(", ")})`;

/** A canvas as sharp as the screen; `paint(context, width, height)` in CSS pixels. */
export function paintCanvas(canvas, width, height, paint) {
  const scale = Math.min(3, devicePixelRatio || 1);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.setProperty("width", `${width}px`);
  canvas.style.setProperty("height", `${height}px`);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  paint(context, width, height);
}

/** Redraw when the colours change, as long as the node is on the page. */
export function redrawWith(node, draw) {
  const redraw = () => {
    if (node.isConnected) draw();
  };
  redraws.add(redraw);
}

function stored() {
  try {
    return localStorage.getItem("regard-theme");
  } catch {
    return null;
  }
}

export function setUpTheme(tools, icon) {
  const root = document.documentElement;
  const theme = stored();
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  const button = make("button", { type: "button", id: "theme", class: "plain icon" });
  const changed = () => {
    button.replaceChildren(icon(isDark() ? "sun" : "moon"));
    const label = isDark() ? "Use light colours" : "Use dark colours";
    button.setAttribute("aria-label", label);
    button.title = label;
    redraws.forEach((redraw) => redraw());
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("regard-theme", root.dataset.theme);
    } catch { /* the theme is that of the system again next time */ }
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  changed();
  tools.append(button);
}
