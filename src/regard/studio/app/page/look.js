// The views of a look below each other, with their controls: a row's attention, the map, the heads.

import { MEAN, headName } from "./data.js";
import { showHeads } from "./heads.js";
import { showLegend, showMap } from "./map.js";
import { showPicture } from "./picture.js";
import { drawnMap, drawnRow, save } from "./save.js";
import { showSeries } from "./series.js";
import { make, makeStore } from "./state.js";
import { said, showAsked, showAsking, showLargest } from "./words.js";

const kbd = (text) => make("kbd", { textContent: text });
const part = (name) => document.getElementById(name);

// Fills `box` with views of a look that has maps. Its store follows the controls; `store.replace` shows another look.
export function showLook(box, look) {
  box.replaceChildren(choice(), make("p", { id: "told", ariaHidden: "true" }), make("p", { id: "now", role: "status" }), rowSection(), mapSection(), headsSection());
  const store = makeStore(look);
  chooseMap(part("map"), store);
  chooseHead(part("head"), store);
  part("numbers").addEventListener("change", (event) => store.change({ numbers: event.target.checked }));
  part("by-row").addEventListener("change", (event) => store.change({ byRow: event.target.checked }));
  showAsking(part("asking"), store);
  showPicture(part("picture"), store);
  showSeries(part("series"), store);
  showAsked(part("asked"), store);
  showLargest(part("largest"), store);
  const map = showMap(part("weights"), store);
  showLegend(part("legend"), store);
  showHeads(part("heads"), store);
  shortcuts(box, store);
  store.listen((state) => {
    Object.assign(part("numbers"), { checked: state.numbers });
    Object.assign(part("by-row"), { checked: state.byRow });
    part("asking-name").textContent = `Queries: ${state.map.query_side}`;
    part("asked-name").textContent = `Keys: ${state.map.key_side}`;
  });
  announce(store);
  part("nearer").addEventListener("click", () => map.zoom(1.43));
  part("farther").addEventListener("click", () => map.zoom(0.7));
  part("fit").addEventListener("click", () => map.fit());
  for (const button of box.querySelectorAll("[data-save]"))
    button.addEventListener("click", () => {
      const [what, form] = button.dataset.save.split(".");
      const drawn = what === "map" ? drawnMap(store.state, map.view) : drawnRow(store.state);
      save(drawn, `${store.state.map.name} ${what}`.replaceAll(" ", "-"), form);
    });
  return store;
}

function choice() {
  const check = (id, text) => make("label", {}, make("input", { type: "checkbox", id }), ` ${text}`);
  const select = (id, text) => make("label", {}, `${text} `, make("select", { id }));
  const keys = make("span", { className: "keys" }, "Keys: ", kbd("j"), " ", kbd("k"), " layer, ", kbd("h"), " ", kbd("l"), " head");
  const controls = [select("map", "Layer"), select("head", "Head"), check("numbers", "Numbers"), check("by-row", "Color each row by itself")];
  return make("form", { id: "choice", label: "What is shown" }, ...controls, keys);
}

function titled(id, title, buttons, ...children) {
  const top = make("div", { className: "top" }, make("h2", { id, textContent: title }), make("span", { className: "save" }, ...buttons));
  const section = make("section", {}, top, ...children);
  section.setAttribute("aria-labelledby", id);
  return section;
}

function saving(what) {
  return ["svg", "png"].map((form) => {
    const name = form.toUpperCase();
    const button = make("button", { type: "button", textContent: name, label: `Save the ${what} as ${name}` });
    button.dataset.save = `${what}.${form}`;
    return button;
  });
}

function wide(label, table) {
  return make("div", { className: "wide", role: "region", tabIndex: 0, label }, table);
}

function table(id, caption) {
  return make("table", { id }, make("caption", { textContent: caption }), make("thead"), make("tbody"));
}

function rowSection() {
  const keys = make("p", { className: "keys" }, "Point at a word, or use the arrow keys. Click, or ", kbd("Enter"), ", pins a word to compare others with; ", kbd("Esc"), " unpins it.");
  const asking = make("div", { id: "asking", className: "tokens", role: "listbox" });
  const asked = make("div", { id: "asked", className: "tokens", role: "list", tabIndex: 0 });
  for (const list of [asking, asked]) list.setAttribute("aria-labelledby", `${list.id}-name`);
  const beside = make("div", { className: "beside" }, make("div", { id: "picture", hidden: true }), wide("Largest weights", table("largest", "Largest weights")));
  return titled("row-title", "Attention of a row", saving("row"), keys, make("h3", { id: "asking-name" }), asking, make("h3", { id: "asked-name" }), asked, make("div", { id: "series", hidden: true }), beside);
}

function mapSection() {
  const button = (id, text, label) => make("button", { type: "button", id, textContent: text, label });
  const buttons = [button("farther", "−", "Farther"), button("nearer", "+", "Nearer"), button("fit", "Fit"), ...saving("map")];
  const keys = make("p", { id: "map-keys", className: "keys" }, "Arrow keys move, ", kbd("+"), " ", kbd("−"), " zoom, ", kbd("0"), " fits, ", kbd("Enter"), " pins; with the mouse, drag, and ", kbd("Ctrl"), " + wheel.");
  const weights = make("div", { id: "weights", role: "application", tabIndex: 0, label: "Map of weights, rows by keys" }, make("canvas"));
  weights.setAttribute("aria-describedby", "map-keys");
  const legend = make("p", { id: "legend" }, make("span"), " ", make("canvas", { ariaHidden: "true" }), " ", make("span"));
  return titled("map-title", "All rows and keys", buttons, keys, weights, legend);
}

function headsSection() {
  const keys = make("p", { className: "keys", textContent: "Means over the rows. A column’s name sorts by it; a head’s name shows it above." });
  return titled("heads-title", "Heads", [], keys, wide("Table of heads", table("heads", "Every head of every layer")));
}

function chooseMap(select, store) {
  store.listen(({ look, map }, before) => {
    const names = look.maps.map((each) => each.name);
    if (names.join("\n") !== before.look?.maps.map((each) => each.name).join("\n")) select.replaceChildren(...names.map((name, i) => new Option(name, i)));
    select.value = look.maps.indexOf(map);
  });
  select.addEventListener("change", () => store.change({ map: store.state.look.maps[select.value] }));
}

function chooseHead(select, store) {
  store.listen((state, before) => {
    const { map } = state;
    if (map.numbers.join() !== before.map?.numbers.join()) {
      const all = map.heads > 1 ? [new Option(headName(map, MEAN), MEAN)] : [];
      select.replaceChildren(...all, ...map.numbers.map((_, head) => new Option(headName(map, head), head)));
    }
    select.value = state.head;
  });
  select.addEventListener("change", () => store.change({ head: Number(select.value) }));
}

function shortcuts(box, store) {
  box.addEventListener("keydown", (event) => {
    if (event.target.matches("select, input, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const { look, map, head } = store.state;
    const next = look.maps[look.maps.indexOf(map) + { j: 1, k: -1 }[event.key]];
    if (next) store.change({ map: next });
    const step = { l: 1, h: -1 }[event.key];
    const least = map.heads > 1 ? MEAN : 0;
    if (step) store.change({ head: Math.max(least, Math.min(map.heads - 1, head + step)) });
  });
}

// One sentence, and for a screen reader where a movement ends, not every step of it.
function announce(store) {
  let timer = 0;
  store.listen((state) => {
    part("told").textContent = said(state);
    clearTimeout(timer);
    timer = setTimeout(() => part("now") && (part("now").textContent = said(state)), 300);
  });
}
