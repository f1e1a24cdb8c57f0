// Colors of weights, from the page's background on: darker on light pages, lighter on dark ones. Brightness is monotonic,
// steps are about equal to the eye (CIELAB), and blue against yellow is told apart without red and green.

const LIGHT = "fffef8 faf7e1 f6efca f2e8b3 e9dd9d d1c58a b9ae78 a8a075 989375 888674 777973 686b71 555d6d 3f4e65 2a3f5e 153056 00224e";
const DARK = "171a20 1a2536 1c2f4e 1d3967 31486c 46566f 5c6571 707473 838374 959175 a8a074 b9ae71 c8ba6c d6c765 e4d35d f2df53 ffea46";

// Differences: blue where the second is larger, orange where the first is.
const LIGHT_SIGNED = "1b4a9c 3460ab 4e77bb 6a90cb 86a9db a4bee5 c1d2eb dee6f1 fbfaf6 f8e7d5 f5d4b5 f2c296 edb079 d9935d c57641 b25b25 a04200";
const DARK_SIGNED = "8fbaff 769fe1 5e85c3 476ca6 34558a 2d466e 263752 1e2838 171a20 312724 493425 623f25 7a4a23 945a25 b77437 da8f49 ffab5c";

let scheme = null; // asked for once: a color is chosen for every weight that is drawn

export function isDark() {
  scheme ??= matchMedia("(prefers-color-scheme: dark)");
  return scheme.matches;
}

const tables = new Map();

// 256 colors as [r, g, b].
export function ramp(dark = isDark(), signed = false) {
  const name = `${dark} ${signed}`;
  if (!tables.has(name)) {
    const [light, night] = signed ? [LIGHT_SIGNED, DARK_SIGNED] : [LIGHT, DARK];
    const stops = (dark ? night : light).split(" ").map((stop) => [0, 2, 4].map((i) => parseInt(stop.slice(i, i + 2), 16)));
    const table = Array.from({ length: 256 }, (_, i) => {
      const at = (i / 255) * (stops.length - 1);
      const low = Math.min(stops.length - 2, Math.floor(at));
      return stops[low].map((value, channel) => Math.round(value + (stops[low + 1][channel] - value) * (at - low)));
    });
    tables.set(name, table);
  }
  return tables.get(name);
}

const place = (share) => Math.max(0, Math.min(255, Math.round(255 * share)));

// The place of a share in its ramp: from 0 to 1, or from −1 to 1 of a difference.
export const level = (share, signed) => place(signed ? (share + 1) / 2 : share);

export function colour(share, dark = isDark()) {
  return `#${ramp(dark)[place(share)].map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

const images = new Map();

// The ramp as pixels of an image.
export function pixels(dark = isDark(), signed = false) {
  const name = `${dark} ${signed}`;
  if (!images.has(name)) images.set(name, Uint32Array.from(ramp(dark, signed), ([red, green, blue]) => 0xff000000 | (blue << 16) | (green << 8) | red));
  return images.get(name);
}

// Shares, row by row with `wide` of them in each, as an image.
export function imageOf(shares, wide, dark = isDark(), signed = false) {
  const image = new ImageData(wide, shares.length / wide);
  const [table, drawn] = [pixels(dark, signed), new Uint32Array(image.data.buffer)];
  for (let i = 0; i < shares.length; i++) drawn[i] = table[level(shares[i], signed)];
  return image;
}

// An image as a canvas, which others are drawn from.
export function canvasOf(image) {
  const canvas = new OffscreenCanvas(image.width, image.height);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Black or white, whichever is readable on the color of this share.
export function ink(share, dark = isDark(), signed = false) {
  const linear = ramp(dark, signed)[level(share, signed)].map((value) => (value / 255) ** 2.2);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.18 ? "#000000" : "#ffffff";
}
