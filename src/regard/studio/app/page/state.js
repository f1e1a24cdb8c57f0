// The state of the page, and its listeners.

import { MEAN } from "./data.js";

const LONG = 256; // least keys of a causal map that is colored by row: its first rows have large weights

export function makeStore(look) {
  const state = { look, map: telling(look.maps), head: MEAN, row: 0, key: null, pin: null, numbers: true, byRow: false };
  state.byRow = look.maps.some((map) => map.keys > LONG);
  if (state.map?.heads === 1) state.head = 0;
  const listeners = [];
  let wanted = 0; // the row that was chosen: a look at the beginning of an output may not have it yet
  return {
    state,
    listen(listener) {
      listeners.push(listener);
      listener(state, {});
    },
    // Another look at the same model: the layer, head and row stay where it has them too.
    replace(next) {
      const alike = (map) => next.maps.find((each) => each.name === map.name);
      const { pin } = state;
      const kept = pin && alike(pin.map);
      const stays = kept && pin.row < kept.rows && pin.head < kept.heads;
      this.change({ look: next, map: alike(state.map) ?? telling(next.maps), pin: stays ? { ...pin, map: kept } : null, key: state.key, row: wanted });
    },
    change(part) {
      const before = { ...state };
      Object.assign(state, part);
      wanted = part.row ?? wanted;
      const { map } = state;
      if (map.heads === 1) state.head = 0;
      else if (state.head >= map.heads) state.head = MEAN;
      state.row = Math.max(0, Math.min(map.rows - 1, state.row));
      if (map !== before.map && part.key === undefined) state.key = null;
      if (state.key !== null) state.key = Math.max(0, Math.min(map.keys - 1, state.key));
      if (Object.keys(state).some((name) => state[name] !== before[name]))
        for (const listener of listeners) listener(state, before);
    },
  };
}

// The last cross-attention, or else the last map.
function telling(maps) {
  for (const kind of ["cross", "pool", "self", "grid"]) {
    const found = maps.filter((each) => each.kind === kind);
    if (found.length) return found.at(-1);
  }
  return maps.at(-1);
}

export function isPinned(state, row) {
  const { pin } = state;
  return pin !== null && pin.map === state.map && pin.head === state.head && pin.row === row;
}

export function pinned(state, row = state.row) {
  return { pin: isPinned(state, row) ? null : { map: state.map, head: state.head, row } };
}

// Replaces what is in an element and keeps the focus there: on what has the same place among the controls, or the last.
export function keepingFocus(box, replace) {
  const controls = () => [...box.querySelectorAll("a[href], button, input, select, textarea, [tabindex]")];
  const place = controls().indexOf(document.activeElement);
  replace();
  if (place < 0 || box.contains(document.activeElement)) return;
  const now = controls();
  now[Math.min(place, now.length - 1)]?.focus({ preventScroll: true });
}

// A button without effect for now. It keeps the focus, which one that is `disabled` would lose.
export function setDisabled(button, disabled) {
  if (disabled) button.setAttribute("aria-disabled", "true");
  else button.removeAttribute("aria-disabled");
}

export const isDisabled = (button) => button.getAttribute("aria-disabled") === "true";

export function make(kind, properties = {}, ...children) {
  const { role, label, ...rest } = properties;
  const element = Object.assign(document.createElement(kind), rest);
  if (role) element.setAttribute("role", role);
  if (label) element.setAttribute("aria-label", label);
  element.append(...children);
  return element;
}
