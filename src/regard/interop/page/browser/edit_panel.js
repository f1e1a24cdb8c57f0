// Edits of the model: controls for the head, row and keys that are shown, the list of edits, undo and redo.

import { MEAN, shown } from "../../../views/page/data.js";
import { make } from "../../../views/page/state.js";

const number = (id, value, step, label) => make("input", { type: "number", id, value, step, label, min: -10, max: 10 });
const button = (text, act, id = "") => {
  const made = make("button", { type: "button", textContent: text, id });
  made.addEventListener("click", act);
  return made;
};
const options = (names) => names.map((name, i) => new Option(`${i} ${shown(name)}`, i));

// The history of a list of edits: each change is one step that can be undone.
export function makeHistory(edits, changed) {
  let [past, future] = [[], []];
  const history = {
    edits,
    canUndo: () => past.length > 0,
    canRedo: () => future.length > 0,
    set(next) {
      past.push(history.edits);
      future = [];
      history.edits = next;
      changed();
    },
    undo: () => step(past, future),
    redo: () => step(future, past),
  };
  function step(from, to) {
    if (!from.length) return;
    to.push(history.edits);
    history.edits = from.pop();
    changed();
  }
  return history;
}

// getLook, getStore: of what is shown; the store is null for a model without attention.
export function showEdits(box, history, getLook, getStore) {
  const [heads, tokens] = [make("div", { className: "controls" }), make("div", { className: "controls" })];
  const list = make("ol", { id: "edit-list", label: "Edits" });
  const json = make("textarea", { id: "edits-json", rows: 3, spellcheck: false });
  const problem = make("span", { className: "problem", role: "alert" });
  const undo = button("Undo", history.undo, "undo");
  const redo = button("Redo", history.redo, "redo");
  const clear = button("Remove all", () => history.set([]), "clear");
  const apply = button("Apply", () => {
    try {
      const edits = JSON.parse(json.value);
      if (!Array.isArray(edits)) throw new Error("a list of edits is wanted");
      problem.textContent = "";
      history.set(edits);
    } catch (error) {
      problem.textContent = error.message;
    }
  });
  const summary = make("summary", { textContent: "Edits as JSON, as regard look --edit reads them" });
  const label = make("label", { htmlFor: "edits-json", textContent: "Edits" });
  const details = make("details", {}, summary, label, json, apply, problem);
  const title = make("h2", { id: "edits-title", textContent: "Edit the model" });
  box.replaceChildren(make("div", { className: "top" }, title, make("span", {}, undo, " ", redo, " ", clear)), heads, tokens, list, details);
  box.setAttribute("aria-labelledby", "edits-title");

  const add = (edit) => history.set([...history.edits, edit]);

  function refresh() {
    const { edits } = history;
    Object.assign(undo, { disabled: !history.canUndo() });
    Object.assign(redo, { disabled: !history.canRedo() });
    Object.assign(clear, { disabled: !edits.length });
    list.hidden = !edits.length;
    list.replaceChildren(...edits.map((edit, i) => item(edit, () => history.set(edits.toSpliced(i, 1)))));
    json.value = JSON.stringify(edits);
    const look = getLook();
    if (look) tokens.replaceChildren(...tokenControls(look, add));
    if (getStore() && !heads.childElementCount) heads.append(...headControls(getStore(), add));
  }
  refresh();
  return refresh;
}

function item(edit, remove) {
  const { edit: kind, ...rest } = edit;
  const text = `${String(kind).replaceAll("_", " ")}: ${Object.entries(rest).map(([key, value]) => `${key} ${Array.isArray(value) ? value.join(" ") : value}`).join(", ")}`;
  return make("li", {}, make("span", { textContent: text }), " ", button("Remove", remove));
}

function headControls(store, add) {
  const of = () => {
    const { map, head } = store.state;
    return { map: map.name.replace(/^(decoder.*) source \d+$/, "$1"), ...(head === MEAN ? {} : { head }) };
  };
  const factor = number("factor", 0.5, 0.1, "Factor");
  const weight = number("weight", 1, 0.05, "Weight");
  const key = make("select", { id: "key", label: "Key" });
  const keep = make("input", { type: "checkbox", id: "renormalize", checked: true });
  store.listen(({ map }, before) => map !== before.map && key.replaceChildren(...options(map.keyNames)));
  const paint = () => {
    const { map, head, row } = store.state;
    const edit = { edit: "paint_row", map: map.name, row, keys: [Number(key.value)], weights: [Number(weight.value)] };
    add({ ...edit, ...(head === MEAN ? {} : { head }), ...(keep.checked ? {} : { renormalize: false }) });
  };
  return [
    make("p", {}, "The head below: ", button("Switch off", () => add({ edit: "switch_head_off", ...of() }), "off"), " ", button("Scale by", () => add({ edit: "scale_head", ...of(), factor: Number(factor.value) }), "scale"), " ", factor),
    make("p", {}, "Its row below: ", button("Give key", paint, "paint"), " ", key, " the weight ", weight, " ", make("label", {}, keep, " scale the others")),
  ];
}

function tokenControls(look, add) {
  const texts = look.sources.map((source, i) => ({ source, i })).filter(({ source }) => source.kind === "text");
  const masked = look.maps.some((map) => map.key_side === "source");
  const lines = look.sources.flatMap((source, i) => {
    const tokens = source.tokens ?? look.maps.find((map) => map.key_side === "source" && map.source === i)?.keyNames ?? [];
    if (!masked || !tokens.length) return [];
    const token = make("select", { id: `mask-${i}`, label: "Token to mask" }, ...options(tokens));
    const named = i ? { source: i } : {};
    const mask = button("Mask", () => add({ edit: "mask_source", token: Number(token.value), ...named }), `mask-${i}-button`);
    return [make("p", {}, look.sources.length > 1 ? `Source ${i + 1}: ` : "Source: ", mask, " ", token)];
  });
  const replace = (side, tokens, more) => {
    const position = make("select", { id: `${side}-position`, label: `Token of the ${side}` }, ...options(tokens));
    const text = make("input", { id: `${side}-token`, size: 8, label: `New token of the ${side}`, autocomplete: "off" });
    const act = () => text.value && add({ edit: "replace_token", position: Number(position.value), token: text.value, ...more });
    return make("p", {}, side === "source" ? "Source: " : "Output: ", button("Replace", act, `${side}-replace`), " ", position, " by ", text);
  };
  if (texts.length === 1) lines.push(replace("source", texts[0].source.tokens, texts[0].i ? { source: texts[0].i } : {}));
  if (look.output?.tokens?.length) lines.push(replace("output", look.output.tokens, { side: "output" }));
  return lines;
}
