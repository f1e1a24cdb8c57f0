// Operators that compute each element from elements at the same place, with broadcasting.

import { broadcastShape, broadcastStrides, countOf, eachRun, tensor } from "./tensor.js";

function binary(type, compute) {
  return ([a, b]) => {
    const kind = type ?? a.type;
    if (countOf(b.shape) === 1 && b.shape.length <= a.shape.length) return [withNumber(kind, a, b.data[0], compute)];
    const shape = broadcastShape(a.shape, b.shape);
    const out = tensor(kind, shape);
    const [x, y, z] = [a.data, b.data, out.data];
    if (repeats(a.shape, shape) && repeats(b.shape, shape)) {
      const [p, q] = [x.length, y.length];
      if (p === z.length && q === z.length) for (let i = 0; i < z.length; i++) z[i] = compute(x[i], y[i]);
      else for (let i = 0; i < z.length; i++) z[i] = compute(x[i % p], y[i % q]);
      return [out];
    }
    const strides = [broadcastStrides(a.shape, shape), broadcastStrides(b.shape, shape)];
    const [left, right] = strides.map((each) => each.at(-1));
    const length = shape.at(-1);
    eachRun(shape, strides, (position, [i, j]) => {
      for (let at = 0; at < length; at++) z[position + at] = compute(x[i + at * left], y[j + at * right]);
    });
    return [out];
  };
}

function withNumber(type, a, number, compute) {
  const out = tensor(type, a.shape);
  const [x, z] = [a.data, out.data];
  for (let i = 0; i < z.length; i++) z[i] = compute(x[i], number);
  return out;
}

// Whether a tensor, repeated whole, fills a shape: it has the last axes of it.
function repeats(from, shape) {
  const ahead = shape.length - from.length;
  return from.every((size, axis) => size === shape[ahead + axis]) && countOf(from) > 0;
}

function unary(type, compute) {
  return ([a]) => {
    const out = tensor(type ?? a.type, a.shape);
    const [x, z] = [a.data, out.data];
    for (let i = 0; i < z.length; i++) z[i] = compute(x[i]);
    return [out];
  };
}

function where([condition, a, b]) {
  const shape = broadcastShape(condition.shape, a.shape, b.shape);
  const out = tensor(a.type, shape);
  const strides = [condition, a, b].map((each) => broadcastStrides(each.shape, shape));
  const steps = strides.map((each) => each.at(-1) ?? 0);
  const [c, x, y, z] = [condition.data, a.data, b.data, out.data];
  const length = shape.at(-1) ?? 1;
  eachRun(shape, strides, (position, [i, j, k]) => {
    for (let at = 0; at < length; at++)
      z[position + at] = c[i + at * steps[0]] ? x[j + at * steps[1]] : y[k + at * steps[2]];
  });
  return [out];
}

// Of each kind of tensor, by the number of the type in ONNX; booleans are 0 and 1, integers round towards zero.
const KINDS = { 1: "f", 6: "i", 7: "i", 9: "b", 10: "f", 11: "f" };

function cast([a], { to }) {
  const type = KINDS[to];
  if (!type) throw new Error(`no tensors of type ${to}`);
  if (type === a.type) return [a];
  return unary(type, type === "b" ? (x) => (x ? 1 : 0) : (x) => x)([a]);
}

// The error function to about 1e-7, by the expansion of Numerical Recipes.
function erf(x) {
  const z = Math.abs(x);
  const t = 1 / (1 + 0.5 * z);
  const terms = [1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277];
  const series = terms.reduceRight((sum, term) => term + t * sum, 0);
  const complement = t * Math.exp(-z * z - 1.26551223 + t * series);
  return x >= 0 ? 1 - complement : complement - 1;
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

function gelu(inputs, { approximate = "none" }) {
  const exact = (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2));
  const fast = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
  return unary(null, approximate === "tanh" ? fast : exact)(inputs);
}

function clip([a, least, most]) {
  const [low, high] = [least?.data[0] ?? -Infinity, most?.data[0] ?? Infinity];
  return unary(null, (x) => Math.min(high, Math.max(low, x)))([a]);
}

function isInfinite(inputs, { detect_negative: negative = 1, detect_positive: positive = 1 }) {
  return unary("b", (x) => ((positive && x === Infinity) || (negative && x === -Infinity) ? 1 : 0))(inputs);
}

function folded(compute) {
  const pair = binary(null, compute);
  return (inputs) => [inputs.reduce((all, each) => pair([all, each])[0])];
}

const divide = (inputs) => binary(null, inputs[0].type === "i" ? (x, y) => Math.trunc(x / y) : (x, y) => x / y)(inputs);

export const ELEMENTWISE = {
  Add: binary(null, (x, y) => x + y),
  Sub: binary(null, (x, y) => x - y),
  Mul: binary(null, (x, y) => x * y),
  Div: divide,
  Mod: binary(null, (x, y) => x - y * Math.floor(x / y)),
  Pow: binary(null, (x, y) => x ** y),
  Min: folded(Math.min),
  Max: folded(Math.max),
  Equal: binary("b", (x, y) => (x === y ? 1 : 0)),
  Less: binary("b", (x, y) => (x < y ? 1 : 0)),
  LessOrEqual: binary("b", (x, y) => (x <= y ? 1 : 0)),
  Greater: binary("b", (x, y) => (x > y ? 1 : 0)),
  GreaterOrEqual: binary("b", (x, y) => (x >= y ? 1 : 0)),
  And: binary("b", (x, y) => x & y),
  Or: binary("b", (x, y) => x | y),
  Not: unary("b", (x) => (x ? 0 : 1)),
  Abs: unary(null, Math.abs),
  Ceil: unary(null, Math.ceil),
  Cos: unary(null, Math.cos),
  Erf: unary(null, erf),
  Exp: unary(null, Math.exp),
  Floor: unary(null, Math.floor),
  Log: unary(null, Math.log),
  Neg: unary(null, (x) => -x),
  Reciprocal: unary(null, (x) => 1 / x),
  Relu: unary(null, (x) => (x > 0 ? x : 0)),
  Sigmoid: unary(null, sigmoid),
  Sign: unary(null, Math.sign),
  Sin: unary(null, Math.sin),
  Softplus: unary(null, (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)))),
  Sqrt: unary(null, Math.sqrt),
  Swish: unary(null, (x) => x * sigmoid(x)),
  Tanh: unary(null, Math.tanh),
  IsInf: isInfinite,
  IsNaN: unary("b", (x) => (Number.isNaN(x) ? 1 : 0)),
  Identity: ([a]) => [a],
  Cast: cast,
  Clip: clip,
  Gelu: gelu,
  Where: where,
};
