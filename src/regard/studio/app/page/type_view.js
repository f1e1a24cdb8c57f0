// Type and watch: an input, the output that follows token by token, what was attended to, and edits of it.

import { readLook } from "./data.js";
import { readEdits } from "./edits.js";
import { showEditPanel } from "./edit_panel.js";
import { inputOf, inputText, showInputs } from "./inputs.js";
import { showLook } from "./look.js";
import { showOutput } from "./output.js";
import { makePreparation } from "./prepare.js";
import { showSavePanel } from "./save_panel.js";
import { channelOption, showChannels } from "./channel_choice.js";
import { searchOptions, showSearchOptions } from "./search_options.js";
import { make } from "./state.js";
import { makeTask } from "./task.js";
import { tokenDifferences } from "./token_difference.js";
import { showTokenPanel } from "./token_panel.js";

const KEPT = 12; // looks
const PAUSE = 120; // milliseconds without a key before the model is asked

export const view = { route: "type", title: "Type and watch", show };

function show(box, studio) {
  const section = (id, label) => make("section", { id, label });
  const parts = { inputs: section("inputs", "Input"), output: section("output", "Output"), look: make("div", { id: "look" }), tokens: section("tokens", "Tokens"), edit: section("edit", "Edit"), save: section("save", "Save") };
  const aside = make("aside", { id: "side", label: "Edits, saving", hidden: true }, parts.edit, parts.tokens, parts.save);
  const lead = make("button", { type: "button", id: "to-edit", textContent: "Edit and save ↓", hidden: true }); // where the panels are below
  lead.addEventListener("click", () => {
    aside.scrollIntoView();
    aside.querySelector("input, button").focus({ preventScroll: true });
  });
  box.append(make("h2", { className: "heard", textContent: view.title }), make("div", { id: "columns" }, make("div", { id: "shown" }, parts.inputs, parts.output, lead, parts.look), aside));
  let [model, store, fill, panel, tokens] = [null, null, null, null, null];
  const task = makeTask(box, studio);
  const search = showSearchOptions(studio);
  const channels = showChannels(studio);
  const looks = new Map(); // the last ones, by what was asked for: undone and repeated edits are shown without asking again
  let replacements = 0; // that had been noticed when these looks were kept
  const edits = () => readEdits(studio.parameters.edits);
  const save = showSavePanel(parts.save, studio, () => ({ request: request(edits()), input: inputOf(model, studio.parameters), model }));

  function request(list) {
    const options = { ...(model.generates ? searchOptions(studio.parameters) : {}), ...channelOption(studio.parameters) };
    return { model: model.name, input: inputOf(model, studio.parameters), ...options, ...(list.length ? { edits: list } : {}) };
  }

  const refresh = () =>
    task.run(async (signal) => {
      const plain = request([]);
      if (plain.input.some((each) => !each)) return empty();
      const list = edits();
      const before = kept(plain);
      if (!list.length) return before ? draw(before, null) : watch(plain, signal);
      const whole = async (asked) => readLook(await studio.ask("studio/look", asked, signal));
      const look = (asked) => (asked.edits && store && kept(plain) ? lookInParts(asked, kept(plain), signal) : whole(asked));
      const found = async (asked) => kept(asked) ?? keep(asked, await look(asked));
      const both = () => Promise.all([request(list), plain].map(found));
      try {
        let [edited, unedited] = await both();
        if (forgetOutdated()) [edited, unedited] = await both(); // one of them was of another version of the model
        draw(edited, unedited.output);
      } catch (error) {
        if (!signal.aborted && !store) refused();
        throw error;
      }
    });

  const prepareLook = makePreparation((asked) => studio.ask("studio/prepare", asked));

  // Has the server compute the look of a likely edit. A page without a server would be blocked by it, and a sample without
  // a seed would be drawn anew.
  function prepare(list) {
    const asked = request(list);
    if (studio.replacements && list.length && !(asked.sample && asked.seed === undefined) && !kept(asked)) prepareLook(asked);
  }

  // The look under edits. Its output and the map that is shown are drawn before the other maps are asked for.
  async function lookInParts(asked, unedited, signal) {
    const { look, map } = store.state;
    const names = look.maps.map(({ name }) => name);
    const ask = (maps) => studio.ask("studio/look", { ...asked, maps }, signal);
    const told = await ask([map.name]);
    const first = readLook(told);
    if (first.maps.length === names.length) return first; // a page without a server has all of them at once
    draw({ ...first, maps: look.maps.map((each) => (each.name === map.name ? first.maps[0] : each)), incomplete: true }, unedited.output);
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    signal.throwIfAborted();
    const { maps } = await ask(names.filter((name) => name !== map.name));
    return readLook({ ...told, maps: names.map((name) => [...told.maps, ...maps].find((each) => each.name === name)) });
  }

  // Edits of an address that the model does not take: without a look there is no list to remove them from.
  function refused() {
    const remove = make("button", { type: "button", id: "without-edits", textContent: "Remove the edits" });
    remove.addEventListener("click", () => studio.go({ edits: null }));
    parts.output.replaceChildren(make("p", { className: "empty" }, "The model does not take these edits. ", remove));
  }

  function empty() {
    aside.hidden = lead.hidden = parts.look.hidden = true;
    const given = { image: "Give the model a picture", vectors: "Give the model a series" };
    const wanted = `${model.reads.map((kind) => given[kind]).find(Boolean) ?? "Type something"}, and ${model.reads.some((kind) => given[kind]) ? "its" : "the"} output appears here.`;
    parts.output.replaceChildren(make("p", { className: "empty", textContent: wanted }));
  }

  function keep(asked, look) {
    const name = JSON.stringify(asked);
    looks.delete(name); // the last one that was used is the last in order
    looks.set(name, look);
    if (looks.size > KEPT) looks.delete(looks.keys().next().value);
    return look;
  }

  // Whether a model has been replaced since looks were kept: they are dropped then.
  function forgetOutdated() {
    const [before, now] = [replacements, studio.replacements?.() ?? 0];
    if (now !== before) looks.clear();
    replacements = now;
    return now !== before;
  }

  function kept(asked) {
    const look = looks.get(JSON.stringify(asked));
    return look && keep(asked, look);
  }

  // Greedy search and sampling are watched token by token; a beam is complete before its best output is known.
  async function watch(plain, signal) {
    if (!model.generates || plain.beam_size > 1) {
      return draw(keep(plain, readLook(await studio.ask("studio/look", plain, signal))), null);
    }
    for await (const { look, last } of studio.stream("studio/watch", plain, signal)) {
      signal.throwIfAborted(); // pieces that had arrived before
      const read = readLook(look);
      if (last) keep(plain, read);
      draw(read, null);
    }
  }

  function draw(look, before) {
    const { incomplete, output } = store?.state.look ?? {};
    if (incomplete && output === look.output) return follow(look); // the rest of a look of which a part is shown
    const difference = before && "tokens" in before ? tokenDifferences(before.tokens, look.output.tokens, before.scores, look.output.scores) : null;
    follow(look);
    const choose = store && model.generates ? (position) => tokens.chooseOutput(position) : null;
    showOutput(parts.output, look, { difference, before, choose });
    studio.announce(`Output: ${look.output?.text ?? look.output?.label ?? "none"}`);
    panel?.update();
    tokens?.draw(look);
    channels.draw(look);
    save.update();
  }

  function follow(look) {
    aside.hidden = lead.hidden = parts.look.hidden = false;
    if (!look.maps.length) {
      [store, panel, tokens] = [null, null, null];
      parts.edit.replaceChildren();
      parts.tokens.replaceChildren();
      return parts.look.replaceChildren(make("p", { className: "empty", textContent: "This model has no attention." }));
    }
    if (store) return store.replace(look);
    store = showLook(parts.look, look);
    choose(look);
    panel = showEditPanel(parts.edit, store, studio, prepare);
    tokens = showTokenPanel(parts.tokens, panel, (position) => studio.ask("studio/alternatives", { ...request(edits()), position }));
    store.listen(({ map, head, row }) => studio.go({ map: map.name, head: map.heads > 1 ? head : null, row: row || null }, { silent: true }));
  }

  // The layer, head and row of the address.
  function choose(look) {
    const { map, head, row } = studio.parameters;
    const found = look.maps.find((each) => each.name === map);
    store.change({ ...(found ? { map: found } : {}), ...(head === undefined ? {} : { head: Number(head) || 0 }), ...(row === undefined ? {} : { row: Number(row) || 0 }) });
  }

  const changed = (input) => task.later(PAUSE, () => studio.go({ input: inputText(model, input), edits: null }, { replace: true }));

  function update() {
    if (model !== studio.model) {
      task.stop(); // an input that was typed for another model
      model = studio.model;
      [store, panel, tokens] = [null, null, null];
      fill = showInputs(parts.inputs, model, inputOf(model, studio.parameters), changed);
      parts.inputs.append(channels.element);
      if (model.generates) parts.inputs.append(search.element);
    } else fill(inputOf(model, studio.parameters));
    search.update();
    panel?.update(); // before the answer: an edit that is refused can be undone
    refresh();
  }

  update();
  return { update, close: task.stop };
}
