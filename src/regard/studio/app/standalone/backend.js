// Answers what the views of the studio ask, by the model in this page; as the server's routes /studio/... do.

import { InputError } from "./edits.js";
import { overWhite } from "./images.js";

const FRAME = 30; // milliseconds after which the page is drawn while the model runs
const ALTERNATIVES = 8;
const SEARCH = ["beam_size", "sample", "temperature", "top_k", "top_p", "seed"];

export function makeBackend(model, title) {
  const { sources, target, examples } = model.settings;
  const answers = { "studio/models": models, "studio/look": look, "studio/beam": beam, "studio/alternatives": alternatives };
  let turn = Promise.resolve(); // one search at a time: an earlier one would only slow the later one down

  function models() {
    const reads = sources.map(({ kind }) => kind);
    const labels = target.kind === "label" ? target.labels : [];
    const choices = sources.map((source) => source.labels ?? null);
    const ranges = sources.map((source) => source.ranges ?? null);
    const layouts = sources.map((source) => source.layout ?? null); // how a text of vectors is read: no server does it
    return { models: [{ name: title, version: "", reads, labels, choices, ranges, layouts, generates: target.kind === "text", examples, path: null }] };
  }

  async function run({ input, edits = [], position = null, ...rest }, signal, drawn = null) {
    const values = await Promise.all(input.map((value, i) => (sources[i]?.kind === "image" ? pixelsOf(value) : value)));
    const isSeries = sources.some((source) => source.kind === "vectors"); // the model says then what it is
    const shown = isSeries ? "" : sources.map((source, i) => (source.kind === "image" ? "image" : input[i])).join(" | ");
    const search = Object.fromEntries(SEARCH.filter((key) => key in rest).map((key) => [key, rest[key]]));
    let last = performance.now();
    const onToken = async (soFar) => {
      if (performance.now() - last > FRAME) {
        if (soFar && drawn) drawn(withPictures(soFar()));
        await new Promise((done) => setTimeout(done));
        last = performance.now();
      }
      return !signal?.aborted;
    };
    const before = turn;
    let done;
    turn = new Promise((resolve) => (done = resolve));
    await before;
    try {
      signal?.throwIfAborted();
      const result = await model.run(values, { edits, search, title: sources.length ? shown : input[0], onToken, position });
      signal?.throwIfAborted();
      return { ...result, look: withPictures(result.look) };
    } finally {
      done();
    }
  }

  // With what Look.to_json does not have: the probabilities of all labels, and the past that a forecast follows.
  async function look(body, signal) {
    const { look: found, probabilities = null, past = null } = await run(body, signal);
    return { ...found, ...(probabilities && { probabilities }), ...(past && { past }) };
  }

  async function beam(body, signal) {
    return (await run(body, signal)).beam;
  }

  async function alternatives(body, signal) {
    const { logProbabilities } = await run(body, signal);
    if (!logProbabilities) throw new InputError(`The output has no token ${body.position}.`);
    const best = [...logProbabilities.keys()].sort((a, b) => logProbabilities[b] - logProbabilities[a]).slice(0, ALTERNATIVES);
    return { alternatives: best.map((id) => ({ token: model.target.piece(id), id, log_probability: logProbabilities[id] })) };
  }

  // Looks at the tokens so far, and at last one at the whole output.
  async function* stream(path, body, signal) {
    const queue = [];
    let wake = () => {};
    const put = (item) => {
      queue.push(item);
      wake();
    };
    const running = run(body, signal, (soFar) => put({ look: soFar, last: false })).then(
      (result) => put({ look: result.look, last: true }),
      (error) => put({ error }),
    );
    for (;;) {
      if (!queue.length) await new Promise((done) => (wake = done));
      const item = queue.shift();
      if (item.error) throw item.error;
      yield item;
      if (item.last) return running;
    }
  }

  return { ask: async (path, body, signal) => answers[path](body, signal), stream };
}

// An image of a data: address as {pixels, width, height}, over white. Addresses of other kinds are never read.
async function pixelsOf(address) {
  const [head, content] = String(address).split(",");
  if (!/^data:image\/[\w.+-]+;base64$/.test(head)) throw new InputError("A picture is wanted.");
  const blob = new Blob([Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0))], { type: head.slice(5, -7) });
  const picture = await createImageBitmap(blob, { premultiplyAlpha: "none", colorSpaceConversion: "none" });
  const { width, height } = picture;
  const pen = new OffscreenCanvas(width, height).getContext("2d");
  pen.drawImage(picture, 0, 0);
  return { width, height, pixels: overWhite(pen.getImageData(0, 0, width, height).data) };
}

// Pictures that the model read, as addresses that an <img> shows.
function withPictures(look) {
  for (const source of look.sources) if (source.pixels) source.data ??= pictureAddress(source.pixels, source.width);
  return look;
}

function pictureAddress(pixels, size) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: size, height: size });
  const image = new ImageData(size, size);
  for (let i = 0; i < size * size; i++) image.data.set([pixels[3 * i], pixels[3 * i + 1], pixels[3 * i + 2], 255], 4 * i);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas.toDataURL("image/png");
}
