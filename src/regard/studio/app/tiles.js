// A map that is too large to be sent: a canvas that shows tiles of it at any zoom, fetched as they come into view.
//
// Level 0 has a point for each weight; a point of level L is the largest of 2^L × 2^L weights. While a tile is fetched, the part
// of a coarser one that covers it is shown, so that a frame only ever draws images that are there. The coarsest tiles are
// computed row by row: until they are complete, `grow` shows the rows that are known.

import { canvasOf, imageOf, isDark } from "./page/colours.js";
import { firstWithin, onDrag, wheelZoom, zoomedCorner } from "./page/pan_zoom.js";

const TOGETHER = 3; // requests at a time
const MOST = 240; // tiles that are kept
const DECADES = 5; // the colours are logarithmic: from 10^-5 to 1
const LARGEST = 32; // pixels of a weight

export const share = (weight) => (weight > 0 ? Math.max(0, 1 + Math.log10(weight) / DECADES) : 0);

// `info` is a map as the server describes it; `fetchTile(level, row, column, signal)` resolves to a Float32Array.
export function tiledMap(canvas, { info, side, fetchTile, ready, picked, moved, failed }) {
  const view = { left: 0, top: 0, cell: 1 };
  const tiles = new Map(); // by name, in the order of use
  const loading = new Map();
  const pen = canvas.getContext("2d", { alpha: false });
  const [rows, keys] = [info.rows, info.keys];
  const stop = new AbortController();
  let [frame, dark, wanted, closed, marked] = [0, isDark(), [], false, null];

  const levelOf = (cell) => Math.min(info.levels - 1, Math.max(0, Math.ceil(Math.log2(1 / cell) - 1e-9)));
  const needsGrid = (level) => level > 0 && level >= info.grid_level;
  const size = () => ({ wide: canvas.clientWidth, high: canvas.clientHeight });

  function schedule() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (!closed) draw();
    });
  }

  function draw() {
    const { wide, high } = size();
    const sharp = devicePixelRatio || 1;
    if (canvas.width !== Math.round(wide * sharp) || canvas.height !== Math.round(high * sharp))
      Object.assign(canvas, { width: Math.round(wide * sharp), height: Math.round(high * sharp) });
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.fillStyle = getComputedStyle(canvas).getPropertyValue("--raised") || "#888888";
    pen.fillRect(0, 0, wide, high);
    const level = levelOf(view.cell);
    const missing = [];
    for (const [y, x] of inView(level)) {
      const found = nearest(level, y, x);
      if (found?.level !== level) missing.push([level, y, x]);
      if (found) paste(found, level, y, x);
    }
    if (marked !== null) drawMark(wide);
    const coarsest = info.levels - 1;
    wanted = [...inView(coarsest).map(([y, x]) => [coarsest, y, x]), ...missing].filter(([l, y, x]) => !isComplete(`${l}/${y}/${x}`));
    fetchNext();
    moved?.(view, level);
  }

  // A frame around the chosen row, or a line where rows are thin.
  function drawMark(wide) {
    const [y, across] = [(marked - view.top) * view.cell, Math.min(wide, (keys - view.left) * view.cell)];
    Object.assign(pen, { lineWidth: 1.5, strokeStyle: getComputedStyle(canvas).getPropertyValue("--accent") || "#888888" });
    pen.strokeRect(-2, y, across + (across < wide ? 2 : 4), Math.max(1, view.cell));
  }

  function inView(level) {
    const { wide, high } = size();
    const step = side * 2 ** level;
    const found = [];
    const [bottom, right] = [Math.min(rows, view.top + high / view.cell), Math.min(keys, view.left + wide / view.cell)];
    for (let y = Math.max(0, Math.floor(view.top / step)); y * step < bottom; y++)
      for (let x = Math.max(0, Math.floor(view.left / step)); x * step < right; x++) found.push([y, x]);
    return found;
  }

  // The tile itself, or the finest coarser one that covers it.
  function nearest(level, y, x) {
    for (let up = level; up < info.levels; up++) {
      const name = `${up}/${y >> (up - level)}/${x >> (up - level)}`;
      const tile = tiles.get(name);
      if (tile) {
        tiles.delete(name);
        tiles.set(name, tile);
        return tile;
      }
    }
    return null;
  }

  function paste(tile, level, y, x) {
    const step = side * 2 ** level; // weights of the wanted tile's side
    const point = 2 ** tile.level;
    const [top, left] = [y * step, x * step];
    const [tall, broad] = [Math.min(step, rows - top), Math.min(step, keys - left)];
    const from = { x: left / point - tile.x * side, y: top / point - tile.y * side };
    pen.drawImage(tile.image, from.x, from.y, broad / point, tall / point, (left - view.left) * view.cell, (top - view.top) * view.cell, broad * view.cell, tall * view.cell);
  }

  function fetchNext() {
    for (const [level, y, x] of wanted) {
      if (loading.size >= TOGETHER) return;
      const name = `${level}/${y}/${x}`;
      if (loading.has(name) || isComplete(name)) continue;
      const task = load(name, level, y, x).finally(() => {
        loading.delete(name);
        if (!closed) schedule();
      });
      loading.set(name, task);
    }
  }

  async function load(name, level, y, x) {
    try {
      if (needsGrid(level)) await ready;
      keep(name, level, y, x, await fetchTile(level, y, x, stop.signal), true);
      while (tiles.size > MOST) tiles.delete(tiles.keys().next().value);
    } catch (error) {
      if (error.name !== "AbortError") {
        wanted = [];
        failed(error);
        close();
      }
    }
  }

  const isComplete = (name) => Boolean(tiles.get(name)?.complete);

  function keep(name, level, y, x, points, complete) {
    if (!points.length) return; // none of its rows is known yet
    const wide = Math.min(side, Math.ceil(keys / 2 ** level) - x * side);
    tiles.set(name, { level, y, x, wide, points, complete, image: painted({ points, wide }) });
  }

  // The rows of the coarsest tiles that are known by now.
  async function grow() {
    const level = info.levels - 1;
    for (const [y, x] of inView(level)) {
      const name = `${level}/${y}/${x}`;
      if (closed || isComplete(name)) continue;
      const points = await fetchTile(level, y, x, stop.signal);
      if (!isComplete(name)) keep(name, level, y, x, points, false);
    }
    if (!closed) schedule();
  }

  const painted = ({ points, wide }) => canvasOf(imageOf(points.map(share), wide, dark));

  const least = () => Math.min(size().wide / keys, size().high / rows, 1);

  function place(next) {
    const { wide, high } = size();
    view.cell = Math.max(least(), Math.min(LARGEST, next.cell ?? view.cell));
    view.left = firstWithin(next.left ?? view.left, keys, wide / view.cell);
    view.top = firstWithin(next.top ?? view.top, rows, high / view.cell);
    schedule();
  }

  function zoom(times, at = { x: size().wide / 2, y: size().high / 2 }) {
    const cell = Math.max(least(), Math.min(LARGEST, view.cell * times));
    const point = { x: at.x / view.cell, y: at.y / view.cell }; // in weights
    place({ ...zoomedCorner(view, cell, point), cell });
  }

  function mark(row) {
    marked = row;
    schedule();
  }

  const fit = () => place({ cell: least(), left: 0, top: 0 });
  const pan = (x, y) => place({ left: view.left + x / view.cell, top: view.top + y / view.cell });

  function under(event) {
    const at = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - at.left, event.clientY - at.top];
    return { x, y, row: Math.floor(view.top + y / view.cell), key: Math.floor(view.left + x / view.cell) };
  }

  const on = (kind, listener, options = {}) => canvas.addEventListener(kind, listener, { ...options, signal: stop.signal });
  const clicked = (event) => {
    const { row, key } = under(event);
    if (row < rows && key < keys) picked(row, key);
  };
  onDrag(canvas, view, { dragged: place, clicked }, { signal: stop.signal });
  on(
    "wheel",
    (event) => {
      event.preventDefault();
      if (event.shiftKey) pan(event.deltaY, 0);
      else zoom(wheelZoom(event), under(event));
    },
    { passive: false },
  );
  on("keydown", (event) => {
    const { wide, high } = size();
    const moves = { ArrowUp: [0, -high / 8], ArrowDown: [0, high / 8], ArrowLeft: [-wide / 8, 0], ArrowRight: [wide / 8, 0], PageUp: [0, -high], PageDown: [0, high] };
    if (event.key in moves) pan(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") fit();
    else if (event.key === "Enter") picked(Math.floor(view.top + high / 2 / view.cell), Math.floor(view.left + wide / 2 / view.cell));
    else return;
    event.preventDefault();
  });
  const resized = new ResizeObserver(() => place({}));
  resized.observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener(
    "change",
    () => {
      dark = isDark();
      for (const tile of tiles.values()) tile.image = painted(tile);
      schedule();
    },
    { signal: stop.signal },
  );

  function close() {
    closed = true;
    stop.abort();
    resized.disconnect();
  }

  fit();
  return { view, place, zoom, pan, fit, mark, grow, close, settled: () => !loading.size && !wanted.some(([l, y, x]) => !isComplete(`${l}/${y}/${x}`)) };
}
