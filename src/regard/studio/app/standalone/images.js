// Images as the model reads them: Pillow's resampling (its fixed-point arithmetic, so that bytes are equal), the crop of
// the center, and normalization.

import { tensor } from "./tensor.js";

const BITS = 22; // of a coefficient's fraction, as in Pillow
const sinc = (x) => (x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI));

function cubic(x) {
  const [a, t] = [-0.5, Math.abs(x)];
  if (t < 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
  return t < 2 ? (((t - 5) * t + 8) * t - 4) * a : 0;
}

// Of each filter of Pillow: how far it reaches, and its value.
const FILTERS = {
  box: { support: 0.5, value: (x) => (x > -0.5 && x <= 0.5 ? 1 : 0) },
  bilinear: { support: 1, value: (x) => Math.max(0, 1 - Math.abs(x)) },
  hamming: { support: 1, value: (x) => (Math.abs(x) >= 1 ? 0 : sinc(x) * (0.54 + 0.46 * Math.cos(Math.PI * x))) },
  bicubic: { support: 2, value: cubic },
  lanczos: { support: 3, value: (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0) },
};

// For each pixel of the result, the first pixel that it reads and the integer coefficients of those from there on.
function coefficients(from, to, { support, value }) {
  const scale = from / to;
  const wide = Math.max(1, scale);
  const reach = support * wide;
  return Array.from({ length: to }, (_, i) => {
    const center = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - reach + 0.5));
    const last = Math.min(from, Math.trunc(center + reach + 0.5));
    const weights = Array.from({ length: last - first }, (_, j) => value((j + first - center + 0.5) / wide));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const fixed = (weight) => Math.trunc((weight < 0 ? -0.5 : 0.5) + weight * 2 ** BITS);
    return { first, weights: weights.map((weight) => fixed(total ? weight / total : weight)) };
  });
}

// One pass along rows of `width` pixels of three channels; the result is transposed, so that a second pass does columns.
function pass(pixels, width, height, to, filter) {
  const out = new Uint8Array(height * to * 3);
  coefficients(width, to, filter).forEach(({ first, weights }, x) => {
    for (let y = 0; y < height; y++)
      for (let channel = 0; channel < 3; channel++) {
        let sum = 2 ** (BITS - 1);
        for (let j = 0; j < weights.length; j++) sum += pixels[(y * width + first + j) * 3 + channel] * weights[j];
        out[(x * height + y) * 3 + channel] = Math.min(255, Math.max(0, Math.floor(sum / 2 ** BITS)));
      }
  });
  return out;
}

function transposed(pixels, width, height) {
  const out = new Uint8Array(pixels.length);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      for (let channel = 0; channel < 3; channel++) out[(x * height + y) * 3 + channel] = pixels[(y * width + x) * 3 + channel];
  return out;
}

// The pixel that each pixel of the result is a copy of; Pillow adds up the steps, with their rounding errors.
function nearestPlaces(size, side) {
  const step = size / side;
  let at = step * 0.5;
  return Array.from({ length: side }, () => {
    const place = Math.min(size - 1, Math.trunc(at));
    at += step;
    return place;
  });
}

function nearest(pixels, width, height, side) {
  const out = new Uint8Array(side * side * 3);
  const [rows, columns] = [nearestPlaces(height, side), nearestPlaces(width, side)];
  rows.forEach((y, i) =>
    columns.forEach((x, j) => out.set(pixels.subarray((y * width + x) * 3, (y * width + x + 1) * 3), (i * side + j) * 3)),
  );
  return out;
}

// Pixels (height, width, 3) resized to a square. As in Pillow 13, tall images are resized along their columns first.
export function resized(pixels, width, height, side, name) {
  if (width === side && height === side) return pixels;
  if (name === "nearest") return nearest(pixels, width, height, side);
  const along = (from, wide, high) => (wide === side ? transposed(from, wide, high) : pass(from, wide, high, side, FILTERS[name]));
  if (side >= height || height + side <= 2 * width) return along(along(pixels, width, height), height, side);
  const turned = along(transposed(pixels, width, height), height, width); // (side, width)
  return transposed(along(turned, width, side), side, side);
}

// The image of a source, as regard.data.images.load_image gives it: (size, size, 3).
export function squared(pixels, width, height, { size, resize, crop_from: whole }) {
  if (width === size && height === size) return pixels;
  const side = whole ?? size;
  const all = resized(pixels, width, height, side, resize);
  if (side === size) return all;
  const first = Math.floor((side - size) / 2);
  const out = new Uint8Array(size * size * 3);
  for (let y = 0; y < size; y++) {
    const at = ((first + y) * side + first) * 3;
    out.set(all.subarray(at, at + size * 3), y * size * 3);
  }
  return out;
}

// The model's input (1, 3, Y, X).
export function normalized(pixels, { size, mean, std }) {
  const out = tensor("f", [1, 3, size, size]);
  const halves = [...mean, ...std].every((each) => each === 0.5);
  for (let i = 0; i < size * size; i++)
    for (let channel = 0; channel < 3; channel++) {
      const value = pixels[i * 3 + channel];
      const at = channel * size * size + i;
      out.data[at] = halves ? Math.fround(value / 127.5) - 1 : (Math.fround(Math.fround(value / 255) - Math.fround(mean[channel]))) / Math.fround(std[channel]);
    }
  return out;
}

// The pixels of RGBA data over white, as Pillow composes them.
export function overWhite(rgba) {
  const out = new Uint8Array((rgba.length / 4) * 3);
  for (let i = 0; i < rgba.length / 4; i++) {
    const alpha = rgba[4 * i + 3];
    for (let channel = 0; channel < 3; channel++) {
      const sum = rgba[4 * i + channel] * alpha + 255 * (255 - alpha);
      out[3 * i + channel] = alpha === 255 ? rgba[4 * i + channel] : Math.round(sum / 255);
    }
  }
  return out;
}
