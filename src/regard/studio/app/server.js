// Requests to the server that sent the page. Paths are relative: the page works behind a prefix too.

const versions = new Map(); // of each model, in its last answer
let replaced = 0;
let key = "";
let askForKey = () => Promise.reject(new Error("The server needs an API key."));

// `ask` shows a form for a key and resolves to what was entered.
export function keysFrom(ask) {
  askForKey = ask;
}

// An answer that is not one of status 200, with the server's own words.
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `Status ${status}.`);
    this.status = status;
    this.problem = problem;
  }
}

// The JSON of an answer, or its text. A body makes it a POST; a signal aborts it.
export async function ask(path, body, signal) {
  const answer = await answered(path, body, signal);
  return answer.headers.get("content-type")?.includes("json") ? answer.json() : answer.text();
}

// The bytes of an answer.
export async function bytes(path, signal) {
  return (await answered(path, undefined, signal)).arrayBuffer();
}

// How often an answer came from another version of a model than the answer before: what was kept until then is outdated.
export function replacements() {
  return replaced;
}

function noteVersion({ headers }) {
  const [model, version] = [headers.get("x-model"), headers.get("x-model-version")];
  if (model === null) return;
  if (versions.has(model) && versions.get(model) !== version) replaced += 1;
  versions.set(model, version);
}

async function answered(path, body, signal) {
  const headers = { ...(body === undefined ? {} : { "content-type": "application/json" }), ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const answer = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, signal, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
  noteVersion(answer);
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  if (answer.status !== 401) throw new Refused(answer.status, problem);
  key = await askForKey();
  return answered(path, body, signal);
}

// The events of a stream (server-sent), each as the JSON that it carries.
export async function* stream(path, body, signal) {
  const headers = { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  noteVersion(answer);
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
  let rest = "";
  const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let piece = await pieces.read(); !piece.done; piece = await pieces.read()) {
    const events = (rest + piece.value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: ")) yield JSON.parse(event.slice(6));
  }
}
