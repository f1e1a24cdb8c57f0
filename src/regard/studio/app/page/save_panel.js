// Saving the state: a link, a file, the look as JSON or as a page in one file, and the commands that show the same.

import { saveFile } from "./save.js";
import { make } from "./state.js";
import { commands, readEdits } from "./edits.js";

// `current()` gives {request, input, model} of what is shown.
export function showSavePanel(box, studio, current) {
  const button = (text, action) => {
    const made = make("button", { type: "button", textContent: text });
    made.addEventListener("click", () => Promise.resolve(action(made)).catch(studio.fail));
    return made;
  };
  const said = (made, text) => {
    const before = made.textContent;
    made.textContent = text;
    studio.announce(text);
    setTimeout(() => (made.textContent = before), 1500);
  };
  const copy = async (made, text) => {
    await navigator.clipboard.writeText(text);
    said(made, "Copied");
  };
  const file = make("input", { type: "file", id: "state-file", accept: "application/json,.json" });
  file.addEventListener("change", async () => {
    try {
      const { route, parameters } = JSON.parse(await file.files[0].text());
      studio.go({ ...Object.fromEntries(Object.keys(studio.parameters).map((key) => [key, null])), ...parameters }, { route });
    } catch (error) {
      studio.fail(new Error(`state: wanted a file that this page has saved; got ${error.message}.`));
    }
    file.value = "";
  });
  const shell = make("pre", { id: "shell", tabIndex: 0, role: "region", label: "Shell command" });
  const python = make("pre", { id: "python", tabIndex: 0, role: "region", label: "Python" });
  const plain = (text, type) => new Blob([text], { type });
  box.replaceChildren(
    make("h2", { textContent: "Save" }),
    make(
      "p",
      { className: "line" },
      button("Copy link", (made) => copy(made, location.href)),
      button("State", () => saveFile(plain(JSON.stringify({ route: "type", parameters: studio.parameters }, null, 2), "application/json"), "studio-state.json")),
      button("Edits", () => saveFile(plain(JSON.stringify(readEdits(studio.parameters.edits), null, 2), "application/json"), "edits.json")),
      button("Look as JSON", async () => saveFile(plain(JSON.stringify(await studio.ask("studio/look", current().request)), "application/json"), "look.json")),
      ...(studio.bytes ? [button("Page in one file", async () => saveFile(plain(await studio.ask("studio/export", current().request), "text/html"), "look.html"))] : []), // a server writes it
    ),
    make("p", { className: "line quiet" }, make("label", { htmlFor: "state-file", textContent: "Open a state" }), file),
    make("details", { id: "commands" }, make("summary", { textContent: "The same as a command, and in Python" }), make("h3", { textContent: "Shell" }), shell, make("h3", { textContent: "Python" }), python),
  );
  return {
    update() {
      const { model, input, request } = current();
      const { shell: line, python: program } = commands(model, input, request);
      Object.assign(shell, { textContent: line });
      Object.assign(python, { textContent: program });
    },
  };
}
