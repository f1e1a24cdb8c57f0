// A data set: its examples sorted by score, length, entropy or error, page by page; from an example to its look.

import { inputText } from "./page/inputs.js";
import { isDisabled, keepingFocus, make, setDisabled } from "./page/state.js";
import { makeTask } from "./page/task.js";
import { number } from "./heads_view.js";

const ROWS = 25; // of a page
const AGAIN = 1500; // milliseconds until more examples are measured
const SORTS = { index: "order of the data", score: "score (log-probability)", length: "length of the input", entropy: "attention entropy", error: "error" };
const COLUMNS = ["input", "reference", "output", "score", "length", "entropy", "error"];

export const view = { route: "data", title: "Data", show };

function show(box, studio) {
  const sort = make("select", { id: "data-sort" }, ...Object.entries(SORTS).map(([name, text]) => new Option(text, name)));
  const order = make("select", { id: "data-order" }, new Option("ascending", "ascending"), new Option("descending", "descending"));
  const told = make("p", { id: "data-told", className: "quiet", role: "status" });
  const table = make("table", { id: "examples" }, make("caption", { textContent: "Examples" }), make("thead"), make("tbody"));
  const before = make("button", { type: "button", id: "page-before", textContent: "Previous page" });
  const after = make("button", { type: "button", id: "page-after", textContent: "Next page" });
  table.tHead.append(make("tr", {}, make("th", { scope: "col", textContent: "#" }), ...COLUMNS.map((name) => make("th", { scope: "col", textContent: name }))));
  const below = make("div", { hidden: true }, make("div", { className: "wide", tabIndex: 0, role: "region", label: "Examples" }, table), make("p", { className: "controls" }, before, after));
  const control = (text, part) => make("span", { className: "control" }, make("label", { htmlFor: part.id, textContent: text }), part);
  box.append(
    make("h2", { textContent: view.title }),
    make("p", { className: "controls" }, control("Sort by", sort), control("in order", order)),
    told,
    below,
  );
  const first = () => Math.max(0, Number.parseInt(studio.parameters.first ?? "0", 10) || 0);
  sort.addEventListener("change", () => studio.go({ sort: sort.value, first: null }));
  order.addEventListener("change", () => studio.go({ order: order.value, first: null }));
  before.addEventListener("click", () => isDisabled(before) || studio.go({ first: Math.max(0, first() - ROWS) || null }));
  after.addEventListener("click", () => isDisabled(after) || studio.go({ first: first() + ROWS }));
  const task = makeTask(box, studio);
  const inputs = new Map(); // of examples with pictures

  const load = () =>
    task.run(async (signal, settled) => {
      const by = studio.parameters.sort in SORTS ? studio.parameters.sort : "index";
      const direction = studio.parameters.order === "descending" ? "descending" : "ascending";
      [sort.value, order.value] = [by, direction];
      const query = new URLSearchParams({ model: studio.model.name, sort: by, order: direction, first: first(), count: ROWS });
      const { data: name } = await studio.ask("studio/given", undefined, signal);
      if (!name) return nothing("No data: start the studio with some, as in regard studio RUN --data test.");
      for (;;) {
        const page = await studio.ask(`studio/data?${query}`, undefined, signal);
        draw(page);
        if (page.data.error || (page.data.total !== null && page.data.measured === page.data.total)) return;
        settled();
        await task.wait(AGAIN);
      }
    });

  function nothing(text) {
    told.textContent = text;
    below.hidden = true;
  }

  function draw({ data, examples }) {
    const of = data.total === null ? "" : ` of ${data.total.toLocaleString("en")}${data.more ? ", the first of more" : ""}`;
    told.textContent = data.error ?? `${data.name}: ${data.measured.toLocaleString("en")}${of} examples measured.`;
    below.hidden = !examples.length;
    setDisabled(before, first() === 0);
    setDisabled(after, first() + ROWS >= data.measured);
    keepingFocus(table, () => table.tBodies[0].replaceChildren(...examples.map(row)));
  }

  function row(example) {
    const { model } = studio;
    const link = make("a", { textContent: example.input.filter((_, i) => model.reads[i] !== "image").join(" | ") || (model.reads.includes("image") ? "" : "(empty)") });
    const lead = (input) => (link.href = studio.link({ input: inputText(model, input), sort: null, order: null, first: null }, "type"));
    if (model.reads.includes("image")) withPictures(link, example, lead);
    else lead(example.input);
    const texts = [example.reference, example.output].map((text) => make("td", { className: "text", textContent: text ?? "–" }));
    const numbers = ["score", "length", "entropy", "error"].map((name) => make("td", { textContent: name === "length" ? String(example.length) : number(example[name], name) }));
    return make("tr", {}, make("td", { textContent: String(example.index) }), make("th", { scope: "row", className: "text" }, link), ...texts, ...numbers);
  }

  // The pictures of an example, which are asked for once, and the link to its look.
  async function withPictures(link, example, lead) {
    const { model } = studio;
    const key = `${model.name} ${model.version} ${example.index}`;
    if (!inputs.has(key)) inputs.set(key, studio.ask("studio/data/inputs", { model: model.name, indices: [example.index] }));
    try {
      const [input] = await inputs.get(key);
      const pictures = input.flatMap((value, i) => (model.reads[i] === "image" ? [make("img", { src: value, alt: example.input[i], width: 64, height: 64 })] : []));
      link.prepend(...pictures);
      lead(input);
    } catch (error) {
      inputs.delete(key);
      studio.fail(error);
    }
  }

  load();
  return { update: load, close: task.stop };
}
