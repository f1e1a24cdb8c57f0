// A row of attention as bars that can be dragged, painted over with the pointer, or moved by keys.

import { MEAN, percent, shown } from "./data.js";
import { keepingFocus, make } from "./state.js";

const MOST = 600; // keys of a row that can be painted: words, or regions of a picture
const STEP = 0.05;

// `painted(weights)` is called with {key: weight} when a change is complete, and `painting(weights)` while it is made.
export function showPainter(box, store, painted, painting) {
  let [bars, changed, values, pressed, timer, paintedRow] = [[], {}, [], false, 0, ""];
  const rowOf = ({ map, head, row }) => `${map.name}, ${head}, ${row}, ${map.keys}`;

  function set(key, value) {
    paintedRow = rowOf(store.state);
    values[key] = Math.max(0, Math.min(1, value));
    changed[key] = Math.round(values[key] * 1000) / 1000;
    draw(key);
    painting(changed);
  }

  function draw(key) {
    const { bar, fill } = bars[key];
    fill.style.height = `${100 * values[key]}%`;
    bar.setAttribute("aria-valuenow", String(Math.round(100 * values[key])));
    bar.setAttribute("aria-valuetext", percent(values[key]));
  }

  function complete() {
    if (Object.keys(changed).length) painted(changed);
    changed = {};
  }

  function build({ map }) {
    bars = map.keyNames.map((name, key) => {
      const fill = make("span", { className: "level" });
      const bar = make("span", { className: "paint-bar", role: "slider", tabIndex: key ? -1 : 0, label: `Weight of ${shown(name)}, key ${key}` }, fill);
      bar.setAttribute("aria-valuemin", "0");
      bar.setAttribute("aria-valuemax", "100");
      bar.dataset.key = key;
      return { bar, fill, element: make("span", { className: "paint" }, bar, make("small", { textContent: shown(name) })) };
    });
    box.replaceChildren(...bars.map(({ element }) => element));
  }

  let built = ""; // the names of the bars
  store.listen((state) => {
    const { map, head, row } = state;
    const possible = map.whole && map.keys <= MOST;
    box.hidden = !possible;
    const unfinished = pressed || Object.keys(changed).length > 0; // an answer to an earlier edit does not undo it
    if (!possible || (unfinished && paintedRow === rowOf(state))) return;
    const names = map.keyNames.join("\0");
    if (names !== built) keepingFocus(box, () => build(state));
    built = names;
    clearTimeout(timer);
    values = Array.from(map.row(head, row));
    changed = {};
    bars.forEach((_, key) => draw(key));
  });

  const under = (event) => {
    const found = document.elementsFromPoint(event.clientX, event.clientY).find((each) => each.dataset?.key !== undefined && box.contains(each));
    if (!found) return;
    const at = found.getBoundingClientRect();
    set(Number(found.dataset.key), (at.bottom - event.clientY) / at.height);
  };
  box.addEventListener("pointerdown", (event) => {
    if (!event.target.closest("[data-key]")) return;
    event.preventDefault();
    event.target.closest("[data-key]").focus();
    pressed = true;
    box.setPointerCapture(event.pointerId); // bars are painted over wherever the pointer goes
    under(event);
  });
  box.addEventListener("pointermove", (event) => pressed && under(event));
  const stop = () => {
    if (!pressed) return;
    pressed = false;
    complete();
  };
  box.addEventListener("pointerup", stop);
  box.addEventListener("pointercancel", stop);
  box.addEventListener("keydown", (event) => {
    const key = Number(event.target.dataset?.key);
    const moves = { ArrowUp: STEP, ArrowDown: -STEP, PageUp: 0.25, PageDown: -0.25, Home: -1, End: 1 };
    const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (along) {
      bars[key].bar.tabIndex = -1;
      const next = bars[Math.max(0, Math.min(bars.length - 1, key + along))].bar;
      next.tabIndex = 0;
      next.focus();
    } else if (event.key in moves) {
      set(key, values[key] + moves[event.key]);
      clearTimeout(timer); // several presses are one change
      timer = setTimeout(complete, 250);
    } else return;
    event.preventDefault();
  });
}

export const headKey = (state) => (state.head === MEAN ? {} : { head: state.map.numbers[state.head] });
