// The source image, darkened except for the regions a row attends to.

import { headName, percent, shown } from "./data.js";
import { make } from "./state.js";

const SHADE = 0.75; // how much of the light is removed where the weight is zero
const LARGEST = 12; // regions whose numbers are shown
const READABLE = 48; // least pixels of a region with a number, of a picture that is 640 wide

export function attendsToImage(map) {
  return map.key_side === "source" && map.input?.kind === "image";
}

// What to draw on each region of the image: its shade, and the number if it is one of the largest.
export function veil(source, line) {
  const weights = Array.from(line.slice(source.units));
  const most = Math.max(...weights, 1e-12);
  const least = weights.toSorted((a, b) => b - a)[Math.min(LARGEST, weights.length) - 1];
  const [rows, columns] = source.grid;
  return weights.map((weight, i) => ({
    x: (i % columns) / columns,
    y: Math.floor(i / columns) / rows,
    shade: SHADE * (1 - weight / most),
    number: weight >= least && weight >= 0.005 ? String(Math.round(100 * weight)) : "",
  }));
}

export function showPicture(box, store) {
  const views = [];
  const pointed = (event) => {
    const { map } = store.state;
    if (map.query_side !== "source" || !attendsToImage(map)) return;
    const [rows, columns] = map.input.grid;
    const at = event.currentTarget.getBoundingClientRect();
    const part = (place, size, count) => Math.max(0, Math.min(count - 1, Math.floor((place / size) * count)));
    const y = part(event.clientY - at.top, at.height, rows);
    const x = part(event.clientX - at.left, at.width, columns);
    if (map.rows === map.keys) store.change({ row: map.input.units + y * columns + x });
  };
  function build() {
    views.push(frame(), frame());
    box.append(...views.map((view) => view.figure));
    views[0].canvas.addEventListener("pointermove", pointed);
  }
  store.listen((state) => {
    const { pin } = state;
    box.hidden = !attendsToImage(state.map);
    if (box.hidden) return;
    if (!views.length) build();
    draw(views[0], state, state.map, state.head, state.row, "");
    views[1].figure.hidden = !(pin && attendsToImage(pin.map));
    if (!views[1].figure.hidden) draw(views[1], state, pin.map, pin.head, pin.row, "pinned: ");
  });
}

function frame() {
  const picture = make("img", { alt: "" });
  const canvas = make("canvas", { role: "img" });
  const caption = make("figcaption");
  return { picture, canvas, caption, figure: make("figure", {}, make("div", { className: "stack" }, picture, canvas), caption) };
}

function draw(view, state, map, head, row, before) {
  const source = map.input;
  const width = 640;
  const height = Math.round((width * source.height) / source.width);
  const { picture, canvas } = view;
  if (picture.src !== source.data) picture.src = source.data;
  Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d");
  const [rows, columns] = source.grid;
  const [high, wide] = [height / rows, width / columns];
  const line = map.row(head, row);
  Object.assign(pen, { textAlign: "center", textBaseline: "middle", font: `600 ${Math.min(26, high * 0.45)}px sans-serif` });
  for (const { x, y, shade, number } of veil(source, line)) {
    pen.fillStyle = `rgba(0, 0, 0, ${shade})`;
    pen.fillRect(x * width, y * height, wide + 0.5, high + 0.5);
    if (!number || !state.numbers || Math.min(high, wide) < READABLE) continue;
    Object.assign(pen, { strokeStyle: "#000", fillStyle: "#fff", lineWidth: 4, lineJoin: "round" });
    pen.strokeText(number, x * width + wide / 2, y * height + high / 2);
    pen.fillText(number, x * width + wide / 2, y * height + high / 2);
  }
  const name = `${before}${shown(map.rowNames[row])}, ${map.name}, ${headName(map, head)}`;
  view.caption.textContent = name;
  const best = line.slice(source.units).reduce((most, weight, i, all) => (weight > all[most] ? i : most), 0);
  const told = `row ${Math.floor(best / columns) + 1}, column ${(best % columns) + 1}`;
  canvas.setAttribute("aria-label", `${name}: most on the region in ${told}, ${percent(line[source.units + best])}`);
}
