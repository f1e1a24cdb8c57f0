"""Pan, zoom and images of maps, which the map of a look and the tiles of long inputs share, in Node.js."""

import numpy as np
import pytest

from support.node import SHARED, node

IMPORT = "import { firstWithin, onDrag, wheelZoom, zoomedCorner } from './pan_zoom.js';\n"


@pytest.mark.parametrize(
    ("first", "count", "seen", "wanted"),
    [(-3, 10, 4, 0), (0, 10, 4, 0), (2.5, 10, 4, 2.5), (6, 10, 4, 6), (7, 10, 4, 6), (5, 3, 8, 0)],
)
def test_a_view_never_leaves_the_map(first, count, seen, wanted):
    program = f"{IMPORT} console.log(firstWithin(given.first, given.count, given.seen));"
    assert node(program, {"first": first, "count": count, "seen": seen}, SHARED) == wanted


def test_a_zoom_keeps_the_weight_under_the_pointer_where_it_is():
    """The pixel of a weight, (weight − corner) × cell, is the same before and after."""
    draws = np.random.default_rng(0)
    given = [
        {
            "view": {"left": draws.uniform(0, 50), "top": draws.uniform(0, 50), "cell": cell},
            "cell": cell * times,
            "at": {"x": draws.uniform(0, 20), "y": draws.uniform(0, 20)},
        }
        for cell in (0.01, 1.0, 30.0)
        for times in (0.5, 1.0, 1.43)
    ]
    program = f"{IMPORT} console.log(JSON.stringify(given.map((each) => zoomedCorner(each.view, each.cell, each.at))));"
    for each, corner in zip(given, node(program, given, SHARED), strict=True):
        view = each["view"]
        for axis, side in (("x", "left"), ("y", "top")):
            at = each["at"][axis]
            weight = view[side] + at
            assert (weight - corner[side]) * each["cell"] == pytest.approx(at * view["cell"])


def test_the_wheel_zooms_in_and_out():
    program = (
        f"{IMPORT} console.log(JSON.stringify([-1, 1].map((deltaY) => wheelZoom({{ deltaY }}))));"
    )
    larger, smaller = node(program, folder=SHARED)
    assert smaller < 1 < larger
    assert larger * smaller == pytest.approx(1)


DRAG = """
const canvas = new EventTarget();
const captured = [];
canvas.setPointerCapture = (id) => captured.push(id);
const view = { left: 10, top: 20, cell: 4 };
const seen = [];
const stop = new AbortController();
const note = (name) => (event) => seen.push([name, event.clientX ?? event.left, event.clientY ?? event.top]);
const listeners = { dragged: note("dragged"), clicked: note("clicked") };
if (given.hovers) listeners.hovered = note("hovered");
onDrag(canvas, view, listeners, { signal: stop.signal });
for (const [kind, x, y] of given.events) {
  if (kind === "stop") stop.abort();
  else canvas.dispatchEvent(Object.assign(new Event(kind), { clientX: x, clientY: y, pointerId: 7 }));
}
console.log(JSON.stringify({ seen, captured }));
"""


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        # A pointer that is not pressed hovers, and its release is no click.
        ([("pointermove", 5, 6), ("pointerup", 5, 6)], [["hovered", 5, 6]]),
        # Pulled to the right and down, the corner goes left and up, by weights and not by pixels.
        (
            [("pointerdown", 100, 100), ("pointermove", 108, 120), ("pointerup", 108, 120)],
            [["dragged", 8, 15]],
        ),
        # Back where it was pressed, it has moved all the same.
        (
            [
                ("pointerdown", 100, 100),
                ("pointermove", 105, 100),
                ("pointermove", 100, 100),
                ("pointerup", 100, 100),
            ],
            [["dragged", 8.75, 20], ["dragged", 10, 20]],
        ),
        # The tremble of a hand is a click; afterwards the pointer hovers again.
        (
            [
                ("pointerdown", 100, 100),
                ("pointermove", 104, 100),
                ("pointerup", 104, 100),
                ("pointermove", 1, 2),
            ],
            [["dragged", 9, 20], ["clicked", 104, 100], ["hovered", 1, 2]],
        ),
        # A drawing that was closed listens no more.
        ([("stop", 0, 0), ("pointerdown", 1, 1), ("pointerup", 1, 1)], []),
    ],
)
def test_a_drag_moves_the_view_and_a_click_chooses(events, wanted):
    found = node(IMPORT + DRAG, {"events": events, "hovers": True}, SHARED)
    assert found["seen"] == wanted
    pressed = [kind for kind, *_ in events].count("pointerdown")
    assert found["captured"] == [7] * (pressed if wanted else 0)


def test_a_drawing_need_not_know_where_the_pointer_hovers():
    events = [("pointermove", 5, 6), ("pointerdown", 1, 1), ("pointerup", 1, 1)]
    found = node(IMPORT + DRAG, {"events": events, "hovers": False}, SHARED)
    assert found["seen"] == [["clicked", 1, 1]]


@pytest.mark.parametrize(
    ("part", "most", "step", "size"),
    [
        ({"top": 0, "left": 0, "rows": 4, "keys": 3}, 64, 1, [3, 4]),
        ({"top": 1, "left": 2, "rows": 5, "keys": 10}, 5, 2, [5, 3]),
        ({"top": 0, "left": 0, "rows": 7, "keys": 1}, 3, 3, [1, 3]),
    ],
)
def test_an_image_of_a_map_has_at_most_so_many_points_on_a_side(part, most, step, size):
    program = """
globalThis.ImageData = class {
  constructor(width, height) {
    Object.assign(this, { width, height, data: new Uint8ClampedArray(4 * width * height) });
  }
};
const { imageOfMap } = await import('./map_image.js');
const asked = [];
const map = {
  block(...given) {
    asked.push(...given);
    return new Float32Array(given[5] * given[6]).fill(1);
  },
};
const { image, step } = imageOfMap(map, 3, true, given.part, given.most, false);
console.log(JSON.stringify({ asked, step, size: [image.width, image.height], last: [...image.data.slice(-4)] }));
"""
    found = node(program, {"part": part, "most": most}, SHARED)
    assert (found["step"], found["size"]) == (step, size)
    assert found["asked"] == [3, True, part["top"], part["left"], step, size[1], size[0]]
    assert found["last"] == [0, 34, 78, 255]  # the darkest colour of the light ramp
