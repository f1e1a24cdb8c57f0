// Sampling of tokens, as regard.generation.choose.sampling: filters of the distribution, and random numbers that depend on seed,
// stream and step alone, so that a seed gives the same output here and in Python.

import { logSoftmaxRows } from "./layers.js";

const MASK = (1n << 64n) - 1n;

function mixed(x) {
  x = ((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  x = ((x ^ (x >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return x ^ (x >> 31n);
}

// A uniform number in [0, 1).
export function uniform(seed, stream, step) {
  const offset = (BigInt(seed) * 2862933555777941757n) & MASK;
  const of = (BigInt(stream) * 0x9e3779b97f4a7c15n + mixed((BigInt(step) + offset) & MASK)) & MASK;
  return Number(mixed(of) >> 11n) / 2 ** 53;
}

// Log-probabilities after temperature, top-k and top-p filtering; −∞ for excluded tokens.
export function filtered(logProbabilities, { temperature = 1, top_k = null, top_p = null }) {
  const scores = logSoftmaxRows(logProbabilities.map((score) => score / temperature), logProbabilities.length);
  if (top_k !== null && top_k < scores.length) {
    const smallest = scores.toSorted((a, b) => b - a)[top_k - 1];
    for (let i = 0; i < scores.length; i++) if (scores[i] < smallest) scores[i] = -Infinity;
  }
  return top_p === null ? scores : nucleus(scores, top_p);
}

// The fewest tokens, the most likely first, whose probabilities sum to `mass`; at least one.
function nucleus(scores, mass) {
  const order = [...scores.keys()].sort((a, b) => scores[b] - scores[a]);
  const shares = scores.map(Math.exp);
  const all = shares.reduce((sum, share) => sum + share, 0);
  let before = 0;
  const kept = scores.slice().fill(-Infinity);
  order.forEach((token, i) => {
    if (i === 0 || before < mass) kept[token] = scores[token];
    before += shares[token] / all;
  });
  return kept;
}

// The token at which the cumulative distribution passes `chance`.
export function sampled(scores, chance) {
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const cumulative = [];
  let sum = 0;
  for (const score of scores) cumulative.push((sum += Math.exp(score - most)));
  const found = cumulative.findIndex((each) => each > chance * sum);
  return found < 0 ? scores.length - 1 : found;
}
