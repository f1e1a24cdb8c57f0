// The page: its controls, and the views that follow them.

import { MEAN, headName, readLook } from "./data.js";
import { showHeads } from "./heads.js";
import { showLegend, showMap } from "./map.js";
import { showPicture } from "./picture.js";
import { drawnMap, drawnRow, save } from "./save.js";
import { make, makeStore } from "./state.js";
import { said, showAsked, showAsking, showLargest } from "./words.js";

const part = (name) => document.getElementById(name);

function fill(look) {
  const { output } = look;
  part("title").textContent = look.title || "A look";
  const probability = output && "label" in output && output.score !== null ? ` (${Math.round(100 * Math.exp(output.score))} %)` : "";
  part("said").textContent = output ? (output.text ?? output.label ?? output.tokens.join(" ")) + probability : "";
  part("views").hidden = !look.maps.length;
  part("nothing").hidden = look.maps.length > 0;
}

function chooseMap(select, store) {
  const { maps } = store.state.look;
  select.append(...maps.map((map, i) => new Option(map.name, i)));
  select.addEventListener("change", () => store.change({ map: maps[select.value] }));
  store.listen(({ map }) => (select.value = maps.indexOf(map)));
}

function chooseHead(select, store) {
  store.listen((state, before) => {
    const { map } = state;
    if (map !== before.map) {
      const all = map.heads > 1 ? [new Option(headName(map, MEAN), MEAN)] : [];
      select.replaceChildren(...all, ...map.numbers.map((_, head) => new Option(headName(map, head), head)));
    }
    select.value = state.head;
  });
  select.addEventListener("change", () => store.change({ head: Number(select.value) }));
}

function shortcuts(store) {
  part("views").addEventListener("keydown", (event) => {
    if (event.target.matches("select, input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const { look, map, head } = store.state;
    const next = look.maps[look.maps.indexOf(map) + { j: 1, k: -1 }[event.key]];
    if (next) store.change({ map: next });
    const step = { l: 1, h: -1 }[event.key];
    const least = map.heads > 1 ? MEAN : 0;
    if (step) store.change({ head: Math.max(least, Math.min(map.heads - 1, head + step)) });
  });
}

export function showLook(told) {
  const look = readLook(told);
  fill(look);
  if (!look.maps.length) return null;
  const store = makeStore(look);
  chooseMap(part("map"), store);
  chooseHead(part("head"), store);
  part("numbers").addEventListener("change", (event) => store.change({ numbers: event.target.checked }));
  part("by-row").checked = store.state.byRow;
  part("by-row").addEventListener("change", (event) => store.change({ byRow: event.target.checked }));
  showAsking(part("asking"), store);
  showPicture(part("picture"), store);
  showAsked(part("asked"), store);
  showLargest(part("largest"), store);
  const map = showMap(part("weights"), store);
  showLegend(part("legend"), store);
  showHeads(part("heads"), store);
  shortcuts(store);

  const now = part("now");
  let timer = 0;
  store.listen((state) => {
    part("told").textContent = said(state);
    clearTimeout(timer); // a screen reader announces where a movement ends, not every step of it
    timer = setTimeout(() => (now.textContent = said(state)), 300);
    const names = { source: "source", output: "output", pool: "pool" };
    part("asking-name").textContent = `Queries: ${names[state.map.query_side]}`;
    part("asked-name").textContent = `Keys: ${names[state.map.key_side]}`;
  });
  part("nearer").addEventListener("click", () => map.zoom(1.43));
  part("farther").addEventListener("click", () => map.zoom(0.7));
  part("fit").addEventListener("click", () => map.fit());
  for (const button of document.querySelectorAll("[data-save]"))
    button.addEventListener("click", () => {
      const [what, form] = button.dataset.save.split(".");
      const drawn = what === "map" ? drawnMap(store.state, map.view) : drawnRow(store.state);
      save(drawn, `${store.state.map.name} ${what}`.replaceAll(" ", "-"), form);
    });
  return store;
}

// A page of several looks shows one at a time; the layer and head stay where the next look has them too.
function chooseLook(select, looks) {
  const empty = document.querySelector("main").cloneNode(true);
  let store = showLook(looks[0]);
  part("inputs").hidden = looks.length < 2;
  select.append(...looks.map((look, i) => new Option(`${i + 1}. ${look.title || "A look"}`, i)));
  select.addEventListener("change", () => {
    const before = store?.state;
    document.querySelector("main").replaceWith(empty.cloneNode(true));
    store = showLook(looks[select.value]);
    const map = store?.state.look.maps.find((each) => each.name === before?.map.name);
    if (map) store.change({ map, head: before.head, numbers: before.numbers });
    if (store) part("numbers").checked = store.state.numbers;
  });
}

chooseLook(part("input"), [JSON.parse(part("look").textContent)].flat());
