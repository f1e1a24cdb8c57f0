// A model: its programs, tokenizers and settings, from the tables of page/settings.py. An input in, an output and a look out.

import { AttentionRecorder, InputError } from "./edits.js";
import { normalized, squared } from "./images.js";
import { Kernels } from "./kernels.js";
import { logSoftmaxRows } from "./layers.js";
import { makeLook } from "./looks.js";
import { Program } from "./program.js";
import { maxLength, minLength, nextToken } from "./search.js";
import { Tokenizer } from "./tokenizer.js";
import { tensor } from "./tensor.js";

const integers = (values) => tensor("i", [1, values.length], Int32Array.from(values));
const ones = (count) => integers(Array(count).fill(1));

export class Model {
  static async load(settings, code, weights) {
    return new Model(settings, await Kernels.load(code, weights));
  }

  constructor(settings, kernels) {
    const { programs, tokenizers } = settings;
    this.settings = settings;
    this.programs = Object.fromEntries(Object.entries(programs).map(([name, each]) => [name, new Program(each, kernels)]));
    this.tokenizers = tokenizers.map((table) => new Tokenizer(table));
    const { target } = settings;
    this.target = target.kind === "text" ? this.tokenizers[target.tokenizer] : null;
    const names = this.tokenizers.flatMap((each) => Array.from(each.special, (id) => each.tokens[id]));
    this.special = new Set([...names, "[CLS]"]);
  }

  // What the encoder reads. values: of each source a text, a label, or an image {pixels, width, height}
  read(values, edits) {
    const read = this.settings.sources.map((source, i) => this.#source(source, i, values[i], edits));
    edits.forEach((edit, i) => {
      if (edit.edit === "replace_token" && (edit.side ?? "source") === "source" && !read[edit.source ?? 0])
        throw new InputError(`edit ${i + 1}: there is no source ${edit.source ?? 0}`);
    });
    return {
      feeds: Object.assign({}, ...read.map((each) => each.feeds)),
      sources: read.map((each) => each.shown),
      size: read.reduce((sum, each) => sum + each.size, 0),
      spans: read.length > 1 ? read.map((each) => each.positions) : [],
    };
  }

  #source(source, i, value, edits) {
    const suffix = i ? `_${i + 1}` : "";
    if (source.kind === "image") {
      const pixels = squared(value.pixels, value.width, value.height, source);
      const { size, grid, units } = source;
      const shown = { kind: "image", width: size, height: size, grid, units, pixels };
      return { feeds: { [`pixel_values${suffix}`]: normalized(pixels, source) }, size: source.cost, positions: grid[0] * grid[1] + units, shown };
    }
    if (source.kind === "label") {
      const label = source.labels.indexOf(value);
      if (label < 0) throw new InputError(`“${value}” is not one of the labels ${source.labels.join(", ")}`);
      return { feeds: { [`label_ids${suffix}`]: tensor("i", [1], Int32Array.of(label)) }, size: 1, positions: 1, shown: { kind: "text", tokens: [value] } };
    }
    const tokenizer = this.tokenizers[source.tokenizer];
    const own = tokenizer.encode(value);
    if (own.length > source.limit) throw new InputError(`The text has ${own.length} tokens; the model reads ${source.limit} at most.`);
    const ids = [...source.prefix, ...own, ...source.suffix];
    replaceTokens(ids, edits, i, source.units, tokenizer);
    const feeds = { [`input_ids${suffix}`]: integers(ids), [`attention_mask${suffix}`]: ones(ids.length) };
    const tokens = [...Array(source.units).fill("[CLS]"), ...ids.map((id) => tokenizer.piece(id))];
    return { feeds, size: own.length, positions: tokens.length, shown: { kind: "text", tokens } };
  }

  // The output for one input, with a look. onToken(text, tokens) is awaited after each token; if it gives false, the
  // search is given up and null returned.
  async run(values, { edits = [], title = "", onToken = null } = {}) {
    return this.target ? this.#generate(values, edits, title, onToken) : this.#classify(values, edits, title);
  }

  #classify(values, edits, title) {
    const { labels } = this.settings.target;
    if (edits.some((edit) => edit.edit === "replace_token" && edit.side === "output")) throw new InputError("A classifier generates no tokens that could be replaced.");
    const { feeds, sources, spans } = this.read(values, edits);
    const recorder = new AttentionRecorder(this.settings.sites, edits, spans);
    const { logits } = this.programs.model.run(feeds, recorder);
    const scores = logSoftmaxRows(logits.data, labels.length);
    const order = [...labels.keys()].sort((a, b) => scores[b] - scores[a] || a - b);
    const output = { label: labels[order[0]], score: scores[order[0]] };
    const probabilities = Object.fromEntries(order.map((i) => [labels[i], Math.exp(scores[i])]));
    recorder.checkApplied();
    return { text: output.label, probabilities, look: this.#look(title, sources, output, recorder, spans, edits) };
  }

  async #generate(values, edits, title, onToken) {
    const { settings, target: tokenizer } = this;
    const { decode, special } = settings;
    const prompt = settings.sources.length ? [] : this.#prompt(values[0]);
    const input = this.read(values, edits);
    const recorder = new AttentionRecorder(settings.sites, edits, input.spans);
    const decoding = new Decoding(this, input, recorder);
    const forced = forcedTokens(edits, tokenizer);
    const prefix = prompt.map((token, i) => forced.get(i) ?? token);
    const limit = maxLength(decode, { size: input.size, prefix: prefix.length, hasSource: settings.sources.length > 0 });
    const least = minLength(decode, { size: input.size, given: prefix.length });
    const [tokens, scores] = [[], []];
    let next = [decode.first];
    while (tokens.length < limit) {
      const logits = decoding.advance(next);
      const { token, logProbability } = nextToken(logits, { tokens, prefix, least, forced }, settings);
      tokens.push(token);
      scores.push(logProbability);
      next = [token];
      if (onToken && tokens.length > prefix.length && !(await onToken(tokenizer.decode(tokens.slice(prefix.length).filter((id) => id !== special.end || !decode.ends)), tokens))) return null;
      if (decode.ends && token === special.end && tokens.length > prefix.length) break;
    }
    recorder.checkApplied();
    const ended = decode.ends && tokens.at(-1) === special.end;
    const own = tokens.slice(prefix.length, ended ? -1 : undefined);
    const shown = (ids) => ids.map((id) => tokenizer.piece(id));
    const from = tokens.length - decoding.read.length; // of running text whose window slid, the last window
    const whole = { text: tokenizer.decode(tokens), tokens: shown(tokens.slice(from)), scores: scores.slice(from), read: shown(decoding.read) };
    const look = this.#look(title, input.sources, whole, recorder, input.spans, edits);
    return { text: tokenizer.decode(own), ids: tokens.slice(prefix.length), scores: scores.slice(prefix.length), ended, look };
  }

  #prompt(text) {
    const { decode } = this.settings;
    const prompt = this.target.encode(text);
    if (prompt.length > decode.prompt_limit) throw new InputError(`The text has ${prompt.length} tokens; the model reads ${decode.prompt_limit} at most.`);
    if (decode.positions !== null && prompt.length >= decode.positions) throw new InputError(`The text has ${prompt.length} tokens; the model has learned ${decode.positions} positions.`);
    return prompt;
  }

  #look(title, sources, output, recorder, spans, edits) {
    return makeLook({ title, sources, output, recorder, spans, edits, special: this.special });
  }
}

// The decoder's state: its caches, and the tokens that it has read since its window began.
class Decoding {
  constructor(model, input, recorder) {
    Object.assign(this, { decoder: model.programs.decoder ?? model.programs.model, recorder, window: model.settings.decode.window });
    this.memory = {};
    this.start = {};
    if (model.programs.encoder) {
      const encoded = model.programs.encoder.run(input.feeds, recorder);
      this.memory.encoder_hidden_states = encoded.last_hidden_state;
      this.memory.encoder_attention_mask = encoded.encoder_attention_mask ?? input.feeds.attention_mask;
      this.start = following(encoded);
    }
    this.#begin();
  }

  #begin() {
    const size = (axis, i) => (typeof axis === "number" ? axis : i === 0 ? 1 : 0); // one sequence, nothing before it
    const inputs = this.decoder.inputs.filter(({ name }) => name.startsWith("past_key_values"));
    const zeros = inputs.map(({ name, shape }) => [name, tensor("f", shape.map(size))]);
    this.state = { ...Object.fromEntries(zeros), ...this.start };
    this.read = [];
  }

  // The logits after some more tokens.
  advance(tokens) {
    if (this.window !== null && this.read.length === this.window) {
      const again = this.read.slice(this.window - Math.floor(this.window / 2));
      this.#begin();
      this.recorder.forget("decoder");
      for (const token of again) this.#step([token]);
    }
    return this.#step(tokens);
  }

  #step(tokens) {
    this.recorder.at(this.read.length);
    this.read.push(...tokens);
    const feeds = { input_ids: integers(tokens), attention_mask: ones(this.read.length), ...this.memory, ...this.state };
    const outputs = this.decoder.run(feeds, this.recorder);
    this.state = following(outputs);
    const { shape, data } = outputs.logits;
    return data.slice(data.length - shape.at(-1));
  }
}

function following(outputs) {
  const present = Object.entries(outputs).filter(([name]) => name.startsWith("present."));
  return Object.fromEntries(present.map(([name, value]) => [name.replace("present.", "past_key_values."), value]));
}

function replaceTokens(ids, edits, source, units, tokenizer) {
  edits.forEach((edit, i) => {
    if (edit.edit !== "replace_token" || (edit.side ?? "source") !== "source" || (edit.source ?? 0) !== source) return;
    const position = edit.position - units;
    if (position < 0 || position >= ids.length) throw new InputError(`edit ${i + 1}: the source has no token ${edit.position}`);
    ids[position] = foundToken(edit, i, tokenizer);
  });
}

function forcedTokens(edits, tokenizer) {
  const found = new Map();
  edits.forEach((edit, i) => {
    if (edit.edit === "replace_token" && edit.side === "output") found.set(edit.position, foundToken(edit, i, tokenizer));
  });
  return found;
}

function foundToken(edit, i, tokenizer) {
  const id = tokenizer.find(edit.token);
  if (id === null) throw new InputError(`edit ${i + 1}: “${edit.token}” is not one token`);
  return id;
}
