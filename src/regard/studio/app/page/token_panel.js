// The tokens of the sources, to mask or replace, and regions of a picture or positions of a series, to mask; and a token of the output, to replace by one of the model's
// alternatives or by another, and to continue from.

import { percent, shown } from "./data.js";
import { findEdit } from "./edits.js";
import { keepingFocus, make } from "./state.js";

// `alternatives(position)` resolves to {alternatives: [{token, id, log_probability}]} of a position of the output.
export function showTokenPanel(box, panel, alternatives) {
  let chosen = null; // {side, source, position}
  let [look, asked, drawn] = [null, 0, ""];
  const regions = {}; // the place that is chosen, by source
  const tools = make("div", { id: "token-tools", className: "tool", hidden: true });
  const lists = make("div", { id: "source-tokens" });
  box.replaceChildren(lists, tools);

  function draw(next = look) {
    look = next;
    const edits = panel.edits();
    const sources = look.sources.map((source, number) => ({ source, number }));
    const wanted = JSON.stringify([look.sources.map(({ tokens, grid }) => tokens ?? grid), edits.filter(({ edit }) => edit === "mask_source" || edit === "replace_token")]);
    if (wanted !== drawn) keepingFocus(lists, () => lists.replaceChildren(...sources.map((each) => (each.source.kind === "text" ? sourceList : placeForm)(each, sources.length > 1, edits))));
    drawn = wanted;
    if (chosen) keepingFocus(tools, drawTools);
  }

  function sourceList({ source, number }, several, edits) {
    const title = several ? `Tokens of source ${number + 1}` : "Tokens of the source";
    const items = source.tokens.map((token, position) => {
      const masked = findEdit(edits, "mask_source", { source: number || undefined, token: position });
      const replaced = findEdit(edits, "replace_token", { source: number || undefined, position });
      const button = make("button", { type: "button", textContent: shown(token), className: masked ? "masked" : replaced ? "new" : "", label: `Source token ${position}: ${shown(token)}${masked ? ", masked" : replaced ? ", replaced" : ""}` });
      button.addEventListener("click", () => choose({ side: "source", source: number, position }));
      return make("li", {}, button);
    });
    return make("div", {}, make("h3", { textContent: title }), make("ol", { className: "tokens chips", label: title }, ...items));
  }

  // A region of a picture by its row and column, or a position of a series by its number: they count from 1.
  function placeForm({ source, number }, several, edits) {
    const isSeries = source.kind === "series";
    const grid = source.grid ?? [source.tokens.length - source.units];
    const [axes, parts, noun] = isSeries ? [["Position"], "Positions", "the series"] : [["Row", "Column"], "Regions", "the picture"];
    const title = `${parts} of ${several ? `source ${number + 1}` : noun}`;
    const place = (regions[number] ??= grid.map(() => 1));
    const token = () => source.units + place.reduce((sum, each, axis) => sum * grid[axis] + each - 1, 0);
    const target = () => ({ ...(number ? { source: number } : {}), token: token() });
    const isMasked = () => Boolean(findEdit(edits, "mask_source", target()));
    const mask = make("button", { type: "button", className: "mask-region" });
    const told = () => (mask.textContent = `${isMasked() ? "Unmask" : "Mask"} ${isSeries ? "position" : "region"}`);
    panel.addOnPress(mask, () => [{ edit: "mask_source", ...target() }, isMasked()]);
    const fields = axes.map((name, axis) => {
      const field = make("input", { type: "number", min: 1, max: grid[axis], step: 1, value: place[axis], id: `region-${name.toLowerCase()}-${number}` });
      field.addEventListener("input", () => {
        place[axis] = Math.max(1, Math.min(grid[axis], Math.round(Number(field.value)) || 1));
        told();
      });
      return make("label", { htmlFor: field.id }, `${name} `, field);
    });
    told();
    return make("div", {}, make("h3", { textContent: title }), make("p", { className: "line" }, ...fields, mask));
  }

  function choose(next) {
    chosen = next;
    drawTools();
    tools.querySelector("button, input").focus();
  }

  const where = ({ side, source, position }) => (side === "source" ? { ...(source ? { source } : {}), position } : { side: "output", position });

  function drawTools() {
    const { side, source, position } = chosen;
    const tokens = side === "source" ? look.sources[source]?.tokens : look.output?.tokens;
    tools.hidden = tokens?.[position] === undefined;
    if (tools.hidden) return;
    const name = `${side === "source" ? "Source" : "Output"} token ${position}: ${shown(tokens[position])}`;
    const line = make("form", { className: "line" });
    if (side === "source") line.append(maskButton(source, position));
    const field = make("input", { id: "token-text", autocomplete: "off", spellcheck: false, size: 8 });
    line.append(make("label", { htmlFor: "token-text", textContent: side === "source" ? "Replace by" : "Force, and continue from it" }), field, make("button", { textContent: "Replace" }));
    const target = where(chosen);
    const typed = (act) => field.value && act({ edit: "replace_token", ...target, token: field.value });
    field.addEventListener("input", () => typed(panel.prepare));
    line.addEventListener("submit", (event) => {
      event.preventDefault();
      typed(panel.add);
    });
    if (document.activeElement?.id === field.id) field.value = document.activeElement.value; // what is being typed
    tools.replaceChildren(make("h3", { textContent: name }), ...(side === "output" ? [alternativeList(position)] : []), line);
  }

  function maskButton(source, position) {
    const target = { ...(source ? { source } : {}), token: position };
    const masked = Boolean(findEdit(panel.edits(), "mask_source", target));
    const mask = make("button", { type: "button", textContent: masked ? "Unmask" : "Mask" });
    panel.addOnPress(mask, () => [{ edit: "mask_source", ...target }, masked]);
    return mask;
  }

  // The most likely tokens at a position, after the tokens before it.
  function alternativeList(position) {
    const before = tools.querySelector("#alternatives"); // stays until those of the new output are known
    const list = make("ol", { id: "alternatives", className: "alternatives", label: `The model’s alternatives at position ${position}` }, ...(before?.children ?? []));
    list.setAttribute("aria-busy", "true");
    const number = ++asked;
    alternatives(position).then(
      ({ alternatives: found }) => {
        if (number !== asked) return; // another position was chosen, or another output is shown
        keepingFocus(list, () => list.replaceChildren(...found.map((each) => alternativeItem(each, position))));
        list.removeAttribute("aria-busy");
      },
      () => number === asked && list.remove(), // the error of the same request is shown where the output is
    );
    return list;
  }

  function alternativeItem({ token, id, log_probability }, position) {
    const share = Math.exp(log_probability);
    const bar = make("span", { className: "bar" });
    bar.style.width = `${100 * share}%`;
    const button = make("button", { type: "button", label: `Force ${shown(token)}, ${percent(share)}` }, make("span", { className: "name", textContent: shown(token) }), make("span", { className: "track" }, bar), make("span", { className: "number", textContent: percent(share) }));
    button.setAttribute("aria-pressed", String(look.output.tokens[position] === token));
    panel.addOnPress(button, () => [{ edit: "replace_token", side: "output", position, token: id }]);
    return make("li", {}, button);
  }

  return { draw, chooseOutput: (position) => choose({ side: "output", source: 0, position }) };
}
