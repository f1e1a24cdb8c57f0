// Scores of the next token under the constraints of a recipe's [decode] table, as regard.generation applies them; greedy
// search and sampling.

import { logSoftmaxRows } from "./layers.js";
import { filtered, sampled, uniform } from "./sampling.js";

// The keys of settings.decode that the search of a page honours.
export const OPTIONS = new Set([
  ...["max_length", "max_length_ratio", "min_length", "min_length_ratio", "length_penalty", "early_stopping"],
  ...["no_repeat_ngram_size", "repetition_penalty"],
  ...["first", "ends", "bounded", "window", "positions", "prompt_limit"],
]);

// Refuse options that the search does not honour: its outputs would not be those of the model.
export function checkOptions(decode) {
  const unknown = Object.keys(decode).filter((name) => !OPTIONS.has(name));
  if (unknown.length) throw new Error(`This page's search does not have ${unknown.join(", ")}.`);
}

const best = (scores) => scores.reduce((at, score, i) => (score > scores[at] ? i : at), 0);

// Tokens that would repeat an n-gram of this size.
function repeats(tokens, size) {
  const found = new Set();
  const last = tokens.slice(tokens.length - size + 1);
  for (let i = 0; i + size <= tokens.length; i++)
    if (last.every((token, j) => token === tokens[i + j])) found.add(tokens[i + size - 1]);
  return found;
}

// Log-probabilities of the next token: of the model, and with −∞ for what the constraints exclude.
// state: {tokens: so far, prefix: tokens that the output begins with, least: length, forced: Map of positions}
export function nextScores(logits, state, { special, decode }) {
  const logProbabilities = logSoftmaxRows(logits, logits.length);
  const { tokens, prefix, least, forced } = state;
  const at = tokens.length;
  const scores = logProbabilities.slice();
  const only = (token) => {
    const kept = scores[token];
    scores.fill(-Infinity);
    scores[token] = kept;
  };
  if (at < prefix.length) {
    only(prefix[at]);
    return { logProbabilities, scores };
  }
  for (const token of special.suppressed) scores[token] = -Infinity;
  const limited = decode.ends && least > 0;
  const end = scores[special.end];
  if (limited && at < least) scores[special.end] = -Infinity;
  const read = [decode.first, ...tokens]; // by the decoder
  const size = decode.no_repeat_ngram_size;
  if (size && at >= size - 1) for (const token of repeats(read, size)) scores[token] = -Infinity;
  if (decode.repetition_penalty !== 1) for (const token of new Set(read)) scores[token] *= decode.repetition_penalty;
  if (forced.has(at)) only(forced.get(at));
  if (limited && scores.every((score) => score === -Infinity)) scores[special.end] = end;
  return { logProbabilities, scores };
}

// The next token, and its log-probability before any constraint. search: {sample, temperature, top_k, top_p, seed}
export function nextToken(logits, state, settings, search = {}) {
  const { logProbabilities, scores } = nextScores(logits, state, settings);
  const token = search.sample ? sampled(filtered(scores, search), uniform(search.seed ?? 1, 0, state.tokens.length)) : best(scores);
  return { token, logProbability: logProbabilities[token] };
}

// As in generation/request.py: tokens of an output that a source bounds where max_length_ratio is not set.
const TOKENS_PER_SOURCE_TOKEN = 3;
const TOKENS_FOR_ANY_SOURCE = 50;

function defaultBound(decode, size) {
  const shortest = Math.max(decode.min_length, Math.trunc(decode.min_length_ratio * size));
  return Math.max(TOKENS_PER_SOURCE_TOKEN * size + TOKENS_FOR_ANY_SOURCE, shortest);
}

// The largest number of tokens of an output with its prefix.
export function maxLength(decode, { size, prefix, hasSource }) {
  let longest = decode.max_length;
  if (decode.max_length_ratio !== null && hasSource) longest = Math.min(longest, Math.trunc(decode.max_length_ratio * size));
  else if (decode.bounded && hasSource) longest = Math.min(longest, defaultBound(decode, size));
  longest = prefix + Math.max(longest, prefix ? 0 : 1);
  return decode.positions === null ? longest : Math.min(longest, decode.positions);
}

export function minLength(decode, { size, given }) {
  const shortest = Math.max(decode.min_length, Math.trunc(decode.min_length_ratio * size));
  return shortest ? shortest + given : 0;
}
