// The beam tree: hypotheses that share their beginnings, with log-probabilities. A node forces its prefix.

import { fixed, percent, shown } from "./data.js";
import { readEdits, writeEdits } from "./edits.js";
import { inputOf, inputText, showInputs } from "./inputs.js";
import { make } from "./state.js";
import { makeTask } from "./task.js";

const [GAP, DOWN] = [18, 38]; // pixels between two nodes of a path, and from one line to the next
const [NARROW, WIDE] = [74, 152]; // least and most pixels of a node; all nodes of a depth are as wide as the widest
const [LETTER, NUMBER] = [10, 62]; // about the pixels of a letter of a token, and of its probability with the space around it
const SVG = "http://www.w3.org/2000/svg";
const PAUSE = 150;

export const view = { route: "beam", title: "Beam tree", show };

function show(box, studio) {
  const inputs = make("section", { id: "inputs", label: "Input" });
  const size = make("input", { type: "number", id: "tree-beam", min: 2, max: 16 });
  const pruned = make("input", { type: "checkbox", id: "pruned" });
  const all = make("button", { type: "button", id: "free", textContent: "Search freely again", hidden: true });
  const forced = make("span", { id: "forced", className: "quiet" });
  const tree = make("div", { id: "tree", className: "wide", role: "region", tabIndex: 0, label: "Beam tree" });
  const table = make("table", { id: "hypotheses" }, make("caption", { textContent: "Outputs, best first" }), make("thead"), make("tbody"));
  box.append(
    make("h2", { className: "heard", textContent: view.title }),
    inputs,
    make("p", { className: "line" }, make("label", { htmlFor: "tree-beam", textContent: "Beam size" }), size, make("label", {}, pruned, " Candidates that were pruned"), all, forced),
    make("p", { className: "quiet", textContent: "Each token with its probability. Grey branches have been given up. A node forces the output to begin so, and the search continues from it; arrow keys move between nodes." }),
    tree,
    make("div", { className: "wide", role: "region", tabIndex: 0, label: "Outputs" }, table),
  );
  let [model, fill, answer] = [null, null, null];
  const task = makeTask(box, studio);
  const beamSize = () => Math.max(2, Math.min(16, Number(studio.parameters.beam) || 4));
  const edits = () => readEdits(studio.parameters.edits);
  const isForced = (edit) => edit.edit === "replace_token" && edit.side === "output";

  const refresh = () =>
    task.run(async (signal) => {
      size.value = beamSize();
      const input = inputOf(model, studio.parameters);
      if (input.some((each) => !each)) return empty("Type something, and the search for its output appears here.");
      answer = await studio.ask("studio/beam", { model: model.name, input, beam_size: beamSize(), edits: edits() }, signal);
      draw();
      studio.announce(`${answer.outputs.length} outputs, best: ${answer.outputs[0]?.text ?? "none"}`);
    });

  function empty(text) {
    answer = null;
    tree.replaceChildren(make("p", { className: "empty", textContent: text }));
    table.tBodies[0].replaceChildren();
  }

  function draw() {
    if (!answer) return;
    const count = edits().filter(isForced).length;
    const held = document.activeElement === all && !count; // which is hidden now
    all.hidden = !count;
    forced.textContent = count ? `The first ${count === 1 ? "token is" : `${count} tokens are`} forced.` : "";
    const focus = drawTree(tree, answer, pruned.checked, count, (node) => force(path(answer.nodes, node)));
    if (held) focus();
    const columns = ["output", "score", "log-probability"];
    table.tHead.replaceChildren(make("tr", {}, ...columns.map((name) => make("th", { scope: "col", textContent: name }))));
    table.tBodies[0].replaceChildren(
      ...answer.outputs.map((output) => make("tr", {}, make("th", { scope: "row", textContent: output.text }), make("td", { textContent: number(output.score) }), make("td", { textContent: number(output.log_probability) }))),
    );
  }

  // Forced tokens are edits of the output: they lead on to the other views, and to the command line.
  function force(nodes) {
    const others = edits().filter((edit) => !isForced(edit));
    const prefix = nodes.map((node, position) => ({ edit: "replace_token", side: "output", position, token: answer.nodes[node].id }));
    studio.go({ edits: writeEdits([...others, ...prefix]) });
  }

  size.addEventListener("change", () => studio.go({ beam: size.value }));
  pruned.addEventListener("change", () => studio.go({ pruned: pruned.checked ? 1 : null }));
  all.addEventListener("click", () => studio.go({ edits: writeEdits(edits().filter((edit) => !isForced(edit))) }));

  const changed = (input) => task.later(PAUSE, () => studio.go({ input: inputText(model, input), edits: null }, { replace: true }));

  let before = "";
  function update() {
    pruned.checked = studio.parameters.pruned === "1";
    if (model !== studio.model) {
      task.stop(); // an input that was typed for another model
      model = studio.model;
      fill = showInputs(inputs, model, inputOf(model, studio.parameters), changed);
    } else fill(inputOf(model, studio.parameters));
    const { input, edits: given, beam } = studio.parameters;
    const now = JSON.stringify([model.name, input, given, beam]);
    if (!model.generates) task.run(async () => empty("The output of this model follows from its input: there is no search."));
    else if (now === before) draw();
    else refresh();
    before = now;
  }

  update();
  return { update, close: task.stop };
}

const number = (value) => (value === null ? "–" : fixed(value));

function path(nodes, node) {
  const found = [];
  for (let at = node; at >= 0; at = nodes[at].parent) found.unshift(at);
  return found;
}

// Depth first: a node stands at the height of its first child, leaves below each other.
function layout(nodes, shownNodes) {
  const children = new Map(shownNodes.map((node) => [node, []]));
  const roots = [];
  for (const node of shownNodes) (children.get(nodes[node].parent) ?? roots).push(node);
  const places = new Map();
  let line = 0;
  const place = (node, depth) => {
    const below = children.get(node);
    const first = line;
    below.forEach((child) => place(child, depth + 1));
    if (!below.length) line++;
    places.set(node, { depth, line: below.length ? places.get(below[0]).line : first });
  };
  roots.forEach((root) => place(root, 0));
  return { places, lines: line, order: [...places.keys()] };
}

// `count` tokens are forced: the last of them has the focus after it was chosen. Returns a function that gives it the focus.
function drawTree(box, { nodes }, withPruned, count, choose) {
  const best = (node) => nodes[node].alive;
  const visible = [...nodes.keys()].filter((node) => withPruned || nodes[node].kept || nodes[node].score !== null);
  visible.sort((a, b) => best(b) - best(a) || nodes[b].total - nodes[a].total);
  const { places, lines } = layout(nodes, visible);
  const depth = Math.max(0, ...[...places.values()].map((each) => each.depth)) + 1;
  const widths = Array(depth).fill(NARROW);
  for (const [node, { depth: x }] of places) widths[x] = Math.max(widths[x], Math.min(WIDE, LETTER * shown(nodes[node].token).length + NUMBER));
  const left = widths.reduce((all, width) => [...all, all.at(-1) + width + GAP], [0]);
  const lineArt = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ width: left[depth], height: lines * DOWN, "aria-hidden": "true" })) lineArt.setAttribute(name, value);
  const buttons = [];
  for (const [node, { depth: x, line: y }] of [...places].sort((a, b) => a[1].line - b[1].line || a[1].depth - b[1].depth)) {
    const { token, log_probability, total, score, alive, kept, parent } = nodes[node];
    if (parent >= 0) {
      const from = places.get(parent);
      const [x1, y1, x2, y2] = [left[from.depth] + widths[from.depth], from.line * DOWN + DOWN / 2, left[x] + 2, y * DOWN + DOWN / 2];
      const curve = document.createElementNS(SVG, "path");
      curve.setAttribute("d", `M${x1} ${y1} C${x1 + 14} ${y1} ${x2 - 14} ${y2} ${x2} ${y2}`);
      curve.setAttribute("class", alive ? "alive" : "dead");
      lineArt.append(curve);
    }
    const state = score !== null ? (alive ? "output" : "ended, given up") : alive ? "alive" : kept ? "given up" : "pruned";
    const label = `${shown(token)}, ${percent(Math.exp(log_probability))}, total ${fixed(total)}${score === null ? "" : `, score ${fixed(score)}`}, ${state}, depth ${x + 1}`;
    const button = make("button", { type: "button", className: `node ${alive ? "alive" : "dead"}${score === null ? "" : " ended"}`, tabIndex: -1, label, title: label }, make("span", { textContent: shown(token) }), make("small", { textContent: score === null ? percent(Math.exp(log_probability)) : fixed(score, 2) }));
    Object.assign(button.style, { left: `${left[x]}px`, top: `${y * DOWN}px`, ...(score === null ? { width: `${widths[x]}px` } : {}) });
    button.addEventListener("click", () => choose(node));
    button.addEventListener("keydown", (event) => move(event, { x, y }));
    buttons.push({ button, x, y });
  }
  const first = buttons.find(({ x }) => x === count - 1) ?? buttons[0];
  if (first) first.button.tabIndex = 0;
  const held = box.contains(document.activeElement);
  const canvas = make("div", { className: "tree" }, lineArt, ...buttons.map(({ button }) => button));
  Object.assign(canvas.style, { width: `${left[depth] + NARROW}px`, height: `${lines * DOWN}px` });
  box.replaceChildren(canvas);
  const focus = () => (first?.button ?? box).focus();
  if (held) focus();

  function move(event, at) {
    const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    if (!dx && !dy) return;
    event.preventDefault();
    const ahead = buttons.filter(({ x, y }) => (dx ? x === at.x + dx : Math.sign(y - at.y) === dy && x === at.x));
    const next = ahead.sort((a, b) => Math.abs(a.y - at.y) - Math.abs(b.y - at.y))[0];
    if (!next) return;
    for (const { button } of buttons) button.tabIndex = -1;
    next.button.tabIndex = 0;
    next.button.focus();
  }
  return focus;
}
