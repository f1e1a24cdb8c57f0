"""The check of dense statements: what it counts, and what files may have."""

import pytest

import density


@pytest.mark.parametrize(
    ("source", "parallel"),
    [
        ("a, b = 1, 2", 1),
        ("self.a, self.b = a, b", 1),
        ("first, rest = read(), {}", 1),
        ("a, b = call()", 0),
        ("a, b = b, a", 0),
        ("x[0], x[1] = x[1], x[0]", 0),
        ("a = 1, 2", 0),
        ("a = b = 1", 0),
        ("for a, b in pairs: pass", 0),
    ],
)
def test_parallel_assignments(source, parallel):
    assert density.measure(source).parallel == parallel


@pytest.mark.parametrize(
    ("source", "conditional", "nested"),
    [
        ("x = a if b else c", 1, 0),
        ("x = a if b else c if d else e", 2, 1),
        ("x = (a if b else c) if d else e", 2, 1),
        ("x = [a if b else c for b in d]", 1, 0),
        ("x = f(a if b else c, d if e else g)", 2, 0),
    ],
)
def test_conditional_expressions(source, conditional, nested):
    found = density.measure(source)
    assert (found.conditional, found.nested) == (conditional, nested)


def test_lines_tokens_and_comments():
    found = density.measure("# why\nx = [\n    1,  # no line of its own\n]\n\ny = x\n")
    assert (found.lines, found.statements, found.tokens, found.comments) == (4, 2, 9, 1)


def test_a_new_file_must_be_plain_and_an_old_one_may_keep_what_it_has():
    dense = density.measure("a, b = 1, 2\nx = a if b else c if d else e\n")
    old = {"old.py": [1, 1]}
    assert density.check({"old.py": dense}, old) == []
    problems = density.check({"new.py": dense}, old)
    assert [problem.split(":")[0] for problem in problems] == ["new.py", "new.py"]
    denser = density.measure("a, b = 1, 2\nc, d = 3, 4\nx = 1\n")
    assert density.check({"old.py": denser}, old) == [
        "old.py: 2 parallel assignments, 1 allowed. Write one assignment per line."
    ]


def test_counts_are_only_ever_lowered():
    before = {"a.py": [3, 1]}
    simpler = density.measure("a, b = 1, 2\n")
    denser = density.measure("a, b = 1, 2\n" * 4)
    assert density.lowered({"a.py": simpler}, before) == {"a.py": [1, 0]}
    assert density.lowered({"a.py": denser}, before) == {"a.py": [3, 0]}
    assert density.lowered({"a.py": density.measure("a = 1\n")}, before) == {}


def test_a_long_file_may_have_a_few():
    long = density.measure("a = 1\n" * 999 + "a, b = 1, 2\n" * 5)
    assert density.check({"long.py": long}, {}) == []
