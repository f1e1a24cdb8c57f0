// Edits of a model's attention, as regard.interpret.edits defines them, and a record of what each row attended to.

import { softmaxRows } from "./layers.js";
import { tensor } from "./tensor.js";

const LAYER = /(encoder|decoder|grid) \d+/;
const OF_SOURCE = /^(decoder.*) source (\d+)$/;
export const KINDS = ["switch_head_off", "scale_head", "paint_row", "mask_source", "replace_token"];

export class InputError extends Error {}

function selects(edit, site) {
  if (edit.edit === "mask_source") {
    if (site.key_side !== "source") return false;
    const source = edit.source ?? 0;
    if (site.part === "encoder") return site.kind !== "grid" && site.source === source;
    return !site.query_sources.includes(source); // the states of learned queries stand for no token
  }
  const module = edit.edit === "paint_row" ? (OF_SOURCE.exec(edit.map)?.[1] ?? edit.map) : edit.map;
  return module === site.name || module === site.name.replace(LAYER, "$1");
}

// Refuses edits of what the model does not have.
export function checkEdits(edits, sites) {
  edits.forEach((edit, i) => {
    const where = `edit ${i + 1}`;
    if (!KINDS.includes(edit.edit)) throw new InputError(`${where}: one of ${KINDS.join(", ")} is wanted, not ${edit.edit}`);
    if (edit.edit === "replace_token") return;
    const own = sites.filter((site) => selects(edit, site));
    if (!own.length) throw new InputError(`${where}: the model has no attention ${edit.map ?? "to its source"}`);
    const heads = Math.min(...own.map((site) => site.heads));
    if (edit.head !== undefined && edit.head !== null && edit.head >= heads) throw new InputError(`${where}: ${edit.map} has ${heads} heads`);
    if (edit.edit === "paint_row" && edit.keys.length !== edit.weights.length) throw new InputError(`${where}: a weight for each key is wanted`);
  });
}

// Weights scaled to a sum; zeros stay.
function scaleTo(weights, total) {
  const own = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => (own > 0 ? weight * (total / own) : 0));
}

const sum = (weights) => weights.reduce((total, weight) => total + weight, 0);

// What the interpreter calls for every attention: applies the edits, and keeps the weights of each row.
export class AttentionRecorder {
  // spans: how many positions of the memory each of several sources has; empty for one source
  constructor(sites, edits, spans = []) {
    checkEdits(edits, sites);
    Object.assign(this, { edits, spans, first: 0, applied: new Set(), keeps: true });
    this.sites = new Map(sites.map((site) => [site.name, site]));
    this.rows = new Map(sites.map((site) => [site.name, []])); // of each site: {weights: of each head, visible}
  }

  // The position of the first row of the next calls of a decoder.
  at(position) {
    this.first = position;
  }

  forget(part) {
    if (!this.keeps) return;
    for (const [name, site] of this.sites) if (site.part === part) this.rows.set(name, []);
  }

  // The weights by which values are multiplied, from the scores (B, H, N, M) of a call. B is more than 1 where the channels
  // of a series are sequences of their own: all are edited alike, and the weights of the first are kept.
  weights(name, scores) {
    const site = this.sites.get(name);
    const [batch, ...shape] = scores.shape;
    const size = scores.data.length / batch;
    const parts = Array.from({ length: batch }, (_, i) => {
      const own = tensor("f", [1, ...shape], scores.data.subarray(i * size, (i + 1) * size));
      return this.#ofOne(site, own, i === 0);
    });
    if (batch === 1) return tensor("f", scores.shape, parts[0]);
    const used = tensor("f", scores.shape);
    parts.forEach((part, i) => used.data.set(part, i * size));
    return used;
  }

  #ofOne(site, scores, isShown) {
    const { name } = site;
    const [, heads, rows, keys] = scores.shape;
    const call = new EditedCall(site, scores, site.part === "decoder" ? this.first : 0, this.spans);
    this.edits.forEach((edit, i) => {
      if (edit.edit !== "replace_token" && selects(edit, site) && call.apply(edit, `edit ${i + 1}`)) this.applied.add(i);
    });
    const shown = call.shown();
    for (let row = 0; row < rows && this.keeps && isShown; row++) {
      const of = (head) => (head * rows + row) * keys;
      const weights = Array.from({ length: heads }, (_, head) => shown.slice(of(head), of(head) + keys));
      const visible = Array.from({ length: heads }, (_, head) => call.visible(head, row));
      this.rows.get(name).push({ weights, visible });
    }
    return call.used(shown);
  }

  // Refuses edits of rows that no call had.
  checkApplied() {
    this.edits.forEach((edit, i) => {
      if (edit.edit === "paint_row" && !this.applied.has(i))
        throw new InputError(`edit ${i + 1}: ${edit.map} has no row ${edit.row}; the output may be shorter than before`);
    });
  }
}

// One call under edits, which are applied in order.
class EditedCall {
  constructor(site, scores, first, spans) {
    const [, heads, rows, keys] = scores.shape;
    Object.assign(this, { site, first, spans, heads, rows, keys, scores: scores.data, factors: new Map(), painted: new Map() });
  }

  apply(edit, where) {
    if (edit.edit === "mask_source") return this.#hide(edit, where);
    if (edit.edit === "paint_row") return this.#paint(edit, where);
    for (const head of this.#heads(edit.head))
      this.factors.set(head, (this.factors.get(head) ?? 1) * (edit.edit === "scale_head" ? edit.factor : 0));
    return true;
  }

  #heads(head) {
    return head === undefined || head === null ? Array.from({ length: this.heads }, (_, i) => i) : [head];
  }

  // The place of a key of one source among all keys; −1 if there is none.
  #place(source, key, where) {
    const joined = this.site.part === "encoder" ? [] : this.spans;
    if (source === null || (!joined.length && source === this.site.source)) return key < this.keys ? key : -1;
    if (source >= joined.length) throw new InputError(`${where}: there is no source ${source}`);
    return key < joined[source] ? sum(joined.slice(0, source)) + key : -1;
  }

  #hide(edit, where) {
    const hidden = this.#place(edit.source ?? 0, edit.token, where);
    if (hidden < 0) throw new InputError(`${where}: the source has no token ${edit.token}`);
    this.scores = this.scores.slice();
    for (let at = hidden; at < this.scores.length; at += this.keys) this.scores[at] = -Infinity;
    for (const heads of this.painted.values())
      for (const [head, weights] of heads) {
        const total = sum(weights);
        heads.set(head, scaleTo(weights.with(hidden, 0), total));
      }
    return true;
  }

  #paint(edit, where) {
    const row = edit.row - this.first;
    if (row < 0 || row >= this.rows) return false;
    const source = OF_SOURCE.exec(edit.map)?.[2];
    if (!this.painted.has(row)) this.painted.set(row, new Map());
    const heads = this.painted.get(row);
    for (const head of this.#heads(edit.head)) {
      const start = (head * this.rows + row) * this.keys;
      const before = heads.get(head) ?? Float64Array.from(softmaxRows(this.scores.slice(start, start + this.keys), this.keys));
      const [given, others] = [new Float64Array(this.keys), before.slice()];
      edit.keys.forEach((key, i) => {
        const place = this.#place(source === undefined ? null : Number(source) - 1, key, where);
        if (place < 0 || this.scores[start + place] === -Infinity)
          throw new InputError(`${where}: row ${edit.row} of ${this.site.name} may not attend to key ${key}`);
        given[place] = edit.weights[i];
        others[place] = 0;
      });
      const rest = edit.renormalize === false ? others : scaleTo(others, Math.max(0, 1 - sum(given)));
      const made = given.map((weight, key) => weight + rest[key]);
      heads.set(head, edit.renormalize === false ? made : scaleTo(made, 1));
    }
    return true;
  }

  // The weights of all rows, with the painted ones; without the factors of heads.
  shown() {
    const weights = softmaxRows(this.scores, this.keys);
    for (const [row, heads] of this.painted)
      for (const [head, own] of heads) weights.set(own, (head * this.rows + row) * this.keys);
    return weights;
  }

  used(shown) {
    if (!this.factors.size) return shown;
    const weights = shown.slice();
    for (const [head, factor] of this.factors) {
      const start = head * this.rows * this.keys;
      for (let i = start; i < start + this.rows * this.keys; i++) weights[i] = factor ? weights[i] * factor : 0;
    }
    return weights;
  }

  // How many keys a row may attend to.
  visible(head, row) {
    const start = (head * this.rows + row) * this.keys;
    let count = 0;
    for (let i = start; i < start + this.keys; i++) if (this.scores[i] !== -Infinity) count++;
    return count;
  }
}
