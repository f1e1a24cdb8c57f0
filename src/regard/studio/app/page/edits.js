// Edits of a model as a list, as `regard look --edit` reads it: how they are told, added, and written as commands.

import { shown } from "./data.js";

const same = (a, b, keys) => keys.every((key) => JSON.stringify(a[key] ?? null) === JSON.stringify(b[key] ?? null));
// What an edit is of: a later one of the same replaces it.
const TARGET = {
  switch_head_off: ["map", "head"],
  scale_head: ["map", "head"],
  paint_row: ["map", "head", "row"],
  mask_source: ["source", "token"],
  replace_token: ["side", "source", "position"],
};
const FAMILY = { switch_head_off: "head", scale_head: "head", paint_row: "row", mask_source: "mask", replace_token: "token" };

export function readEdits(text) {
  try {
    const edits = JSON.parse(text || "[]");
    return Array.isArray(edits) ? edits : [];
  } catch {
    return [];
  }
}

export const writeEdits = (edits) => (edits.length ? JSON.stringify(edits) : null);

// The list without edits of the same target, and with this one at its end; null only removes.
export function withEdit(edits, edit, remove = false) {
  const others = edits.filter((each) => FAMILY[each.edit] !== FAMILY[edit.edit] || !same(each, edit, TARGET[edit.edit] ?? []));
  return remove ? others : [...others, edit];
}

export function findEdit(edits, kind, target) {
  return edits.find((each) => FAMILY[each.edit] === FAMILY[kind] && same(each, target, TARGET[kind]));
}

export function told(edit) {
  const head = edit.head === undefined ? "all heads" : `head ${edit.head}`;
  const number = (value) => Number(value).toFixed(2);
  switch (edit.edit) {
    case "switch_head_off":
      return `${edit.map}, ${head}: off`;
    case "scale_head":
      return `${edit.map}, ${head}: × ${number(edit.factor)}`;
    case "paint_row":
      return `${edit.map}, ${head}, row ${edit.row}: ${edit.keys.map((key, i) => `key ${key} = ${number(edit.weights[i])}`).join(", ")}${edit.renormalize === false ? ", the others stay" : ""}`;
    case "mask_source":
      return `source${edit.source ? ` ${edit.source + 1}` : ""}: token ${edit.token} masked`;
    case "replace_token":
      return `${edit.side ?? "source"}: token ${edit.position} is ${typeof edit.token === "number" ? `number ${edit.token}` : shown(edit.token)}`;
    default:
      return JSON.stringify(edit);
  }
}

const quoted = (text) => `'${String(text).replaceAll("'", `'\\''`)}'`;

const inPython = (value) => (value === true ? "True" : JSON.stringify(value));

// The shell command and the Python lines that show the same as a request.
export function commands(model, input, { edits = [], model: _, input: __, ...options }) {
  const files = { image: "picture.png", vectors: "series.npy" }; // what a command has in place of the content of a file
  const texts = input.map((each, i) => (each.startsWith("data:") ? (files[model.reads[i]] ?? each) : each));
  const path = model.path ?? model.name;
  const { beam_size: beam, channel, ...search } = options;
  const flags = [...(beam ? [`--beam ${beam}`] : []), ...(channel ? [`--channel ${channel}`] : []), ...Object.entries(search).map(([key, value]) => `--set ${key}=${value}`)];
  const look = ["regard look", quoted(path), quoted(texts.join("\t")), ...flags].join(" ");
  const shell = edits.length ? `cat > edits.json <<'END'\n${JSON.stringify(edits)}\nEND\n${look} --edit edits.json` : look;
  const given = [JSON.stringify(path), JSON.stringify(texts.length > 1 ? texts : texts[0])];
  if (edits.length) given.push(`edits=json.loads(${JSON.stringify(JSON.stringify(edits))})`);
  given.push(...Object.entries(options).map(([key, value]) => `${key}=${inPython(value)}`));
  const python = `import json, regard\n\nlook = regard.look(${given.join(", ")})\nprint(look.output)`;
  return { shell, python };
}
