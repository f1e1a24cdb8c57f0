"""Every promise names tests that exist, every id is named once, and the page about them is current."""

import ast
from functools import lru_cache
from pathlib import Path

import pytest

from reliability.promises import PAGE, PROMISES, TESTS, Promise, page, results, verdict

COUNTS = {"F": 18, "B": 26, "S": 10, "C": 8, "N": 18, "P": 19}
NOT_YET = {"P18"}  # each field of an imported configuration, flipped alone


@lru_cache
def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.id)
def test_a_promise_names_tests_that_exist(promise: Promise):
    assert promise.tests
    for test in promise.tests:
        path, _, name = test.partition("::")
        assert name.startswith("test_")
        assert name in functions(TESTS / path)


def test_ids_are_different_and_complete():
    ids = [promise.id for promise in PROMISES]
    assert len(set(ids)) == len(ids)
    numbered = {
        f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)
    }
    assert set(ids) == numbered - NOT_YET


def test_the_page_is_current():
    """`make docs` writes it."""
    assert PAGE.read_text("utf-8") == page()


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_x" name="test_one[1]"/>
<testcase classname="tests.a.test_x" name="test_one[2]"><failure message="no"/></testcase>
<testcase classname="tests.a.test_x" name="test_two"/>
<testcase classname="tests.test_y" name="test_gpu"><skipped message="no GPU"/></testcase>
<testcase classname="tests.test_y" name="test_setup"><error message="no"/></testcase>
</testsuite></testsuites>"""


def test_what_holds_is_counted(tmp_path):
    """A failed case, an error in a fixture, and a test that did not run make a promise fail; skipped ones are named."""
    (tmp_path / "report.xml").write_text(REPORT)
    found = results(tmp_path / "report.xml")
    wanted = {
        ("a/test_x.py::test_two",): "holds",
        ("a/test_x.py::test_one", "a/test_x.py::test_two"): "failed: a/test_x.py::test_one",
        ("test_y.py::test_setup",): "failed: test_y.py::test_setup",
        ("test_y.py::test_absent",): "failed: test_y.py::test_absent",
        ("test_y.py::test_gpu",): "skipped: test_y.py::test_gpu",
        (
            "a/test_x.py::test_two",
            "test_y.py::test_gpu",
        ): "holds, but for skipped test_y.py::test_gpu",
    }
    assert {tests: verdict(Promise("X1", "", tests), found) for tests in wanted} == wanted
