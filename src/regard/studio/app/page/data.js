// The data of a look, from the JSON of `Look.to_json`; independent of the page.

export const MEAN = -1; // the mean over all heads

export function readLook(told) {
  const names = told.sources.map(sourceNames);
  const output = { tokens: told.output?.tokens, read: told.output?.read };
  const read = (each) => readMap(each, { ...output, source: names[each.source] }, told.sources[each.source]);
  return { ...told, maps: told.maps.map(read) };
}

function sourceNames(source) {
  if (source.kind !== "image") return source.tokens;
  const [rows, columns] = source.grid;
  const regions = Array.from({ length: rows * columns }, (_, i) => `${Math.floor(i / columns) + 1},${(i % columns) + 1}`);
  return [...Array(source.units).fill("[CLS]"), ...regions];
}

function readMap(told, sides, input) {
  const side = (name) => (name === "output" ? (told.kind === "self" ? sides.read : sides.tokens) : sides[name]) ?? [];
  const [heads, rows, across] = (told.weights ?? told.top).shape;
  const dense = Boolean(told.weights);
  const read = once(() => unpacked(told.weights?.data ?? told.top.weights, Uint16Array)); // of most maps, not before it is chosen
  const where = dense ? null : unpacked(told.top.keys, Uint32Array);
  const keys = dense ? across : where.reduce((most, key) => Math.max(most, key + 1), side(told.key_side).length);
  const which = told.rows ?? Array.from({ length: rows }, (_, i) => i);
  const asks = side(told.query_side);
  const found = {
    ...told,
    input, // the source that it reads: tokens, or an image
    heads,
    rows,
    keys,
    whole: dense, // false: only the largest weights of each row
    rowNames: which.map((row) => asks[row] ?? String(row + 1)),
    keyNames: side(told.key_side).length === keys ? side(told.key_side) : Array.from({ length: keys }, (_, i) => String(i + 1)),
    numbers: told.summary.map((each) => each.head),
  };

  // Calls visit(key, weight) once for each known key from `low` to `high`.
  found.visit = (head, row, low, high, visit) => {
    if (dense) return visitDense(head, row, low, high, visit);
    const weights = read();
    const sums = head === MEAN && heads > 1 ? new Map() : null;
    const [first, last] = head === MEAN ? [0, heads - 1] : [head, head];
    for (let each = first; each <= last; each++) {
      const start = (each * rows + row) * across;
      for (let i = start; i < start + across; i++) {
        const key = where[i];
        if (!weights[i] || key < low || key >= high) continue;
        if (sums) sums.set(key, (sums.get(key) ?? 0) + weights[i] / 65535 / heads);
        else visit(key, weights[i] / 65535);
      }
    }
    sums?.forEach((weight, key) => visit(key, weight));
  };

  function visitDense(head, row, low, high, visit) {
    const weights = read();
    for (let key = low; key < high; key++) {
      if (head !== MEAN) visit(key, weights[(head * rows + row) * across + key] / 65535);
      else {
        let sum = 0;
        for (let each = 0; each < heads; each++) sum += weights[(each * rows + row) * across + key];
        visit(key, sum / heads / 65535);
      }
    }
  }

  // The weights of one row.
  found.row = (head, row) => {
    const line = new Float32Array(keys);
    found.visit(head, row, 0, keys, (key, weight) => (line[key] = weight));
    return line;
  };

  // `high` × `wide` points, each the maximum over `step` × `step` weights relative to the largest of all, or of the row.
  found.block = (head, byRow, firstRow, firstKey, step, high, wide) => {
    const most = found.most(head);
    const points = new Float32Array(high * wide);
    const lastRow = Math.min(rows, firstRow + step * high);
    const lastKey = Math.min(keys, firstKey + step * wide);
    for (let row = firstRow; row < lastRow; row++) {
      const start = Math.floor((row - firstRow) / step) * wide;
      const whole = (byRow ? most.rows[row] : most.all) || 1;
      found.visit(head, row, firstKey, lastKey, (key, weight) => {
        const at = start + Math.floor((key - firstKey) / step);
        points[at] = Math.max(points[at], weight / whole);
      });
    }
    return points;
  };

  // The largest weight of all, and of each row.
  const largest = new Map();
  found.most = (head) => {
    if (!largest.has(head)) {
      const most = new Float32Array(rows);
      for (let row = 0; row < rows; row++)
        found.visit(head, row, 0, keys, (_, weight) => (most[row] = Math.max(most[row], weight)));
      largest.set(head, { rows: most, all: most.reduce((a, b) => Math.max(a, b), 0) });
    }
    return largest.get(head);
  };
  found.share = (head, byRow, row, weight) => {
    const most = found.most(head);
    return weight / ((byRow ? most.rows[row] : most.all) || 1);
  };
  return found;
}

function once(compute) {
  let result = null;
  return () => (result ??= compute());
}

function unpacked(text, Kind) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  return new Kind(bytes.buffer);
}

// The keys of the largest weights of a row, in descending order.
export function heaviest(line, count) {
  const places = Array.from(line.keys()).filter((key) => line[key] > 0);
  return places.sort((a, b) => line[b] - line[a] || a - b).slice(0, count);
}

// A token with white space and line breaks made visible.
export function shown(name) {
  const visible = name.replace(/[\n\r\u2028\u2029]/g, "⏎").replace(/[\u0000-\u001f\u007f-\u009f\ufffe\uffff]/g, "�");
  return visible.trim() === "" ? "␣".repeat(Math.max(1, visible.length)) : visible;
}

export function percent(weight) {
  return weight >= 0.0995 || weight < 0.0005 ? `${Math.round(100 * weight)} %` : `${(100 * weight).toFixed(1)} %`;
}

// A number with a minus sign, not a hyphen, and with none where it is rounded to zero; with `plus`, always with a sign.
export function fixed(value, digits = 3, plus = false) {
  const text = Math.abs(value).toFixed(digits);
  const sign = value < 0 && Number(text) !== 0 ? "−" : plus ? "+" : "";
  return sign + text;
}

export function headName(map, head) {
  return head === MEAN ? `mean of ${map.heads} heads` : `head ${map.numbers[head]}`;
}
