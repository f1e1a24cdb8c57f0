// Type and watch: an input, the output that follows token by token, what was attended to, and edits of it.

import { readLook } from "./page/data.js";
import { showLook } from "./page/look.js";
import { make } from "./page/state.js";
import { readEdits } from "./edits.js";
import { showEditPanel } from "./edit_panel.js";
import { inputOf, inputText, showInputs } from "./inputs.js";
import { showOutput } from "./output.js";
import { showSavePanel } from "./save_panel.js";
import { stream } from "./server.js";
import { showTokenPanel } from "./token_panel.js";

const PAUSE = 120; // milliseconds without a key before the model is asked

export const view = { route: "type", title: "Type and watch", show };

function show(box, studio) {
  const section = (id, label) => make("section", { id, label });
  const parts = { inputs: section("inputs", "Input"), output: section("output", "Output"), look: make("div", { id: "look" }), tokens: section("tokens", "Tokens"), edit: section("edit", "Edit"), save: section("save", "Save") };
  const aside = make("aside", { id: "side", label: "Edits, saving" }, parts.edit, parts.tokens, parts.save);
  box.append(make("h2", { className: "heard", textContent: view.title }), make("div", { id: "columns" }, make("div", { id: "shown" }, parts.inputs, parts.output, parts.look), aside));
  let [model, store, fill, asked, timer, panel, tokens] = [null, null, null, null, 0, null, null];
  const unedited = { of: "", look: null }; // the last look without edits
  const save = showSavePanel(parts.save, studio, () => ({ store, request: request(readEdits(studio.parameters.edits)), input: inputOf(model, studio.parameters), model }));

  function request(edits) {
    const beam = model.generates ? { beam_size: beamSize() } : {};
    return { model: model.name, input: inputOf(model, studio.parameters), ...beam, ...(edits.length ? { edits } : {}) };
  }
  const beamSize = () => Math.max(1, Math.min(16, Number(studio.parameters.beam) || 1));

  async function refresh() {
    asked?.abort();
    const current = (asked = new AbortController());
    const edits = readEdits(studio.parameters.edits);
    const plain = request([]);
    if (plain.input.some((each) => !each)) return;
    box.setAttribute("aria-busy", "true");
    try {
      if (!edits.length) await watch(plain, current.signal);
      else {
        if (unedited.of !== JSON.stringify(plain)) keep(plain, readLook(await studio.ask("studio/look", plain, current.signal)));
        const look = readLook(await studio.ask("studio/look", request(edits), current.signal));
        await draw(look, unedited.look.output, current.signal);
      }
      studio.fail(null);
      box.removeAttribute("aria-busy");
    } catch (error) {
      if (error.name !== "AbortError") studio.fail(error);
    }
  }

  const keep = (plain, look) => Object.assign(unedited, { of: JSON.stringify(plain), look });

  // Greedy search is watched token by token; a beam is complete before its best output is known.
  async function watch(plain, signal) {
    if (!model.generates || plain.beam_size > 1) {
      keep(plain, readLook(await studio.ask("studio/look", plain, signal)));
      return draw(unedited.look, null, signal);
    }
    for await (const { look, last } of stream("studio/watch", plain, signal)) {
      const read = readLook(look);
      if (last) keep(plain, read);
      await draw(read, null, signal);
    }
  }

  async function draw(look, before, signal) {
    const difference = before && "tokens" in before ? await studio.ask("studio/difference", { first: before.tokens, second: look.output.tokens, first_scores: before.scores, second_scores: look.output.scores }, signal) : null;
    follow(look);
    const choose = store && model.generates ? (position) => tokens.chooseOutput(position) : null;
    showOutput(parts.output, look, { difference: difference?.tokens, before, choose });
    studio.announce(`Output: ${look.output?.text ?? look.output?.label ?? "none"}`);
    panel?.update();
    tokens?.draw(look);
    save.update();
  }

  function follow(look) {
    aside.hidden = parts.look.hidden = false;
    if (!look.maps.length) {
      [store, panel, tokens] = [null, null, null];
      parts.edit.replaceChildren();
      parts.tokens.replaceChildren();
      return parts.look.replaceChildren(make("p", { className: "quiet", textContent: "This model has no attention." }));
    }
    if (store) return store.replace(look);
    store = showLook(parts.look, look);
    choose(look);
    panel = showEditPanel(parts.edit, store, studio);
    tokens = showTokenPanel(parts.tokens, panel);
    store.listen(({ map, head, row }) => studio.go({ map: map.name, head: map.heads > 1 ? head : null, row: row || null }, { silent: true }));
  }

  // The layer, head and row of the address.
  function choose(look) {
    const { map, head, row } = studio.parameters;
    const found = look.maps.find((each) => each.name === map);
    store.change({ ...(found ? { map: found } : {}), ...(head === undefined ? {} : { head: Number(head) || 0 }), ...(row === undefined ? {} : { row: Number(row) || 0 }) });
  }

  function changed(input) {
    clearTimeout(timer);
    timer = setTimeout(() => studio.go({ input: inputText(model, input), edits: null }, { replace: true }), PAUSE);
  }

  function beamField() {
    const field = make("input", { type: "number", id: "beam", min: 1, max: 16, value: beamSize() });
    field.addEventListener("change", () => studio.go({ beam: field.value > 1 ? field.value : null }));
    return make("p", { className: "line quiet" }, make("label", { htmlFor: "beam", textContent: "Beam size (1: greedy search, watched token by token)" }), field);
  }

  function update() {
    if (model !== studio.model) {
      clearTimeout(timer); // an input that was typed for another model
      model = studio.model;
      store = null;
      fill = showInputs(parts.inputs, model, inputOf(model, studio.parameters), changed);
      if (model.generates) parts.inputs.append(beamField());
    } else fill(inputOf(model, studio.parameters));
    refresh();
  }

  update();
  return {
    update,
    close() {
      clearTimeout(timer);
      asked?.abort();
    },
  };
}
