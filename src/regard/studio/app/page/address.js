// The state of the page in its address: #/route?key=value&key=value. A link to it shows exactly the same.

export function read(hash) {
  const [path, query = ""] = splitOnce(hash.replace(/^#\/?/, ""), "?");
  return { route: decode(path), parameters: Object.fromEntries(new URLSearchParams(query)) };
}

export function write(route, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `#/${encodeURIComponent(route)}${query ? `?${query}` : ""}`;
}

function splitOnce(text, at) {
  const place = text.indexOf(at);
  return place < 0 ? [text] : [text.slice(0, place), text.slice(place + 1)];
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
