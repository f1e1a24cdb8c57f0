// A color ramp of monotonic brightness, from the page's background on: darker on light pages, lighter on dark ones.

const LIGHT = ["#fffef8", "#efe3a2", "#b5aa74", "#5f6470", "#00224e"];
const DARK = ["#171a20", "#1d3a68", "#646a72", "#b3a873", "#ffea46"];

export function isDark() {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

const tables = new Map();

// 256 colors as [r, g, b].
export function ramp(dark = isDark()) {
  if (!tables.has(dark)) {
    const stops = (dark ? DARK : LIGHT).map((stop) => [1, 3, 5].map((i) => parseInt(stop.slice(i, i + 2), 16)));
    const table = Array.from({ length: 256 }, (_, i) => {
      const at = (i / 255) * (stops.length - 1);
      const low = Math.min(stops.length - 2, Math.floor(at));
      return stops[low].map((value, channel) => Math.round(value + (stops[low + 1][channel] - value) * (at - low)));
    });
    tables.set(dark, table);
  }
  return tables.get(dark);
}

const place = (share) => Math.max(0, Math.min(255, Math.round(255 * share)));

export function colour(share, dark = isDark()) {
  return `#${ramp(dark)[place(share)].map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

// Black or white, whichever is readable on the color of this share.
export function ink(share, dark = isDark()) {
  const linear = ramp(dark)[place(share)].map((value) => (value / 255) ** 2.2);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.18 ? "#000000" : "#ffffff";
}
