// Operators of neural networks: products, convolutions, normalizations, softmax, reductions and attention.

import { axisOf, broadcastShape, broadcastStrides, countOf, strided, stridesOf, tensor } from "./tensor.js";

// x (..., k) times the transpose of a weight (n, k), and a bias.
function linear([x, weight, bias], _, { kernels }) {
  const rows = countOf(x.shape.slice(0, -1));
  const out = kernels.linear(x.data, rows, weight);
  return [withBias(tensor("f", [...x.shape.slice(0, -1), weight.shape[0]], out), bias)];
}

function withBias(out, bias) {
  if (bias) {
    const [from, to] = [bias.data, out.data];
    const length = from.length;
    for (let i = 0, j = 0; i < to.length; i++) {
      to[i] += from[j];
      if (++j === length) j = 0;
    }
  }
  return out;
}

// Batches of products; `transposed`: b has the shape (..., n, k).
function matmul([a, b], { transposed = 0 }, { kernels }) {
  const [left, right] = [a.shape.length === 1 ? [1, ...a.shape] : a.shape, b.shape.length === 1 ? [...b.shape, 1] : b.shape];
  const [m, k] = left.slice(-2);
  const n = transposed ? right.at(-2) : right.at(-1);
  const batch = broadcastShape(left.slice(0, -2), right.slice(0, -2));
  const places = pairs(left.slice(0, -2), right.slice(0, -2), batch).map(([i, j]) => [i * m * k, j * k * n]);
  const out = kernels.products(a, b, places, m, k, n, transposed);
  const sizes = [...batch, ...(a.shape.length === 1 ? [] : [m]), ...(b.shape.length === 1 ? [] : [n])];
  return [tensor("f", sizes, out)];
}

// For each element of a broadcast shape, its places in both tensors.
function pairs(left, right, shape) {
  const count = countOf(shape);
  if (countOf(left) === count && countOf(right) === count) return Array.from({ length: count }, (_, i) => [i, i]);
  const numbered = (sizes) => {
    const all = tensor("i", sizes, Int32Array.from({ length: countOf(sizes) }, (_, i) => i));
    return strided(all, shape, broadcastStrides(sizes, shape)).data;
  };
  const [i, j] = [numbered(left), numbered(right)];
  return Array.from({ length: count }, (_, at) => [i[at], j[at]]);
}

function gemm([a, b, c], { alpha = 1, beta = 1, transA = 0, transB = 0 }, { kernels }) {
  if (alpha !== 1 || beta !== 1 || transA) throw new Error("no Gemm with alpha, beta or transA");
  const [n, k] = transB ? b.shape : b.shape.toReversed();
  const out = kernels.products(a, b, [[0, 0]], a.shape[0], k, n, transB);
  return [withBias(tensor("f", [a.shape[0], n], out), c)];
}

// Softmax of scores (..., N, M), −∞ where a key is masked: rows without any key are zeros.
export function softmaxRows(scores, length) {
  const out = new Float32Array(scores.length);
  for (let start = 0; start < scores.length; start += length) {
    let most = -Infinity;
    for (let i = start; i < start + length; i++) if (scores[i] > most) most = scores[i];
    if (most === -Infinity) continue;
    let total = 0;
    for (let i = start; i < start + length; i++) total += out[i] = Math.exp(scores[i] - most);
    for (let i = start; i < start + length; i++) out[i] /= total;
  }
  return out;
}

// One call of an attention module: scores (B, H, N, M) and values (B, H, M, E) to outputs. `attention` of the context
// may give other weights than the softmax of the scores.
function attention([scores, values], { site }, { kernels, attention: recorder }) {
  const [batch, heads, rows, keys] = scores.shape;
  const weights = recorder?.weights(site, scores) ?? tensor("f", scores.shape, softmaxRows(scores.data, keys));
  const wide = values.shape[3];
  const places = pairs(scores.shape.slice(0, 2), values.shape.slice(0, 2), [batch, heads]);
  const both = places.map(([i, j]) => [i * rows * keys, j * keys * wide]);
  return [tensor("f", [batch, heads, rows, wide], kernels.products(weights, values, both, rows, keys, wide, false))];
}

// A tensor as (outer, length, inner) around one axis.
function around(shape, axis) {
  const at = axisOf(axis, shape.length);
  return [countOf(shape.slice(0, at)), shape[at], countOf(shape.slice(at + 1))];
}

function softmax([a], { axis = -1 }) {
  const [, length, inner] = around(a.shape, axis);
  if (inner !== 1) throw new Error("no Softmax along another axis than the last");
  return [tensor("f", a.shape, softmaxRows(a.data, length))];
}

function logSoftmax([a], { axis = -1 }) {
  const [, length, inner] = around(a.shape, axis);
  if (inner !== 1) throw new Error("no LogSoftmax along another axis than the last");
  return [tensor("f", a.shape, logSoftmaxRows(a.data, length))];
}

export function logSoftmaxRows(scores, length) {
  const out = new Float32Array(scores.length);
  for (let start = 0; start < scores.length; start += length) {
    let [most, total] = [-Infinity, 0];
    for (let i = start; i < start + length; i++) if (scores[i] > most) most = scores[i];
    for (let i = start; i < start + length; i++) total += Math.exp(scores[i] - most);
    for (let i = start; i < start + length; i++) out[i] = scores[i] - most - Math.log(total);
  }
  return out;
}

// Mean 0 and variance 1 over each run of `length` elements; without `centered`, only the mean of squares 1.
function normalizeRows(data, length, epsilon, centered = true) {
  const out = new Float32Array(data.length);
  for (let start = 0; start < data.length; start += length) {
    let [sum, squares] = [0, 0];
    if (centered) for (let i = start; i < start + length; i++) sum += data[i];
    const mean = sum / length;
    for (let i = start; i < start + length; i++) squares += (data[i] - mean) ** 2;
    const factor = 1 / Math.sqrt(squares / length + epsilon);
    for (let i = start; i < start + length; i++) out[i] = (data[i] - mean) * factor;
  }
  return out;
}

function layerNorm([a, weight, bias], { axis = -1, epsilon = 1e-5 }) {
  const length = countOf(a.shape.slice(axisOf(axis, a.shape.length)));
  return [scaled(a, normalizeRows(a.data, length, epsilon), length, weight, bias)];
}

function rmsNorm([a, weight], { axis = -1, epsilon = 1e-5 }) {
  const length = countOf(a.shape.slice(axisOf(axis, a.shape.length)));
  return [scaled(a, normalizeRows(a.data, length, epsilon, false), length, weight)];
}

function scaled(a, normal, length, weight, bias) {
  const [factor, shift] = [weight.data, bias?.data];
  for (let i = 0; i < normal.length; i++) normal[i] = normal[i] * factor[i % length] + (shift ? shift[i % length] : 0);
  return tensor("f", a.shape, normal);
}

function instanceNorm([a, weight, bias], { epsilon = 1e-5 }) {
  const inner = countOf(a.shape.slice(2));
  return [perChannel(a, normalizeRows(a.data, inner, epsilon), (c) => weight.data[c], (c) => bias.data[c])];
}

function batchNorm([a, weight, bias, mean, variance], { epsilon = 1e-5 }) {
  const factor = (c) => weight.data[c] / Math.sqrt(variance.data[c] + epsilon);
  return [perChannel(a, a.data.slice(), factor, (c) => bias.data[c] - mean.data[c] * factor(c))];
}

function perChannel(a, data, factor, shift) {
  const [, channels, inner] = [a.shape[0], a.shape[1], countOf(a.shape.slice(2))];
  for (let i = 0; i < data.length; i += inner) {
    const channel = (i / inner) % channels;
    const [by, plus] = [factor(channel), shift(channel)];
    for (let j = i; j < i + inner; j++) data[j] = data[j] * by + plus;
  }
  return tensor("f", a.shape, data);
}

// Windows of an image or a sequence, both as (B, C, Y, X): where each begins, and how large the result is.
function windows(sizes, { kernel_shape: kernel, strides, dilations, pads, auto_pad: auto = "NOTSET", ceil_mode: ceil = 0 }) {
  if (auto !== "NOTSET" && auto !== "VALID") throw new Error(`no padding ${auto}`);
  const flat = kernel.length === 1;
  const both = (given, fill) => (flat ? [fill, ...(given ?? [fill])] : (given ?? [fill, fill]));
  const [k, step, gap] = [both(kernel, 1), both(strides, 1), both(dilations, 1)];
  const edges = flat ? [0, pads?.[0] ?? 0, 0, pads?.[1] ?? 0] : (pads ?? [0, 0, 0, 0]);
  const round = ceil ? Math.ceil : Math.floor;
  const out = [0, 1].map((axis) => {
    const covered = gap[axis] * (k[axis] - 1) + 1;
    const count = round((sizes[axis] + edges[axis] + edges[axis + 2] - covered) / step[axis]) + 1;
    return ceil && (count - 1) * step[axis] >= sizes[axis] + edges[axis] ? count - 1 : count;
  });
  return { flat, k, step, gap, low: edges.slice(0, 2), out };
}

const asImage = (shape) => (shape.length === 3 ? [shape[0], shape[1], 1, shape[2]] : shape);

function conv([a, weight, bias], attributes, { kernels }) {
  const [batch, channels, high, wide] = asImage(a.shape);
  const shape = { kernel_shape: weight.shape.slice(2), ...attributes };
  const { flat, k, step, gap, low, out } = windows([high, wide], shape);
  const { group = 1 } = attributes;
  const [filters, own] = weight.shape;
  const [points, length, perGroup] = [out[0] * out[1], own * k[0] * k[1], filters / group];
  const result = tensor("f", [batch, filters, ...(flat ? [out[1]] : out)]);
  const [x, columns, shifts] = [a.data, new Float32Array(points * length), bias?.data.slice()];
  for (let b = 0; b < batch; b++)
    for (let g = 0; g < group; g++) {
      let at = 0;
      for (let p = 0; p < points; p++) {
        const [y0, x0] = [Math.floor(p / out[1]) * step[0] - low[0], (p % out[1]) * step[1] - low[1]];
        for (let c = 0; c < own; c++) {
          const plane = (b * channels + g * own + c) * high;
          for (let i = 0; i < k[0]; i++) {
            const row = y0 + i * gap[0];
            for (let j = 0; j < k[1]; j++, at++) {
              const column = x0 + j * gap[1];
              columns[at] = row >= 0 && row < high && column >= 0 && column < wide ? x[(plane + row) * wide + column] : 0;
            }
          }
        }
      }
      const whole = group === 1 && weight.row; // a weight of the model, whose rows lie in the memory of the kernels
      const made = whole ? kernels.linear(columns, points, weight) : kernels.products(tensor("f", [points, length], columns), rowsOf(weight, g * perGroup, perGroup), [[0, 0]], points, length, perGroup, true);
      for (let f = 0; f < perGroup; f++) {
        const filter = g * perGroup + f;
        const plus = shifts ? shifts[filter] : 0;
        const to = (b * filters + filter) * points;
        for (let p = 0; p < points; p++) result.data[to + p] = made[p * perGroup + f] + plus;
      }
    }
  return [result];
}

function rowsOf(weight, first, count) {
  const length = countOf(weight.shape.slice(1));
  return tensor("f", [count, length], weight.data.slice(first * length, (first + count) * length));
}

function pool(combine, finish) {
  return ([a], attributes) => {
    const [batch, channels, high, wide] = asImage(a.shape);
    const { flat, k, step, gap, low, out } = windows([high, wide], attributes);
    const result = tensor("f", [batch, channels, ...(flat ? [out[1]] : out)]);
    let at = 0;
    for (let plane = 0; plane < batch * channels; plane++)
      for (let y = 0; y < out[0]; y++)
        for (let x = 0; x < out[1]; x++, at++) {
          let [value, count] = [null, 0];
          for (let i = 0; i < k[0]; i++)
            for (let j = 0; j < k[1]; j++) {
              const [row, column] = [y * step[0] - low[0] + i * gap[0], x * step[1] - low[1] + j * gap[1]];
              if (row < 0 || row >= high || column < 0 || column >= wide) continue;
              const here = a.data[(plane * high + row) * wide + column];
              value = value === null ? here : combine(value, here);
              count++;
            }
          result.data[at] = finish(value ?? 0, attributes.count_include_pad ? k[0] * k[1] : count);
        }
    return [result];
  };
}

function globalPool([a]) {
  const inner = countOf(a.shape.slice(2));
  const out = tensor("f", [...a.shape.slice(0, 2), ...a.shape.slice(2).map(() => 1)]);
  for (let i = 0; i < out.data.length; i++) {
    let sum = 0;
    for (let j = 0; j < inner; j++) sum += a.data[i * inner + j];
    out.data[i] = sum / inner;
  }
  return [out];
}

function reduction(start, combine, finish = (value) => value) {
  return ([a, axes], { keepdims = 1, noop_with_empty_axes: noop = 0, axes: listed }) => {
    const given = axes ? Array.from(axes.data) : (listed ?? []);
    if (!given.length && noop) return [a];
    const rank = a.shape.length;
    const gone = new Set(given.length ? given.map((axis) => axisOf(axis, rank)) : a.shape.keys());
    const sizes = a.shape.map((size, axis) => (gone.has(axis) ? 1 : size));
    const sums = new Float64Array(countOf(sizes)).fill(start);
    const [own, to] = [stridesOf(a.shape), broadcastStrides(sizes, a.shape)];
    const { data } = a;
    const inner = rank && gone.has(rank - 1) && gone.size === 1 ? a.shape[rank - 1] : 0;
    for (let i = 0; i < data.length; i++) {
      let at = 0;
      if (inner) at = Math.floor(i / inner);
      else for (let axis = 0, rest = i; axis < rank; axis++) {
        const place = Math.floor(rest / own[axis]);
        rest -= place * own[axis];
        at += place * to[axis];
      }
      sums[at] = combine(sums[at], data[i]);
    }
    const count = data.length / sums.length;
    const out = tensor(a.type, keepdims ? sizes : a.shape.filter((_, axis) => !gone.has(axis)));
    for (let i = 0; i < sums.length; i++) out.data[i] = finish(sums[i], count);
    return [out];
  };
}

function argMax([a], { axis = 0, keepdims = 1 }) {
  const [outer, length, inner] = around(a.shape, axis);
  const at = axisOf(axis, a.shape.length);
  const out = tensor("i", keepdims ? a.shape.with(at, 1) : a.shape.toSpliced(at, 1));
  for (let i = 0; i < outer; i++)
    for (let j = 0; j < inner; j++) {
      let best = 0;
      for (let t = 1; t < length; t++)
        if (a.data[(i * length + t) * inner + j] > a.data[(i * length + best) * inner + j]) best = t;
      out.data[i * inner + j] = best;
    }
  return [out];
}

function cumSum([a, axis], { exclusive = 0, reverse = 0 }) {
  if (exclusive || reverse) throw new Error("no CumSum that is exclusive or reversed");
  const [outer, length, inner] = around(a.shape, axis.data[0]);
  const out = tensor(a.type, a.shape);
  for (let i = 0; i < outer; i++)
    for (let j = 0; j < inner; j++) {
      let sum = 0;
      for (let t = 0; t < length; t++) out.data[(i * length + t) * inner + j] = sum += a.data[(i * length + t) * inner + j];
    }
  return [out];
}

export const LAYERS = {
  ArgMax: argMax,
  Attention: attention,
  AveragePool: pool((x, y) => x + y, (sum, count) => sum / count),
  BatchNormalization: batchNorm,
  Conv: conv,
  CumSum: cumSum,
  Gemm: gemm,
  GlobalAveragePool: globalPool,
  InstanceNormalization: instanceNorm,
  LayerNormalization: layerNorm,
  Linear: linear,
  LogSoftmax: logSoftmax,
  MatMul: matmul,
  MaxPool: pool(Math.max, (most) => most),
  RMSNormalization: rmsNorm,
  ReduceMax: reduction(-Infinity, Math.max),
  ReduceMean: reduction(0, (x, y) => x + y, (sum, count) => sum / count),
  ReduceMin: reduction(Infinity, Math.min),
  ReduceProd: reduction(1, (x, y) => x * y),
  ReduceSum: reduction(0, (x, y) => x + y),
  ReduceSumSquare: reduction(0, (x, y) => x + y * y),
  ReduceL2: reduction(0, (x, y) => x + y * y, Math.sqrt),
  Softmax: softmax,
};
