"use strict";

// The page is made of openapi.json, and shows answers as text: nothing that a server or a user says becomes markup.
const byId = (id) => document.getElementById(id);
let described = null;

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function labelled(id, text, field) {
  field.id = id;
  return [make("label", { htmlFor: id }, text), field];
}

function headers(type) {
  const key = byId("key").value;
  return { ...(type ? { "content-type": type } : {}), ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function load() {
  const state = byId("state");
  try {
    const answer = await fetch("openapi.json", { headers: headers() });
    if (!answer.ok) {
      state.textContent = answer.status === 401 ? "The server needs a key." : `No description: status ${answer.status}.`;
      return;
    }
    described = await answer.json();
    state.textContent = `Version ${described.info.version}. Each route can be tried here.`;
    show();
  } catch (error) {
    state.textContent = `No answer: ${error.message}`;
  }
}

function show() {
  const sections = new Map();
  for (const { name } of described.tags) sections.set(name, make("section", {}, make("h2", {}, name)));
  for (const [path, operations] of Object.entries(described.paths))
    for (const [method, operation] of Object.entries(operations))
      sections.get(operation.tags[0]).append(route(method.toUpperCase(), path, operation));
  byId("routes").replaceChildren(...sections.values());
}

function route(method, path, operation) {
  const id = operation.operationId;
  const title = make("summary", {}, make("code", {}, `${method} ${path}`), ` ${operation.summary}`);
  const form = make("form", {});
  const parameters = (operation.parameters ?? []).filter((each) => each.in === "path").map(({ name, example }) => {
    const field = make("input", { name, value: example ?? "", required: true });
    form.append(...labelled(`${id}-${name}`, name, field));
    return field;
  });
  const content = operation.requestBody?.content ?? {};
  const types = Object.keys(content);
  const json = types.includes("application/json");
  let body = null;
  let type = null;
  let images = null;
  if (json) {
    const text = JSON.stringify(content["application/json"].example ?? {}, null, 2);
    body = make("textarea", { value: text, spellcheck: false });
    form.append(...labelled(`${id}-body`, "Body, as JSON", body));
    if (types.includes("multipart/form-data")) {
      images = make("input", { type: "file", accept: "image/*,.npy,.wav", multiple: true });
      form.append(...labelled(`${id}-images`, "Images or arrays, sent as a form instead of those in the body", images));
    }
  } else if (types.length) {
    type = make("select", {}, ...types.map((each) => make("option", {}, each)));
    body = make("input", { type: "file", required: true });
    form.append(...labelled(`${id}-type`, "Type of the body", type), ...labelled(`${id}-body`, "Body", body));
  }
  const status = make("p", { className: "status" });
  status.setAttribute("role", "status");
  const output = make("pre", { hidden: true, tabIndex: 0 });
  output.setAttribute("role", "region");
  output.setAttribute("aria-label", `Answer of ${method} ${path}`);
  form.append(make("button", {}, "Send"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const filled = parameters.reduce((so, { name, value }) => so.replace(`{${name}}`, encodeURIComponent(value)), path);
    let kind = json ? "application/json" : type?.value;
    let sent = json ? body.value : body?.files[0];
    if (images?.files.length) {
      try {
        [kind, sent] = [null, asForm(JSON.parse(body.value), images.files)]; // the browser names the type
      } catch (error) {
        status.textContent = `Not sent: ${error.message}`;
        return;
      }
    }
    await send(filled.slice(1), { method, headers: headers(kind), ...(body ? { body: sent } : {}) }, status, output);
  });
  const parts = [title, form, status, output];
  const schema = content["application/json"]?.schema;
  if (schema) parts.push(make("details", {}, make("summary", {}, "Keys of the body"), fields(schema)));
  return make("details", { id }, ...parts);
}

// Files first, then the texts that the model reads beside them, then the other keys: texts as they are, others as JSON.
function asForm(values, files) {
  const form = new FormData();
  for (const file of files) form.append(file.type.startsWith("image/") ? "image" : "file", file);
  const { image, file, input, ...others } = values;
  for (const each of [input].flat(2)) if (typeof each === "string") form.append("input", each);
  for (const [name, value] of Object.entries(others))
    form.append(name, typeof value === "string" ? value : JSON.stringify(value));
  return form;
}

function fields(schema) {
  const found = schema.$ref ? described.components.schemas[schema.$ref.split("/").pop()] : schema.items ?? schema;
  const whole = found.$ref ? described.components.schemas[found.$ref.split("/").pop()] : found;
  const list = make("ul", {});
  for (const [name, entry] of Object.entries(whole.properties ?? {})) {
    const needed = whole.required?.includes(name) ? ", required" : "";
    list.append(make("li", {}, make("code", {}, name), ` ${kinds(entry)}${needed} ${entry.description ?? ""}`));
  }
  return list;
}

function kinds(entry) {
  if (entry.anyOf) return entry.anyOf.map(kinds).join(" or ");
  return entry.$ref ? entry.$ref.split("/").pop() : entry.enum ? entry.enum.join(" or ") : entry.type ?? "any";
}

async function send(path, options, status, output) {
  status.textContent = "Sent …";
  output.hidden = true;
  output.textContent = "";
  const began = performance.now();
  try {
    const answer = await fetch(path, options);
    const type = answer.headers.get("content-type") ?? "";
    output.hidden = false;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) output.textContent += part.value;
    if (type.includes("json")) output.textContent = pretty(output.textContent);
    status.textContent = `Status ${answer.status}, ${type}, ${Math.round(performance.now() - began)} ms`;
    status.classList.toggle("bad", !answer.ok);
  } catch (error) {
    status.textContent = `No answer: ${error.message}`;
    status.classList.add("bad");
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // lines of JSON, or a part of it
  }
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  load();
});
load();
