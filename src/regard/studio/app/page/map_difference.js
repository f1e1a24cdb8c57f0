// The difference of two attention maps of one size, as a map that can be drawn.

// The weights of `head` of `a`, less those of `otherHead` of `b`, in pairs of rows [row of a, row of b]: those at which
// outputs of different lengths are aligned. null where the keys differ, or where there is no pair.
export function differenceMap(a, head, b, otherHead, pairs) {
  if (a.keys !== b.keys || !pairs.length) return null;
  const values = new Float32Array(pairs.length * a.keys);
  pairs.forEach(([first, second], row) => {
    const [one, other] = [a.row(head, first), b.row(otherHead, second)];
    for (let key = 0; key < a.keys; key++) values[row * a.keys + key] = one[key] - other[key];
  });
  const all = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const map = { ...a, name: `${a.name} − ${b.name}`, heads: 1, numbers: [0], whole: true, signed: true, pairs, rows: pairs.length, rowNames: pairs.map(([row]) => a.rowNames[row]) };
  map.visit = (_, row, low, high, visit) => {
    for (let key = low; key < high; key++) visit(key, values[row * a.keys + key]);
  };
  map.row = (_, row) => values.slice(row * a.keys, (row + 1) * a.keys);
  map.most = () => ({ all, rows: new Float32Array(pairs.length).fill(all) });
  map.share = (_, byRow, row, value) => value / (all || 1);
  // Of many weights, the one that differs most.
  map.block = (_, byRow, firstRow, firstKey, step, high, wide) => {
    const points = new Float32Array(high * wide);
    for (let row = firstRow; row < Math.min(pairs.length, firstRow + step * high); row++)
      for (let key = firstKey; key < Math.min(a.keys, firstKey + step * wide); key++) {
        const at = Math.floor((row - firstRow) / step) * wide + Math.floor((key - firstKey) / step);
        const share = values[row * a.keys + key] / (all || 1);
        if (Math.abs(share) > Math.abs(points[at])) points[at] = share;
      }
    return points;
  };
  return map;
}

// The cells that differ most: [{row, key, value}].
export function largest(map, count) {
  const cells = [];
  for (let row = 0; row < map.rows; row++) map.visit(0, row, 0, map.keys, (key, value) => value && cells.push({ row, key, value }));
  return cells.sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, count);
}
