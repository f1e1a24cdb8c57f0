"""Every promise names tests that exist, and every id is named once."""

import ast
from functools import lru_cache
from pathlib import Path

import pytest

from reliability.promises import PROMISES, Promise

TESTS = Path(__file__).resolve().parents[1]


@lru_cache
def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)}


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
    assert {f"S{number}" for number in range(1, 11)} <= set(ids)
