// The tokenizers that Regard trains, from the tables of page/tokenizer_tables.py: text to token ids and back.

// White space of Unicode, as the tokenizers' library has it: \s of JavaScript also has U+FEFF and lacks U+0085.
const SPACE = "\\t-\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const WORDS = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|[${SPACE}]+(?![^${SPACE}])|[${SPACE}]+`,
  "gu",
); // of GPT-2: words, numbers and punctuation, each with the space before it
const BETWEEN = new RegExp(`[${SPACE}]+`, "u");
const VISIBLE = { " ": "▁", "\n": "↵", "\t": "⇥" };

const utf8 = new TextEncoder();

// The character that stands for each byte in byte-level tokens: printable bytes are themselves, others from U+0100 on.
const CHARACTERS = (() => {
  const seen = (byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(seen(byte) ? byte : next++));
})();
const BYTES = new Map(CHARACTERS.map((character, byte) => [character, byte]));

// Merges of byte-pair encoding, the earliest learned first.
function bytePairs(symbols, ranks) {
  let parts = symbols;
  while (parts.length > 1) {
    let [best, at] = [Infinity, -1];
    for (let i = 0; i + 1 < parts.length; i++) {
      const rank = ranks.get(`${parts[i]} ${parts[i + 1]}`);
      if (rank !== undefined && rank < best) [best, at] = [rank, i];
    }
    if (at < 0) break;
    parts = [...parts.slice(0, at), parts[at] + parts[at + 1], ...parts.slice(at + 2)];
  }
  return parts;
}

// The split of a word whose tokens have the largest sum of log-probabilities (Viterbi).
function mostLikely(word, scores, longest) {
  const best = [{ score: 0, from: 0 }];
  for (let start = 0; start < word.length; start++)
    for (let end = start + 1; end <= Math.min(word.length, start + longest); end++) {
      const own = scores.get(word.slice(start, end));
      if (own === undefined) continue;
      const score = best[start].score + own;
      if (!best[end] || score > best[end].score) best[end] = { score, from: start };
    }
  const parts = [];
  for (let end = word.length; end > 0; end = best[end].from) parts.unshift(word.slice(best[end].from, end));
  return parts;
}

export class Tokenizer {
  // table: {kind, lowercase, running, tokens, special, end, unknown, merges | scores}
  constructor(table) {
    Object.assign(this, { table, tokens: table.tokens, special: new Set(table.special) });
    this.ids = new Map(table.tokens.map((token, id) => [token, id]));
    this.ranks = new Map((table.merges ?? []).map((pair, rank) => [pair, rank]));
    this.scores = new Map(table.scores?.map((score, id) => [table.tokens[id], score]));
    this.longest = table.tokens.reduce((most, token) => Math.max(most, token.length), 0);
    this.known = new Map(); // words that were split already
  }

  // The token ids of a text, without special tokens but the line breaks of running text.
  encode(text) {
    const whole = text.toWellFormed();
    if (!this.table.running) return this.#line(whole);
    return whole.split("\n").flatMap((line, i) => (i ? [this.table.end] : []).concat(this.#line(line)));
  }

  #line(text) {
    const { kind, lowercase, unknown } = this.table;
    const line = lowercase ? Array.from(text, (character) => character.toLowerCase()).join("") : text;
    if (kind === "characters") return Array.from(line).flatMap((character) => this.#character(character));
    if (kind === "words") {
      const id = (word) => (this.special.has(this.ids.get(word)) ? unknown : (this.ids.get(word) ?? unknown));
      return line.split(BETWEEN).filter(Boolean).map(id);
    }
    return (line.match(WORDS) ?? []).flatMap((word) => this.#word(word));
  }

  #character(character) {
    const id = this.ids.get(character);
    if (id !== undefined) return [id];
    return Array.from(utf8.encode(character), (byte) => this.ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`));
  }

  #word(word) {
    if (!this.known.has(word)) {
      const spelled = Array.from(utf8.encode(word), (byte) => CHARACTERS[byte]);
      const parts = this.table.kind === "bpe" ? bytePairs(spelled, this.ranks) : mostLikely(spelled.join(""), this.scores, this.longest);
      this.known.set(word, parts.map((part) => this.ids.get(part)));
    }
    return this.known.get(word);
  }

  // The bytes of a token; of words, without the space between them.
  #bytes(id) {
    const token = this.tokens[id];
    const { kind } = this.table;
    if (kind === "bpe" || kind === "unigram") return Array.from(token, (character) => BYTES.get(character));
    const byte = kind === "characters" && /^<0x([0-9A-F]{2})>$/.exec(token);
    return byte ? [parseInt(byte[1], 16)] : Array.from(utf8.encode(token));
  }

  // The text of tokens, without special ones but unknown words; in running text, the end token is a line break.
  decode(ids) {
    if (!this.table.running) return this.#decodeLine(ids);
    const lines = [[]];
    for (const id of ids) {
      if (id === this.table.end) lines.push([]);
      else lines.at(-1).push(id);
    }
    return lines.map((line) => this.#decodeLine(line)).join("\n");
  }

  #decodeLine(ids) {
    const { kind, unknown } = this.table;
    const own = ids.filter((id) => !this.special.has(id) || (kind === "words" && id === unknown));
    if (kind === "words") return own.map((id) => this.tokens[id]).join(" ");
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(own.flatMap((id) => this.#bytes(id))));
  }

  // A token as lists show it: visible white space, bytes of a partial character in ⟨⟩.
  piece(id) {
    return this.special.has(id) ? this.tokens[id] : readable(this.#bytes(id));
  }

  // The id of a token that is given by its id, its name or its text; null if it is not one token.
  find(token) {
    if (typeof token === "number") return Number.isInteger(token) && token >= 0 && token < this.tokens.length ? token : null;
    const ids = this.encode(token);
    if (ids.length === 1 && this.piece(ids[0]) === token) return ids[0];
    const named = this.tokens.findIndex((_, id) => this.piece(id) === token);
    if (named >= 0) return named;
    const spaced = this.encode(` ${token}`); // where only words after a space are tokens
    return [ids, spaced].find((found) => found.length === 1)?.[0] ?? null;
  }
}

function readable(bytes) {
  const [texts, partial] = [[], []];
  const flush = () => {
    if (partial.length) texts.push(`⟨${partial.map((byte) => byte.toString(16).padStart(2, "0")).join(" ")}⟩`);
    partial.length = 0;
  };
  for (let i = 0; i < bytes.length; ) {
    const length = bytes[i] < 0x80 ? 1 : bytes[i] >= 0xf0 ? 4 : bytes[i] >= 0xe0 ? 3 : bytes[i] >= 0xc0 ? 2 : 0;
    const character = length ? decoded(bytes.slice(i, i + length), length) : null;
    if (character === null) partial.push(bytes[i++]);
    else {
      flush();
      texts.push(VISIBLE[character] ?? character);
      i += length;
    }
  }
  flush();
  return texts.join("");
}

function decoded(bytes, length) {
  if (bytes.length < length) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
  } catch {
    return null;
  }
}
