// The tokens of the sources, to mask or replace; and a token of the output, to replace and continue from.

import { shown } from "./page/data.js";
import { make } from "./page/state.js";
import { findEdit } from "./edits.js";

export function showTokenPanel(box, panel) {
  let chosen = null; // {side, source, position}
  const tools = make("div", { id: "token-tools", className: "tool", hidden: true });
  const lists = make("div", { id: "source-tokens" });
  box.replaceChildren(lists, tools);
  let look = null;

  function draw(next = look) {
    look = next;
    const edits = panel.edits();
    const texts = look.sources.map((source, number) => ({ source, number })).filter(({ source }) => source.kind === "text");
    lists.replaceChildren(
      ...texts.map(({ source, number }) => {
        const title = texts.length > 1 ? `Tokens of source ${number + 1}` : "Tokens of the source";
        const items = source.tokens.map((token, position) => {
          const masked = findEdit(edits, "mask_source", { source: number || undefined, token: position });
          const replaced = findEdit(edits, "replace_token", { source: number || undefined, position });
          const button = make("button", { type: "button", textContent: shown(token), className: masked ? "masked" : replaced ? "new" : "", label: `Source token ${position}: ${shown(token)}${masked ? ", masked" : replaced ? ", replaced" : ""}` });
          button.addEventListener("click", () => choose({ side: "source", source: number, position }));
          return make("li", {}, button);
        });
        return make("div", {}, make("h3", { textContent: title }), make("ol", { className: "tokens chips", label: title }, ...items));
      }),
    );
    if (chosen) drawTools();
  }

  function choose(next) {
    chosen = next;
    drawTools();
    tools.querySelector("button, input").focus();
  }

  function drawTools() {
    const { side, source, position } = chosen;
    const tokens = side === "source" ? look.sources[source]?.tokens : look.output?.tokens;
    tools.hidden = tokens?.[position] === undefined;
    if (tools.hidden) return;
    const where = side === "source" ? { ...(source ? { source } : {}), position } : { side: "output", position };
    const name = `${side === "source" ? "Source" : "Output"} token ${position}: ${shown(tokens[position])}`;
    const parts = [make("h3", { textContent: name })];
    const line = make("form", { className: "line" });
    if (side === "source") {
      const target = { ...(source ? { source } : {}), token: position };
      const masked = Boolean(findEdit(panel.edits(), "mask_source", target));
      const mask = make("button", { type: "button", textContent: masked ? "Unmask" : "Mask" });
      mask.addEventListener("click", () => panel.add({ edit: "mask_source", ...target }, masked));
      line.append(mask);
    }
    const field = make("input", { id: "token-text", autocomplete: "off", spellcheck: false, size: 8 });
    line.append(make("label", { htmlFor: "token-text", textContent: side === "source" ? "Replace by" : "Force, and continue from it" }), field, make("button", { textContent: "Replace" }));
    line.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value) panel.add({ edit: "replace_token", ...where, token: field.value });
    });
    tools.replaceChildren(...parts, line);
  }

  return { draw, chooseOutput: (position) => choose({ side: "output", source: 0, position }) };
}
