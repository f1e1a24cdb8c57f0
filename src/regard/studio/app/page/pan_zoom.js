// Pan and zoom of a drawing of weights. Its view has the weight at its corner (`left`, `top`), which need not be a whole number,
// and the pixels of a weight (`cell`).

const CLICK = 4; // pixels that the pointer of a click may move

// The first weight that is shown, where `seen` of `count` are: never beyond either end.
export const firstWithin = (first, count, seen) => Math.max(0, Math.min(first, count - seen));

// The corner of a view whose weights get `cell` pixels, while the point `at` (in weights from its corner) stays where it is.
export function zoomedCorner(view, cell, at) {
  const times = view.cell / cell;
  return { left: view.left + at.x - at.x * times, top: view.top + at.y - at.y * times };
}

// How many times larger a weight becomes by one turn of the wheel.
export const wheelZoom = (event) => (event.deltaY < 0 ? 1.25 : 0.8);

// Calls `dragged` with the corner that a pointer pulls the view to, `clicked` where it was released without having moved, and
// `hovered` where it moves without being pressed.
export function onDrag(canvas, view, { dragged, clicked, hovered }, options = {}) {
  let pressed = null;
  const on = (kind, listener) => canvas.addEventListener(kind, listener, options);
  on("pointerdown", (event) => {
    pressed = { x: event.clientX, y: event.clientY, left: view.left, top: view.top, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  on("pointermove", (event) => {
    if (!pressed) {
      hovered?.(event);
      return;
    }
    const x = event.clientX - pressed.x;
    const y = event.clientY - pressed.y;
    pressed.moved ||= Math.hypot(x, y) > CLICK;
    dragged({ left: pressed.left - x / view.cell, top: pressed.top - y / view.cell });
  });
  on("pointerup", (event) => {
    const isClick = pressed && !pressed.moved;
    pressed = null;
    if (isClick) clicked(event);
  });
}
