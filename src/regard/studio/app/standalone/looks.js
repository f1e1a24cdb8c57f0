// A look in the format of Look.to_json, from what an AttentionRecorder kept.

import { measureHeads } from "./measures.js";
import { inBase64 } from "./series.js";

const LETTER = /[\p{L}\p{N}]/u;

// Names of the positions of a source.
export function sourceTokens(source) {
  if (source.kind !== "image") return source.tokens;
  const [rows, columns] = source.grid;
  const regions = Array.from({ length: rows * columns }, (_, i) => `${Math.floor(i / columns) + 1},${(i % columns) + 1}`);
  return [...Array(source.units).fill("[CLS]"), ...regions];
}

export function makeLook({ title, sources, output, recorder, spans, special, edits }) {
  const maps = [];
  for (const [name, site] of recorder.sites) {
    const rows = recorder.rows.get(name);
    if (!rows.length) continue;
    const ofMemory = site.part !== "encoder" && site.key_side === "source";
    const parts = ofMemory && spans.length ? bySource(name, rows, spans) : [{ name, source: site.source, rows }];
    maps.push(...parts.map((part) => map(site, part, names(site, part, sources, output), marksOf(site, part, sources, special))));
  }
  return { version: 1, title, sources, output, maps, ...(edits.length ? { edits } : {}) };
}

// The states of learned queries have no names.
const keySide = (site, part) => (site.query_sources.includes(part.source) ? "pool" : site.key_side);

function names(site, part, sources, output) {
  const side = keySide(site, part);
  if (side === "output") return output.read;
  if (side === "pool") return [];
  return sources[part.source] ? sourceTokens(sources[part.source]) : [];
}

// A map for each of several sources; the weights of all of them sum to one.
function bySource(name, rows, spans) {
  let first = 0;
  return spans.map((length, source) => {
    const from = first;
    first += length;
    const visible = (all) => all.map((count) => Math.min(count, length));
    const cut = rows.map((row) => ({ weights: row.weights.map((line) => line.slice(from, from + length)), visible: visible(row.visible) }));
    return { name: `${name} source ${source + 1}`, source, rows: cut };
  });
}

// What tells punctuation and special tokens among keys; regions of images and times of series are neither.
function marksOf(site, part, sources, special) {
  const isText = keySide(site, part) !== "source" || sources[part.source]?.kind === "text";
  return (name) => isText && (special.has(name) || !LETTER.test(name));
}

function map(site, { name, source, rows }, keyNames, isMark) {
  const heads = rows[0].weights.length;
  const keys = rows.reduce((most, row) => Math.max(most, row.weights[0].length), 0);
  const padded = rows.map(({ weights, visible }) => ({ visible, weights: weights.map((line) => lengthened(line, keys)) }));
  const marked = keyNames.length === keys ? keyNames.map(isMark) : [];
  const bytes = new Uint16Array(heads * rows.length * keys);
  padded.forEach(({ weights }, row) =>
    weights.forEach((line, head) => line.forEach((weight, key) => (bytes[(head * rows.length + row) * keys + key] = Math.round(weight * 65535)))),
  );
  return {
    name,
    kind: site.kind,
    part: site.part,
    layer: site.layer,
    source,
    heads,
    query_side: site.query_side,
    key_side: keySide(site, { source }),
    causal: site.causal,
    rows: null,
    weights: { shape: [heads, rows.length, keys], data: inBase64(new Uint8Array(bytes.buffer)) },
    top: null,
    summary: measureHeads(padded, heads, keys, marked),
  };
}

function lengthened(line, keys) {
  if (line.length === keys) return line;
  const out = new Float32Array(keys);
  out.set(line);
  return out;
}
