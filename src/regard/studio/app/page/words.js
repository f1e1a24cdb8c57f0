// The words of the queries and of the keys: hovering over a query, or moving to it with the keyboard, shows its weights.

import { colour, ink } from "./colours.js";
import { headName, heaviest, percent, shown } from "./data.js";
import { isPinned, make, pinned } from "./state.js";

const MOST = 600; // most tokens of a list on the page
const FEW = 64; // tokens of a longer list: those with the largest weights
const TOLD = 12; // lines of the table

const sameNames = (names, others) => names === others || (names.length === others?.length && names.every((name, i) => name === others[i]));

export function showAsking(list, store) {
  let first = 0;
  const option = (row) => list.querySelector(`[data-row="${row}"]`);

  function build(state) {
    const { map } = state;
    first = Math.max(0, Math.min(state.row - MOST / 2, map.rows - MOST));
    const last = Math.min(map.rows, first + MOST);
    const items = [];
    for (let row = first; row < last; row++) {
      const item = make("span", { role: "option", tabIndex: -1, textContent: shown(map.rowNames[row]) });
      item.dataset.row = row;
      items.push(item);
    }
    list.replaceChildren(...items);
    const columns = map.query_side === "source" && map.input?.kind === "image" ? map.input.grid[1] : 0;
    list.classList.toggle("regions", columns > 0 && map.rows === columns * map.input.grid[0]);
    list.style.setProperty("--columns", columns);
  }

  const sameRows = (map, other) => map === other || (map.input?.kind !== "image" && map.query_side === other?.query_side && sameNames(map.rowNames, other.rowNames));

  store.listen((state, before) => {
    const held = list.contains(document.activeElement);
    if (!sameRows(state.map, before.map) || !option(state.row)) build(state);
    for (const item of list.querySelectorAll("[tabindex='0'], .pinned")) {
      item.tabIndex = -1;
      item.setAttribute("aria-selected", "false");
      item.classList.remove("pinned");
    }
    const now = option(state.row);
    now.tabIndex = 0;
    now.setAttribute("aria-selected", "true");
    if (held) now.focus({ preventScroll: true });
    if (state.pin && isPinned(state, state.pin.row)) option(state.pin.row)?.classList.add("pinned");
  });

  const rowOf = (event) => event.target.closest("[data-row]")?.dataset.row;
  let last = "";
  list.addEventListener("pointermove", (event) => {
    const at = `${event.clientX} ${event.clientY}`;
    if (at !== last && rowOf(event)) store.change({ row: Number(rowOf(event)) }); // the pointer moved, not the page beneath it
    last = at;
  });
  list.addEventListener("focusin", (event) => rowOf(event) && store.change({ row: Number(rowOf(event)) }));
  list.addEventListener("click", (event) => rowOf(event) && store.change(pinned(store.state, Number(rowOf(event)))));
  list.addEventListener("keydown", (event) => {
    const { row, map } = store.state;
    const down = list.classList.contains("regions") ? map.input.grid[1] : 1;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: down, ArrowUp: -down, Home: -row, End: map.rows - 1 - row };
    if (event.key in steps) store.change({ row: row + steps[event.key] });
    else if (event.key === "Enter" || event.key === " ") store.change(pinned(store.state));
    else if (event.key === "Escape") store.change({ pin: null });
    else return;
    event.preventDefault();
    option(store.state.row).scrollIntoView({ block: "nearest" });
  });
}

export function showAsked(list, store) {
  let items = [];

  function build(state, line) {
    const { map } = state;
    const regions = map.key_side === "source" && map.input?.kind === "image";
    let keys = Array.from({ length: regions ? map.input.units : map.keys }, (_, key) => key);
    if (keys.length > MOST) keys = heaviest(line, FEW).sort((a, b) => a - b);
    items = keys.map((key) => ({ key, number: make("small"), box: make("span", { role: "listitem" }) }));
    list.replaceChildren();
    items.forEach(({ key, number, box }, i) => {
      if (key > (i ? items[i - 1].key + 1 : 0)) list.append(make("span", { role: "listitem", className: "gap" }, "…"));
      box.append(make("span", { textContent: shown(map.keyNames[key]) }), number);
      list.append(box);
    });
    list.hidden = !items.length;
  }

  store.listen((state, before) => {
    const line = state.map.row(state.head, state.row);
    const { map } = state;
    const same = map === before.map || (map.input?.kind !== "image" && sameNames(map.keyNames, before.map?.keyNames));
    if (!same || map.keys > MOST) build(state, line);
    const most = Math.max(...items.map(({ key }) => line[key]), 1e-12);
    for (const { key, number, box } of items) {
      box.style.background = colour(line[key] / most);
      box.style.color = ink(line[key] / most);
      const text = state.numbers ? percent(line[key]) : "";
      if (number.textContent !== text) number.textContent = text; // most weights are small, and an edit leaves them "0 %"
    }
  });
}

// The largest weights of the row, beside those of the pinned row.
export function showLargest(table, store) {
  store.listen((state) => {
    const { map, pin } = state;
    const line = map.row(state.head, state.row);
    const alike = pin && pin.map.key_side === map.key_side && pin.map.keys === map.keys;
    const other = alike ? pin.map.row(pin.head, pin.row) : null;
    const both = other ? line.map((weight, key) => Math.max(weight, other[key])) : line;
    const most = Math.max(...heaviest(both, 1).map((key) => both[key]), 1e-12);
    const bar = (weight) => {
      const inside = make("span", { className: "bar" });
      inside.style.width = `${(100 * weight) / most}%`;
      return make("td", {}, make("span", { className: "track" }, inside), make("span", {}, percent(weight)));
    };
    const change = (by) => make("td", { className: "change", textContent: `${by < 0 ? "−" : "+"}${percent(Math.abs(by))}` });
    const heading = (...parts) => make("th", { scope: "col" }, ...parts);
    const named = (row, of, head) => [make("b", { textContent: shown(of.rowNames[row]) }), ` ${of.name}, ${headName(of, head)}`];
    const top = make("tr", {}, heading("attends to"), heading(...named(state.row, map, state.head)));
    if (other) top.append(heading("pinned: ", ...named(pin.row, pin.map, pin.head)), heading("difference"));
    const lines = heaviest(both, TOLD).map((key) => {
      const place = make("small", { textContent: ` ${key}` }); // tells equal words apart
      const name = make("th", { scope: "row" }, make("span", { textContent: shown(map.keyNames[key]) }), place);
      const row = make("tr", {}, name, bar(line[key]));
      if (other) row.append(bar(other[key]), change(line[key] - other[key]));
      return row;
    });
    table.tHead.replaceChildren(top);
    table.tBodies[0].replaceChildren(...lines);
  });
}

// One sentence, also for screen readers.
export function said(state) {
  const { map, row, key, head, pin } = state;
  const line = map.row(head, row);
  const told = heaviest(line, 3).map((each) => `${shown(map.keyNames[each])} ${percent(line[each])}`);
  const one = key === null ? "" : `, to ${shown(map.keyNames[key])} ${percent(line[key])}`;
  const kept = pin && isPinned(state, row) ? " (pinned)" : "";
  return `${shown(map.rowNames[row])}${kept} attends${one}${one ? "; most" : ""} to ${told.join(", ") || "nothing"}`;
}
