// Every head of every map: a thumbnail and its measures; sorted by any of them.

import { imageOfMap } from "./map_image.js";
import { make } from "./state.js";

const SIZE = 48; // points of a thumbnail

export function showHeads(table, store) {
  let [lines, headings, sort, up, near] = [[], [], null, false, false];

  // Another look at the same heads keeps the elements of their lines.
  function build({ look }) {
    const next = look.maps.flatMap((map, place) => map.summary.map((summary, head) => ({ map, head, summary, order: [place, head] })));
    const measures = Object.keys(next[0].summary).filter((name) => name !== "head");
    if (!headings.length) buildHeadings(measures);
    const same = next.length === lines.length && next.every((line, i) => nameOf(line) === nameOf(lines[i]));
    if (same) next.forEach((line, i) => Object.assign(lines[i], line));
    else lines = next.map((line) => buildLine(line, measures));
    if (same && !near) fillLater();
    else fill();
    if (!same) order();
  }

  function fill() {
    table.removeAttribute("aria-busy");
    for (const { summary, cells } of lines)
      for (const cell of cells) {
        const text = shownNumber(summary[cell.name]);
        if (text !== cell.text) cell.element.textContent = cell.text = text;
      }
    if (sort !== null) order();
  }

  // A table that is not seen is filled after the frame that shows the rest: to lay out its cells takes longer than that.
  let filling = 0;
  function fillLater() {
    table.setAttribute("aria-busy", "true");
    filling ||= requestAnimationFrame(() =>
      setTimeout(() => {
        filling = 0;
        fill();
      }),
    );
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
    line.button = make("button", { type: "button" }, line.canvas, make("span", { textContent: nameOf(line) }));
    line.button.addEventListener("click", () => store.change({ map: line.map, head: line.head }));
    line.cells = measures.map((name) => ({ name, text: null, element: make("td") }));
    line.row = make("tr", {}, make("th", { scope: "row" }, line.button), ...line.cells.map(({ element }) => element));
    return line;
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

  // Thumbnails are painted when they come near what is seen of the page: there may be hundreds, and edits change them all.
  let stale = false;
  const paintAll = () => {
    stale = false;
    for (const { canvas, map, head } of lines) thumb(canvas, map, head, store.state.byRow);
  };
  const paint = () => (near ? paintAll() : (stale = true));
  const watch = new IntersectionObserver(
    (entries) => {
      near = entries.at(-1).isIntersecting;
      if (near && stale) paintAll();
    },
    { rootMargin: "50%" },
  );
  watch.observe(table);
  addEventListener("beforeprint", () => {
    if (stale) paintAll();
    fill();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  store.listen((state, before) => {
    if (state.look.incomplete) return table.setAttribute("aria-busy", "true"); // most of its maps are those before
    if (state.look !== before.look) build(state);
    if (state.look !== before.look || state.byRow !== before.byRow) paint();
    for (const line of lines) {
      const now = line.map === state.map && (line.head === state.head || line.map.heads === 1);
      line.button.setAttribute("aria-pressed", String(now));
    }
  });
}

const nameOf = ({ map, summary }) => `${map.name}, head ${summary.head}`;
const shownNumber = (number) => (number === null ? "–" : number.toFixed(number >= 100 ? 0 : 3));

export function thumb(canvas, map, head, byRow) {
  const whole = { top: 0, left: 0, rows: map.rows, keys: map.keys };
  const { image } = imageOfMap(map, head, byRow, whole, SIZE);
  const { width, height } = image;
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  canvas.getContext("2d").putImageData(image, 0, 0);
}
