// A part of an attention map as an image, for drawings that show it whole: thumbnails, and saved files of large maps.

import { imageOf, isDark } from "./colours.js";

// The image of `part` (top, left, rows, keys) with at most `most` points on a side; a point is the largest of `step` × `step` weights.
export function imageOfMap(map, head, byRow, part, most, dark = isDark()) {
  const step = Math.max(1, Math.ceil(Math.max(part.rows, part.keys) / most));
  const high = Math.ceil(part.rows / step);
  const wide = Math.ceil(part.keys / step);
  const points = map.block(head, byRow, part.top, part.left, step, high, wide);
  return { image: imageOf(points, wide, dark), step };
}
