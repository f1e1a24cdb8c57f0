// The work of a view: the latest only. Until it is complete, the view is marked as busy.

export function makeTask(box, studio) {
  let [controller, timer, running, pending] = [new AbortController(), 0, false, false];
  const mark = () => (running || pending ? box.setAttribute("aria-busy", "true") : box.removeAttribute("aria-busy"));
  return {
    // Runs work(signal, settled) and aborts what ran before; `settled` ends the mark before work that only adds to what
    // is shown. An error is shown, that of aborted work is not.
    async run(work) {
      controller.abort();
      const { signal } = (controller = new AbortController());
      const settled = () => {
        if (signal.aborted) return;
        running = false;
        mark();
      };
      running = true;
      mark();
      try {
        await work(signal, settled);
        if (!signal.aborted) studio.fail(null);
      } catch (error) {
        if (!signal.aborted) studio.fail(error);
      }
      settled();
    },
    // Acts after a pause, unless this is called again before.
    later(milliseconds, act) {
      clearTimeout(timer);
      pending = true;
      mark();
      timer = setTimeout(() => {
        pending = false;
        act();
        mark();
      }, milliseconds);
    },
    wait: (milliseconds) => new Promise((done) => (timer = setTimeout(done, milliseconds))),
    // Nothing runs any more: the view is closed, or shows another model.
    stop() {
      clearTimeout(timer);
      controller.abort();
      [running, pending] = [false, false];
    },
  };
}
