// Looks that are computed before they are asked for. The server keeps the last look that it computed, so the request for
// one that was prepared is answered at once.

// Calls `act` when a button is likely to be pressed next: the pointer is over it, or it has the focus.
export function beforePress(button, act) {
  for (const event of ["pointerenter", "focus"]) button.addEventListener(event, act);
}

// A function that prepares the answer to a request, by `ask(request)`. One request is sent at a time; of those that are
// wanted meanwhile, the last one follows. An error is not shown: the request for the look will have it too.
export function makePreparation(ask) {
  let [running, next, last] = [false, null, ""];
  return async function prepare(request) {
    const name = JSON.stringify(request);
    if (name === last) return;
    last = name;
    next = request;
    if (running) return;
    running = true;
    while (next) {
      const sent = next;
      next = null;
      await ask(sent).catch(() => (last = ""));
    }
    running = false;
  };
}
