// Operators that move elements: shapes, slices, gathers.

import { axisOf, broadcastShape, broadcastStrides, countOf, integers, strided, stridesOf, tensor } from "./tensor.js";

const LARGEST = 2 ** 31 - 1; // stands for "to the end" in a slice

function shape([a], { start = 0, end = LARGEST }) {
  return [integers(a.shape.slice(start, end === LARGEST ? undefined : end))];
}

function reshape([a, wanted], { allowzero = 0 }) {
  const sizes = Array.from(wanted.data, (size, axis) => (size === 0 && !allowzero ? a.shape[axis] : size));
  const rest = sizes.indexOf(-1);
  if (rest >= 0) sizes[rest] = countOf(a.shape) / (countOf(sizes) / -1 || 1);
  return [viewed(a, sizes)];
}

// The same elements in another shape; weights are copied, as their memory may move when it grows.
function viewed(a, sizes) {
  return tensor(a.type, sizes, a.row ? a.data.slice() : a.data);
}

function unsqueeze([a, axes]) {
  const rank = a.shape.length + axes.data.length;
  const added = new Set(Array.from(axes.data, (axis) => axisOf(axis, rank)));
  const kept = a.shape.values();
  return [viewed(a, Array.from({ length: rank }, (_, axis) => (added.has(axis) ? 1 : kept.next().value)))];
}

function squeeze([a, axes]) {
  const dropped = axes && new Set(Array.from(axes.data, (axis) => axisOf(axis, a.shape.length)));
  return [viewed(a, a.shape.filter((size, axis) => (dropped ? !dropped.has(axis) : size !== 1)))];
}

function flatten([a], { axis = 1 }) {
  const at = axisOf(axis, a.shape.length);
  return [viewed(a, [countOf(a.shape.slice(0, at)), countOf(a.shape.slice(at))])];
}

function transpose([a], { perm = a.shape.map((_, axis) => a.shape.length - 1 - axis) }) {
  const own = stridesOf(a.shape);
  const sizes = perm.map((axis) => a.shape[axis]);
  const moved = perm.filter((axis) => a.shape[axis] > 1);
  if (moved.every((axis, i) => i === 0 || axis > moved[i - 1])) return [viewed(a, sizes)];
  return [strided(a, sizes, perm.map((axis) => own[axis]))];
}

function concat(parts, { axis }) {
  const at = axisOf(axis, parts[0].shape.length);
  const sizes = [...parts[0].shape];
  sizes[at] = parts.reduce((sum, part) => sum + part.shape[at], 0);
  const filled = parts.filter((part) => countOf(part.shape));
  if (filled.length === 1) return [viewed(filled[0], sizes)];
  const out = tensor(parts[0].type, sizes);
  const outer = countOf(sizes.slice(0, at));
  const inner = countOf(sizes.slice(at));
  let offset = 0;
  for (const part of filled) {
    const run = countOf(part.shape.slice(at));
    const { data } = part;
    for (let i = 0; i < outer; i++) out.data.set(data.subarray(i * run, (i + 1) * run), i * inner + offset);
    offset += run;
  }
  return [out];
}

function split([a, lengths], { axis = 0, num_outputs: count }) {
  const at = axisOf(axis, a.shape.length);
  const each = Math.ceil(a.shape[at] / (count ?? 1));
  const all = lengths ? Array.from(lengths.data) : Array.from({ length: count }, (_, i) => Math.min(each, a.shape[at] - i * each));
  const strides = stridesOf(a.shape);
  let first = 0;
  return all.map((length) => {
    const sizes = a.shape.with(at, length);
    const part = strided(a, sizes, strides, first * strides[at]);
    first += length;
    return part;
  });
}

function slice([a, starts, ends, axes, steps]) {
  const [sizes, strides] = [[...a.shape], stridesOf(a.shape)];
  let offset = 0;
  starts.data.forEach((start, i) => {
    const axis = axisOf(axes ? axes.data[i] : i, a.shape.length);
    const [size, step] = [a.shape[axis], steps?.data[i] ?? 1];
    const bounded = (place, low, high) => Math.min(high, Math.max(low, place < 0 ? place + size : place));
    const first = step > 0 ? bounded(start, 0, size) : bounded(start, 0, size - 1);
    const last = step > 0 ? bounded(ends.data[i], 0, size) : ends.data[i] <= -LARGEST ? -1 : bounded(ends.data[i], -1, size - 1);
    sizes[axis] = Math.max(0, Math.ceil((last - first) / step));
    offset += first * strides[axis];
    strides[axis] *= step;
  });
  if (countOf(sizes) === countOf(a.shape) && !offset) return [a];
  return [strided(a, sizes, strides, offset)];
}

function expand([a, wanted]) {
  const sizes = broadcastShape(a.shape, Array.from(wanted.data));
  return [strided(a, sizes, broadcastStrides(a.shape, sizes))];
}

function tile([a, repeats]) {
  let out = a;
  repeats.data.forEach((times, axis) => {
    if (times !== 1) [out] = concat(Array(times).fill(out), { axis });
  });
  return [out];
}

function gather([a, index], { axis = 0 }) {
  const at = axisOf(axis, a.shape.length);
  const [before, after] = [a.shape.slice(0, at), a.shape.slice(at + 1)];
  const out = tensor(a.type, [...before, ...index.shape, ...after]);
  const [outer, size, inner, many] = [countOf(before), a.shape[at], countOf(after), index.data.length];
  const rows = at === 0 && a.row ? (i) => a.row(i) : null; // of int8 weights, only the rows that are read
  const data = rows ? null : a.data;
  for (let i = 0; i < outer; i++)
    for (let j = 0; j < many; j++) {
      const from = axisOf(index.data[j], size);
      if (from < 0 || from >= size) throw new Error(`no row ${from} among ${size}`);
      const row = rows ? rows(from) : data.subarray((i * size + from) * inner, (i * size + from + 1) * inner);
      out.data.set(row, (i * many + j) * inner);
    }
  return [out];
}

// For each element of index, its offset in a where the position along one axis is the element.
function alongAxis(a, index, axis) {
  const own = stridesOf(a.shape);
  const steps = stridesOf(index.shape);
  const offsets = new Int32Array(index.data.length);
  index.data.forEach((chosen, i) => {
    let [offset, rest] = [0, i];
    index.shape.forEach((_, each) => {
      const place = Math.floor(rest / steps[each]);
      rest -= place * steps[each];
      offset += (each === axis ? axisOf(chosen, a.shape[axis]) : place) * own[each];
    });
    offsets[i] = offset;
  });
  return offsets;
}

function gatherElements([a, index], { axis = 0 }) {
  const out = tensor(a.type, index.shape);
  const { data } = a;
  alongAxis(a, index, axisOf(axis, a.shape.length)).forEach((offset, i) => (out.data[i] = data[offset]));
  return [out];
}

function scatterElements([a, index, updates], { axis = 0, reduction = "none" }) {
  if (reduction !== "none" && reduction !== "add") throw new Error(`no ScatterElements with ${reduction}`);
  const out = tensor(a.type, a.shape, a.data.slice());
  const add = reduction === "add";
  alongAxis(a, index, axisOf(axis, a.shape.length)).forEach((offset, i) => {
    out.data[offset] = updates.data[i] + (add ? out.data[offset] : 0);
  });
  return [out];
}

function gatherND([a, index]) {
  const depth = index.shape.at(-1);
  const own = stridesOf(a.shape);
  const inner = countOf(a.shape.slice(depth));
  const out = tensor(a.type, [...index.shape.slice(0, -1), ...a.shape.slice(depth)]);
  for (let i = 0; i < countOf(index.shape.slice(0, -1)); i++) {
    let offset = 0;
    for (let axis = 0; axis < depth; axis++) offset += axisOf(index.data[i * depth + axis], a.shape[axis]) * own[axis];
    out.data.set(a.data.subarray(offset, offset + inner), i * inner);
  }
  return [out];
}

function scatterND([a, index, updates], { reduction = "none" }) {
  if (reduction !== "none") throw new Error(`no ScatterND with ${reduction}`);
  const depth = index.shape.at(-1);
  const own = stridesOf(a.shape);
  const inner = countOf(a.shape.slice(depth));
  const out = tensor(a.type, a.shape, a.data.slice());
  for (let i = 0; i < countOf(index.shape.slice(0, -1)); i++) {
    let offset = 0;
    for (let axis = 0; axis < depth; axis++) offset += axisOf(index.data[i * depth + axis], a.shape[axis]) * own[axis];
    out.data.set(updates.data.subarray(i * inner, (i + 1) * inner), offset);
  }
  return [out];
}

function pad([a, amounts, value, axes], { mode = "constant" }) {
  if (mode !== "constant") throw new Error(`no Pad with ${mode}`);
  const rank = a.shape.length;
  const which = axes ? Array.from(axes.data, (axis) => axisOf(axis, rank)) : a.shape.map((_, axis) => axis);
  const [low, high] = [new Array(rank).fill(0), new Array(rank).fill(0)];
  which.forEach((axis, i) => ([low[axis], high[axis]] = [amounts.data[i], amounts.data[i + which.length]]));
  if ([...low, ...high].every((each) => each === 0)) return [a];
  const out = tensor(a.type, a.shape.map((size, axis) => size + low[axis] + high[axis]));
  out.data.fill(value?.data[0] ?? 0);
  const [own, steps] = [stridesOf(a.shape), stridesOf(out.shape)];
  const { data } = a;
  const run = a.shape[rank - 1];
  for (let i = 0; i < countOf(a.shape) / (run || 1); i++) {
    let [rest, offset] = [i * run, low[rank - 1]];
    for (let axis = 0; axis < rank - 1; axis++) {
      const place = Math.floor(rest / own[axis]);
      rest -= place * own[axis];
      offset += (place + low[axis]) * steps[axis];
    }
    out.data.set(data.subarray(i * run, (i + 1) * run), offset);
  }
  return [out];
}

function range([start, limit, step]) {
  const [first, last, by] = [start.data[0], limit.data[0], step.data[0]];
  const count = Math.max(0, Math.ceil((last - first) / by));
  const out = tensor(start.type, [count]);
  for (let i = 0; i < count; i++) out.data[i] = first + i * by;
  return [out];
}

function constantOfShape([sizes], { value }) {
  const out = tensor(value?.type ?? "f", Array.from(sizes.data));
  out.data.fill(value?.data[0] ?? 0);
  return [out];
}

function trilu([a, diagonal], { upper = 1 }) {
  const [rows, columns] = a.shape.slice(-2);
  const out = tensor(a.type, a.shape, a.data.slice());
  const by = diagonal?.data[0] ?? 0;
  for (let i = 0; i < out.data.length; i++) {
    const [row, column] = [Math.floor(i / columns) % rows, i % columns];
    if (upper ? column - row < by : column - row > by) out.data[i] = 0;
  }
  return [out];
}

export const SHAPING = {
  Concat: concat,
  ConstantOfShape: constantOfShape,
  Expand: expand,
  Flatten: flatten,
  Gather: gather,
  GatherElements: gatherElements,
  GatherND: gatherND,
  Pad: pad,
  Range: range,
  Reshape: reshape,
  ScatterElements: scatterElements,
  ScatterND: scatterND,
  Shape: shape,
  Size: ([a]) => [tensor("i", [], Int32Array.of(countOf(a.shape)))],
  Slice: slice,
  Split: split,
  Squeeze: squeeze,
  Tile: tile,
  Transpose: transpose,
  Trilu: trilu,
  Unsqueeze: unsqueeze,
};
