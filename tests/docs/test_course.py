"""The course: every lesson runs, the grader takes our solutions and refuses a plausible mistake in each exercise."""

import ast
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import wrong_answers

import course
import run_lesson
from support.page_blocks import blocks, run_by

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "docs" / "course"
LESSONS = sorted(COURSE.glob("[0-9]*.md"))
EXERCISES = [(lesson, exercise) for lesson in range(1, 13) for exercise in (1, 2, 3)]


def solution(lesson: int, exercise: int):
    path = COURSE / "solutions" / f"lesson_{lesson:02}.py"
    spec = importlib.util.spec_from_file_location(f"solution_{lesson}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, f"exercise_{exercise}")


def test_there_are_twelve_lessons_of_one_form():
    assert [path.name[:2] for path in LESSONS] == [f"{number:02}" for number in range(1, 13)]
    for path in LESSONS:
        text = path.read_text("utf-8")
        parts = re.findall(r"^## (.*)", text, re.M)
        assert parts == [
            "The idea",
            "Twenty lines",
            "An experiment that could have failed",
            "Exercises",
        ], path.name
        assert "*Covers: " in text, path.name
        assert "\nassert " in text or "    assert " in text, path.name
        assert len(re.findall(r"^\d\. `exercise_\d\(", text, re.M)) == 3, path.name
        assert path.name in (COURSE / "index.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_and_draws(path, tmp_path):
    """In a process of its own, with warnings as errors, as a reader runs it."""
    out = tmp_path / "cells.json"
    command = [sys.executable, "-W", "error", ROOT / "docs/tools/run_lesson.py", path, out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cells = json.loads(out.read_text("utf-8"))
    assert len(cells) == len(run_lesson.cells(path.read_text("utf-8"))) >= 2
    assert any(cell.get("svg", "").startswith("<svg") and cell["alt"] for cell in cells)


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES)
def test_the_grader_takes_the_solution_and_refuses_a_mistake(lesson, exercise, capsys):
    course.grade(lesson, exercise, solution(lesson, exercise))
    assert capsys.readouterr().out == f"Exercise {lesson}.{exercise}: correct.\n"
    with pytest.raises((AssertionError, RuntimeError)):
        course.grade(lesson, exercise, wrong_answers.WRONG[lesson, exercise])


def test_every_refusal_of_a_grader_has_a_reason():
    """A learner sees the message of the assertion, and nothing else."""
    found = [
        (path.name, node.lineno, node.msg is not None)
        for path in sorted((COURSE / "graders").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert len(found) > 60
    assert [(name, line) for name, line, explained in found if not explained] == []


def test_a_file_of_answers_is_graded(tmp_path, capsys):
    answers = tmp_path / "answers.py"
    answers.write_text("def exercise_1(logs):\n    return 2.0\n")
    assert course.main("1", str(answers)) == 1
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first == "Exercise 1.1: not yet. AssertionError: the product of 0.5 and 0.25 is 0.125"
    assert second == "Exercise 1.2: not yet. There is no exercise_2 in answers.py."
    assert course.main("2", str(COURSE / "solutions" / "lesson_02.py")) == 0


@pytest.mark.slow
def test_the_commands_of_the_course_run(tmp_path):
    """In a copy of the folders, with the file of answers that the page shows."""
    run, grade = (block.code for block in run_by("course") if block.language == "sh")
    (answers,) = (block for block in run_by("course") if block.file)
    (pasted,) = (
        block.code for block in blocks() if block.page == answers.page and block.language == "text"
    )
    for name in ("course", "tools"):
        shutil.copytree(ROOT / "docs" / name, tmp_path / "docs" / name)
    (tmp_path / "docs/course" / answers.file).write_text(answers.code)
    start = f'python() {{ "{sys.executable}" "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-ec", start + run], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "with attention" in done.stdout
    pictures = sorted(path.name for path in (tmp_path / "docs/course").glob("*.svg"))
    assert pictures == ["01-bottleneck-2.svg", "01-bottleneck-3.svg", "01-bottleneck-4.svg"]
    folder = tmp_path / "docs" / "course"
    graded = subprocess.run(
        ["bash", "-c", start + grade], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (graded.returncode, graded.stdout) == (1, pasted), graded.stderr


@pytest.mark.parametrize("block", run_by("grading"), ids=lambda block: Path(block.page).stem)
def test_a_cell_that_grades_takes_a_solution(block, capsys):
    lesson, exercise = map(int, re.findall(r"grade\((\d+), (\d+), ", block.code)[0])
    code, answers = re.subn(r"def (exercise_\d)\(.*\): \.\.\.", r"\1 = solution", block.code)
    assert answers == 1
    assert lesson == int(Path(block.page).name[:2])
    assert f"def exercise_{exercise}(" in block.code
    exec(compile(code, block.page, "exec"), {"solution": solution(lesson, exercise)})
    assert capsys.readouterr().out == f"Exercise {lesson}.{exercise}: correct.\n"


@pytest.mark.parametrize(
    "arguments", [[], ["1"], ["13", "answers.py"], ["one", "answers.py"], ["1", "none.py"]]
)
def test_a_wrong_call_of_the_grader_is_explained(arguments, tmp_path, monkeypatch):
    (tmp_path / "answers.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["course.py", *arguments])
    with pytest.raises(
        SystemExit, match=r"^usage: python course\.py LESSON ANSWERS\.py"
    ):  # a text: exit status 1
        runpy.run_path(str(COURSE / "course.py"), run_name="__main__")


def test_a_cell_gives_what_it_printed_and_its_last_expression():
    assert run_lesson.run("x = 2\nprint('a')\nx + 1", {}, "cell") == {"text": "a\n3\n"}
    assert run_lesson.run("None", {}, "cell") == {"text": ""}
    picture = run_lesson.run("p", {"p": course.Picture(b"<svg/>", "a picture")}, "cell")
    assert picture == {"text": "", "svg": "<svg/>", "alt": "a picture"}
    with pytest.raises(AssertionError):
        run_lesson.run("assert False", {}, "cell")
    assert run_lesson.cells(
        "```python\na\n```\n```python .noeval\nb\n```\n```python\nc\n```\n"
    ) == ["a\n", "c\n"]


def test_a_lesson_run_by_hand_prints_and_saves_its_pictures(tmp_path):
    picture = "import course\ncourse.Picture(b'<svg/>', 'a picture')"
    (tmp_path / "lesson.md").write_text(
        f"```python\nprint('a')\n```\n\n```python\n{picture}\n```\n"
    )
    command = [sys.executable, ROOT / "docs/tools/run_lesson.py", tmp_path / "lesson.md"]
    settings = os.environ | {
        "PYTHONPATH": f"{COURSE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=True
    )
    assert done.stdout == "a\n[a picture: lesson-2.svg]\n"
    assert (tmp_path / "lesson-2.svg").read_text() == "<svg/>"


def test_the_table_of_claims_names_lessons_and_tests_that_exist():
    text = (COURSE / "notes.md").read_text("utf-8")
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith("| claim")
    ]
    assert len(rows) > 50
    assert [row for row in rows if len(row.split("|")) != 5 or not row.split("|")[3].strip()] == []
    lessons = {int(number) for number in re.findall(r"[Ll]essons? (\d+)", text)}
    assert lessons == set(range(1, 13))
    numbers = {int(number) for number in re.findall(r"claims? (\d)", text)}
    assert numbers == set(range(1, 9)), "every experiment of docs/claims.md"
    assert [
        path for path in re.findall(r"`(tests/[\w/.]+)`", text) if not (ROOT / path).exists()
    ] == []
