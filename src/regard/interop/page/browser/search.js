// Greedy search, with the constraints of a recipe's [decode] table, as regard.decoding applies them.

import { logSoftmaxRows } from "./layers.js";

const best = (scores) => scores.reduce((at, score, i) => (score > scores[at] ? i : at), 0);

// Tokens that would repeat an n-gram of this size.
function repeats(tokens, size) {
  const found = new Set();
  const last = tokens.slice(tokens.length - size + 1);
  for (let i = 0; i + size <= tokens.length; i++)
    if (last.every((token, j) => token === tokens[i + j])) found.add(tokens[i + size - 1]);
  return found;
}

// The next token, and its log-probability before any constraint.
// state: {tokens: so far, prefix: tokens that the output begins with, least: length, forced: Map of positions}
export function nextToken(logits, state, { special, decode }) {
  const logProbabilities = logSoftmaxRows(logits, logits.length);
  const { tokens, prefix, least, forced } = state;
  const at = tokens.length;
  const chosen = (token) => ({ token, logProbability: logProbabilities[token] });
  if (at < prefix.length) return chosen(prefix[at]);
  const scores = decode.repetition_penalty === 1 ? logits.slice() : logProbabilities.slice();
  for (const token of special.suppressed) scores[token] = -Infinity;
  const limited = decode.ends && least > 0;
  const end = scores[special.end];
  if (limited && at < least) scores[special.end] = -Infinity;
  const size = decode.no_repeat_ngram_size;
  if (size && at >= size) for (const token of repeats(tokens, size)) scores[token] = -Infinity;
  if (decode.repetition_penalty !== 1) for (const token of new Set(tokens)) scores[token] *= decode.repetition_penalty;
  if (forced.has(at)) {
    const kept = scores[forced.get(at)];
    scores.fill(-Infinity);
    scores[forced.get(at)] = kept;
  }
  if (limited && scores.every((score) => score === -Infinity)) scores[special.end] = end;
  return chosen(best(scores));
}

// The largest number of tokens of an output with its prefix.
export function maxLength(decode, { size, prefix, hasSource }) {
  let longest = decode.max_length;
  if (decode.max_length_ratio !== null && hasSource) longest = Math.min(longest, Math.trunc(decode.max_length_ratio * size));
  longest = prefix + Math.max(longest, prefix ? 0 : 1);
  return decode.positions === null ? longest : Math.min(longest, decode.positions);
}

export function minLength(decode, { size, given }) {
  const shortest = Math.max(decode.min_length, Math.trunc(decode.min_length_ratio * size));
  return shortest ? shortest + given : 0;
}
