// What a model generated, token by token with probabilities, the tags of words, or the label that it gave; and what edits
// changed of it.

import { fixed, percent, shown } from "./data.js";
import { forecastSeries, outputSeries } from "./series.js";
import { keepingFocus, make } from "./state.js";

const MOST_LABELS = 8; // whose probabilities are shown

const probability = (score) => Math.exp(score ?? -Infinity);
const total = (output) => output.scores?.reduce((sum, score) => sum + score, 0);

// `choose(position)` is called when a token is chosen. `difference` is that of the unedited output and this one.
export function showOutput(box, look, { difference = null, before = null, choose = null } = {}) {
  const { output } = look;
  if (!output) return box.replaceChildren(make("p", { className: "quiet", textContent: "This model gives no output of its own." }));
  const label = "label" in output;
  const vectors = output.vectors;
  const counted = `${vectors?.length} vectors of ${vectors?.[0]?.length ?? 0} numbers`;
  const text = vectors ? `${look.past ? "Forecast of " : ""}${counted}` : output.text;
  const said = make("p", { className: "said", id: "said" }, label ? output.label : text);
  if (label) said.append(make("span", { className: "quiet", textContent: ` ${percent(probability(output.score))}` }));
  const parts = [said];
  // Numbers have no probabilities: there is nothing to show of them but themselves.
  if (vectors) parts.push(look.past ? forecastSeries(look.past, vectors) : outputSeries(vectors), writtenNumbers(output));
  else if (look.probabilities) parts.push(labelBars(look.probabilities));
  else if (!label && !("numbers" in output)) parts.push(tokenList(output, difference, choose), make("p", { className: "quiet", id: "score", textContent: scoreLine(output, before) }));
  if (before) parts.push(unedited(before, output, difference));
  keepingFocus(box, () => box.replaceChildren(...parts));
}

// The numbers of vectors as `regard predict` writes them, a line for each vector.
function writtenNumbers({ text }) {
  const lines = [...text.matchAll(/\[([^[\]]*)\]/g)].map(([, line]) => line);
  return make("details", { className: "numbers" }, make("summary", { textContent: "Numbers of the output" }), make("pre", { id: "output-numbers", tabIndex: 0, textContent: lines.join("\n") }));
}

// The most likely labels with their probabilities.
function labelBars(probabilities) {
  const sorted = Object.entries(probabilities).sort(([, a], [, b]) => b - a);
  const rows = sorted.slice(0, MOST_LABELS).map(([label, share]) => {
    const bar = make("span", { className: "share" }, make("span"));
    bar.firstChild.style.width = `${100 * share}%`;
    return make("tr", {}, make("th", { scope: "row", textContent: label }), make("td", { textContent: percent(share) }), make("td", {}, bar));
  });
  const rest = sorted.length - rows.length;
  const caption = make("caption", { textContent: rest > 0 ? `The ${rows.length} most likely of ${sorted.length} labels` : "Probabilities of the labels" });
  return make("table", { id: "probabilities" }, caption, make("tbody", {}, ...rows));
}

function scoreLine(output, before) {
  const score = total(output);
  if ("labels" in output) return output.labels.length ? "" : "no label is likely enough";
  if (score === undefined) return `${output.tokens.length} tokens`;
  const gain = before && total(before) !== undefined ? ` (${fixed(score - total(before), 3, true)} by the edits)` : "";
  return `log-probability ${fixed(score)}${gain} · ${output.tokens.length} tokens`;
}

function unedited(before, output, difference) {
  const text = "label" in before ? `${before.label} ${percent(probability(before.score))}` : before.text;
  const equal = "label" in before ? before.label === output.label : difference?.every((each) => each.change === "equal");
  return make("p", { id: "unedited" }, make("span", { className: "quiet", textContent: equal ? "As without edits: " : "Without edits: " }), make("span", { textContent: text }));
}

function tokenList({ tokens, scores, words, labels }, difference, choose) {
  const items = [];
  let position = 0;
  for (const each of difference ?? tokens.map(() => ({ change: "equal" }))) {
    if (each.change === "delete") items.push(gone(each.first));
    else {
      if (each.change === "replace") items.push(gone(each.first));
      // Tags and labels follow from the input: none is chosen, to be replaced.
      items.push(tokenItem(tokens[position], scores?.[position], position, each.change !== "equal", words || labels ? null : choose, words?.[position]));
      position++;
    }
  }
  const label = labels ? "Labels, with their probabilities" : words ? "Words with their tags, and the tags' probabilities" : "Tokens of the output, with their probabilities";
  return make("ol", { className: "tokens output", id: "output-tokens", label }, ...items);
}

const gone = (token) => make("li", { className: "gone" }, make("del", { textContent: shown(token) }));

function tokenItem(token, score, position, isNew, choose, word) {
  const share = score === undefined ? 0 : probability(score);
  const bar = make("span", { className: "share" }, make("span"));
  bar.firstChild.style.width = `${100 * share}%`;
  const named = word === undefined ? [] : [make("span", { className: "quiet", textContent: `${shown(word)} ` })];
  const inside = [...named, make(isNew ? "ins" : "span", { textContent: shown(token) }), make("small", { textContent: score === undefined ? "" : percent(share) }), bar];
  const item = make("li", isNew ? { className: "new" } : {});
  if (choose) {
    const button = make("button", { type: "button", label: `Token ${position}: ${shown(token)}, ${percent(share)}` }, ...inside);
    button.addEventListener("click", () => choose(position));
    item.append(button);
  } else item.append(...inside);
  return item;
}
