// A data set: its examples sorted by score, length, entropy or error, page by page; from an example to its look.

import { make } from "./page/state.js";
import { inputText } from "./inputs.js";
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
  box.append(
    make("h2", { textContent: view.title }),
    make("p", { className: "controls" }, make("label", { htmlFor: sort.id, textContent: "Sort by " }), sort, make("label", { htmlFor: order.id, textContent: " in order " }), order),
    told,
    make("div", { className: "wide", tabIndex: 0, role: "region", label: "Examples" }, table),
    make("p", { className: "controls" }, before, after),
  );
  const first = () => Math.max(0, Number.parseInt(studio.parameters.first ?? "0", 10) || 0);
  sort.addEventListener("change", () => studio.go({ sort: sort.value, first: null }));
  order.addEventListener("change", () => studio.go({ order: order.value, first: null }));
  before.addEventListener("click", () => studio.go({ first: Math.max(0, first() - ROWS) || null }));
  after.addEventListener("click", () => studio.go({ first: first() + ROWS }));
  let [asked, timer] = [null, 0];

  async function load() {
    asked?.abort();
    clearTimeout(timer);
    const now = (asked = new AbortController());
    const by = studio.parameters.sort in SORTS ? studio.parameters.sort : "index";
    const direction = studio.parameters.order === "descending" ? "descending" : "ascending";
    [sort.value, order.value] = [by, direction];
    const query = new URLSearchParams({ model: studio.model.name, sort: by, order: direction, first: first(), count: ROWS });
    try {
      const { data: name } = await studio.ask("studio/given", undefined, now.signal);
      if (!name) return (told.textContent = "Start the studio with data: regard studio RUN --data test.");
      for (;;) {
        const page = await studio.ask(`studio/data?${query}`, undefined, now.signal);
        draw(page);
        if (page.data.error || (page.data.total !== null && page.data.measured === page.data.total)) return;
        await new Promise((done) => (timer = setTimeout(done, AGAIN)));
      }
    } catch (error) {
      if (error.name !== "AbortError") studio.fail(error);
    }
  }

  function draw({ data, examples }) {
    const of = data.total === null ? "" : ` of ${data.total.toLocaleString("en")}${data.more ? ", the first of more" : ""}`;
    told.textContent = data.error ?? `${data.name}: ${data.measured.toLocaleString("en")}${of} examples measured.`;
    before.disabled = first() === 0;
    after.disabled = first() + ROWS >= data.measured;
    table.tBodies[0].replaceChildren(...examples.map(row));
  }

  function row(example) {
    const input = inputText(studio.model, example.input);
    const link = make("a", { href: studio.link({ input, sort: null, order: null, first: null }, "type"), textContent: example.input.join(" | ") || "(empty)" });
    const texts = [example.reference, example.output].map((text) => make("td", { className: "text", textContent: text ?? "–" }));
    const numbers = ["score", "length", "entropy", "error"].map((name) => make("td", { textContent: name === "length" ? String(example.length) : number(example[name], name) }));
    return make("tr", {}, make("td", { textContent: String(example.index) }), make("th", { scope: "row", className: "text" }, link), ...texts, ...numbers);
  }

  load();
  return {
    update: load,
    close() {
      asked?.abort();
      clearTimeout(timer);
    },
  };
}
