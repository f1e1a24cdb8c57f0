// A color ramp of monotonic brightness, from the page's background on: darker on light pages, lighter on dark ones.

const LIGHT = ["#fffef8", "#efe3a2", "#b5aa74", "#5f6470", "#00224e"];
const DARK = ["#171a20", "#1d3a68", "#646a72", "#b3a873", "#ffea46"];

export function isDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

// Differences: blue where the second is larger, orange where the first is; told apart without red and green.
const LIGHT_SIGNED = ["#1b4a9c", "#8fb0e0", "#fbfaf6", "#eeb27a", "#a04200"];
const DARK_SIGNED = ["#8fbaff", "#35588f", "#171a20", "#8a5220", "#ffab5c"];

const tables = new Map();

// 256 colors as [r, g, b].
export function ramp(dark = isDark(), signed = false) {
  const name = `${dark} ${signed}`;
  if (!tables.has(name)) {
    const [light, night] = signed ? [LIGHT_SIGNED, DARK_SIGNED] : [LIGHT, DARK];
    const stops = (dark ? night : light).map((stop) => [1, 3, 5].map((i) => parseInt(stop.slice(i, i + 2), 16)));
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

// Black or white, whichever is readable on the color of this share.
export function ink(share, dark = isDark(), signed = false) {
  const linear = ramp(dark, signed)[level(share, signed)].map((value) => (value / 255) ** 2.2);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.18 ? "#000000" : "#ffffff";
}
