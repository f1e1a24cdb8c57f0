"""Reading the log of a run while it is written, cut back and replaced."""

import json

from regard.core.atomic_io import atomic_file
from regard.training.telemetry.log_file import truncate_log
from regard.training.telemetry.log_reader import LogPosition, event_of, new_lines


def lines(*steps: int, loss: float = 1.0) -> str:
    return "".join(
        json.dumps({"event": "train", "step": step, "loss": loss}) + "\n" for step in steps
    )


def steps(found: list[bytes]) -> list[int]:
    return [event["step"] for event in map(event_of, found) if event is not None]


def test_only_new_whole_lines_are_read(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(lines(1, 2) + '{"event": "tr')
    first = new_lines(path)
    assert (steps(first.lines), first.restarted, first.complete) == ([1, 2], False, True)
    assert new_lines(path, first.position).lines == []
    with path.open("a") as file:
        file.write('ain", "step": 3, "loss": 1}\n' + lines(4))
    second = new_lines(path, LogPosition.parse(str(first.position)))
    assert (steps(second.lines), second.restarted) == ([3, 4], False)
    assert new_lines(path, second.position).position == second.position


def test_a_log_that_was_cut_back_is_read_anew(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(lines(*range(1, 40)))
    seen = new_lines(path).position
    truncate_log(tmp_path, 20)
    cut = new_lines(path, seen)
    assert (steps(cut.lines), cut.restarted) == (list(range(1, 21)), True)
    with path.open("a") as file:  # the resumed run is now farther than the first was read
        file.write(lines(*range(21, 60), loss=2.0))
    again = new_lines(path, seen)
    assert (steps(again.lines), again.restarted) == (list(range(1, 60)), True)
    assert steps(new_lines(path, cut.position).lines) == list(range(21, 60))


def test_a_copy_of_the_log_is_read_on(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(lines(1, 2))
    seen = new_lines(path).position
    with atomic_file(path) as file:
        file.write(lines(1, 2, 3).encode())
    assert (steps(new_lines(path, seen).lines), new_lines(path, seen).restarted) == ([3], False)


def test_a_long_log_is_read_in_parts(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        lines(*range(100)) + json.dumps({"step": 100, "text": "x" * 500}) + "\n" + "not JSON\n[1]\n"
    )
    found, position, complete, parts = [], LogPosition(), False, 0
    while not complete:
        part = new_lines(path, position, most=256)
        assert not part.restarted
        found, position, complete, parts = (
            found + part.lines,
            part.position,
            part.complete,
            parts + 1,
        )
    assert steps(found) == list(range(101))
    assert [event_of(line) for line in found[-2:]] == [None, None]
    assert parts > 10


def test_what_is_no_position_is_the_beginning():
    for text in ("", "x", "12", "-1-00000000", "1-0000000g", "9" * 30 + "-00000000"):
        assert LogPosition.parse(text) == LogPosition()
