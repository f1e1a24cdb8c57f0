// Fields for what the model reads: a text, a label or a picture for each source.

import { make } from "../../../views/page/state.js";
import { overWhite } from "./images.js";

// Fields in `box`. `changed(values)` is called with a value for each source, null where there is none yet.
export function showFields(box, sources, values, changed) {
  const now = [...values];
  const fields = (sources.length ? sources : [{ kind: "text" }]).map((source, i) => {
    const number = sources.length > 1 ? ` ${i + 1}` : "";
    const name = { text: sources.length ? `Input${number}` : "Text to continue", label: `Label${number}`, image: `Picture${number}` }[source.kind];
    const set = (value) => {
      now[i] = value;
      changed([...now]);
    };
    const make = { text: textField, label: labelField, image: pictureField }[source.kind];
    return make(name, `source-${i}`, now[i], set, source);
  });
  box.replaceChildren(...fields);
}

function field(id, name, ...controls) {
  return make("p", { className: "field" }, make("label", { htmlFor: id, textContent: name }), ...controls);
}

function textField(name, id, value, set) {
  const area = make("textarea", { id, rows: 2, spellcheck: false, autocomplete: "off", value: value ?? "" });
  area.addEventListener("input", () => set(area.value));
  return field(id, name, area);
}

function labelField(name, id, value, set, { labels }) {
  const select = make("select", { id }, ...labels.map((label) => new Option(label, label)));
  if (value) select.value = value;
  select.addEventListener("change", () => set(select.value));
  return field(id, name, select);
}

function pictureField(name, id, value, set) {
  const file = make("input", { type: "file", id, accept: "image/*" });
  const box = field(id, name, file, make("span", { className: "quiet", textContent: "Choose a file, drop a picture here, or paste one." }));
  const take = async (blob) => blob?.type.startsWith("image/") && set(await pixelsOf(blob));
  file.addEventListener("change", () => take(file.files[0]));
  box.classList.add("drop");
  box.addEventListener("dragover", (event) => event.preventDefault());
  box.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => take([...event.clipboardData.files][0]));
  return box;
}

// The pixels of a picture at its own size, over white.
async function pixelsOf(blob) {
  const picture = await createImageBitmap(blob, { premultiplyAlpha: "none", colorSpaceConversion: "none" });
  const { width, height } = picture;
  const pen = new OffscreenCanvas(width, height).getContext("2d");
  pen.drawImage(picture, 0, 0);
  return { width, height, pixels: overWhite(pen.getImageData(0, 0, width, height).data) };
}

// Pixels (size, size, 3) as an address that an <img> shows.
export function pictureAddress(pixels, size) {
  const canvas = make("canvas", { width: size, height: size });
  const image = new ImageData(size, size);
  for (let i = 0; i < size * size; i++) image.data.set([pixels[3 * i], pixels[3 * i + 1], pixels[3 * i + 2], 255], 4 * i);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas.toDataURL("image/png");
}
