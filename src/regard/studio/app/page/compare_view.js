// Two models, layers, heads or edits side by side on one input: outputs aligned, maps subtracted.

import { MEAN, fixed, headName, percent, readLook, shown } from "./data.js";
import { showMap } from "./map.js";
import { searchOptions } from "./search_options.js";
import { make, makeStore } from "./state.js";
import { differenceMap, largest } from "./map_difference.js";
import { readEdits } from "./edits.js";
import { inputOf, inputText, showInputs } from "./inputs.js";
import { makeTask } from "./task.js";
import { tokenDifferences } from "./token_difference.js";

const PAUSE = 150;
const LINES = 12; // of the table of differences

export const view = { route: "compare", title: "Compare", show };

function show(box, studio) {
  const inputs = make("section", { id: "inputs", label: "Input" });
  const sides = ["A", "B"].map((name) => sidePanel(name, studio));
  const aligned = table("aligned", "Outputs, aligned");
  const maps = make("div", { id: "maps" });
  const cells = table("cells", "Weights that differ most");
  const wide = (label, inside) => make("div", { className: "wide", role: "region", tabIndex: 0, label }, inside);
  box.append(
    make("h2", { className: "heard", textContent: view.title }),
    inputs,
    make("div", { id: "sides" }, ...sides.map((side) => side.element)),
    maps,
    make("div", { className: "beside" }, wide("Outputs, aligned", aligned), wide("Weights that differ most", cells)),
  );
  let [model, fill, looks, places] = [null, null, [], []];
  const task = makeTask(box, studio);

  const refresh = () =>
    task.run(async (signal) => {
      const input = inputOf(model, studio.parameters);
      if (input.some((each) => !each)) return maps.replaceChildren(make("p", { className: "empty", textContent: "Type something, and both outputs appear here." }));
      const found = sides.map((side) => side.request(input));
      looks = (await Promise.all(found.map((each) => studio.ask("studio/look", each, signal)))).map(readLook);
      const [first, second] = looks.map(scored);
      drawAligned(tokenDifferences(first.tokens, second.tokens, first.scores, second.scores));
      draw();
    });

  function drawAligned(tokens) {
    fillTable(aligned, ["A", "probability", "B", "probability", "change in nats"], tokens.map((each) => [each.first === null ? "" : shown(each.first), probability(each.first_score), each.second === null ? "" : shown(each.second), probability(each.second_score), each.first_score === null || each.second_score === null ? "" : fixed(each.second_score - each.first_score, 3, true)]));
    let [first, second] = [0, 0];
    places = [];
    for (const { first: one, second: other } of tokens) {
      if (one !== null && other !== null) places.push([first, second]);
      first += one !== null;
      second += other !== null;
    }
    [...aligned.tBodies[0].rows].forEach((row, i) => (row.className = tokens[i].change));
    const changed = tokens.filter((each) => each.change !== "equal").length;
    studio.announce(`${changed} of ${tokens.length} tokens differ`);
  }

  // Rows of the output are those of tokens at the same place of the alignment; others have the same number.
  function rowPairs(a, b) {
    if (a.query_side === "output" && b.query_side === "output" && (a.rows !== b.rows || a.kind !== "self")) return places;
    return a.rows === b.rows ? Array.from({ length: a.rows }, (_, row) => [row, row]) : [];
  }

  function draw() {
    if (looks.length < 2) return;
    const chosen = sides.map((side, i) => side.draw(looks[i]));
    if (chosen.some((each) => !each)) {
      maps.replaceChildren(make("p", { className: "quiet", textContent: "A model without attention has no map." }));
      return fillTable(cells, [], []);
    }
    const [a, b] = chosen;
    const both = differenceMap(a.map, a.head, b.map, b.head, rowPairs(a.map, b.map));
    const drawn = [
      { title: `A: ${a.map.name}, ${headName(a.map, a.head)}`, ...a },
      { title: `B: ${b.map.name}, ${headName(b.map, b.head)}`, ...b },
      ...(both ? [{ title: `A − B (orange: more in A; at most ${percent(both.most().all)})`, map: both, head: 0 }] : []),
    ];
    const stores = drawn.map(({ map, head }) => {
      const store = makeStore({ maps: [map] });
      store.change({ head });
      return store;
    });
    const figures = drawn.map(({ title }, i) => {
      const weights = make("div", { className: "weights", role: "application", tabIndex: 0, label: `Map of weights: ${title}` }, make("canvas"));
      return { weights, element: make("section", { label: title }, make("h3", { textContent: title }), weights), store: stores[i] };
    });
    maps.replaceChildren(...figures.map(({ element }) => element));
    if (!both) maps.append(make("p", { className: "quiet", textContent: `Maps of ${a.map.rows} × ${a.map.keys} and ${b.map.rows} × ${b.map.keys} weights have different keys: they are not subtracted.` }));
    for (const { weights, store } of figures) {
      showMap(weights, store);
      store.listen(({ row, key }) => stores.forEach((other) => other !== store && other.change({ row: Math.min(row, other.state.map.rows - 1), key })));
    }
    const lines = both ? largest(both, LINES) : [];
    fillTable(cells, ["row", "key", "A", "B", "A − B"], lines.map(({ row, key, value }) => [shown(both.rowNames[row]), shown(a.map.keyNames[key]), percent(a.map.row(a.head, both.pairs[row][0])[key]), percent(b.map.row(b.head, both.pairs[row][1])[key]), `${fixed(100 * value, 1, true)} %`]));
  }

  const changed = (input) => task.later(PAUSE, () => studio.go({ input: inputText(model, input) }, { replace: true }));

  let before = "";
  function update() {
    if (model !== studio.model) {
      task.stop(); // an input that was typed for another model
      model = studio.model;
      fill = showInputs(inputs, model, inputOf(model, studio.parameters), changed);
    } else fill(inputOf(model, studio.parameters));
    for (const side of sides) side.update();
    const { input, edits, edits_b, model_b } = studio.parameters;
    const now = JSON.stringify([model.name, input, edits, edits_b, model_b, searchOptions(studio.parameters)]);
    if (now === before) draw();
    else refresh();
    before = now;
  }

  update();
  return { update, close: task.stop };
}

// The controls of one side: a model, a layer, a head, and edits. Those of A are the keys of the other views.
function sidePanel(name, studio) {
  const key = (of) => (name === "A" ? of : `${of}_b`);
  const id = (of) => `${of}-${name.toLowerCase()}`;
  const select = (of, text) => {
    const made = make("select", { id: id(of) });
    made.addEventListener("change", () => studio.go({ [key(of)]: made.value === "" ? null : made.value }));
    return { made, label: make("label", {}, `${text} `, made) };
  };
  const [model, map, head] = [select("model", "Model"), select("map", "Layer"), select("head", "Head")];
  const edits = make("textarea", { id: id("edits"), rows: 2, spellcheck: false });
  edits.addEventListener("change", () => studio.go({ [key("edits")]: edits.value.trim() || null }));
  const element = make("section", { label: name, className: "side" }, make("h3", { textContent: name }), make("p", { className: "line" }, model.label, map.label, head.label), make("p", { className: "field" }, make("label", { htmlFor: edits.id, textContent: "Edits, as JSON" }), edits));
  const chosen = () => (name === "A" ? studio.model : (studio.models.find((each) => each.name === studio.parameters.model_b) ?? studio.model));

  return {
    element,
    request: (input) => {
      const { generates, name: of } = chosen();
      const list = readEdits(studio.parameters[key("edits")]);
      return { model: of, input, ...(generates ? searchOptions(studio.parameters) : {}), ...(list.length ? { edits: list } : {}) };
    },
    update() {
      const alike = studio.models.filter((each) => each.reads.join() === studio.model.reads.join());
      const wanted = alike.map((each) => each.name).join("\0");
      if (model.made.dataset.names !== wanted) model.made.replaceChildren(...alike.map((each) => new Option(each.name, each.name)));
      model.made.dataset.names = wanted;
      model.made.value = chosen().name;
      model.label.hidden = alike.length < 2;
      const text = studio.parameters[key("edits")] ?? "";
      if (edits.value !== text) edits.value = text;
    },
    draw(look) {
      if (!look.maps.length) return null;
      map.made.replaceChildren(...look.maps.map((each) => new Option(each.name, each.name)));
      const wanted = studio.parameters[key("map")] ?? studio.parameters.map;
      const found = look.maps.find((each) => each.name === wanted) ?? makeStore(look).state.map;
      map.made.value = found.name;
      const all = found.heads > 1 ? [new Option(headName(found, MEAN), MEAN)] : [];
      head.made.replaceChildren(...all, ...found.numbers.map((_, number) => new Option(headName(found, number), number)));
      const asked = Number(studio.parameters[key("head")] ?? studio.parameters.head ?? MEAN);
      const shownHead = found.heads === 1 ? 0 : asked >= MEAN && asked < found.heads ? asked : MEAN;
      head.made.value = shownHead;
      return { map: found, head: shownHead };
    },
  };
}

const scored = ({ output }) => (output === null ? { tokens: [], scores: null } : "label" in output ? { tokens: [output.label], scores: [output.score] } : output);
const probability = (score) => (score === null ? "" : percent(Math.exp(score)));

function table(id, caption) {
  return make("table", { id }, make("caption", { textContent: caption }), make("thead"), make("tbody"));
}

function fillTable(made, columns, lines) {
  made.tHead.replaceChildren(make("tr", {}, ...columns.map((name) => make("th", { scope: "col", textContent: name }))));
  made.tBodies[0].replaceChildren(...lines.map((line) => make("tr", {}, ...line.map((cell) => make("td", { textContent: cell })))));
}
