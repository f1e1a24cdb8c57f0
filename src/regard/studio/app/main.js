// The studio of a server: all views, answered by the server that sent the page.

import { startStudio } from "./page/frame.js";
import { ask, bytes, keysFrom, replacements, stream } from "./server.js";
import { views } from "./views.js";

const part = (name) => document.getElementById(name);

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

keysFrom(keyForm);
startStudio(views, { ask, bytes, replacements, stream });
