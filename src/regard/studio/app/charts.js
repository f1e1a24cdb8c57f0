// Line charts in SVG: curves over steps, with axes, and without anything but elements and attributes.

const SVG = "http://www.w3.org/2000/svg";
const [WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM] = [480, 220, 56, 22, 10, 24];
const MOST = 800; // points of a curve that are drawn: of more, the least and the largest of each step of the axis

export function drawn(kind, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Curves are {name, points: [[step, value]], number, dash}, whose number chooses a colour; dash 1 and 2 are broken lines.
export function lineChart(title, curves) {
  const points = curves.flatMap((curve) => curve.points);
  const [first, last] = range(points.map(([step]) => step));
  const [low, high] = range(points.map(([, value]) => value));
  const x = (step) => LEFT + ((WIDE - LEFT - RIGHT) * (step - first)) / (last - first);
  const y = (value) => TOP + ((HIGH - TOP - BOTTOM) * (high - value)) / (high - low);
  const chart = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `${title}: ${curves.map(({ name }) => name).join(", ")}`, class: "chart" });
  for (const value of ticks(low, high)) {
    chart.append(drawn("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y(value), y2: y(value), class: "rule" }));
    chart.append(text(LEFT - 6, y(value) + 4, brief(value), "end"));
  }
  for (const step of ticks(first, last)) chart.append(text(x(step), HIGH - 6, brief(step), "middle"));
  for (const curve of curves) {
    const places = thinned(curve.points).map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`);
    if (places.length === 1) {
      const [cx, cy] = places[0].split(",");
      chart.append(drawn("circle", { cx, cy, r: 3, class: `dot ${lineClass(curve)}` }));
    } else chart.append(drawn("polyline", { points: places.join(" "), class: `curve ${lineClass(curve)}` }));
  }
  return chart;
}

export const lineClass = ({ number, dash = 0 }) => `line-${number % 8} dash-${dash % 3}`;

function text(x, y, content, anchor) {
  return drawn("text", { x, y, "text-anchor": anchor }, content);
}

export function brief(value) {
  const size = Math.abs(value);
  if (size >= 10000 || (size > 0 && size < 0.0001)) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (!Number.isFinite(low)) return [0, 1];
  const around = Math.abs(low) / 2 || 0.5; // a single value is in the middle
  return low < high ? [low, high] : [low - around, low + around];
}

function ticks(low, high) {
  const rough = (high - low) / 5;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * unit).find((each) => each >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
}

function thinned(points) {
  if (points.length <= MOST) return points;
  const found = [];
  const size = Math.ceil(points.length / (MOST / 2));
  for (let at = 0; at < points.length; at += size) {
    const part = points.slice(at, at + size).toSorted((a, b) => a[1] - b[1]);
    found.push(...[part[0], part.at(-1)].toSorted((a, b) => a[0] - b[0]));
  }
  return found;
}
