// The panel of edits: tools for the row, head and token that are chosen, and the list of edits with undo and redo.

import { MEAN, headName, shown } from "./data.js";
import { isDisabled, keepingFocus, make, setDisabled } from "./state.js";
import { findEdit, readEdits, told, withEdit, writeEdits } from "./edits.js";
import { headKey, showPainter } from "./paint.js";
import { beforePress } from "./prepare.js";

// `prepare(list)` is called with edits that are likely to come next.
export function showEditPanel(box, store, studio, prepare) {
  const edits = () => readEdits(studio.parameters.edits);
  const history = { past: [], future: [], now: studio.parameters.edits ?? "" };
  const change = (list) => studio.go({ edits: writeEdits(list) });
  const add = (edit, remove) => change(withEdit(edits(), edit, remove));
  // Makes a button add an edit, or remove it; `target()` is [edit, remove].
  const addOnPress = (button, target) => {
    button.addEventListener("click", () => add(...target()));
    beforePress(button, () => prepare(withEdit(edits(), ...target())));
  };
  const target = make("p", { className: "quiet", id: "edit-target" });
  const list = make("ol", { id: "edits", className: "edits" });
  const none = make("p", { className: "quiet", textContent: "None: this is the model as it is." });

  const button = (text, action, label) => {
    const made = make("button", { type: "button", textContent: text, label });
    made.addEventListener("click", () => isDisabled(made) || action());
    return made;
  };
  const undo = button("Undo", () => travel(history.past, history.future));
  const redo = button("Redo", () => travel(history.future, history.past));
  const clear = button("Clear", () => change([]));

  function travel(from, to) {
    if (!from.length) return;
    to.push(history.now);
    history.now = from.pop();
    studio.go({ edits: history.now || null });
  }

  // ---- the head
  const factor = make("input", { type: "range", min: 0, max: 2, step: 0.05, id: "edit-factor" });
  const factorShown = make("output", { htmlFor: "edit-factor" });
  const ofHead = () => ({ map: moduleName(store.state.map), ...headKey(store.state) });
  const scaled = (value) => [value === 0 ? { edit: "switch_head_off", ...ofHead() } : { edit: "scale_head", ...ofHead(), factor: value }, value === 1];
  factor.addEventListener("input", () => {
    factorShown.textContent = `× ${Number(factor.value).toFixed(2)}`;
    prepare(withEdit(edits(), ...scaled(Number(factor.value)))); // where the slider may be let go
  });
  factor.addEventListener("change", () => add(...scaled(Number(factor.value))));
  const off = make("button", { type: "button", textContent: "Switch off" });
  addOnPress(off, () => [{ edit: "switch_head_off", ...ofHead() }, off.getAttribute("aria-pressed") === "true"]);

  // ---- the row
  const painter = make("div", { id: "painter", className: "painter", role: "group", label: "Weights of the row, to paint" });
  const renormalize = make("input", { type: "checkbox", id: "edit-renormalize", checked: true });
  const paintedEdit = (weights) => {
    const target = { map: store.state.map.name, ...headKey(store.state), row: store.state.row };
    const before = findEdit(edits(), "paint_row", target);
    const all = { ...(before ? Object.fromEntries(before.keys.map((key, i) => [key, before.weights[i]])) : {}), ...weights };
    const keys = Object.keys(all).map(Number);
    return { edit: "paint_row", ...target, keys, weights: keys.map((key) => all[key]), ...(renormalize.checked ? {} : { renormalize: false }) };
  };
  showPainter(painter, store, (weights) => add(paintedEdit(weights)), (weights) => prepare(withEdit(edits(), paintedEdit(weights))));

  function drawList() {
    const now = edits();
    none.hidden = now.length > 0;
    const items = now.map((edit, i) => {
      const text = told(edit);
      return make("li", {}, make("span", { textContent: text }), button("×", () => change(now.toSpliced(i, 1)), `Remove: ${text}`));
    });
    const held = list.contains(document.activeElement);
    keepingFocus(list, () => list.replaceChildren(...items));
    if (held && !items.length) undo.focus(); // the last edit was removed
    setDisabled(undo, !history.past.length);
    setDisabled(redo, !history.future.length);
    setDisabled(clear, !now.length);
    drawHead();
  }

  function drawHead() {
    const found = findEdit(edits(), "scale_head", ofHead());
    factor.value = found ? (found.edit === "switch_head_off" ? 0 : found.factor) : 1;
    factorShown.textContent = `× ${Number(factor.value).toFixed(2)}`;
    off.setAttribute("aria-pressed", String(found?.edit === "switch_head_off"));
  }

  store.listen((state) => {
    const head = state.head === MEAN ? "all heads" : headName(state.map, state.head);
    target.textContent = `${state.map.name}, ${head}, row ${state.row}: ${shown(state.map.rowNames[state.row])}`;
    drawHead();
  });

  const field = (text, ...inside) => make("div", { className: "tool" }, make("h3", { textContent: text }), ...inside);
  const row = field("Attention of the row", make("p", { className: "quiet", textContent: "Drag a bar, or paint over several. Keys: ↑ ↓ change, ← → move." }), painter, make("label", {}, renormalize, " The other weights share the rest"));
  store.listen(() => (row.hidden = painter.hidden)); // a long row is not painted
  box.replaceChildren(
    make("h2", { id: "edit-title", textContent: "Edit" }),
    target,
    field("Output of the head", make("p", { className: "line" }, make("label", { htmlFor: "edit-factor", className: "heard", textContent: "Factor of the head’s output" }), factor, factorShown, off)),
    row,
    field("Edits, in order", make("p", { className: "line" }, undo, redo, clear), none, list),
  );

  // One handler, of the panel that is shown: the element outlives it.
  box.closest("main").onkeydown = (event) => {
    if (!box.isConnected || !(event.ctrlKey || event.metaKey) || event.target.matches("textarea, input:not([type=range], [type=checkbox])")) return;
    const step = event.key === "y" || (event.key === "Z" && event.shiftKey) ? redo : event.key === "z" ? undo : null;
    if (!step) return;
    event.preventDefault();
    step.click();
  };

  return {
    addOnPress,
    add,
    prepare: (edit) => prepare(withEdit(edits(), edit)), // an edit that is being typed
    edits,
    update() {
      const next = studio.parameters.edits ?? "";
      if (next !== history.now) {
        history.past.push(history.now);
        history.now = next;
        history.future.length = 0;
      }
      drawList();
    },
  };
}

// The name of the attention module: a map of one of several sources is a part of it.
const moduleName = (map) => (map.part === "decoder" ? map.name.replace(/ source \d+$/, "") : map.name);
