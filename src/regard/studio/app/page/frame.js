// The frame of the studio: navigation, the model that is chosen, and the view that the address names.
//
// A view is {route, title, show}: `route` is its name in the address, #/route?key=value, and `title` that in the
// navigation. show(box, studio) fills an empty element and returns {
//     update(parameters)   is called when the address has changed, for example by the browser's Back
//     close()              is called before another view is shown; may be left out
// }
// and `studio` gives it
//
//   models          [{name, version, reads, labels, generates, examples}], as /studio/models sends them
//   model           the one that is chosen in the bar
//   parameters      the keys and values of the address, all strings: all state that a link must keep belongs there
//   go(changes, {route, replace, silent})   changes some of them (null removes one), and with `route` shows another
//                   view; with `replace` the browser's history gets no new entry; with `silent` the view, which has
//                   changed already, is not updated either
//   link(changes, route)   the address that `go` would lead to, for the href of an <a>
//   ask(path, body, signal)   the JSON of an answer, a POST where there is a body; raises an error where it is refused
//   stream(path, body, signal)   the parts of an answer, as they come
//   bytes(path, signal)   the bytes of an answer; not in an exported page
//   fail(error)     shows an error in the page; fail(null) hides it
//   announce(text)  tells it to a screen reader
//
// Only text ever goes into the page: elements are made with `make` (state.js), never from markup. The script and style
// policies forbid inline code; styles belong into studio.css, which uses the variables of page.css.

import { read, write } from "./address.js";
import { KEYS } from "./search_options.js";
import { make } from "./state.js";

const part = (name) => document.getElementById(name);
const KEPT = ["model", "input", "edits", ...KEYS]; // keys that lead from one view to another

const studio = { models: [], parameters: {}, go, link, fail, announce };
Object.defineProperty(studio, "model", {
  get: () => studio.models.find((each) => each.name === studio.parameters.model) ?? studio.models[0],
});
let [views, current, shown] = [[], null, null];
const { title } = document;
let followed = ""; // the hash that the page shows; another one in the address is a navigation whose event is still to come

function link(changes = {}, route = current.route) {
  return write(route, { ...studio.parameters, ...changes });
}

function go(changes, { route = current.route, replace = false, silent = false } = {}) {
  if (location.hash !== followed && (silent || replace)) return; // what a link or Back leads to is not overwritten
  navigate(link(changes, route), { replace, silent });
}

// The address changes at once: "hashchange" would come later, and the page could write its old state in between.
function navigate(address, { replace = false, silent = false } = {}) {
  if (address === location.hash) return;
  history[replace || silent ? "replaceState" : "pushState"](null, "", address);
  if (!silent) return follow();
  followed = location.hash;
  studio.parameters = read(followed).parameters;
}

function fail(error) {
  part("problem").hidden = !error;
  part("problem").textContent = error ? error.message : "";
}

let timer = 0;
function announce(text) {
  clearTimeout(timer);
  timer = setTimeout(() => (part("announced").textContent = text), 300);
}

function follow() {
  followed = location.hash;
  const { route, parameters } = read(followed);
  studio.parameters = parameters;
  const next = views.find((each) => each.route === route) ?? views[0];
  navigation(next);
  part("model").value = studio.model?.name ?? "";
  if (next === current) return shown.update?.(parameters);
  shown?.close?.();
  current = next;
  document.title = `${next.title} · ${title}`;
  fail(null);
  const box = part("view");
  box.className = `view-${next.route}`;
  box.removeAttribute("aria-busy");
  box.replaceChildren();
  shown = next.show(box, studio) ?? {};
}

// The links stay the same elements: one that is pressed while the address changes still leads where it should.
function navigation(next) {
  const kept = Object.fromEntries(KEPT.filter((key) => key in studio.parameters).map((key) => [key, studio.parameters[key]]));
  const links = [...part("views-nav").children];
  views.forEach((each, i) => {
    links[i].setAttribute("href", write(each.route, each === next ? studio.parameters : kept));
    if (each !== next) links[i].removeAttribute("aria-current");
    else if (next !== current) {
      links[i].setAttribute("aria-current", "page");
      part("views-nav").scrollLeft = links[i].offsetLeft - (part("views-nav").clientWidth - links[i].offsetWidth) / 2; // on a phone
    }
  });
}

function chooseModel(select) {
  select.append(...studio.models.map(({ name }) => new Option(name, name)));
  select.addEventListener("change", () => {
    navigate(write(current.route, { model: select.value })); // inputs and edits belong to the other model
  });
  part("model-choice").hidden = studio.models.length < 2;
}

// Shows the first view. `backend` answers what views ask: {ask, stream, bytes, replacements}; a page without a server
// has neither bytes nor replacements, the number of times that a model was replaced by another version.
export async function startStudio(shownViews, backend) {
  views = shownViews;
  Object.assign(studio, backend);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the part of the address after # is the state of the page
    part("view").focus();
  });
  try {
    studio.models = (await studio.ask("studio/models")).models;
  } catch (error) {
    return fail(error);
  }
  part("views-nav").append(...views.map(({ title }) => make("a", { textContent: title })));
  chooseModel(part("model"));
  addEventListener("hashchange", follow);
  follow();
}
