// Runs a program: the graph of an encoder or a decoder as a list of operators, each with the numbers of its values.

import { ELEMENTWISE } from "./elementwise.js";
import { LAYERS } from "./layers.js";
import { SHAPING } from "./shaping.js";
import { strided, stridesOf, tensor } from "./tensor.js";

export const OPERATORS = { ...ELEMENTWISE, ...SHAPING, ...LAYERS };
const ARRAYS = { f: Float32Array, i: Int32Array, b: Uint8Array };

// Numbers in JSON; infinities and NaN are written as texts.
function constant({ type, shape, values }) {
  return tensor(type, shape, ARRAYS[type].from(values, Number));
}

export class Program {
  // program: {inputs: [{name, value, shape}], outputs: [{name, value}], constants, weights, nodes, values}
  constructor(program, kernels) {
    Object.assign(this, { inputs: program.inputs, outputs: program.outputs, nodes: program.nodes.map(prepared), kernels });
    this.constants = new Array(program.values);
    for (const each of program.constants) this.constants[each.value] = constant(each);
    for (const { value, shape, offset, scales } of program.weights)
      this.constants[value] = kernels.weight(shape, offset, scales ?? null);
  }

  get names() {
    return this.inputs.map((each) => each.name);
  }

  // feeds: tensors by name; attention: changes attention calls and is told of them. Returns the outputs by name.
  run(feeds, attention = null) {
    const values = this.constants.slice();
    for (const { name, value } of this.inputs) {
      if (!feeds[name]) throw new Error(`no input ${name}`);
      values[value] = feeds[name];
    }
    execute(this.nodes, values, { kernels: this.kernels, attention });
    return Object.fromEntries(this.outputs.map(({ name, value }) => [name, values[value]]));
  }
}

function prepared({ op, inputs, outputs, attributes = {}, body }) {
  if (op !== "Scan" && !OPERATORS[op]) throw new Error(`no operator ${op}`);
  const { value, ...rest } = attributes;
  const all = value ? { ...rest, value: constant(value) } : rest;
  return { op, inputs, outputs, attributes: all, body: body && { ...body, nodes: body.nodes.map(prepared) } };
}

function execute(nodes, values, context) {
  for (const { op, inputs, outputs, attributes, body } of nodes) {
    const given = inputs.map((at) => (at === null ? undefined : values[at]));
    const made = op === "Scan" ? scan(given, attributes, body, values, context) : OPERATORS[op](given, attributes, context);
    outputs.forEach((at, i) => at !== null && (values[at] = made[i]));
  }
}

// Runs the body once for each element of the first axis of the scanned inputs, and stacks what it gives.
function scan(given, { num_scan_inputs: count }, body, values, context) {
  const states = given.length - count;
  const scanned = given.slice(states);
  const steps = scanned[0].shape[0];
  let carried = given.slice(0, states);
  const stacked = body.outputs.slice(states).map(() => []);
  for (let step = 0; step < steps; step++) {
    const now = scanned.map((each) => strided(each, each.shape.slice(1), stridesOf(each.shape.slice(1)), step * stridesOf(each.shape)[0]));
    [...carried, ...now].forEach((each, i) => (values[body.inputs[i]] = each));
    execute(body.nodes, values, context);
    const made = body.outputs.map((at) => values[at]);
    carried = made.slice(0, states);
    made.slice(states).forEach((each, i) => stacked[i].push(each));
  }
  return [...carried, ...stacked.map(stack)];
}

function stack(parts) {
  const [first] = parts;
  const out = tensor(first.type, [parts.length, ...first.shape]);
  parts.forEach((part, i) => out.data.set(part.data, i * first.data.length));
  return out;
}
