// Saving views as files: SVG, and PNG made from it; always on white.

import { colour, ink } from "./colours.js";
import { headName, heaviest, percent, shown } from "./data.js";
import { imageOfMap } from "./map_image.js";
import { attendsToImage, veil } from "./picture.js";
import { attendsToSeries, extent, linesOf, pictureOf, seriesHeight, shadeOf, signalHeight, spansOf, timesOf } from "./series.js";

const CELLS = 4096; // rectangles; larger maps become one image
const POINTS = 1024; // pixels of that image's side
const WORDS = 60; // words on each side of a drawing with lines
const LINE = 24; // pixels from one word to the next
const FAINT = 0.1; // the least share of its row's largest weight that gets a line
const FONT = "system-ui, sans-serif";

function draw(kind, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function sheet(width, height, title, ...parts) {
  const size = { width: Math.ceil(width), height: Math.ceil(height), viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}` };
  const ground = draw("rect", { width: "100%", height: "100%", fill: "#ffffff" });
  return draw("svg", { ...size, "font-family": FONT, "font-size": 13 }, draw("title", {}, title), ground, ...parts);
}

const cut = (name, most = 18) => ([...shown(name)].length > most ? `${[...shown(name)].slice(0, most - 1).join("")}…` : shown(name));
const width = (names) => 8 + 7.5 * names.reduce((most, name) => Math.max(most, [...cut(name)].length), 1);
const titled = ({ map, head }) => `${map.name}, ${headName(map, head)}`;

// The visible part of the map.
export function drawnMap(state, view) {
  const { map, head } = state;
  const [top, left] = [Math.floor(view.top), Math.floor(view.left)];
  const rows = map.rowNames.slice(top, Math.ceil(view.top + view.down));
  const keys = map.keyNames.slice(left, Math.ceil(view.left + view.across));
  const { cell } = view;
  const most = state.byRow ? "the largest of each row" : percent(map.most(head).all);
  const [x0, y0] = [width(rows) + 4, width(keys) * 0.87 + 34];
  const parts = [draw("text", { x: 8, y: 18, "font-weight": 600 }, `${titled(state)} (darkest: ${most})`)];
  const apart = (pixels) => Math.max(1, Math.ceil(pixels / cell));
  rows.forEach((name, row) => {
    const place = { x: x0 - 5, y: y0 + (row + 0.5) * cell, "text-anchor": "end", "dominant-baseline": "central" };
    if (row % apart(14) === 0) parts.push(draw("text", place, cut(name)));
  });
  keys.forEach((name, key) => {
    const at = `translate(${x0 + (key + 0.6) * cell} ${y0 - 5}) rotate(-60)`;
    if (key % apart(18) === 0) parts.push(draw("text", { transform: at }, cut(name)));
  });
  if (rows.length * keys.length <= CELLS)
    rows.forEach((_, row) =>
      map.visit(head, top + row, left, left + keys.length, (key, weight) => {
        const [x, y] = [x0 + (key - left) * cell, y0 + row * cell];
        const share = map.share(head, state.byRow, top + row, weight);
        parts.push(draw("rect", { x, y, width: cell, height: cell, fill: colour(share, false) }));
        if (!state.numbers || cell < 24 || weight < 0.005) return;
        const middle = { x: x + cell / 2, y: y + cell / 2, "text-anchor": "middle", "dominant-baseline": "central" };
        const style = { "font-size": Math.min(13, cell * 0.42), fill: ink(share, false) };
        parts.push(draw("text", { ...middle, ...style }, String(Math.round(100 * weight))));
      }),
    );
  else {
    const seen = { top, left, rows: rows.length, keys: keys.length };
    const { image, step } = imageOfMap(map, head, state.byRow, seen, POINTS, false);
    const href = painted(image);
    const frame = draw("svg", { x: x0, y: y0, width: keys.length * cell, height: rows.length * cell });
    const size = { width: image.width * step * cell, height: image.height * step * cell, preserveAspectRatio: "none" };
    frame.append(draw("image", { ...size, href, "image-rendering": "pixelated" }));
    parts.push(frame);
  }
  const frame = { x: x0, y: y0, width: keys.length * cell, height: rows.length * cell, fill: "none", stroke: "#888888" };
  return sheet(x0 + keys.length * cell + width(keys) * 0.5 + 8, y0 + rows.length * cell + 8, titled(state), ...parts, draw("rect", frame));
}

function painted(image) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: image.width, height: image.height });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas.toDataURL();
}

// The attention of the row: on the image, over time, or as lines between words.
export function drawnRow(state) {
  if (attendsToSeries(state.map)) return drawnSeries(state);
  return attendsToImage(state.map) ? drawnPicture(state) : drawnLines(state);
}

function drawnPicture(state) {
  const { map, head, row } = state;
  const source = map.input;
  const across = 480;
  const down = Math.round((across * source.height) / source.width);
  const [rows, columns] = source.grid;
  const [high, wide] = [down / rows, across / columns];
  const parts = [draw("image", { width: across, height: down, href: source.data, preserveAspectRatio: "none" })];
  for (const { x, y, shade, number } of veil(source, map.row(head, row))) {
    const place = { x: x * across, y: y * down };
    parts.push(draw("rect", { ...place, width: wide, height: high, "fill-opacity": shade.toFixed(3) }));
    if (!number || !state.numbers) continue;
    const middle = { x: place.x + wide / 2, y: place.y + high / 2, "text-anchor": "middle", "dominant-baseline": "central" };
    const style = { fill: "#ffffff", stroke: "#000000", "stroke-width": 3, "paint-order": "stroke", "font-weight": 600 };
    parts.push(draw("text", { ...middle, ...style, "font-size": Math.min(18, high * 0.45) }, number));
  }
  const under = { x: across / 2, y: down + 22, "text-anchor": "middle" };
  parts.push(draw("text", under, `${cut(map.rowNames[row], 40)} (${titled(state)})`));
  return sheet(across, down + 34, `${shown(map.rowNames[row])}: ${titled(state)}`, ...parts);
}

function drawnSeries(state) {
  const { map, head, row } = state;
  const source = map.input;
  const across = 720;
  const signal = signalHeight(source);
  const spans = spansOf(source, map.row(head, row), across);
  const parts = [];
  if (source.picture) parts.push(draw("image", { width: across * extent(source), height: signal, href: painted(pictureOf(source, false)), preserveAspectRatio: "none" }));
  else
    linesOf(source, across).forEach((points, channel) => {
      const path = points.flatMap(([x, low, high]) => (low === high ? [[x, low]] : [[x, low], [x, high]])).map((point) => point.map((value) => value.toFixed(1)).join(","));
      parts.push(draw("polyline", { points: path.join(" "), fill: "none", stroke: shadeOf(channel), "stroke-width": 1.5 }));
    });
  for (const [x, width, share] of spans) parts.push(draw("rect", { x: x.toFixed(2), y: signal + 4, width: (width + 0.05).toFixed(2), height: 22, fill: colour(share, false) }));
  for (const [x, name] of timesOf(source, across)) parts.push(draw("text", { x: x.toFixed(1), y: signal + 40, "font-size": 11 }, cut(name)));
  const high = seriesHeight(source) + 30;
  parts.push(draw("text", { x: 0, y: high - 8, "font-weight": 600 }, `${cut(map.rowNames[row], 40)} (${titled(state)})`));
  return sheet(across, high, `${shown(map.rowNames[row])}: ${titled(state)}`, ...parts);
}

function drawnLines(state) {
  const { map, head, row } = state;
  const around = (at, count) => Math.max(0, Math.min(at - WORDS / 2, count - WORDS));
  const line = map.row(head, row);
  const [firstRow, firstKey] = [around(row, map.rows), around(heaviest(line, 1)[0] ?? 0, map.keys)];
  const rows = map.rowNames.slice(firstRow, firstRow + WORDS);
  const keys = map.keyNames.slice(firstKey, firstKey + WORDS);
  const [from, to] = [width(rows) + 8, width(rows) + 208];
  const y = (i) => 44 + i * LINE;
  const parts = [draw("text", { x: 8, y: 18, "font-weight": 600 }, titled(state))];
  const order = [...rows.keys()].sort((a, b) => (a + firstRow === row) - (b + firstRow === row)); // the current one on top
  for (const i of order) {
    const now = i + firstRow === row;
    map.visit(head, i + firstRow, firstKey, firstKey + keys.length, (key, weight) => {
      const share = map.share(head, true, i + firstRow, weight);
      if (share < FAINT) return;
      const ends = { x1: from, y1: y(i), x2: to, y2: y(key - firstKey) };
      const style = { stroke: now ? "#c2410c" : "#00224e", "stroke-opacity": (now ? share : share / 4).toFixed(3) };
      parts.push(draw("line", { ...ends, ...style, "stroke-width": (1 + 2.5 * share).toFixed(2) }));
    });
    const bold = now ? { "font-weight": 700, fill: "#9a3412" } : {};
    parts.push(draw("text", { x: from - 6, y: y(i), "text-anchor": "end", "dominant-baseline": "central", ...bold }, cut(rows[i])));
  }
  keys.forEach((name, i) => {
    const weight = line[i + firstKey];
    const told = state.numbers && weight >= 0.005 ? `${cut(name)}  ${percent(weight)}` : cut(name);
    parts.push(draw("text", { x: to + 6, y: y(i), "dominant-baseline": "central" }, told));
  });
  return sheet(to + width(keys) + 60, y(Math.max(rows.length, keys.length)) - 6, titled(state), ...parts);
}

export function svgText(drawn) {
  return new XMLSerializer().serializeToString(drawn);
}

async function asPng(drawn, times = 2) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(drawn))}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: times * drawn.getAttribute("width"), height: times * drawn.getAttribute("height") });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

export async function save(drawn, name, form) {
  saveFile(form === "png" ? await asPng(drawn) : new Blob([svgText(drawn)], { type: "image/svg+xml" }), `${name}.${form}`);
}

export function saveFile(content, name) {
  const link = document.createElement("a");
  Object.assign(link, { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
