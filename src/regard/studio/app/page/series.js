// A source of vectors over time: its numbers as lines or as a picture, and the attention of a row at the same times.

import { colour, imageOf, isDark } from "./colours.js";
import { headName, percent, shown } from "./data.js";
import { make } from "./state.js";

const MOST_LINES = 16; // numbers of a vector that are lines; more are a picture
const LINE = 26; // least pixels of the height of a line
const LANE = 72; // of a line that is forecast
const HIGH = 160; // pixels of the height of a picture
const STRIP = 22; // pixels of the height of the weights
const GAP = 4; // between numbers and weights
const NAMES = 16; // pixels below, for the times
const TICK = 90; // least pixels from one named time to the next
const SHADES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#767676"]; // safe for the color-blind
const PAST = 4; // times as many vectors before a forecast are shown with it
const LEAST_PAST = 48; // or this many
const LETTER = 6.5; // pixels of a letter of a name
const TINT = 0.35; // how much of a weight's color lies behind the lines

export function attendsToSeries(map) {
  return map.key_side === "source" && map.input?.kind === "series";
}

const decoded = new WeakMap();

// The numbers of a series as shares of their range, [plane][row][column].
export function sharesOf(source) {
  if (!decoded.has(source)) {
    const [planes, rows, columns] = source.shape;
    const bytes = Uint8Array.from(atob(source.data), (letter) => letter.charCodeAt(0));
    const numbers = new Uint16Array(bytes.buffer);
    const at = (plane, row) => Array.from(numbers.subarray((plane * rows + row) * columns, (plane * rows + row + 1) * columns), (number) => (number === 65535 ? NaN : number / 65534)); // NaN: it is missing
    decoded.set(source, Array.from({ length: planes }, (_, plane) => Array.from({ length: rows }, (_, row) => at(plane, row))));
  }
  return decoded.get(source);
}

export const positionsOf = (source) => source.tokens.length - source.units;
// The share of the width that the numbers take: the last position may stand for fewer vectors than the others.
export const extent = (source) => source.length / (positionsOf(source) * source.stride);
export const signalHeight = (source) => (source.picture ? HIGH : Math.max(HIGH / 2, (source.lane ?? LINE) * source.shape[1]));
export const seriesHeight = (source) => signalHeight(source) + GAP + STRIP + NAMES;
export const shadeOf = (channel) => SHADES[channel % SHADES.length];

// The lines of a series: of each channel its points, as [x, the y of the least number, the y of the largest]; no number
// is known between the points before and after a gap.
export function linesOf(source, width) {
  const [low, high] = sharesOf(source);
  const each = signalHeight(source) / low.length;
  const columns = low[0].length;
  return low.map((line, channel) => {
    const y = (share) => (channel + 1) * each - 3 - share * (each - 6);
    return line.flatMap((share, column) => (Number.isNaN(share) ? [] : [[((column + 0.5) / columns) * extent(source) * width, y(share), y(high[channel][column])]]));
  });
}

// The weights of a row as spans [x, width, share of the largest]: neighbouring positions are one where they are narrow.
export function spansOf(source, line, width) {
  const weights = line.slice(source.units);
  const most = weights.reduce((a, b) => Math.max(a, b), 1e-12);
  const count = Math.min(weights.length, Math.max(1, Math.floor(width)));
  return Array.from({ length: count }, (_, i) => {
    const [first, last] = [i, i + 1].map((at) => Math.floor((at * weights.length) / count));
    const largest = weights.slice(first, last).reduce((a, b) => Math.max(a, b), 0);
    return [(first / weights.length) * width, ((last - first) / weights.length) * width, largest / most];
  });
}

// The names of times and their places.
export function timesOf(source, width) {
  const count = positionsOf(source);
  const longest = Math.max(...[0, count - 1].map((i) => source.tokens[source.units + i].length));
  const room = Math.max(TICK, LETTER * longest + 12);
  const every = Math.max(1, Math.ceil(count / Math.max(1, Math.floor(width / room))));
  const found = [];
  for (let i = 0; i < count; i += every) found.push([((i + 0.5) / count) * width, source.tokens[source.units + i]]);
  return found;
}

// The picture of a series, the first number of a vector at the bottom.
export function pictureOf(source, dark) {
  const rows = sharesOf(source)[0];
  return imageOf(Float32Array.from([...rows].reverse().flat(), (share) => share || 0), rows[0].length, dark);
}

// A series that a model gave, as a source of one: its shares are kept as if they had been read from JSON.
export function seriesOf(vectors, tokens = vectors.map((_, i) => String(i + 1))) {
  const channels = vectors[0]?.map((_, channel) => String(channel + 1)) ?? [];
  const lines = channels.map((_, channel) => vectors.map((vector) => vector[channel] ?? NaN));
  const shares = lines.map((line) => {
    const known = line.filter((value) => !Number.isNaN(value));
    if (!known.length) return line;
    const [low, high] = [known.reduce((a, b) => Math.min(a, b), Infinity), known.reduce((a, b) => Math.max(a, b), -Infinity)];
    return line.map((value) => (high > low ? (value - low) / (high - low) : value - low));
  });
  const picture = channels.length > MOST_LINES;
  const source = { channels, length: vectors.length, stride: 1, units: 0, picture, tokens, shape: [2, channels.length, vectors.length] };
  decoded.set(source, [shares, shares]);
  return source;
}

// Vectors that a model gave as a drawing over time.
export function outputSeries(vectors) {
  const source = seriesOf(vectors);
  return drawnOutput(source, `${vectors.length} vectors of ${source.channels.length} numbers over time`, () => {});
}

// A forecast as the continuation of the vectors before it, of which the latest are shown.
export function forecastSeries(past, forecast) {
  const shown = past.slice(-Math.max(PAST * forecast.length, LEAST_PAST));
  const first = past.length - shown.length;
  const before = shown.map((_, i) => String(first + i + 1));
  const vectors = [...shown, ...forecast].map((vector) => vector.map((value) => value ?? NaN));
  const source = Object.assign(seriesOf(vectors, [...before, ...forecast.map((_, i) => `+${i + 1}`)]), { lane: LANE });
  const start = shown.length / vectors.length;
  const spans = source.channels.map((name, channel) => {
    const line = forecast.map((vector) => vector[channel]);
    return `channel ${name} from ${short(line[0])} to ${short(line.at(-1))}`;
  });
  const label = `Forecast of ${forecast.length} vectors after ${past.length}: ${spans.slice(0, MOST_LINES).join("; ")}`;
  return drawnOutput(source, label, (pen, width, ink) => {
    const height = signalHeight(source);
    Object.assign(pen, { globalAlpha: 0.12, fillStyle: ink });
    pen.fillRect(start * width, 0, width - start * width, height);
    Object.assign(pen, { globalAlpha: 0.6, strokeStyle: ink, lineWidth: 1 });
    pen.setLineDash([4, 3]);
    pen.beginPath();
    pen.moveTo(start * width, 0);
    pen.lineTo(start * width, height);
    pen.stroke();
    pen.setLineDash([]);
    pen.globalAlpha = 1;
    if (source.picture) return;
    const each = height / source.channels.length;
    vectors[0].forEach((_, channel) => drawRange(pen, vectors.map((vector) => vector[channel]), channel * each, each, ink));
  });
}

const short = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))) : "none");

// The largest number of a line at its top left, the least at its bottom left.
function drawRange(pen, line, top, high, ink) {
  const known = line.filter(Number.isFinite);
  if (!known.length) return;
  const [least, most] = [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))];
  const ground = getComputedStyle(document.body).backgroundColor; // around the letters: the line is behind them
  Object.assign(pen, { fillStyle: ink, strokeStyle: ground, lineWidth: 4, textAlign: "left", textBaseline: "top" });
  for (const [text, y] of [[short(most), top + 1], [short(least), top + high - NAMES + 3]]) {
    pen.strokeText(text, 2, y);
    pen.fillText(text, 2, y);
  }
}

function drawnOutput(source, label, mark) {
  const canvas = make("canvas", { role: "img", className: "series-output", label });
  const paint = () => {
    const width = Math.max(200, canvas.clientWidth || 640);
    const sharp = devicePixelRatio || 1;
    const height = signalHeight(source) + NAMES;
    Object.assign(canvas, { width: width * sharp, height: height * sharp });
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    const style = getComputedStyle(canvas);
    const font = `11px ${style.fontFamily}`;
    drawSignal(pen, source, width);
    drawTimes(pen, source, width, signalHeight(source) + 3, { ink: style.color, font });
    mark(pen, width, style.color);
  };
  new ResizeObserver(paint).observe(canvas);
  return canvas;
}

export function showSeries(box, store) {
  const views = [];
  const pointed = (event) => {
    const { map } = store.state;
    if (!attendsToSeries(map)) return;
    const at = event.currentTarget.getBoundingClientRect();
    const count = positionsOf(map.input);
    const place = Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - at.left) / at.width) * count)));
    store.change({ key: map.input.units + place });
  };
  function build() {
    views.push(frame(), frame());
    box.append(...views.map((view) => view.figure));
    views[0].canvas.addEventListener("pointermove", pointed);
    views[0].canvas.addEventListener("pointerleave", () => store.change({ key: null }));
    new ResizeObserver(() => show(store.state)).observe(box);
  }
  function show(state) {
    const { pin } = state;
    box.hidden = !attendsToSeries(state.map);
    if (box.hidden) return;
    if (!views.length) build();
    draw(views[0], state, state.map, state.head, state.row, "");
    views[1].figure.hidden = !(pin && attendsToSeries(pin.map));
    if (!views[1].figure.hidden) draw(views[1], state, pin.map, pin.head, pin.row, "pinned: ");
  }
  store.listen(show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(store.state));
}

function frame() {
  const canvas = make("canvas", { role: "img" });
  const caption = make("figcaption");
  return { canvas, caption, figure: make("figure", { className: "series" }, canvas, caption) };
}

function draw(view, state, map, head, row, before) {
  const source = map.input;
  const { canvas } = view;
  const width = Math.max(200, canvas.clientWidth || 640);
  const height = seriesHeight(source);
  const sharp = devicePixelRatio || 1;
  Object.assign(canvas, { width: width * sharp, height: height * sharp });
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  const line = map.row(head, row);
  const style = getComputedStyle(canvas);
  drawSeries(pen, source, line, width, { ink: style.color, font: `11px ${style.fontFamily}` });
  markPosition(pen, map, state.key, width, isDark() ? "#7db7ff" : "#c2410c");
  const name = `${before}${shown(map.rowNames[row])}, ${map.name}, ${headName(map, head)}${readOf(source)}`;
  view.caption.textContent = name;
  const best = line.reduce((most, weight, i, all) => (weight > all[most] ? i : most), 0);
  canvas.setAttribute("aria-label", `${name}: ${source.length} vectors of ${source.channels.length} numbers over time; most attention at ${shown(map.keyNames[best])}, ${percent(line[best])}`);
}

// Which channel's attention is shown, and how many vectors were read, where that is not all there are.
function readOf(source) {
  const channel = source.separate ? `, channel ${shown(source.channels[source.channel - 1])}` : "";
  return channel + (source.skipped ? `, the last ${source.length} of ${source.length + source.skipped} vectors` : "");
}

// Draws a series and the weights of a row below it, as wide as given.
export function drawSeries(pen, source, line, width, style) {
  const signal = signalHeight(source);
  const spans = spansOf(source, line, width);
  if (!source.picture) {
    pen.globalAlpha = TINT;
    for (const [x, wide, share] of spans) {
      pen.fillStyle = colour(share);
      pen.fillRect(x, 0, wide + 0.5, signal);
    }
    pen.globalAlpha = 1;
  }
  drawSignal(pen, source, width);
  for (const [x, wide, share] of spans) {
    pen.fillStyle = colour(share);
    pen.fillRect(x, signal + GAP, wide + 0.5, STRIP);
  }
  drawTimes(pen, source, width, signal + GAP + STRIP + 3, style);
}

// The numbers of a series alone.
function drawSignal(pen, source, width) {
  if (source.picture) {
    const image = pictureOf(source, isDark());
    const drawn = new OffscreenCanvas(image.width, image.height);
    drawn.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(drawn, 0, 0, extent(source) * width, signalHeight(source));
  } else {
    linesOf(source, width).forEach((points, channel) => {
      Object.assign(pen, { strokeStyle: shadeOf(channel), lineWidth: 1.5 });
      pen.beginPath();
      for (const [x, low, high] of points) {
        pen.lineTo(x, low);
        if (high !== low) pen.lineTo(x, high);
      }
      pen.stroke();
    });
  }
}

function drawTimes(pen, source, width, y, { ink, font }) {
  Object.assign(pen, { fillStyle: ink, font, textAlign: "left", textBaseline: "top" });
  for (const [x, name] of timesOf(source, width)) pen.fillText(shown(name), x, y);
}

function markPosition(pen, map, key, width, shade) {
  const { input } = map;
  if (key === null || key < input.units) return;
  const wide = width / positionsOf(input);
  Object.assign(pen, { strokeStyle: shade, lineWidth: 2 });
  pen.strokeRect((key - input.units) * wide, 1, Math.max(2, wide), signalHeight(input) + GAP + STRIP - 2);
}
