// A field for a sequence of vectors: a file, a line that is drawn with the pointer or with keys, or numbers as a table.

import { readVectors } from "./read_vectors.js";
import { shadeOf } from "./series.js";
import { make } from "./state.js";

const BYTES = 1_200_000; // of a file: the address of the page holds it
const LENGTH = 24; // vectors of a series to begin with
const MOST = 2000; // vectors of a series that is drawn
const DRAWN = 16; // numbers of a vector, at most, where it is drawn
const STEP = 1 / 20; // of the range, by a key
const HIGH = 140; // pixels

const rounded = (value) => Number(value.toPrecision(4));
const asText = (vectors) => JSON.stringify(vectors);

// A series to begin with: the middle of the range of each number.
export function firstSeries(ranges) {
  return asText(Array.from({ length: LENGTH }, () => ranges.map(([low, high]) => rounded((low + high) / 2))));
}

async function dataUrl(file) {
  const url = await new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(file);
  });
  return `data:application/octet-stream;base64,${url.slice(url.indexOf(",") + 1)}`;
}

// `ranges` has the usual least and largest value of each number of a vector; `set(value)` is called with a text. `own` is
// how a text is read (read_vectors.js), of a page that reads all files itself; null: a server reads other files.
export function seriesField(name, i, set, ranges, own = null) {
  const size = ranges.length;
  const layout = own ?? { size, missing: false, window: null, series: null };
  let vectors = [];
  let text = ""; // that was typed or read from a file
  const problem = make("p", { className: "field-problem", role: "alert", hidden: true });
  const fail = (error) => {
    problem.hidden = !error;
    problem.textContent = error ? error.message : "";
  };
  const file = make("input", { type: "file", id: `input-${i}`, accept: own ? ".csv,.tsv,.txt,.json" : ".npy,.csv,.tsv,.txt,.json,.wav" });
  const kept = make("p", { className: "quiet", hidden: true, textContent: "The series is a file, which is shown below." });
  const table = make("textarea", { id: `numbers-${i}`, rows: 5, spellcheck: false, autocomplete: "off" });
  const pad = size <= DRAWN ? drawingPad(i, ranges, (changed) => give(changed, true), layout.window) : null;
  const group = make("select", { id: `group-${i}` });
  const groups = make("p", { className: "line", hidden: true }, make("label", { htmlFor: group.id }, "Series ", group));
  group.addEventListener("change", () => attempt(() => give(read(text, group.value))));

  function attempt(act) {
    try {
      act();
    } catch (error) {
      fail(error);
    }
  }

  // The vectors of a text; of several series in it, one that can be chosen.
  function read(given, chosen = null) {
    const found = readVectors(given, layout, chosen);
    text = given;
    groups.hidden = !found.groups.length;
    group.replaceChildren(...found.groups.map((each) => new Option(each, each)));
    if (found.groups.length) group.value = found.group;
    return found.vectors;
  }

  const written = () => vectors.map((each) => each.map((value) => value ?? "NaN").join(", ")).join("\n");

  function give(next, drawn = false) {
    vectors = next;
    table.value = written();
    if (drawn) groups.hidden = true;
    else pad?.show(vectors);
    kept.hidden = true;
    fail(null);
    set(asText(vectors));
  }

  async function take(chosen) {
    if (!chosen) return;
    try {
      if (chosen.size > BYTES) throw new Error(`file: wanted at most ${BYTES.toLocaleString("en")} bytes; got ${chosen.size.toLocaleString("en")}. Look at it with: regard look.`);
      if (/\.(csv|tsv|txt|json)$/i.test(chosen.name)) return give(read(await chosen.text()));
      if (own) throw new Error(`file: wanted a table (.csv, .tsv, .txt) or a list in .json; got ${chosen.name}. Write its numbers to one.`);
      const value = await dataUrl(chosen);
      fill(value);
      fail(null);
      set(value);
    } catch (error) {
      fail(error);
    }
  }

  file.addEventListener("change", () => take(file.files[0]));
  table.addEventListener("input", () => {
    attempt(() => {
      vectors = read(table.value);
      pad?.show(vectors);
      fail(null);
      set(asText(vectors));
    });
  });

  function fill(value) {
    const isFile = value.startsWith("data:");
    kept.hidden = !isFile;
    if (pad) pad.element.hidden = isFile;
    if (isFile || !value) return;
    attempt(() => {
      const given = readVectors(value, layout).vectors;
      if (asText(given) === asText(vectors)) return; // what is being typed or drawn stays as it is
      vectors = given;
      table.value = written();
      groups.hidden = true;
      pad?.show(vectors);
      fail(null);
    });
  }

  const label = make("label", { htmlFor: file.id }, make("span", { textContent: name }), make("span", { className: "quiet", textContent: `Drop a file here, or choose one: ${own ? "CSV or JSON" : ".npy, CSV, JSON or WAV"}.` }));
  const drop = make("div", { className: "drop" }, label, file);
  drop.addEventListener("dragover", (event) => event.preventDefault());
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
  const hint = `A line for each vector, its numbers separated by commas${own ? "; or paste a table with the names of its columns, or a list in JSON" : ""}`;
  const numbers = make("details", { className: "numbers", open: Boolean(own) }, make("summary", { textContent: "Numbers" }), make("label", { htmlFor: table.id, textContent: hint }), table);
  return { element: make("div", { className: "field series-field" }, drop, kept, groups, ...(pad ? [pad.element] : []), numbers, problem), fill };
}

// A line for each number of a vector. The chosen one is drawn with the pointer; with keys, a value at a time. `fixed` is
// the length that a series must have; null: any.
function drawingPad(i, ranges, changed, fixed) {
  let [vectors, channel, at] = [[], 0, 0];
  const canvas = make("canvas", { id: `pad-${i}`, role: "slider", tabIndex: 0 });
  canvas.setAttribute("aria-orientation", "vertical");
  const channels = make("select", { id: `channel-${i}` }, ...ranges.map((_, number) => new Option(`${number + 1}`, number)));
  const length = make("input", { type: "number", id: `length-${i}`, min: 1, max: MOST, step: 1 });
  const keys = make("p", { className: "keys", id: `pad-keys-${i}`, textContent: "Draw with the pointer; or arrow keys: left and right choose a vector, up and down change its number." });
  canvas.setAttribute("aria-describedby", keys.id);
  const controls = make("p", { className: "line" }, make("label", { htmlFor: channels.id }, "Number of the vectors ", channels), make("label", { htmlFor: length.id }, "Length ", length));
  if (ranges.length < 2) controls.firstChild.hidden = true;
  if (fixed) controls.lastChild.hidden = true;

  function tell() {
    const [low, high] = ranges[channel];
    const value = vectors[at]?.[channel] ?? 0;
    canvas.setAttribute("aria-label", `Number ${channel + 1} of vector ${at + 1}`);
    canvas.setAttribute("aria-valuemin", String(rounded(Math.min(low, value))));
    canvas.setAttribute("aria-valuemax", String(rounded(Math.max(high, value))));
    canvas.setAttribute("aria-valuenow", String(rounded(value)));
  }

  function draw() {
    const width = Math.max(200, canvas.clientWidth || 480);
    const sharp = devicePixelRatio || 1;
    Object.assign(canvas, { width: width * sharp, height: HIGH * sharp });
    const pen = canvas.getContext("2d");
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    const place = (vector, number) => {
      const [low, high] = ranges[number];
      return [((vector + 0.5) / vectors.length) * width, HIGH - 6 - (((vectors[vector][number] ?? NaN) - low) / (high - low || 1)) * (HIGH - 12)];
    };
    const order = [...ranges.keys()].sort((a, b) => (a === channel) - (b === channel)); // the chosen one on top
    for (const number of order) {
      Object.assign(pen, { strokeStyle: shadeOf(number), lineWidth: number === channel ? 2.5 : 1, globalAlpha: number === channel ? 1 : 0.5 });
      pen.beginPath();
      vectors.forEach((_, vector) => pen.lineTo(...place(vector, number)));
      pen.stroke();
    }
    pen.globalAlpha = 1;
    if (!vectors.length) return;
    pen.fillStyle = shadeOf(channel);
    pen.beginPath();
    pen.arc(...place(at, channel), 4, 0, 2 * Math.PI);
    pen.fill();
    tell();
  }

  function setValue(vector, value) {
    vectors = vectors.map((each, index) => (index === vector ? each.with(channel, rounded(value)) : each));
    at = vector;
  }

  let last = null; // where the pointer was: all vectors between two places are drawn
  function drawnTo(event) {
    const box = canvas.getBoundingClientRect();
    const [low, high] = ranges[channel];
    const inside = (share) => Math.max(0, Math.min(1, share));
    const vector = Math.min(vectors.length - 1, Math.floor(inside((event.clientX - box.left) / box.width) * vectors.length));
    const value = low + inside((box.bottom - 6 - event.clientY) / (box.height - 12)) * (high - low);
    const from = last ?? { vector, value };
    const steps = Math.max(1, Math.abs(vector - from.vector));
    for (let step = 0; step <= steps; step++) {
      const share = step / steps;
      setValue(Math.round(from.vector + (vector - from.vector) * share), from.value + (value - from.value) * share);
    }
    last = { vector, value };
    at = vector;
    draw();
    changed(vectors);
  }
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = null;
    drawnTo(event);
  });
  canvas.addEventListener("pointermove", (event) => canvas.hasPointerCapture(event.pointerId) && drawnTo(event));
  canvas.addEventListener("keydown", (event) => {
    const [low, high] = ranges[channel];
    const step = (high - low) * STEP;
    const value = vectors[at]?.[channel] ?? 0;
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -at, End: vectors.length - 1 - at };
    const changes = { ArrowUp: step, ArrowDown: -step, PageUp: 5 * step, PageDown: -5 * step };
    if (event.key in moves) at = Math.max(0, Math.min(vectors.length - 1, at + moves[event.key]));
    else if (event.key in changes) {
      setValue(at, value + changes[event.key]);
      changed(vectors);
    } else return;
    event.preventDefault();
    draw();
  });
  channels.addEventListener("change", () => {
    channel = Number(channels.value);
    draw();
  });
  length.addEventListener("change", () => {
    const wanted = Math.max(1, Math.min(MOST, Math.round(Number(length.value)) || 1));
    vectors = Array.from({ length: wanted }, (_, vector) => vectors[Math.min(vector, vectors.length - 1)]);
    at = Math.min(at, wanted - 1);
    length.value = wanted;
    draw();
    changed(vectors);
  });
  new ResizeObserver(draw).observe(canvas);
  const show = (given) => {
    vectors = given;
    at = Math.max(0, Math.min(at, vectors.length - 1));
    length.value = vectors.length;
    draw();
  };
  return { element: make("div", { className: "pad" }, controls, canvas, keys), show };
}
