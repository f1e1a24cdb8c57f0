// Sequences of vectors: what a model reads of them, what a look shows of them, and the vectors that a model gives.

import { checkedVectors, readVectors } from "../page/read_vectors.js";
import { InputError } from "./edits.js";
import { tensor } from "./tensor.js";

// As in regard.interpret.series.
const MOST_LINES = 16; // numbers of a vector that are lines; more are a picture
const COLUMNS = 1024; // points of time: of a longer series, each stands for several vectors
const ROWS = 128; // of a picture
const LEVELS = 65534; // of a number
const MISSING = 65535; // a number that is not known

// The vectors of a source that are read, null where a number is missing, and how many before them are not: {vectors, skipped}.
// value: a text, or nested lists; source: of the settings
export function vectorsOf(value, source) {
  const { window, limit, layout } = source;
  let vectors;
  try {
    if (Array.isArray(value) && !value.length) throw new Error("numbers: wanted at least one vector; got none. Give numbers.");
    vectors = Array.isArray(value) ? checkedVectors(value, layout) : readVectors(String(value), layout).vectors;
  } catch (error) {
    throw new InputError(error.message);
  }
  if (window !== null && vectors.length < window) throw new InputError(`The series has ${vectors.length} vectors; the model reads ${window}. Give more of the past.`);
  const read = window === null ? vectors : vectors.slice(-window); // the latest of a longer past
  if (read.length > limit) throw new InputError(`The series has ${read.length} vectors; the model reads ${limit} at most.`);
  return { vectors: read, skipped: vectors.length - read.length };
}

// The model's input (1, S, D): NaN where a number is missing.
export function normalizedVectors(vectors, { mean, scale }) {
  const numbers = vectors.flatMap((vector) => vector.map((value, i) => (value === null ? NaN : (value - mean[i]) / scale[i])));
  return tensor("f", [1, vectors.length, mean.length], Float32Array.from(numbers));
}

// Normalized numbers (T, D) in the units of the data.
export function restoredVectors(numbers, { mean, scale }) {
  const size = mean.length;
  const rows = Array.from({ length: numbers.length / size }, (_, row) => numbers.subarray(row * size, (row + 1) * size));
  return rows.map((row) => Array.from(row, (value, i) => value * scale[i] + mean[i]));
}

// The output of a look: text as `regard predict` writes it, and each vector in a few digits.
export function predictedVectors(vectors, { decimals }) {
  const rows = vectors.map((vector) => `[${vector.map((value, i) => asPython(rounded(value, decimals[i]))).join(", ")}]`);
  const tokens = vectors.map((vector) => vector.map(inFourDigits).join(" "));
  return { text: `[${rows.join(", ")}]`, tokens, scores: null, vectors: vectors.map((vector) => vector.map((value) => (Number.isFinite(value) ? value : null))) };
}

// Rounds as NumPy does: halves to even numbers.
function rounded(value, decimals) {
  const power = 10 ** Math.abs(decimals);
  const scaled = decimals < 0 ? value / power : value * power;
  const whole = halfToEven(scaled);
  return (decimals < 0 ? whole * power : whole / power) + 0;
}

function halfToEven(value) {
  const floor = Math.floor(value);
  const rest = value - floor;
  if (rest !== 0.5) return rest < 0.5 ? floor : floor + 1;
  return floor % 2 === 0 ? floor : floor + 1;
}

// A number of JSON as Python writes it: 16.0, 1e-05, and null for what is not finite.
function asPython(value) {
  if (!Number.isFinite(value)) return "null";
  if (value === 0) return "0.0";
  const [digits, exponent] = value.toExponential().split("e");
  const power = Number(exponent);
  if (power < -4 || power >= 16) return `${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  const places = Math.max(1, digits.replace(/[-.]/g, "").length - 1 - power);
  return value.toFixed(places);
}

// As the format .4g of Python.
function inFourDigits(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const [digits, exponent] = value.toExponential(3).split("e");
  const power = Number(exponent);
  const short = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (value === 0) return Object.is(value, -0) ? "-0" : "0";
  if (power < -4 || power >= 4) return `${short(digits)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  return short(value.toFixed(3 - power));
}

// What the title of a look says of a series: how many vectors are read, if not all, and which channel's attention is shown.
export function seriesTitle({ length, skipped, separate, channel, channels }) {
  const parts = [];
  if (skipped) parts.push(`the last ${length} of ${length + skipped} vectors`);
  if (separate) parts.push(`attention of channel ${channels[channel - 1]}`);
  return parts.join(", ");
}

// A source of a look: the numbers that the model read, in the units of the data. numbers: its input (1, S, D); skipped:
// vectors before them
export function shownSeries(numbers, { mean, scale, stride, units, names, separate }, skipped) {
  const size = mean.length;
  const length = numbers.data.length / size;
  const lines = mean.map((_, i) => Float32Array.from({ length }, (__, row) => numbers.data[row * size + i] * scale[i] + mean[i]));
  const picture = size > MOST_LINES;
  const columns = Math.min(length, COLUMNS);
  const planes = picture ? [meanRows(lines, columns)] : extremes(lines, columns);
  const [rows] = planes;
  // The range of each channel is its own; all rows of a picture have one.
  const groups = picture ? [rows.flatMap((row) => [...row])] : rows.map((_, i) => planes.flatMap((plane) => [...plane[i]]));
  const ranges = groups.map(rangeOf);
  const data = planes.flatMap((plane) => plane.flatMap((row, i) => Array.from(row, (value) => share(value, ranges[picture ? 0 : i]))));
  return {
    kind: "series",
    tokens: [...Array(units).fill("[CLS]"), ...Array.from({ length: Math.ceil(length / stride) }, (_, i) => String(i * stride + 1))],
    units,
    stride,
    length,
    channels: names.length ? names : mean.map((_, i) => String(i + 1)),
    skipped,
    separate,
    channel: separate ? 1 : null,
    picture,
    least: ranges.map(([least]) => least),
    most: ranges.map(([, most]) => most),
    shape: [planes.length, rows.length, columns],
    data: inBase64(new Uint8Array(Uint16Array.from(data).buffer)),
  };
}

const startsOf = (length, count) => Array.from({ length: count + 1 }, (_, i) => Math.floor((i * length) / count));

// The least and the largest known number of each channel, in spans of equal time.
function extremes(lines, columns) {
  const starts = startsOf(lines[0].length, columns);
  const folded = (line, fold) => Float32Array.from({ length: columns }, (_, i) => fold(known(line.subarray(starts[i], starts[i + 1]))));
  const least = (values) => values.reduce((a, b) => Math.min(a, b), values.length ? Infinity : NaN);
  const most = (values) => values.reduce((a, b) => Math.max(a, b), values.length ? -Infinity : NaN);
  return [least, most].map((fold) => lines.map((line) => folded(line, fold)));
}

const known = (values) => values.filter((value) => !Number.isNaN(value));

// Means of spans of equal time, and of neighbouring channels.
function meanRows(lines, columns) {
  const across = lines.map((line) => means(line, columns));
  const count = Math.min(lines.length, ROWS);
  if (count === lines.length) return across;
  const up = Array.from({ length: columns }, (_, column) => means(Float32Array.from(across, (line) => line[column]), count));
  return Array.from({ length: count }, (_, row) => Float32Array.from(up, (line) => line[row]));
}

function means(values, count) {
  if (count >= values.length) return values;
  const starts = startsOf(values.length, count);
  return Float32Array.from({ length: count }, (_, i) => {
    const own = known(values.subarray(starts[i], starts[i + 1]));
    return own.length ? own.reduce((sum, value) => sum + value, 0) / own.length : NaN;
  });
}

function rangeOf(values) {
  const own = known(values);
  if (!own.length) return [0, 0];
  return [own.reduce((a, b) => Math.min(a, b), Infinity), own.reduce((a, b) => Math.max(a, b), -Infinity)];
}

function share(value, [least, most]) {
  if (Number.isNaN(value)) return MISSING;
  const range = most > least ? Math.fround(most - least) : 1;
  return halfToEven(Math.fround(Math.fround(Math.fround(value - least) / range) * LEVELS));
}

export function inBase64(bytes) {
  const letters = [];
  for (let i = 0; i < bytes.length; i += 8192) letters.push(String.fromCharCode(...bytes.subarray(i, i + 8192)));
  return btoa(letters.join(""));
}
