// Tensors of the interpreter: float32 "f", integers "i" and booleans "b", in row-major order.

const ARRAYS = { f: Float32Array, i: Int32Array, b: Uint8Array };

export function countOf(shape) {
  return shape.reduce((product, size) => product * size, 1);
}

export function tensor(type, shape, data = new ARRAYS[type](countOf(shape))) {
  return { type, shape, data };
}

export function integers(values) {
  return tensor("i", [values.length], Int32Array.from(values));
}

export function stridesOf(shape) {
  const strides = new Array(shape.length);
  let step = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    strides[axis] = step;
    step *= shape[axis];
  }
  return strides;
}

// An axis that counts from the end, counted from the start.
export function axisOf(axis, rank) {
  return axis < 0 ? axis + rank : axis;
}

export function broadcastShape(...shapes) {
  const rank = Math.max(...shapes.map((shape) => shape.length));
  return Array.from({ length: rank }, (_, axis) => {
    const sizes = shapes.map((shape) => shape[axis - rank + shape.length] ?? 1);
    const size = sizes.find((each) => each !== 1) ?? 1;
    if (sizes.some((each) => each !== 1 && each !== size)) throw new Error(`shapes ${JSON.stringify(shapes)} do not match`);
    return size;
  });
}

// The strides with which a tensor is read as one of a larger shape: 0 along the axes on which it is repeated.
export function broadcastStrides(from, shape) {
  const own = stridesOf(from);
  return shape.map((_, axis) => {
    const at = axis - shape.length + from.length;
    return at < 0 || from[at] === 1 ? 0 : own[at];
  });
}

// Calls visit(position, ...offsets) for every element of a shape, in order: offsets follow the strides of each list.
// The last axis is the caller's: visit gets the first element of each run of it.
export function eachRun(shape, strideLists, visit) {
  const outer = shape.slice(0, -1);
  const runs = countOf(outer);
  const length = shape.at(-1) ?? 1;
  if (!runs || !length) return;
  const index = new Array(outer.length).fill(0);
  const offsets = strideLists.map(() => 0);
  for (let run = 0; run < runs; run++) {
    visit(run * length, offsets);
    for (let axis = outer.length - 1; axis >= 0; axis--) {
      index[axis]++;
      for (let each = 0; each < offsets.length; each++) offsets[each] += strideLists[each][axis];
      if (index[axis] < outer[axis]) break;
      for (let each = 0; each < offsets.length; each++) offsets[each] -= strideLists[each][axis] * outer[axis];
      index[axis] = 0;
    }
  }
}

// A copy of the elements that these strides reach from an offset, as a tensor of this shape.
export function strided(from, shape, strides, offset = 0) {
  const out = tensor(from.type, shape);
  const [source, target] = [from.data, out.data];
  const length = shape.at(-1) ?? 1;
  const step = strides.at(-1) ?? 1;
  eachRun(shape, [strides], (position, [start]) => {
    const first = offset + start;
    if (step === 1 && length > 16) target.set(source.subarray(first, first + length), position);
    else for (let i = 0; i < length; i++) target[position + i] = source[first + i * step];
  });
  return out;
}
