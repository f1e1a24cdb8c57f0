// The frame of the studio: navigation, the model that is chosen, and the view that the address names.

import { read, write } from "./address.js";
import { make } from "./page/state.js";
import { ask, bytes, keysFrom } from "./server.js";
import { views } from "./views.js";

const part = (name) => document.getElementById(name);
const KEPT = ["model", "input", "edits", "beam"]; // keys that lead from one view to another

const studio = { models: [], parameters: {}, ask, bytes, go, link, fail, announce };
Object.defineProperty(studio, "model", {
  get: () => studio.models.find((each) => each.name === studio.parameters.model) ?? studio.models[0],
});
let [current, shown] = [null, null];
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
  document.title = `${next.title} · Regard studio`;
  fail(null);
  const box = part("view");
  box.className = `view-${next.route}`;
  box.replaceChildren();
  shown = next.show(box, studio) ?? {};
}

function navigation(next) {
  const kept = Object.fromEntries(KEPT.filter((key) => key in studio.parameters).map((key) => [key, studio.parameters[key]]));
  part("views-nav").replaceChildren(
    ...views.map((each) => {
      const anchor = make("a", { href: write(each.route, each === next ? studio.parameters : kept), textContent: each.title });
      if (each === next) anchor.setAttribute("aria-current", "page");
      return anchor;
    }),
  );
}

function chooseModel(select) {
  select.append(...studio.models.map(({ name }) => new Option(name, name)));
  select.addEventListener("change", () => {
    navigate(write(current.route, { model: select.value })); // inputs and edits belong to the other model
  });
  part("model-choice").hidden = studio.models.length < 2;
}

function keyForm() {
  part("key-form").hidden = false;
  part("key").focus();
  return new Promise((done) => {
    part("key-form").onsubmit = (event) => {
      event.preventDefault();
      part("key-form").hidden = true;
      done(part("key").value);
    };
  });
}

async function start() {
  keysFrom(keyForm);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the part of the address after # is the state of the page
    part("view").focus();
  });
  try {
    studio.models = (await ask("studio/models")).models;
  } catch (error) {
    return fail(error);
  }
  chooseModel(part("model"));
  addEventListener("hashchange", follow);
  follow();
}

start();
