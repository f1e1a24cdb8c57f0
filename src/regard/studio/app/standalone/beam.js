// Beam search with a length penalty, as regard.generation.choose.beam, and its steps as a tree.

import { nextScores } from "./search.js";

// The `count` largest of all scores plus the total of their hypothesis, best first: [{beam, token, value}].
function bestCandidates(extended, count) {
  const found = [];
  extended.forEach(({ total, scores }, beam) => {
    if (total === -Infinity) return;
    scores.forEach((score, token) => {
      const value = total + score;
      if (value === -Infinity || (found.length === count && value <= found[count - 1].value)) return;
      let at = found.length;
      while (at > 0 && found[at - 1].value < value) at--;
      found.splice(at, 0, { beam, token, value });
      if (found.length > count) found.pop();
    });
  });
  return found;
}

// search: {start: the decoder's state, prefix, limit, least, forced, size: hypotheses, penalty: length_penalty,
// stopping: early_stopping, settings};
// `advance(state, token)` gives {logits, state}; `pause()` is awaited after each step, and false gives the search up.
// Returns {outputs: [{tokens, log_probabilities, score, log_probability, node}] best first, nodes}, or null.
export async function beamSearch({ start, first, prefix, limit, least, forced, size, penalty, stopping, settings, advance, pause }) {
  const { decode, special } = settings;
  const nodes = [];
  let beams = [{ state: start, last: first, tokens: [], scores: [], total: 0, node: -1 }];
  let ended = [];
  const power = (length) => Math.fround(Math.max(1, length - prefix.length) ** penalty); // as Python rounds it
  for (let length = 1; length <= limit; length++) {
    const extended = beams.map((beam) => {
      const { logits, state } = advance(beam.state, beam.last);
      return { ...beam, state, ...renamed(nextScores(logits, { tokens: beam.tokens, prefix, least, forced }, settings)) };
    });
    const candidates = bestCandidates(extended.map(({ total, allowed }) => ({ total, scores: allowed })), 2 * size);
    const next = [];
    candidates.forEach(({ beam, token, value }, rank) => {
      const { state, tokens, scores, all, node } = extended[beam];
      const ends = length >= limit || (decode.ends && token === special.end);
      const made = { state, last: token, tokens: [...tokens, token], scores: [...scores, all[token]], total: value };
      const kept = !ends && next.length < size;
      const score = ends && rank < size ? value / power(length) : null;
      nodes.push({ parent: node, token, log_probability: all[token], total: value, kept, score });
      if (kept) next.push({ ...made, total: length <= prefix.length ? 0 : value, node: nodes.length - 1 });
      if (score !== null) ended.push({ ...made, score, node: nodes.length - 1 });
    });
    ended = ended.sort((a, b) => b.score - a.score).slice(0, size); // stable: of equal ones, the earlier
    beams = next;
    // With "never", an open hypothesis may still become as long as the limit, which a penalty above 0 favors.
    const longest = stopping === "never" && penalty > 0 ? limit : length;
    const attainable = Math.max(-Infinity, ...beams.map(({ total }) => total)) / power(longest);
    const full = ended.length === size;
    if (!beams.length || (full && (stopping === true || attainable <= ended.at(-1).score))) break;
    if (pause && !(await pause())) return null;
  }
  return { nodes, outputs: ended };
}

const renamed = ({ logProbabilities, scores }) => ({ all: logProbabilities, allowed: scores });
