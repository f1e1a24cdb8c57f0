// All heads of a model: small maps of one input, and properties that were measured, sorted and grouped by any of them.

import { fixed, readLook } from "./page/data.js";
import { thumb } from "./page/heads.js";
import { inputOf } from "./page/inputs.js";
import { keepingFocus, make } from "./page/state.js";
import { makeTask } from "./page/task.js";

const AGAIN = 1500; // milliseconds until more examples are measured
const MEANINGS = {
  entropy: "of a row, in nats",
  evenness: "entropy divided by the largest possible",
  distance: "expected distance from a row's position to the key",
  confidence: "largest weight of a row",
  first: "weight of the first key",
  last: "weight of the last key",
  own: "weight of the key at the row's own position",
  previous: "weight of the previous token",
  punctuation: "weight of separators: punctuation and special tokens",
  positional: "share of the variance of weights that relative positions explain",
  offset: "relative position of the largest mean weight",
  induction: "weight of tokens that followed earlier occurrences of the current token",
  copying: "how much attending to a token raises its logit: rank from −1 to 1",
  alignment: "agreement with reference links",
  ablation: "change of the loss without the head, in nats",
  group: "heads with similar rows share a number",
};

export const view = { route: "heads", title: "Heads", show };

export function number(value, column) {
  if (value === null || value === undefined) return "–";
  if (column === "group") return String(value);
  if (column === "offset") return fixed(value, 0, value > 0);
  return fixed(value, Math.abs(value) >= 100 ? 0 : 3);
}

function show(box, studio) {
  const sort = make("select", { id: "heads-sort" });
  const told = make("p", { id: "heads-told", className: "quiet", role: "status" });
  const meaning = make("p", { id: "heads-meaning", className: "quiet" });
  const cards = make("div", { id: "head-cards" });
  const table = make("table", { id: "head-table" }, make("caption", { textContent: "All numbers" }), make("thead"), make("tbody"));
  const below = make("div", { className: "wide", tabIndex: 0, role: "region", label: "All numbers of all heads", hidden: true }, table);
  box.append(
    make("h2", { textContent: view.title }),
    make("p", { className: "controls" }, make("label", { htmlFor: sort.id, textContent: "Sort and group by " }), sort),
    told,
    meaning,
    cards,
    below,
  );
  let [report, look, order] = [null, null, []];
  const task = makeTask(box, studio);
  sort.addEventListener("change", () => studio.go({ sort: sort.value || null }, { replace: true }));

  const load = () =>
    task.run(async (signal, settled) => {
      const model = studio.model;
      const input = inputOf(model, studio.parameters);
      const { data } = await studio.ask("studio/given", undefined, signal);
      const given = input.every((each) => each) ? input : null;
      look = given && readLook(await studio.ask("studio/look", { model: model.name, input }, signal));
      if (!data && !given) return (told.textContent = "Give an input in the view Type and watch, or start the studio with --data.");
      for (;;) {
        report = await studio.ask("studio/heads", { model: model.name, ...(data ? {} : { input }) }, signal);
        const over = data ? `${report.inputs} examples of ${data}${report.complete ? "" : ", more to come"}` : "this input";
        told.textContent = report.heads.length ? `${report.heads.length} heads, measured over ${over}.` : `The heads are being measured over ${data} …`;
        below.hidden = !report.heads.length;
        draw();
        if (report.complete) return;
        settled();
        await task.wait(AGAIN);
      }
    });

  function draw() {
    const columns = report.columns.filter((name) => report.heads.some((head) => head[name] !== null));
    const by = columns.includes(studio.parameters.sort) ? studio.parameters.sort : "";
    if (sort.dataset.names !== columns.join()) sort.replaceChildren(new Option("the model's order", ""), ...columns.map((name) => new Option(name, name)));
    sort.dataset.names = columns.join();
    sort.value = by;
    meaning.textContent = by ? `${by}: ${MEANINGS[by]}.` : "";
    const sign = by === "group" ? 1 : -1;
    const value = (head) => (head[by] === null ? Infinity : sign * head[by]);
    order = by ? report.heads.toSorted((a, b) => value(a) - value(b)) : report.heads;
    keepingFocus(cards, () => drawCards(by));
    keepingFocus(table, () => drawTable(columns, by));
  }

  function drawCards(by) {
    const parts = new Map();
    for (const head of order) {
      const title = by === "group" ? `Group ${head.group}` : by ? "" : head.map;
      if (!parts.has(title)) parts.set(title, []);
      parts.get(title).push(head);
    }
    cards.replaceChildren(
      ...[...parts].map(([title, heads]) => {
        const list = make("ul", { className: "cards" }, ...heads.map((head) => card(head, by)));
        return make("section", { className: "head-group" }, ...(title ? [make("h3", { textContent: title })] : []), list);
      }),
    );
  }

  function card(head, by) {
    const shown = by && by !== "group" ? by : "entropy";
    const link = make("a", { href: studio.link({ map: head.map, head: head.head }, "type") });
    const map = look?.maps.find((each) => each.name === head.map);
    if (map) {
      const canvas = make("canvas");
      canvas.setAttribute("aria-hidden", "true");
      thumb(canvas, map, head.head, false);
      link.append(canvas);
    }
    link.append(make("span", {}, `${head.map}, `, make("bdi", { textContent: `head ${head.head}` })), make("small", { textContent: `${shown} ${number(head[shown], shown)}` }));
    return make("li", {}, link);
  }

  function drawTable(columns, by) {
    const heading = (name) => {
      const button = make("button", { type: "button", textContent: name, title: MEANINGS[name] });
      button.addEventListener("click", () => studio.go({ sort: name === by ? null : name }, { replace: true }));
      const cell = make("th", { scope: "col" }, button);
      if (name === by) cell.setAttribute("aria-sort", name === "group" ? "ascending" : "descending");
      return cell;
    };
    table.tHead.replaceChildren(make("tr", {}, make("th", { scope: "col", textContent: "head" }), ...columns.map(heading)));
    table.tBodies[0].replaceChildren(
      ...order.map((head) => {
        const cells = columns.map((name) => make("td", { textContent: number(head[name], name) }));
        return make("tr", {}, make("th", { scope: "row", textContent: `${head.map}, head ${head.head}` }), ...cells);
      }),
    );
  }

  let before = "";
  function update() {
    const { model, input } = studio.parameters;
    const now = JSON.stringify([model, input]);
    if (now !== before || !report) load();
    else draw();
    before = now;
  }
  const repaint = () => report && draw();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", repaint);
  update();
  return {
    update,
    close() {
      task.stop();
      dark.removeEventListener("change", repaint);
    },
  };
}
