// The page of a model: the studio's views of one model, answered by the model in this page.

import { view as beam } from "../page/beam_view.js";
import { view as compare } from "../page/compare_view.js";
import { startStudio } from "../page/frame.js";
import { view as type } from "../page/type_view.js";
import { makeBackend } from "./backend.js";
import { Model } from "./model.js";
import { checkOptions } from "./search.js";

const part = (name) => document.getElementById(name);

function bytesOf(name) {
  const letters = atob(part(name).textContent);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  part(name).remove();
  return bytes;
}

async function start() {
  const settings = JSON.parse(part("settings").textContent);
  if (settings.decode) checkOptions(settings.decode);
  const model = await Model.load(settings, bytesOf("kernels"), bytesOf("weights"));
  await startStudio(settings.decode ? [type, beam, compare] : [type, compare], makeBackend(model, settings.title));
  // For the browser's console: await regard.run(["a text"], { edits: [], search: { beam_size: 4 } })
  globalThis.regard = { model, run: (values, options) => model.run([values].flat(), options) };
}

start();
