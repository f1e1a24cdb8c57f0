// Every head of every map: a thumbnail and its measures; sorted by any of them.

import { ramp } from "./colours.js";
import { make } from "./state.js";

const SIZE = 48; // points of a thumbnail

export function showHeads(table, store) {
  let [lines, headings, sort, up] = [[], [], null, false];

  function build({ look }) {
    lines = look.maps.flatMap((map, place) => map.summary.map((summary, head) => ({ map, head, summary, order: [place, head] })));
    const measures = Object.keys(lines[0].summary).filter((name) => name !== "head");
    if (!headings.length) buildHeadings(measures);
    for (const line of lines) buildLine(line, measures);
  }

  function buildHeadings(measures) {
    headings = ["head", ...measures].map((name) => {
      const button = make("button", { type: "button", textContent: name });
      const cell = make("th", { scope: "col" }, button);
      button.addEventListener("click", () => {
        if (name === "head") [sort, up] = [null, false];
        else [sort, up] = [name, sort === name && !up];
        order();
      });
      return { name, cell };
    });
    table.tHead.replaceChildren(make("tr", {}, ...headings.map(({ cell }) => cell)));
  }

  function buildLine(line, measures) {
    line.canvas = make("canvas", { width: SIZE, height: SIZE });
    line.canvas.setAttribute("aria-hidden", "true");
    const name = `${line.map.name}, head ${line.summary.head}`;
    line.button = make("button", { type: "button" }, line.canvas, make("span", { textContent: name }));
    line.button.addEventListener("click", () => store.change({ map: line.map, head: line.head }));
    const numbers = measures.map((each) => {
      const number = line.summary[each];
      return make("td", { textContent: number === null ? "–" : number.toFixed(number >= 100 ? 0 : 3) });
    });
    line.row = make("tr", {}, make("th", { scope: "row" }, line.button), ...numbers);
  }

  const value = (line) => line.summary[sort] ?? -Infinity;
  function order() {
    const sorted = lines.toSorted((a, b) => {
      const by = sort === null ? 0 : (value(a) - value(b)) * (up ? 1 : -1);
      return by || a.order[0] - b.order[0] || a.order[1] - b.order[1];
    });
    const held = document.activeElement;
    table.tBodies[0].replaceChildren(...sorted.map((line) => line.row));
    if (table.contains(held)) held.focus();
    for (const { name, cell } of headings) {
      if (name === sort) cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    }
  }

  const paint = () => lines.forEach(({ canvas, map, head }) => thumb(canvas, map, head, store.state.byRow));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  store.listen((state, before) => {
    const focused = lines.findIndex(({ button }) => button === document.activeElement);
    if (state.look !== before.look) {
      build(state);
      order();
      lines[focused]?.button.focus({ preventScroll: true });
    }
    if (state.look !== before.look || state.byRow !== before.byRow) paint();
    for (const line of lines) {
      const now = line.map === state.map && (line.head === state.head || line.map.heads === 1);
      line.button.setAttribute("aria-pressed", String(now));
    }
  });
}

export function thumb(canvas, map, head, byRow) {
  const step = Math.max(1, Math.ceil(Math.max(map.rows, map.keys) / SIZE));
  const [high, wide] = [Math.ceil(map.rows / step), Math.ceil(map.keys / step)];
  const points = map.block(head, byRow, 0, 0, step, SIZE);
  const image = new ImageData(wide, high);
  const table = ramp();
  for (let y = 0; y < high; y++)
    for (let x = 0; x < wide; x++)
      image.data.set([...table[Math.round(255 * points[y * SIZE + x])], 255], 4 * (y * wide + x));
  Object.assign(canvas, { width: wide, height: high });
  canvas.getContext("2d").putImageData(image, 0, 0);
}
