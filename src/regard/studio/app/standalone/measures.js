// Measures of each head, as regard.interpret.summaries defines them: means over the rows that attend to anything.

const NAMES = ["entropy", "evenness", "distance", "confidence", "first", "last", "own", "previous", "punctuation"];

// rows: the weights of each row of one head, all of `keys` keys; visible: how many keys each row may attend to
function measureRow(line, visible, own, marked) {
  const found = { entropy: 0, distance: 0, confidence: 0, punctuation: 0 };
  line.forEach((weight, key) => {
    if (weight > 0) found.entropy -= weight * Math.log(weight);
    found.distance += weight * Math.abs(key - own);
    found.confidence = Math.max(found.confidence, weight);
    if (marked[key]) found.punctuation += weight;
  });
  const most = Math.log(visible);
  const at = (key) => line[key] ?? 0;
  return { ...found, evenness: most > 0 ? found.entropy / most : 0, first: at(0), last: at(line.length - 1), own: at(own), previous: at(own - 1) };
}

export function measureHeads(rows, heads, keys, marked) {
  return Array.from({ length: heads }, (_, head) => {
    const sums = Object.fromEntries(NAMES.map((name) => [name, 0]));
    let count = 0;
    rows.forEach(({ weights, visible }, row) => {
      const found = measureRow(weights[head], visible[head], row + keys - rows.length, marked);
      if (found.confidence <= 0) return;
      count++;
      for (const name of NAMES) sums[name] += found[name];
    });
    for (const name of NAMES) sums[name] /= Math.max(1, count);
    return { head, ...sums };
  });
}
