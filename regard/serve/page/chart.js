/* A chart of lines, as SVG. */

import { large, make } from "./dom.js";

const WIDTH = 640;
const HEIGHT = 300;
const MARGIN = { left: 62, right: 20, top: 14, bottom: 44 };
const NAME = 96; // of a line, at its end

/** series: [{ name, points: [[x, y], …] }], drawn in colours s0, s1, … and with dashes. */
export function lineChart({ series, xLabel, yLabel, isLog = false, mark = null, label }) {
  const points = series.flatMap((one) => one.points);
  const end = WIDTH - (series.some(({ name }) => name) ? NAME : MARGIN.right);
  const x = scale(points.map((point) => point[0]), MARGIN.left, end, isLog);
  const y = scale(points.map((point) => point[1]), HEIGHT - MARGIN.bottom, MARGIN.top, isLog);
  const svg = make("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const tick of y.ticks) {
    svg.append(make("line", { class: "grid", x1: MARGIN.left, x2: end, y1: y.at(tick), y2: y.at(tick) }),
      make("text", { class: "tick", x: MARGIN.left - 8, y: y.at(tick) + 4, "text-anchor": "end" }, large(tick)));
  }
  for (const tick of x.ticks) {
    svg.append(make("text", { class: "tick", x: x.at(tick), y: HEIGHT - MARGIN.bottom + 20, "text-anchor": "middle" }, large(tick)));
  }
  svg.append(make("text", { class: "axis", x: (MARGIN.left + end) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, xLabel));
  if (yLabel) svg.append(make("text", { class: "axis", x: 0, y: 11 }, yLabel));
  if (mark !== null && mark >= x.low && mark <= x.high) {
    svg.append(make("line", { class: "mark", x1: x.at(mark), x2: x.at(mark), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
  }
  const ends = namesApart(series.map((one) => y.at(one.points.at(-1)[1])));
  series.forEach((one, i) => svg.append(line(one, i, x, y, ends[i])));
  return svg;
}

function line({ name, points }, i, x, y, nameAt) {
  const path = points.map((point) => `${x.at(point[0]).toFixed(1)},${y.at(point[1]).toFixed(1)}`).join(" ");
  const last = points.at(-1);
  const group = make("g", { class: `s${i}` }, make("polyline", { class: "line", points: path }));
  if (points.length < 30) {
    for (const [px, py] of points) group.append(make("circle", { class: "dot", cx: x.at(px), cy: y.at(py), r: 3 }));
  }
  group.append(make("text", { class: "name", x: x.at(last[0]) + 8, y: nameAt + 4 }, name));
  return group;
}

/** Names at the ends of lines, moved apart where they would cover each other. */
function namesApart(places) {
  const order = places.map((_, i) => i).sort((a, b) => places[a] - places[b]);
  const apart = [...places];
  for (let i = 1; i < order.length; i++) {
    apart[order[i]] = Math.max(apart[order[i]], apart[order[i - 1]] + 15);
  }
  return apart;
}

function scale(values, from, to, isLog) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const number = (value) => (isLog ? Math.log10(Math.max(value, 1e-12)) : value);
  let [first, last] = [number(low), number(high)];
  if (first === last) [first, last] = [first - 1, last + 1];
  const at = (value) => from + ((number(value) - first) / (last - first)) * (to - from);
  return { at, low, high, ticks: isLog ? logTicks(low, high) : ticksOf(first, last) };
}

function ticksOf(low, high) {
  const rough = (high - low) / 5;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * size).find((x) => x >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) ticks.push(Number(tick.toPrecision(12)));
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) {
    const wide = high / low > 1e4;
    for (const x of wide ? [1] : [1, 3]) {
      const tick = x * 10 ** power;
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks;
}
