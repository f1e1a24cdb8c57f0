"""Small faults: where they can be planted in src/regard, and the tests that should notice one."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from executed_functions import KEPT

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TESTS = ROOT / "src" / "regard", ROOT / "tests"
PROGRAMS = (
    "benchmarks",
    "experiments",
    "tools",
    "docs/tools",
    "docs/course",
)  # which tests import by their bare names
SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
CALLS = {"all": "any", "any": "all", "min": "max", "max": "min"}


class Mutant(NamedTuple):
    """A part of a file's text and what replaces it."""

    path: str  # under src/regard
    line: int
    start: int  # characters of the file
    end: int
    new: str

    @property
    def id(self) -> str:
        return f"{self.path}:{self.line}:{self.start}:{self.new}"

    def text(self) -> tuple[str, str]:
        """The file without and with the fault."""
        old = (SOURCE / self.path).read_text("utf-8")
        return old, old[: self.start] + self.new + old[self.end :]


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """The node with a small fault, in each way that there is."""
    match node:
        case ast.Compare(left, [op, *ops], comparators) if type(op) in SWAPPED:
            yield ast.Compare(left, [SWAPPED[type(op)](), *ops], comparators)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(SWAPPED[type(op)](), values)
        case ast.BinOp(left, op, right) if type(op) in SWAPPED and not isinstance(
            left, ast.Constant | ast.JoinedStr
        ):
            yield ast.BinOp(left, SWAPPED[type(op)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1)
        case ast.Call(ast.Name(name), arguments, keywords) if name in CALLS:
            yield ast.Call(ast.Name(CALLS[name]), arguments, keywords)
        case ast.Call(function, [ast.Name() as first, ast.Name() as second, *rest], keywords) if (
            first.id != second.id
        ):
            yield ast.Call(function, [second, first, *rest], keywords)
        case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything but annotations, decorators, messages of errors, assertions and blocks for type checkers."""
    if isinstance(tree, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.dump(tree.test):
        return
    if isinstance(tree, ast.keyword) and tree.arg == "strict":  # of zip: an assertion
        return
    yield tree
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from nodes(child)


def mutants(only: str) -> list[Mutant]:
    """All faults that can be planted, in the order of files and lines. Triton's kernels need a GPU."""
    found, chosen = [], tuple(only.split(","))
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if not name.startswith(chosen) or name.endswith("_triton.py"):
            continue
        text = path.read_text("utf-8")
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line.encode()))
        raw = text.encode()
        for node in nodes(ast.parse(text)):
            for changed in changes(node):
                first, last = (
                    len(raw[: starts[row - 1] + column].decode())
                    for row, column in (
                        (node.lineno, node.col_offset),
                        (node.end_lineno, node.end_col_offset),
                    )
                )
                new = ast.unparse(ast.fix_missing_locations(changed))
                new = (
                    new if isinstance(changed, ast.Return | ast.Constant | ast.Call) else f"({new})"
                )
                found.append(Mutant(name, node.lineno, first, last, new))
    return found


@cache
def imports(path: Path) -> frozenset[str]:
    """The modules that a file names, and every other text in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value}  # the public names of `regard` are imported by strings
    return frozenset(found)


@cache
def needs() -> tuple[dict[str, Path], dict[str, frozenset[str]]]:
    """The file of each module of regard, of the tests' helpers and of programs, and the modules that it imports."""
    files = {
        f"regard.{str(p.relative_to(SOURCE))[:-3].replace('/', '.')}": p
        for p in SOURCE.rglob("*.py")
    }
    files |= {name.removesuffix(".__init__"): p for name, p in files.items()}
    files |= {f"support.{p.stem}": p for p in (TESTS / "support").glob("*.py")}
    files |= {p.stem: p for folder in PROGRAMS for p in (ROOT / folder).glob("*.py")}
    return files, {name: imports(p) & (files.keys() - {name}) for name, p in files.items()}


def words_around(mutant: Mutant) -> set[str]:
    """The names of the module, and of the functions and classes, that a fault is in."""
    return {Path(mutant.path).stem, *(each.name for each in definitions_around(mutant))} - {
        "__init__",
        "__call__",
    }


def definitions_around(
    mutant: Mutant,
) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """The functions and classes that a fault is in, the outermost first."""
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [node for node in ast.walk(ast.parse(mutant.text()[0])) if isinstance(node, defined)]
    return sorted(
        (each for each in found if each.lineno <= mutant.line <= each.end_lineno),
        key=lambda n: n.lineno,
    )


@cache
def words(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", path.read_text("utf-8")))


def nearest_files(mutant: Mutant) -> list[str]:
    """The test files whose imports reach the module: first those of its package, and those that name what is around."""
    path, around = mutant.path, words_around(mutant)
    files, needed = needs()
    target = next(name for name, p in files.items() if p == SOURCE / path)
    distance, ring = {target: 0}, {target}
    while ring:
        ring = {name for name, own in needed.items() if own & ring and name not in distance}
        distance |= dict.fromkeys(ring, max(distance.values()) + 1)
    package, ranked = path.partition("/")[0], []
    for test in sorted(TESTS.rglob("test_*.py")):
        reached = [distance[name] for name in imports(test) if name in distance]
        mirrored = test.parent.name == package
        if reached or mirrored:
            named = Path(path).stem in test.stem
            nearness = mirrored + 2 * named + 2 * len(words(test) & around)
            ranked.append((min(reached, default=3) - nearness, str(test.relative_to(ROOT))))
    return [name for _, name in sorted(ranked)]


@cache
def executed() -> tuple[dict[str, float], dict[str, list[str]]]:
    """The processor time of each test, and the tests that execute each function, where they have been noted."""
    if not KEPT.exists():
        return {}, {}
    noted = json.loads(KEPT.read_text("utf-8"))
    tests = [*noted["seconds"]]
    return noted["seconds"], {
        name: [tests[each] for each in own] for name, own in noted["functions"].items()
    }


def executing_tests(mutant: Mutant) -> list[str]:
    """The tests that execute the function that a fault is in; of a class or module, those of a function that names it.

    "It" is what the statement with the fault assigns.
    """
    noted, around, name = executed()[1], definitions_around(mutant), ""
    for outer, inner in zip([None, *around], around, strict=False):
        name += (
            f".<locals>.{inner.name}"
            if outer and not isinstance(outer, ast.ClassDef)
            else f".{inner.name}"
        )
    key = f"{mutant.path}:{name[1:]}"
    if around and not isinstance(around[-1], ast.ClassDef):
        return noted.get(key, [])
    text = mutant.text()[0]
    holder = around[-1] if around else ast.parse(text)
    statements = [each for each in holder.body if each.lineno <= mutant.line <= each.end_lineno]
    assigned = {node.id for each in statements for node in ast.walk(each) if isinstance(node, ast.Name)
                and isinstance(node.ctx, ast.Store)}  # fmt: skip
    defined = (ast.FunctionDef, ast.AsyncFunctionDef)
    using = {
        node.name for node in ast.walk(ast.parse(text))
        if isinstance(node, defined) and assigned & {*re.findall(r"\w+", ast.get_source_segment(text, node) or "")}
    }  # fmt: skip
    own = [each for each in noted if each.startswith(key) and re.split(r"[:.]", each)[-1] in using]
    return [*dict.fromkeys(test for each in own for test in noted[each])]


def nearest_tests(
    mutant: Mutant, files: int, seconds: float
) -> tuple[dict[str, list[str]], list[str]]:
    """Tests that execute what a fault is in, by file and for some time, and the nearest files.

    Without notes of what tests execute (executed_functions.py), there are the latter only.
    """
    near, taken, by_file = nearest_files(mutant), executed()[0], dict[str, list[str]]()
    for test in executing_tests(mutant):
        by_file.setdefault(test.partition("::")[0], []).append(test)
    order = sorted(by_file, key=lambda file: near.index(file) if file in near else len(near))[
        :files
    ]
    chosen: dict[str, list[str]] = {file: [] for file in order}
    for tests in zip_longest(*(by_file[file] for file in order)):  # in turn
        for file, test in zip(order, tests, strict=True):
            if test and taken[test] <= seconds:
                chosen[file].append(test)
                seconds -= taken[test]
    doctests = [f"src/regard/{mutant.path}"] if ">>> " in mutant.text()[0] else []
    return chosen, doctests + near[: files - len(doctests)]
