// How an output is searched for: greedily, by beam search, or by sampling. The options are keys of the address.

import { make } from "./state.js";

export const KEYS = ["beam", "sample", "temperature", "top_k", "top_p", "seed"];
const NAMES = { greedy: "Greedy", beam: "Beam search", sample: "Sampling" };
const NUMBERS = {
  beam: { text: "Beam size", of: "beam", min: 2, max: 16, step: 1, otherwise: 4 },
  temperature: { text: "Temperature", of: "sample", min: 0.05, max: 10, step: 0.05, otherwise: 1 },
  top_k: { text: "Top k", of: "sample", min: 1, max: 100000, step: 1, otherwise: null },
  top_p: { text: "Top p", of: "sample", min: 0.01, max: 1, step: 0.01, otherwise: null },
  seed: { text: "Seed", of: "sample", min: 0, max: 2147483647, step: 1, otherwise: 1 },
};

// The number of a key of the address, within its range; what is left out has its default.
export function numberOf(parameters, key) {
  const { min, max, step, otherwise } = NUMBERS[key];
  const given = Number.parseFloat(parameters[key]);
  if (!Number.isFinite(given)) return otherwise;
  const within = Math.max(min, Math.min(max, given));
  return step === 1 ? Math.round(within) : within;
}

export function searchKind(parameters) {
  if (parameters.sample === "1") return "sample";
  return Number(parameters.beam) > 1 ? "beam" : "greedy";
}

// The options of [decode], as `regard.look` takes them.
export function searchOptions(parameters) {
  const kind = searchKind(parameters);
  if (kind !== "sample") return { beam_size: kind === "beam" ? numberOf(parameters, "beam") : 1 };
  const given = ["temperature", "top_k", "top_p", "seed"].map((key) => [key, numberOf(parameters, key)]);
  return { beam_size: 1, sample: true, ...Object.fromEntries(given.filter(([, value]) => value !== null)) };
}

// Controls; they follow the address when `update` is called.
export function showSearchOptions(studio) {
  const kind = make("select", { id: "search" }, ...Object.entries(NAMES).map(([value, name]) => new Option(name, value)));
  const fields = Object.entries(NUMBERS).map(([key, { text, of, min, max, step, otherwise }]) => {
    const input = make("input", { type: "number", id: key, min, max, step, placeholder: otherwise === null ? "all" : "" });
    input.addEventListener("change", () => studio.go({ [key]: input.value }));
    return { key, of, input, label: make("label", {}, `${text} `, input) };
  });
  kind.addEventListener("change", () => {
    const none = Object.fromEntries(KEYS.map((key) => [key, null]));
    studio.go({ ...none, ...{ greedy: {}, beam: { beam: NUMBERS.beam.otherwise }, sample: { sample: 1 } }[kind.value] });
  });
  const element = make("p", { className: "line", id: "search-options" }, make("label", {}, "Search ", kind), ...fields.map(({ label }) => label));
  return {
    element,
    update() {
      kind.value = searchKind(studio.parameters);
      for (const { key, of, input, label } of fields) {
        label.hidden = of !== kind.value;
        if (document.activeElement !== input) input.value = numberOf(studio.parameters, key) ?? "";
      }
    },
  };
}
