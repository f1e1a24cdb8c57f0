// Two outputs aligned by their longest runs of equal tokens, as regard.evaluation.output_difference does.

// [{change: "equal", "replace", "delete" or "insert", first, second, first_score, second_score}], null where there is none.
export function tokenDifferences(first, second, firstScores = null, secondScores = null) {
  const found = [];
  const pair = (i, j, change) =>
    found.push({
      change,
      first: i === null ? null : first[i],
      second: j === null ? null : second[j],
      first_score: i === null ? null : (firstScores?.[i] ?? null),
      second_score: j === null ? null : (secondScores?.[j] ?? null),
    });
  let [a, b] = [0, 0];
  for (const run of [...runs(first, second), { a: first.length, b: second.length, size: 0 }]) {
    for (; a < run.a && b < run.b; a++, b++) pair(a, b, "replace");
    for (; a < run.a; a++) pair(a, null, "delete");
    for (; b < run.b; b++) pair(null, b, "insert");
    for (let i = 0; i < run.size; i++, a++, b++) pair(a, b, "equal");
  }
  return found;
}

// The longest run of equal tokens, then the longest before and after it, and so on, in order.
function runs(first, second) {
  const places = new Map();
  second.forEach((token, j) => places.set(token, [...(places.get(token) ?? []), j]));
  const found = [];
  const search = (lowA, highA, lowB, highB) => {
    const run = longest(first, places, lowA, highA, lowB, highB);
    if (!run.size) return;
    search(lowA, run.a, lowB, run.b);
    found.push(run);
    search(run.a + run.size, highA, run.b + run.size, highB);
  };
  search(0, first.length, 0, second.length);
  return found;
}

// Of several longest runs, the first of the first output, and of these the first of the second.
function longest(first, places, lowA, highA, lowB, highB) {
  let best = { a: lowA, b: lowB, size: 0 };
  let ending = new Map(); // lengths of the runs that end at the token before, by their place in the second
  for (let a = lowA; a < highA; a++) {
    const now = new Map();
    for (const b of places.get(first[a]) ?? []) {
      if (b < lowB || b >= highB) continue;
      const size = (ending.get(b - 1) ?? 0) + 1;
      now.set(b, size);
      if (size > best.size) best = { a: a - size + 1, b: b - size + 1, size };
    }
    ending = now;
  }
  return best;
}
