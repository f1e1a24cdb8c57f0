"""Few modules name a kind of field or task: the others ask the field, the vocabulary or the task.

A kind is named where a class of a kind is used, by its name or as an attribute of a module; where its vocabulary or
model is tested with `isinstance` or matched; and where `kind` or `task` is compared or matched with a name.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import regard
from regard.data.fields import FIELDS
from regard.data.vocabulary import Vocabulary
from regard.model.seq2seq import Model
from regard.tasks.kinds import TASKS

PACKAGE = Path(regard.__file__).parent
HOMES = ("tasks/", "data/fields/")
MOST = 5
COMPARED = ("kind", "task", "task_name", "input_kind", "head_kind")


def subclasses(of: type) -> Iterator[type]:
    for each in of.__subclasses__():
        yield each
        yield from subclasses(each)


FIELD_CLASSES = {FIELDS[kind].__name__ for kind in FIELDS}
TASK_CLASSES = {type(TASKS[name]).__name__ for name in TASKS}
CLASSES = FIELD_CLASSES | TASK_CLASSES
# `SourceModel` and its kin are what several tasks have in common.
MODEL_CLASSES = {each.__name__ for each in subclasses(Model) if "task" in vars(each)}
TESTED = {each.__name__ for each in subclasses(Vocabulary)} | MODEL_CLASSES
KIND_NAMES = {*FIELDS, *TASKS}


def named_kinds(tree: ast.AST) -> Iterator[str]:
    """What a module says of kinds, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and last_name(node) in CLASSES:
            yield f"{node.lineno}: {last_name(node)}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            parts = ast.walk(node.args[1])
            tested = {last_name(each) for each in parts if isinstance(each, ast.expr)}
            for name in tested & TESTED:
                yield f"{node.lineno}: isinstance {name}"
        if isinstance(node, ast.Compare):
            yield from compared_kinds(node, [node.left, *node.comparators])
        if isinstance(node, ast.Match):
            yield from matched_kinds(node)


def last_name(node: ast.expr) -> str:
    """`TextField` of both `TextField` and `fields.TextField`."""
    return ast.unparse(node).rpartition(".")[2]


def compared_kinds(node: ast.expr, sides: Sequence[ast.AST]) -> Iterator[str]:
    """The names of kinds among what is compared, if one of it is the kind or the task of something."""
    variables = {last_name(side) for side in sides if isinstance(side, ast.expr)}
    if variables.isdisjoint(COMPARED):
        return
    for side in sides:
        for constant in ast.walk(side):
            if isinstance(constant, ast.Constant) and constant.value in KIND_NAMES:
                yield f"{node.lineno}: compares with {constant.value!r}"


def matched_kinds(node: ast.Match) -> Iterator[str]:
    """The classes of vocabularies and models, and the names of kinds, among the patterns of a `match` statement."""
    for case in node.cases:
        yield from compared_kinds(node.subject, [node.subject, case.pattern])
        for pattern in ast.walk(case.pattern):
            if isinstance(pattern, ast.MatchClass) and last_name(pattern.cls) in TESTED:
                yield f"{pattern.lineno}: matches {last_name(pattern.cls)}"


def test_few_modules_name_a_kind():
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith(HOMES):
            continue
        kinds = list(named_kinds(ast.parse(path.read_text("utf-8"))))
        if kinds:
            found[name] = kinds
    assert len(found) <= MOST, found
    # None of them is beyond the model, its files and other formats.
    assert all(name.startswith(("interop/", "generation/")) for name in found), found


def test_the_check_sees_what_it_counts():
    def count(source: str) -> int:
        return len(list(named_kinds(ast.parse(source))))

    assert count("TextField()") == 1
    assert count("isinstance(target, Tokenizer | Labels)") == 2
    assert count("isinstance(model, Classifier)") == 1
    assert count("field.kind == 'image'") == 1
    assert count("model.task in ('classify', 'tag')") == 2
    assert count("name == 'image'") == 0
    assert count("isinstance(model, SourceModel)") == 0
    assert count("fields.TextField()") == 1
    assert count("isinstance(target, vocabularies.Labels)") == 1
    assert count("match target:\n case Labels() | Tokenizer(): pass") == 2
    assert count("match field:\n case fields.TextField(): pass") == 1
    assert count("match field.kind:\n case 'image': pass\n case 'text' | 'label': pass") == 3
    assert count("match name:\n case 'image': pass") == 0
