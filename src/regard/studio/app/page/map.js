// All rows × all keys. Only visible tiles are drawn: zoomed in, each weight with its number; zoomed out, the maximum of
// many weights per point.

import { canvasOf, colour, imageOf, ink, isDark } from "./colours.js";
import { MEAN, percent, shown } from "./data.js";
import { firstWithin, onDrag, wheelZoom, zoomedCorner } from "./pan_zoom.js";
import { pinned } from "./state.js";

const TILE = 256; // points of a tile's side
const KEPT = 64; // tiles
const LABELS = 13; // least pixels from one label to the next
const SLANTED = 18; // the same for slanted labels
const NUMBERS = 28; // least pixels of a cell with a number
const LARGEST = 64; // most pixels of a cell
const HIGH = 560; // most pixels of the map's height

export function showMap(box, store) {
  const canvas = box.querySelector("canvas");
  const pen = canvas.getContext("2d");
  const tiles = new Map();
  // cell: pixels of a weight; left, top: the weight at the corner; margins: space for labels
  const view = { cell: 1, left: 0, top: 0, across: 0, down: 0, margins: { left: 0, top: 0 } };
  let fitted = true;
  // Read where they may have changed, and not for every frame: reading them waits for the layout of the whole page.
  const style = { font: "", color: "", width: 0 };
  function readStyle() {
    const { font, color } = getComputedStyle(box);
    Object.assign(style, { font, color, width: box.clientWidth });
  }

  function measure({ map }) {
    if (!style.width) readStyle();
    pen.font = style.font;
    const widest = (names) => Math.min(120, names.slice(0, 2000).reduce((most, name) => Math.max(most, pen.measureText(shown(name)).width), 8));
    view.margins = { left: Math.ceil(widest(map.rowNames)) + 10, top: Math.ceil(widest(map.keyNames) * 0.87) + 16 };
  }

  function fit(map) {
    const room = Math.max(120, style.width - view.margins.left - 40);
    const wanted = Math.min(room / map.keys, (HIGH - view.margins.top) / map.rows);
    const readable = map.keys * SLANTED <= room ? SLANTED : 0; // small maps may be scrolled, and their labels read
    view.cell = Math.min(40, Math.max(wanted, readable), room / map.keys);
    Object.assign(view, { left: 0, top: 0 });
  }

  function place(map) {
    const { margins, cell } = view;
    const room = Math.max(120, style.width - margins.left - 40);
    view.across = Math.min(map.keys, room / cell);
    view.down = Math.min(map.rows, (HIGH - margins.top) / cell);
    view.left = firstWithin(view.left, map.keys, view.across);
    view.top = firstWithin(view.top, map.rows, view.down);
  }

  function tile(state, zoomed, y, x) {
    const { map, head } = state;
    const name = [state.look.maps.indexOf(map), head, state.byRow, isDark(), zoomed, y, x].join();
    if (!tiles.has(name)) {
      const step = 2 ** zoomed;
      const [top, left] = [y * TILE * step, x * TILE * step];
      const [high, wide] = [map.rows - top, map.keys - left].map((rest) => Math.min(TILE, Math.ceil(rest / step)));
      const points = map.block(head, state.byRow, top, left, step, high, wide);
      const drawn = canvasOf(imageOf(points, wide, isDark(), map.signed));
      if (tiles.size >= KEPT) tiles.delete(tiles.keys().next().value);
      tiles.set(name, drawn);
    }
    return tiles.get(name);
  }

  // In the next frame, once for all changes before it: drawing text waits for the layout of the page.
  let frame = 0;
  function schedule() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw(store.state);
    });
  }

  function draw(state) {
    const { map, head, row, key } = state;
    place(map);
    const { cell, left, top, across, down, margins } = view;
    const [width, height] = [Math.ceil(margins.left + across * cell + 40), Math.ceil(margins.top + down * cell + 2)];
    const sharp = devicePixelRatio || 1;
    Object.assign(canvas, { width: width * sharp, height: height * sharp });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.font = style.font;
    pen.fillStyle = style.color;
    labels(map);
    pen.save();
    pen.translate(margins.left, margins.top);
    pen.beginPath();
    pen.rect(0, 0, across * cell, down * cell);
    pen.clip();
    pen.imageSmoothingEnabled = false;
    const zoomed = Math.max(0, Math.ceil(Math.log2(1 / cell)));
    const point = 2 ** zoomed * cell; // pixels of a tile's point
    const side = TILE * 2 ** zoomed; // weights of a tile's side
    for (let y = Math.floor(top / side); y * side < Math.min(map.rows, top + down); y++)
      for (let x = Math.floor(left / side); x * side < Math.min(map.keys, left + across); x++) {
        const drawn = tile(state, zoomed, y, x);
        pen.drawImage(drawn, (x * side - left) * cell, (y * side - top) * cell, drawn.width * point, drawn.height * point);
      }
    if (cell >= NUMBERS && state.numbers) numbers(state);
    mark(row, key, state.pin);
    pen.restore();
  }

  function labels(map) {
    const { cell, left, top, across, down, margins } = view;
    const apart = (pixels) => Math.max(1, Math.ceil(pixels / cell));
    let every = apart(LABELS);
    const cut = (name, room) => {
      let text = shown(name);
      if (pen.measureText(text).width <= room) return text;
      while (text && pen.measureText(`${text}…`).width > room) text = [...text].slice(0, -1).join("");
      return `${text}…`;
    };
    Object.assign(pen, { textAlign: "right", textBaseline: "middle" });
    for (let row = Math.ceil(top / every) * every; row < Math.min(map.rows, top + down); row += every) {
      const y = margins.top + (row + 0.5 - top) * cell;
      if (y > margins.top) pen.fillText(cut(map.rowNames[row], margins.left - 8), margins.left - 6, y);
    }
    pen.textAlign = "left";
    every = apart(SLANTED);
    for (let key = Math.ceil(left / every) * every; key < Math.min(map.keys, left + across); key += every) {
      pen.save();
      pen.translate(margins.left + (key + 0.5 - left) * cell, margins.top - 5);
      pen.rotate(-Math.PI / 3);
      pen.fillText(cut(map.keyNames[key], 124), 0, 0);
      pen.restore();
    }
  }

  function numbers({ map, head, byRow }) {
    const { cell, left, top, across, down } = view;
    Object.assign(pen, { textAlign: "center", textBaseline: "middle", font: `${Math.min(14, cell * 0.42)}px sans-serif` });
    for (let row = Math.floor(top); row < Math.min(map.rows, top + down); row++)
      map.visit(head, row, Math.floor(left), Math.min(map.keys, Math.ceil(left + across)), (key, weight) => {
        if (Math.abs(weight) < 0.005) return;
        pen.fillStyle = ink(map.share(head, byRow, row, weight), isDark(), map.signed);
        pen.fillText(String(Math.round(100 * weight)), (key + 0.5 - left) * cell, (row + 0.5 - top) * cell);
      });
  }

  function mark(row, key, pin) {
    const { cell, left, top, across } = view;
    const line = (at, dashes) => {
      const y = (at - top) * cell;
      for (const [colourOf, width] of [[isDark() ? "#000" : "#fff", 4], [isDark() ? "#7db7ff" : "#c2410c", 2]]) {
        Object.assign(pen, { strokeStyle: colourOf, lineWidth: width });
        pen.setLineDash(dashes);
        pen.strokeRect(1, y + 1, across * cell - 2, Math.max(1, cell - 2));
      }
    };
    if (pin && pin.map === store.state.map) line(pin.row, [6, 4]);
    line(row, []);
    if (key !== null) pen.strokeRect((key - left) * cell + 1, (row - top) * cell + 1, Math.max(2, cell - 2), Math.max(2, cell - 2));
  }

  function reveal({ row, key }) {
    const along = (at, first, seen) => Math.max(at + 1 - seen, Math.min(first, at));
    view.top = along(row, view.top, view.down);
    if (key !== null) view.left = along(key, view.left, view.across);
  }

  function zoom(times, at = { x: view.across / 2, y: view.down / 2 }) {
    const { map } = store.state;
    const least = Math.min(view.cell, (style.width - view.margins.left - 40) / map.keys, (HIGH - view.margins.top) / map.rows);
    const cell = Math.max(least, Math.min(LARGEST, view.cell * times));
    Object.assign(view, zoomedCorner(view, cell, at), { cell });
    fitted = false;
    place(map);
    schedule();
  }

  function fitAgain() {
    fitted = true;
    measure(store.state);
    fit(store.state.map);
    place(store.state.map);
    schedule();
  }

  function under(event) {
    const at = canvas.getBoundingClientRect();
    const x = (event.clientX - at.left - view.margins.left) / view.cell;
    const y = (event.clientY - at.top - view.margins.top) / view.cell;
    const inside = x >= 0 && y >= 0 && x < view.across && y < view.down;
    return { x, y, inside, row: Math.floor(view.top + y), key: Math.floor(view.left + x) };
  }

  onDrag(canvas, view, {
    dragged(corner) {
      Object.assign(view, corner);
      schedule();
    },
    clicked(event) {
      const { inside, row } = under(event);
      if (inside) store.change({ ...pinned(store.state, row), row });
    },
    hovered(event) {
      const { inside, row, key } = under(event);
      if (inside) store.change({ row, key });
    },
  });
  canvas.addEventListener("pointerleave", () => store.change({ key: null }));
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(wheelZoom(event), under(event));
    },
    { passive: false },
  );
  box.addEventListener("keydown", (event) => {
    if (event.target !== box) return;
    const { row, key, map } = store.state;
    const page = Math.max(1, Math.floor(view.down) - 1);
    const moves = {
      ArrowUp: { row: row - 1 },
      ArrowDown: { row: row + 1 },
      ArrowLeft: { key: (key ?? 1) - 1 },
      ArrowRight: { key: (key ?? -1) + 1 },
      Home: { key: 0 },
      End: { key: map.keys - 1 },
      PageUp: { row: row - page },
      PageDown: { row: row + page },
    };
    if (event.key in moves) {
      store.change(moves[event.key]);
      reveal(store.state);
      schedule();
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      const at = { x: (key ?? view.left) + 0.5 - view.left, y: row + 0.5 - view.top };
      zoom(event.key === "-" ? 0.7 : 1.43, at);
    } else if (event.key === "0") fitAgain();
    else if (event.key === "Enter" || event.key === " ") store.change(pinned(store.state));
    else if (event.key === "Escape") store.change({ pin: null });
    else return;
    event.preventDefault();
  });

  store.listen((state, before) => {
    if (state.look !== before.look) tiles.clear();
    const same = state.map.name === before.map?.name && state.map.rows === before.map.rows && state.map.keys === before.map.keys;
    if (state.map !== before.map && !same) fitAgain();
    else {
      place(state.map);
      schedule();
    }
  });
  const styleChanged = () => {
    readStyle();
    if (fitted) fitAgain();
    else {
      place(store.state.map);
      schedule();
    }
  };
  new ResizeObserver(() => box.clientWidth !== style.width && styleChanged()).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", styleChanged);
  return { view, zoom, fit: fitAgain };
}

export function showLegend(box, store) {
  const [from, to] = box.querySelectorAll("span");
  const bar = box.querySelector("canvas");
  const paint = () => {
    Object.assign(bar, { width: 256, height: 1 });
    const pen = bar.getContext("2d");
    for (let i = 0; i < 256; i++) {
      pen.fillStyle = colour(i / 255);
      pen.fillRect(i, 0, 1, 1);
    }
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  paint();
  from.textContent = "0";
  store.listen(({ map, head, byRow }) => {
    const few = map.whole ? "" : `; only the ${map.top.k} largest weights of each row${head === MEAN ? " and head" : ""} are here`;
    to.textContent = (byRow ? "the largest of each row" : percent(map.most(head).all)) + few;
  });
}
