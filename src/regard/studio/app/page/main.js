// The page of one look or several: its title, and the views of the look that is chosen.

import { readLook } from "./data.js";
import { showLook } from "./look.js";

const part = (name) => document.getElementById(name);

function fill(look) {
  const { output } = look;
  part("title").textContent = look.title || "A look";
  const probability = output && "label" in output && output.score !== null ? ` (${Math.round(100 * Math.exp(output.score))} %)` : "";
  part("said").textContent = output ? (output.vectors ? `${output.vectors.length} vectors` : output.text ?? output.label ?? output.tokens.join(" ")) + probability : "";
  part("views").hidden = !look.maps.length;
  part("nothing").hidden = look.maps.length > 0;
}

// A page of several looks shows one at a time; the layer and head stay where the next look has them too.
function chooseLook(select, looks) {
  let store = null;
  const show = (told) => {
    const look = readLook(told);
    fill(look);
    if (!look.maps.length) return;
    if (store) store.replace(look);
    else store = showLook(part("views"), look);
  };
  part("inputs").hidden = looks.length < 2;
  select.append(...looks.map((look, i) => new Option(`${i + 1}. ${look.title || "A look"}`, i)));
  select.addEventListener("change", () => show(looks[select.value]));
  show(looks[0]);
}

chooseLook(part("input"), [JSON.parse(part("look").textContent)].flat());
