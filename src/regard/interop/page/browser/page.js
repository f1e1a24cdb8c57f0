// The page of a model: what it reads, what it generates from it, edits, and what was attended to.

import { colour, ink } from "../../../views/page/colours.js";
import { percent, readLook, shown } from "../../../views/page/data.js";
import { showLook } from "../../../views/page/look.js";
import { make } from "../../../views/page/state.js";
import { makeHistory, showEdits } from "./edit_panel.js";
import { InputError } from "./edits.js";
import { pictureAddress, showFields } from "./fields.js";
import { Model } from "./model.js";

const PAUSE = 120; // milliseconds without a key before the model runs
const FRAME = 30; // milliseconds after which the page is drawn while the model runs
const part = (name) => document.getElementById(name);

function bytesOf(name) {
  const letters = atob(part(name).textContent);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  part(name).remove();
  return bytes;
}

// The state in the address: the texts and the edits. Pictures are not part of it.
function readAddress(count) {
  const given = new URLSearchParams(location.hash.slice(1));
  const parsed = (name, otherwise) => {
    try {
      const value = JSON.parse(given.get(name));
      return Array.isArray(value) ? value : otherwise;
    } catch {
      return otherwise;
    }
  };
  const values = parsed("input", []);
  return { values: Array.from({ length: count }, (_, i) => (typeof values[i] === "string" ? values[i] : null)), edits: parsed("edits", []) };
}

function writeAddress(values, edits) {
  const keys = new URLSearchParams({ input: JSON.stringify(values.map((value) => (typeof value === "string" ? value : null))) });
  if (edits.length) keys.set("edits", JSON.stringify(edits));
  history.replaceState(null, "", `#${keys}`);
}

// Which tokens are in no longest common subsequence with others.
function changes(tokens, others) {
  const lengths = Array.from({ length: tokens.length + 1 }, () => new Uint16Array(others.length + 1));
  for (let i = tokens.length - 1; i >= 0; i--)
    for (let j = others.length - 1; j >= 0; j--)
      lengths[i][j] = tokens[i] === others[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const changed = new Set(tokens.keys());
  for (let i = 0, j = 0; i < tokens.length && j < others.length; ) {
    if (tokens[i] === others[j]) changed.delete(i), i++, j++;
    else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return changed;
}

class ModelPage {
  constructor(model) {
    const { sources } = model.settings;
    const { values, edits } = readAddress(Math.max(1, sources.length));
    Object.assign(this, { model, values, store: null, look: null, runs: 0, plain: null });
    sources.forEach((source, i) => source.kind === "label" && (this.values[i] ??= source.labels[0]));
    const main = document.querySelector("main");
    this.boxes = Object.fromEntries(["fields", "problem", "output", "edits", "look"].map((id) => [id, make(id === "problem" ? "p" : "section", { id })]));
    Object.assign(this.boxes.problem, { className: "problem", hidden: true });
    this.boxes.problem.setAttribute("role", "alert");
    for (const [id, label] of [["fields", "What the model reads"], ["output", "Output"], ["look", "Attention"]]) this.boxes[id].setAttribute("aria-label", label);
    main.append(...Object.values(this.boxes));
    let timer = 0;
    showFields(this.boxes.fields, sources, this.values, (now) => {
      this.values = now;
      clearTimeout(timer);
      timer = setTimeout(() => this.run(), PAUSE);
    });
    this.history = makeHistory(edits, () => this.run());
    this.boxes.edits.hidden = true;
    this.refreshEdits = showEdits(this.boxes.edits, this.history, () => this.look, () => this.store);
    if (this.ready) this.run();
  }

  get ready() {
    return this.values.every((value) => value !== null);
  }

  // Runs the model; a later call makes an earlier one give up.
  async run() {
    if (!this.ready) return;
    const number = ++this.runs;
    const { edits } = this.history;
    writeAddress(this.values, edits);
    let drawn = performance.now();
    const onToken = async (text) => {
      if (performance.now() - drawn > FRAME) {
        this.#said(text);
        await new Promise((done) => setTimeout(done));
        drawn = performance.now();
      }
      return number === this.runs;
    };
    try {
      const title = this.values.filter((value) => typeof value === "string").join(" | ");
      const key = JSON.stringify(this.values.map((value) => value.pixels ? [value.width, value.height, ...value.pixels] : value));
      const plain = this.plain?.key === key ? this.plain.result : await this.model.run(this.values, { title, onToken });
      if (!plain) return;
      this.plain = { key, result: plain };
      const result = edits.length ? await this.model.run(this.values, { edits, title, onToken }) : plain;
      if (!result || number !== this.runs) return;
      this.#fail(null);
      this.#show(result, edits.length ? plain : null);
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      this.#fail(error);
    }
    this.refreshEdits();
  }

  #fail(error) {
    this.boxes.problem.hidden = !error;
    this.boxes.problem.textContent = error?.message ?? "";
  }

  #said(text) {
    if (!part("said")) this.boxes.output.replaceChildren(make("p", { id: "said", role: "status" }));
    part("said").textContent = text;
  }

  #show(result, plain) {
    this.#said(result.text);
    const below = [];
    if (plain && plain.text !== result.text) below.push(make("p", { id: "unedited", className: "quiet" }, "without edits: ", make("span", { textContent: plain.text })));
    below.push(result.probabilities ? labels(result.probabilities) : tokens(result.look.output, plain?.look.output));
    this.boxes.output.replaceChildren(part("said"), ...below);
    this.#follow(result.look);
  }

  #follow(answer) {
    for (const source of answer.sources) if (source.pixels) source.data ??= pictureAddress(source.pixels, source.width);
    const look = readLook(answer);
    this.look = look;
    this.boxes.edits.hidden = false;
    if (!look.maps.length) this.boxes.look.replaceChildren(make("p", { className: "quiet", textContent: "This model has no attention." }));
    else if (this.store) this.store.replace(look);
    else this.store = showLook(this.boxes.look, look);
  }
}

function tokens({ tokens: names, scores }, plain) {
  const changed = plain ? changes(names, plain.tokens) : new Set();
  const items = names.map((name, i) => {
    const share = Math.exp(scores[i]);
    const item = make("li", { className: changed.has(i) ? "changed" : "" }, make("span", { textContent: shown(name) }), make("small", { textContent: percent(share) }));
    Object.assign(item.style, { background: colour(share * 0.5), color: ink(share * 0.5) });
    return item;
  });
  const sum = scores.reduce((total, score) => total + score, 0);
  const list = make("ol", { className: "tokens", label: "Tokens, with their probabilities" }, ...items);
  return make("div", {}, list, make("p", { className: "quiet", textContent: `log-probability ${sum.toFixed(3)} · ${names.length} tokens · greedy search` }));
}

function labels(probabilities) {
  const rows = Object.entries(probabilities).map(([label, share]) => make("tr", {}, make("th", { scope: "row", textContent: label }), make("td", { textContent: percent(share) })));
  return make("table", {}, make("caption", { textContent: "Probabilities" }), make("tbody", {}, ...rows));
}

async function start() {
  const model = await Model.load(JSON.parse(part("settings").textContent), bytesOf("kernels"), bytesOf("weights"));
  const page = new ModelPage(model);
  // For the browser's console: await regard.run(["a text"], { edits: [] })
  globalThis.regard = { model, page, run: (values, options) => model.run([values].flat(), options) };
}

start();
