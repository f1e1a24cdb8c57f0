// Matrix products in WebAssembly. Weights lie in its memory; other operands are copied there for each product.

import { countOf } from "./tensor.js";

const PAGE = 65536;
const FIRST = 2 * PAGE; // where weights begin: below are the stack and the constants of the compiled code
const aligned = (bytes) => Math.ceil(bytes / 16) * 16;

// A tensor of weights in that memory: float32, or int8 with a scale for each row of its first axis.
class Weight {
  type = "f";
  #converted = null;

  constructor(memory, shape, at, scales) {
    Object.assign(this, { memory, shape, at, scales });
  }

  // As float32. Int8 is converted once, for operators that are no products.
  get data() {
    if (this.scales === null) return new Float32Array(this.memory.buffer, this.at, countOf(this.shape));
    if (!this.#converted) {
      const [rows, length] = [this.shape[0], countOf(this.shape.slice(1))];
      this.#converted = new Float32Array(rows * length);
      for (let i = 0; i < rows; i++) this.#converted.set(this.row(i), i * length);
    }
    return this.#converted;
  }

  // One row of the first axis, as float32.
  row(i) {
    const { buffer } = this.memory;
    const length = countOf(this.shape.slice(1));
    if (this.scales === null) return new Float32Array(buffer, this.at + 4 * i * length, length);
    const scale = new Float32Array(buffer, this.scales, this.shape[0])[i];
    return Float32Array.from(new Int8Array(buffer, this.at + i * length, length), (each) => each * scale);
  }
}

export class Kernels {
  // code: of kernels.wasm; weights: bytes to which the offsets of `weight` refer
  static async load(code, weights) {
    const memory = new WebAssembly.Memory({ initial: Math.ceil((FIRST + weights.length) / PAGE) + 16 });
    new Uint8Array(memory.buffer).set(weights, FIRST);
    const { instance } = await WebAssembly.instantiate(code, { env: { memory } });
    return new Kernels(memory, instance.exports, aligned(FIRST + weights.length));
  }

  constructor(memory, code, free) {
    Object.assign(this, { memory, code, free });
  }

  // scales: where the scales of int8 rows are; null: the weights are float32
  weight(shape, offset, scales = null) {
    return new Weight(this.memory, shape, FIRST + offset, scales === null ? null : FIRST + scales);
  }

  // Room for these numbers of floats, behind the weights: their addresses.
  #room(...counts) {
    let at = this.free;
    const places = counts.map((count) => {
      const place = at;
      at = aligned(at + 4 * count);
      return place;
    });
    if (at > this.memory.buffer.byteLength) this.memory.grow(Math.ceil((at - this.memory.buffer.byteLength) / PAGE));
    return places;
  }

  // x (m, k) times the transpose of a weight (n, ...), whose rows have k numbers: (m, n).
  linear(x, m, weight) {
    const n = weight.shape[0];
    const k = countOf(weight.shape.slice(1));
    const [from, to] = this.#room(m * k, m * n);
    new Float32Array(this.memory.buffer, from, m * k).set(x);
    if (weight.scales === null) this.code.linear(from, weight.at, to, m, k, n);
    else this.code.linear_int8(from, weight.at, weight.scales, to, m, k, n);
    return new Float32Array(this.memory.buffer, to, m * n).slice();
  }

  // For each pair of places in the tensors a and b: (m, k) of a times (k, n) of b, or times the transpose of (n, k).
  products(a, b, places, m, k, n, transposed) {
    const [count, other] = [countOf(a.shape), countOf(b.shape)];
    const [left, right, to] = this.#room(count, other, places.length * m * n); // before a view of weights is made
    new Float32Array(this.memory.buffer, left, count).set(a.data);
    new Float32Array(this.memory.buffer, right, other).set(b.data);
    const multiply = transposed ? this.code.linear : this.code.product;
    places.forEach(([x, y], i) => multiply(left + 4 * x, right + 4 * y, to + 4 * i * m * n, m, k, n));
    return new Float32Array(this.memory.buffer, to, places.length * m * n).slice();
  }
}
