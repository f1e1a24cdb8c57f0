// Fields for what a model reads: a text, a label, a picture or a series for each source, and examples to begin with.

import { firstSeries, seriesField } from "./series_field.js";
import { make } from "./state.js";

const LONGEST = 1024; // pixels of a picture's longer side; a larger one is reduced before it is sent
const BYTES = 600_000; // of a picture that is sent as it is

// The usual least and largest value of each number of a vector, of a source of vectors.
const rangesOf = (model, i) => model.ranges?.[i] ?? null;

// The input of the address as a list with a string for each source.
export function inputOf(model, parameters) {
  const count = Math.max(1, model.reads.length);
  const first = model.examples[0] ?? Array.from({ length: count }, (_, i) => model.choices?.[i]?.[0] ?? (rangesOf(model, i) ? firstSeries(rangesOf(model, i)) : ""));
  if (parameters.input === undefined) return [...first];
  if (count === 1) return [parameters.input];
  try {
    const given = JSON.parse(parameters.input);
    return first.map((_, i) => String(given[i] ?? ""));
  } catch {
    return [parameters.input, ...first.slice(1)];
  }
}

export function inputText(model, input) {
  return Math.max(1, model.reads.length) === 1 ? input[0] : JSON.stringify(input);
}

// Fields in `box`; `changed(input)` is called as they are filled. Returns a function that fills them.
export function showInputs(box, model, input, changed) {
  const kinds = model.reads.length ? model.reads : ["text"];
  const now = [...input];
  const fields = kinds.map((kind, i) => {
    const alone = { text: model.reads.length ? "Input" : "Text to continue", label: "Label", image: "Picture", vectors: "Series" }[kind] ?? "Input";
    const name = kinds.length > 1 ? `Source ${i + 1}: ${kind}` : alone;
    const set = (value) => {
      now[i] = value;
      changed([...now]);
    };
    if (kind === "image") return pictureField(name, i, set);
    if (rangesOf(model, i)) return seriesField(name, i, set, rangesOf(model, i), model.layouts?.[i] ?? null);
    return model.choices?.[i] ? choiceField(name, i, set, model.choices[i]) : textField(name, i, set, kind === "text" || kind === "words");
  });
  const fill = (values) => {
    values.forEach((value, i) => {
      now[i] = value;
      fields[i].fill(value);
    });
  };
  const examples = exampleButtons(model, (values) => {
    fill(values);
    changed([...now]);
  });
  box.replaceChildren(...fields.map((field) => field.element), ...examples);
  fill(input);
  return fill;
}

function textField(name, i, set, long) {
  const field = make(long ? "textarea" : "input", { id: `input-${i}`, spellcheck: false, autocomplete: "off", ...(long ? { rows: 2 } : {}) });
  field.addEventListener("input", () => set(field.value));
  const fill = (value) => field.value !== value && (field.value = value);
  return { fill, element: make("p", { className: "field" }, make("label", { htmlFor: field.id, textContent: name }), field) };
}

function choiceField(name, i, set, labels) {
  const field = make("select", { id: `input-${i}` }, ...labels.map((label) => new Option(label, label)));
  field.addEventListener("change", () => set(field.value));
  const fill = (value) => (field.value = value);
  return { fill, element: make("p", { className: "field" }, make("label", { htmlFor: field.id, textContent: name }), field) };
}

function pictureField(name, i, set) {
  const file = make("input", { type: "file", id: `input-${i}`, accept: "image/*" });
  const picture = make("img", { alt: "", hidden: true });
  const label = make("label", { htmlFor: file.id }, make("span", { textContent: name }), make("span", { className: "quiet", textContent: "Drop a picture here, paste one, or choose a file." }), picture);
  const element = make("div", { className: "field drop" }, label, file);
  const take = async (blob) => blob?.type.startsWith("image/") && set(await pictureUrl(blob));
  file.addEventListener("change", () => take(file.files[0]));
  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
  element.addEventListener("paste", (event) => take([...event.clipboardData.files][0]));
  const fill = (value) => {
    picture.hidden = !value.startsWith("data:image/");
    if (!picture.hidden) picture.src = value;
  };
  return { element, fill };
}

async function pictureUrl(blob) {
  if (blob.size > BYTES) {
    const image = await createImageBitmap(blob);
    const share = Math.min(1, LONGEST / Math.max(image.width, image.height));
    const canvas = new OffscreenCanvas(Math.round(image.width * share), Math.round(image.height * share));
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    blob = await canvas.convertToBlob({ type: "image/webp", quality: 0.9 });
  }
  return new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(blob);
  });
}

function exampleButtons(model, choose) {
  if (!model.examples.length) return [];
  const written = (value, at, i) => make("span", { textContent: rangesOf(model, at) ? `Series ${i + 1}` : value });
  const buttons = model.examples.map((example, i) => {
    const parts = example.map((value, at) => (model.reads[at] === "image" ? make("img", { src: value, alt: "" }) : written(value, at, i)));
    const button = make("button", { type: "button", label: model.reads.includes("image") ? `Example ${i + 1}` : undefined }, ...parts);
    button.addEventListener("click", () => choose(example));
    return button;
  });
  return [make("p", { className: "examples" }, make("span", { className: "quiet", textContent: "Try" }), ...buttons)];
}
