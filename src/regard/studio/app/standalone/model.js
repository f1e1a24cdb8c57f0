// A model: its programs, tokenizers and settings, from the tables of page/settings.py. An input in, an output and a look out.

import { beamSearch } from "./beam.js";
import { AttentionRecorder, InputError } from "./edits.js";
import { normalized, squared } from "./images.js";
import { Kernels } from "./kernels.js";
import { logSoftmaxRows } from "./layers.js";
import { makeLook } from "./looks.js";
import { Program } from "./program.js";
import { maxLength, minLength, nextToken } from "./search.js";
import { normalizedVectors, predictedVectors, restoredVectors, seriesTitle, shownSeries, vectorsOf } from "./series.js";
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

  // What the encoder reads. values: of each source a text, a label, an image {pixels, width, height} or vectors
  read(values, edits) {
    const read = this.settings.sources.map((source, i) => this.#source(source, i, values[i], edits));
    edits.forEach((edit, i) => {
      if (edit.edit === "replace_token" && (edit.side ?? "source") === "source" && !read[edit.source ?? 0])
        throw new InputError(`edit ${i + 1}: there is no source ${edit.source ?? 0}`);
      if (edit.edit === "replace_token" && (edit.side ?? "source") === "source" && this.settings.sources[edit.source ?? 0].kind !== "text")
        throw new InputError(`edit ${i + 1}: source ${edit.source ?? 0} has no tokens that could be replaced`);
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
    if (source.kind === "vectors") {
      const { vectors, skipped } = vectorsOf(value, source);
      const numbers = normalizedVectors(vectors, source);
      const shown = shownSeries(numbers, source, skipped);
      return { feeds: { [`input_values${suffix}`]: numbers }, size: shown.length, positions: shown.tokens.length, shown };
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

  // The output for one input, with a look.
  // search     {beam_size, sample, temperature, top_k, top_p, seed}: greedy search where nothing is given
  // onToken    is awaited after each token with a function that gives a look so far, or none while beams are extended; if
  //            it gives false, the search is given up and null returned
  // position   of the look's output, whose distribution is added: logProbabilities
  async run(values, { edits = [], title = "", search = {}, onToken = null, position = null } = {}) {
    if (this.target) return this.#generate({ values, edits, title, search, onToken, position });
    const [option] = Object.keys(search);
    if (option !== undefined) throw new InputError(`${option}: this model gives its output in one step, without a search.`);
    return this.settings.target.kind === "vectors" ? this.#forecast(values, edits, title) : this.#classify(values, edits, title);
  }

  // One pass of a model that generates nothing.
  #pass(values, edits) {
    if (edits.some((edit) => edit.edit === "replace_token" && edit.side === "output")) throw new InputError("This model generates no tokens that could be replaced.");
    const { feeds, sources, spans } = this.read(values, edits);
    const recorder = new AttentionRecorder(this.settings.sites, edits, spans);
    const { logits } = this.programs.model.run(feeds, recorder);
    recorder.checkApplied();
    return { feeds, sources, spans, recorder, logits };
  }

  // Vectors: of each position of the source, or those after it, beside which `past` has the same channels of the source.
  #forecast(values, edits, title) {
    const { target, sources: read } = this.settings;
    const { feeds, sources, spans, recorder, logits } = this.#pass(values, edits);
    const vectors = restoredVectors(logits.data, target);
    const output = predictedVectors(vectors, target);
    const size = target.mean.length;
    const past = target.follows ? restoredVectors(feeds.input_values.data, read[0]).map((vector) => vector.slice(0, size)) : null;
    const parts = [title || describedSources(sources), ...sources.map(seriesTitle)];
    const look = this.#look(parts.filter(Boolean).join(": "), sources, output, recorder, spans, edits);
    return { text: output.text, vectors: output.vectors, past, look };
  }

  #classify(values, edits, title) {
    const { labels } = this.settings.target;
    const { sources, spans, recorder, logits } = this.#pass(values, edits);
    const scores = logSoftmaxRows(logits.data, labels.length);
    const order = [...labels.keys()].sort((a, b) => scores[b] - scores[a] || a - b);
    const output = { label: labels[order[0]], score: scores[order[0]] };
    const probabilities = Object.fromEntries(order.map((i) => [labels[i], Math.exp(scores[i])]));
    return { text: output.label, probabilities, look: this.#look(title || describedSources(sources), sources, output, recorder, spans, edits) };
  }

  async #generate({ values, edits, title, search, onToken, position }) {
    const { settings } = this;
    const task = this.#task(values, edits, search);
    const { decoder, recorder, prefix } = task;
    const found = search.beam_size > 1 ? await this.#beams(task, onToken) : null;
    if (search.beam_size > 1 && !found) return null;
    if (found && !found.outputs.length) throw new InputError("The constraints exclude every output.");
    const given = found?.outputs[0].tokens;
    const choose = given
      ? (logits, at) => ({ token: given[at], logProbability: logSoftmaxRows(logits, logits.length)[given[at]] })
      : (logits, _, tokens) => nextToken(logits, { ...task, tokens }, settings, search);
    const [tokens, scores, distributions] = [[], [], []];
    let [state, last] = [decoder.begin(), settings.decode.first];
    const look = () => this.#lookAt(tokens, scores, state.read, task, title, edits);
    for (let at = 0; at < (given?.length ?? task.limit); at++) {
      const { logits, state: next } = decoder.advance(state, last);
      state = next;
      const { token, logProbability } = choose(logits, at, tokens);
      tokens.push(token);
      scores.push(logProbability);
      if (position !== null) distributions.push(logSoftmaxRows(logits, logits.length));
      last = token;
      if (!given && onToken && at >= prefix.length && !(await onToken(look))) return null;
      if (!given && this.#isEnd(token) && at >= prefix.length) break;
    }
    recorder.checkApplied();
    const ended = this.#isEnd(tokens.at(-1));
    const own = tokens.slice(prefix.length, ended ? -1 : undefined);
    const from = tokens.length - state.read.length;
    return {
      text: this.target.decode(own),
      ids: tokens.slice(prefix.length),
      scores: scores.slice(prefix.length),
      ended,
      look: look(),
      ...(found ? { beam: this.#named(found, prefix.length) } : {}),
      ...(position === null ? {} : { logProbabilities: distributions[from + position] ?? null }),
    };
  }

  #isEnd(token) {
    const { decode, special } = this.settings;
    return decode.ends && token === special.end;
  }

  // What a search needs: the decoder with its memory, the prefix, tokens that are forced, and the limits of lengths.
  #task(values, edits, search) {
    const { settings } = this;
    const prompt = settings.sources.length ? [] : this.#prompt(values[0]);
    const input = this.read(values, edits);
    const recorder = new AttentionRecorder(settings.sites, edits, input.spans);
    const forced = forcedTokens(edits, this.target);
    const prefix = prompt.map((token, i) => forced.get(i) ?? token);
    const hasSource = settings.sources.length > 0;
    const limit = maxLength(settings.decode, { size: input.size, prefix: prefix.length, hasSource });
    const least = minLength(settings.decode, { size: input.size, given: prefix.length });
    return { input, recorder, forced, prefix, limit, least, search, decoder: new Decoder(this, input, recorder) };
  }

  // The beam search; the attention of its hypotheses is edited, and not recorded.
  async #beams({ decoder, recorder, prefix, limit, least, forced, search }, onToken) {
    const { settings } = this;
    recorder.keeps = false;
    const found = await beamSearch({
      start: decoder.begin(),
      first: settings.decode.first,
      prefix,
      limit,
      least,
      forced,
      size: search.beam_size,
      penalty: search.length_penalty ?? settings.decode.length_penalty,
      stopping: search.early_stopping ?? settings.decode.early_stopping,
      settings,
      advance: (state, token) => decoder.advance(state, token),
      pause: onToken && (() => onToken(null)),
    });
    recorder.keeps = true;
    return found;
  }

  // The tree of a beam search as /studio/beam sends it.
  #named({ nodes, outputs }, prefix) {
    const alive = new Set();
    for (const { node } of outputs) for (let at = node; at >= 0; at = nodes[at].parent) alive.add(at);
    const sum = (scores) => scores.slice(prefix).reduce((total, score) => total + score, 0);
    const text = (tokens) => this.target.decode(tokens.slice(prefix, this.#isEnd(tokens.at(-1)) ? -1 : undefined));
    return {
      nodes: nodes.map((each, i) => ({ ...each, id: each.token, token: this.target.piece(each.token), alive: alive.has(i) })),
      outputs: outputs.map(({ tokens, scores, score, node }) => ({ text: text(tokens), score, log_probability: sum(scores), node })),
    };
  }

  #lookAt(tokens, scores, read, { input, recorder }, title, edits) {
    const shown = (ids) => ids.map((id) => this.target.piece(id));
    const from = tokens.length - read.length; // of running text whose window slid, the last window
    const whole = { text: this.target.decode(tokens), tokens: shown(tokens.slice(from)), scores: scores.slice(from), read: shown(read) };
    return this.#look(title || describedSources(input.sources), input.sources, whole, recorder, input.spans, edits);
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

// The decoder of one input. A state is {caches, read: the tokens since its window began}, and never changes.
class Decoder {
  constructor(model, input, recorder) {
    Object.assign(this, { program: model.programs.decoder ?? model.programs.model, recorder, window: model.settings.decode.window });
    this.memory = {};
    this.first = {};
    if (model.programs.encoder) {
      const encoded = model.programs.encoder.run(input.feeds, recorder);
      this.memory.encoder_hidden_states = encoded.last_hidden_state;
      this.memory.encoder_attention_mask = encoded.encoder_attention_mask ?? input.feeds.attention_mask;
      this.first = following(encoded);
    }
  }

  begin() {
    const size = (axis, i) => (typeof axis === "number" ? axis : i === 0 ? 1 : 0); // one sequence, nothing before it
    const inputs = this.program.inputs.filter(({ name }) => name.startsWith("past_key_values"));
    const zeros = inputs.map(({ name, shape }) => [name, tensor("f", shape.map(size))]);
    return { caches: { ...Object.fromEntries(zeros), ...this.first }, read: [] };
  }

  // The logits after one more token, and the state.
  advance(state, token) {
    if (this.window !== null && state.read.length === this.window) {
      const again = state.read.slice(this.window - Math.floor(this.window / 2));
      this.recorder.forget("decoder");
      state = again.reduce((before, each) => this.#step(before, each).state, this.begin());
    }
    return this.#step(state, token);
  }

  #step({ caches, read }, token) {
    this.recorder.at(read.length);
    const all = [...read, token];
    const feeds = { input_ids: integers([token]), attention_mask: ones(all.length), ...this.memory, ...caches };
    const outputs = this.program.run(feeds, this.recorder);
    const { shape, data } = outputs.logits;
    return { logits: data.slice(data.length - shape.at(-1)), state: { caches: following(outputs), read: all } };
  }
}

function describedSources(sources) {
  return sources.map((source) => (source.kind === "series" ? `${source.length} vectors of ${source.channels.length} numbers` : "")).join(" | ");
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
