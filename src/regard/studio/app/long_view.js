// Long inputs: maps of tens of thousands of tokens, zoomed and panned, with the largest weights of a row.

import { lineChart } from "./charts.js";
import { number } from "./heads_view.js";
import { make } from "./page/state.js";
import { shown } from "./page/data.js";
import { tiledMap } from "./tiles.js";

export const view = { route: "long", title: "Long inputs", show };

function show(box, studio) {
  const field = make("textarea", { id: "long-text", rows: 4, spellcheck: false });
  const file = make("input", { id: "long-file", type: "file", accept: ".txt,text/plain" });
  const open = make("button", { type: "button", id: "long-open", textContent: "Open" });
  const told = make("p", { id: "long-told", className: "quiet", role: "status", textContent: "The map of every head appears here, to zoom into and to move over: of tens of thousands of tokens too." });
  const map = make("select", { id: "long-map" });
  const head = make("select", { id: "long-head" });
  const row = make("input", { id: "long-row", type: "number", min: 0, step: 1 });
  const canvas = make("canvas", { id: "long-canvas", tabIndex: 0, role: "application", label: "Attention map: arrows move, plus and minus zoom, 0 shows all, Enter chooses the row in the middle" });
  const place = make("p", { id: "long-place", className: "quiet" });
  const table = make("table", { id: "long-top" }, make("caption", { textContent: "Largest weights" }), make("thead"), make("tbody"));
  const chart = make("div", { id: "long-entropy" });
  const shownParts = make("div", { hidden: true });
  table.tHead.append(make("tr", {}, ...["key", "token", "weight"].map((name) => make("th", { scope: "col", textContent: name }))));
  const keys = make("p", { className: "keys", textContent: "Drag or arrow keys move, the wheel or + and − zoom, 0 shows all, a click or Enter chooses a row. Colours are logarithmic, from 0.00001 to 1; zoomed out, a point is the largest weight below it." });
  const labelled = (text, part) => make("label", { htmlFor: part.id, textContent: text });
  const control = (text, part) => make("span", { className: "control" }, labelled(text, part), part);
  shownParts.append(
    make("p", { className: "controls" }, control("Map", map), control("Head", head), control("Row", row)),
    make("div", { id: "long-shown" }, make("div", {}, canvas, keys, place), make("div", {}, table, chart)),
  );
  box.append(
    make("h2", { textContent: view.title }),
    make("p", { className: "field" }, labelled("A long text", field), field),
    make("p", { className: "controls" }, control("or a file", file), open),
    told,
    shownParts,
  );
  let [input, drawn, asked, rowAsked, model] = [null, null, new AbortController(), new AbortController(), studio.model];

  file.addEventListener("change", async () => {
    field.value = (await file.files[0]?.text()) ?? field.value;
    openInput();
  });
  open.addEventListener("click", openInput);
  map.addEventListener("change", () => studio.go({ map: map.value, head: null, row: null }, { replace: true }));
  head.addEventListener("change", () => studio.go({ head: head.value }, { replace: true }));
  row.addEventListener("change", () => studio.go({ row: row.value }, { replace: true }));

  const fail = (error) => error.name === "AbortError" || studio.fail(error);
  const path = (kind, query) => `studio/long/${input.id}/${kind}?${new URLSearchParams({ model: model.name, map: map.value, head: head.value, ...query })}`;

  async function openInput() {
    told.textContent = "Reading …";
    box.setAttribute("aria-busy", "true");
    try {
      input = await studio.ask("studio/long", { model: studio.model.name, input: field.value });
      studio.fail(null);
    } catch (error) {
      told.textContent = "";
      return fail(error);
    } finally {
      box.removeAttribute("aria-busy");
    }
    const count = Math.max(0, ...Object.values(input.tokens).map((tokens) => tokens.length));
    told.textContent = `${count.toLocaleString("en")} tokens, ${input.maps.length} maps.`;
    if (!input.maps.length) return;
    map.replaceChildren(...input.maps.map(({ name }) => new Option(name, name)));
    shownParts.hidden = false;
    before = "";
    update();
  }

  function drawMap(info) {
    drawn?.close();
    asked.abort();
    asked = new AbortController();
    const { signal } = asked;
    const ready = info.levels > 1 || info.grid_level ? overview(signal) : Promise.resolve();
    if (info.levels === 1) overview(signal).catch(fail);
    ready.catch(fail);
    drawn = tiledMap(canvas, {
      info,
      side: input.side,
      ready,
      failed: fail,
      fetchTile: async (level, y, x, stopped) => new Float32Array(await studio.bytes(path("tile", { level, row: y, column: x }), stopped)),
      picked: (at) => studio.go({ row: at }, { replace: true }),
      moved: ({ left, top, cell }, level) => (place.textContent = `Rows from ${Math.floor(top).toLocaleString("en")}, keys from ${Math.floor(left).toLocaleString("en")}; ${cell >= 1 ? `${Math.round(cell)} pixels for each weight` : `each point covers ${2 ** level} × ${2 ** level} weights`}.`),
    });
    view.drawn = drawn; // for measurements of its speed
  }

  async function overview(signal) {
    for (;;) {
      const found = await studio.ask(path("overview", {}), undefined, signal);
      if (found.complete) {
        const points = found.entropy.map((value, i) => [(i * info().rows) / found.entropy.length, value]);
        chart.replaceChildren(make("h3", { textContent: `Entropy of rows: mean ${number(found.mean_entropy)} nats; largest weight ${number(found.largest)}` }), lineChart("Entropy by row", [{ name: "entropy", points, number: 0 }]));
        return;
      }
      chart.replaceChildren(make("p", { className: "quiet", textContent: `Overview: ${Math.floor((100 * found.rows) / info().rows)} %` }));
      await drawn?.grow();
    }
  }

  const info = () => input.maps.find((each) => each.name === map.value);

  async function drawRow() {
    const at = Math.max(0, Math.min(info().rows - 1, Number.parseInt(studio.parameters.row ?? "0", 10) || 0));
    row.max = info().rows - 1;
    if (document.activeElement !== row) row.value = at; // a number that is being typed stays
    drawn.mark(at);
    rowAsked.abort();
    rowAsked = new AbortController();
    try {
      const found = await studio.ask(path("row", { row: at }), undefined, rowAsked.signal);
      const side = (name) => input.tokens[name === "output" && info().kind === "self" ? "read" : name] ?? [];
      table.caption.textContent = `Row ${at.toLocaleString("en")} “${shown(side(info().query_side)[at] ?? "")}”: entropy ${number(found.entropy)} nats; largest weights`;
      table.tBodies[0].replaceChildren(
        ...found.keys.map((key, i) => make("tr", {}, make("td", { textContent: key.toLocaleString("en") }), make("th", { scope: "row", textContent: shown(side(info().key_side)[key] ?? "") }), make("td", { textContent: found.weights[i].toFixed(5) }))),
      );
    } catch (error) {
      fail(error);
    }
  }

  let before = "";
  function update() {
    if (model !== studio.model) {
      model = studio.model;
      drawn?.close();
      [input, drawn, shownParts.hidden, told.textContent] = [null, null, true, ""];
    }
    if (!input?.maps.length) return;
    const wanted = studio.parameters.map;
    map.value = input.maps.some(({ name }) => name === wanted) ? wanted : input.maps.at(-1).name;
    const count = info().heads;
    if (head.childElementCount !== count) head.replaceChildren(...Array.from({ length: count }, (_, i) => new Option(String(i), String(i))));
    head.value = String(Math.min(count - 1, Number.parseInt(studio.parameters.head ?? "0", 10) || 0));
    const now = `${map.value}/${head.value}`;
    if (now !== before) drawMap(info());
    before = now;
    drawRow();
  }

  return {
    update,
    close() {
      drawn?.close();
      asked.abort();
      rowAsked.abort();
    },
  };
}
