"""Small faults: where they can be planted in src/regard, and the tests that should notice one."""

import ast
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from executed_functions import KEPT
from token_faults import CPP, JAVASCRIPT, lines_around, scope_of, token_faults

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "regard"
TESTS = ROOT / "tests"
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
LONGEST = 120  # characters of an expression that names the fault of a constant in it


class Mutant(NamedTuple):
    """A part of a file's text and what replaces it.

    within   the functions and classes around it
    before   the source of the expression, or in JavaScript and C++ of the line, without the fault, and `after` with it
    number   which one it is of those that are named alike
    """

    path: str  # under src/regard
    line: int
    start: int  # characters of the file
    end: int
    new: str
    within: str
    before: str
    after: str
    number: int = 1

    @property
    def id(self) -> str:
        """A name that stays when other parts of the file change, and when the file is formatted in another way."""
        return fault_id(self.path, self.within, self.before, self.after, self.number)

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    @property
    def stratum(self) -> str:
        """The package that it is in, and the language where that is not Python: samples are drawn evenly from these."""
        package = self.path.partition("/")[0] if "/" in self.path else "regard"
        if self.is_python:
            return package
        return f"{package} (C++)" if self.path.endswith(CPP) else f"{package} (JavaScript)"

    def text(self) -> tuple[str, str]:
        """The file without and with the fault."""
        old = (SOURCE / self.path).read_text("utf-8")
        return old, old[: self.start] + self.new + old[self.end :]


def fault_id(path: str, within: str, before: str, after: str, number: int = 1) -> str:
    place = f"{path} {within}".strip()
    return f"{place}: {before} -> {after}" + (f" ({number})" if number > 1 else "")


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


class Place(NamedTuple):
    """A node of a program, the expression that it is a part of, and the names of the functions and classes around."""

    node: ast.AST
    parent: ast.AST
    names: tuple[str, ...] = ()


def places(node: ast.AST, parent: ast.AST, names: tuple[str, ...] = ()) -> Iterator[Place]:
    """Everything but annotations, decorators, messages of errors, assertions and blocks for type checkers."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":  # of zip: an assertion
        return
    yield Place(node, parent, names)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        names = (*names, node.name)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from places(child, node, names)


def description(place: Place, changed: ast.AST) -> tuple[str, str]:
    """The source of an expression without and with a fault; of a constant that of the expression around it, if short.

    A number alone says too little: which 0 became 1?
    """
    node = place.node
    parent = place.parent
    before = ast.unparse(node)
    after = ast.unparse(ast.fix_missing_locations(changed))
    if not isinstance(node, ast.Constant) or not isinstance(parent, ast.expr | ast.keyword):
        return before, after
    around = ast.unparse(parent)
    if len(around) > LONGEST:
        return before, after
    for name, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, name, changed)
            after = ast.unparse(parent)
            setattr(parent, name, node)
        elif isinstance(value, list) and any(each is node for each in value):
            index = next(i for i, each in enumerate(value) if each is node)
            value[index] = changed
            after = ast.unparse(parent)
            value[index] = node
    return around, after


def mutants(only: str = "") -> list[Mutant]:
    """All faults that can be planted, in the order of files and lines. Triton's kernels need a GPU."""
    found = list[Mutant]()
    chosen = tuple(only.split(","))
    for path in sorted(SOURCE.rglob("*")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(chosen) or name.endswith("_triton.py"):
            continue
        if name.endswith(".py"):
            found += numbered(python_mutants(name, path.read_text("utf-8")))
        elif name.endswith((*JAVASCRIPT, *CPP)):
            found += numbered(token_mutants(name, path.read_text("utf-8")))
    return found


def numbered(found: Iterator[Mutant]) -> Iterator[Mutant]:
    """Those of a file: where several are named alike, they are counted."""
    alike = Counter[str]()
    for mutant in found:
        alike[mutant.id] += 1
        yield mutant._replace(number=alike[mutant.id])


def python_mutants(name: str, text: str) -> Iterator[Mutant]:
    """The faults that can be planted in a module."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()
    tree = ast.parse(text)
    for place in places(tree, tree):
        node = place.node
        for changed in changes(node):
            first, last = (
                len(raw[: starts[row - 1] + column].decode())
                for row, column in (
                    (node.lineno, node.col_offset),
                    (node.end_lineno, node.end_col_offset),
                )
            )
            new = ast.unparse(ast.fix_missing_locations(changed))
            if not isinstance(changed, ast.Return | ast.Constant | ast.Call):
                new = f"({new})"
            before, after = description(place, changed)
            within = ".".join(place.names)
            yield Mutant(name, node.lineno, first, last, new, within, before, after)


def token_mutants(name: str, text: str) -> Iterator[Mutant]:
    """The faults that can be planted in a file of JavaScript or C++. They are named by the lines that they are in."""
    for fault in token_faults(text, cpp=name.endswith(CPP)):
        start, end = lines_around(text, fault.start, fault.end)
        before = " ".join(text[start:end].split())
        after = " ".join((text[start : fault.start] + fault.new + text[fault.end : end]).split())
        within = scope_of(text, fault.start)
        yield Mutant(name, fault.line, fault.start, fault.end, fault.new, within, before, after)


def drawn(found: list[Mutant], seed: int) -> Iterator[tuple[str, list[Mutant]]]:
    """The faults of each stratum in the order in which a sample takes them, which depends on the seed alone."""
    strata: dict[str, list[Mutant]] = {}
    for mutant in found:
        strata.setdefault(mutant.stratum, []).append(mutant)
    for stratum in sorted(strata):
        # Each has a generator of its own: faults of one package do not depend on what others have.
        order = sorted(strata[stratum], key=lambda each: each.id)
        random.Random(f"{seed} {stratum}").shuffle(order)
        yield stratum, order


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
    names = mutant.within.split(".") if mutant.within else []
    return {Path(mutant.path).stem, *names} - {"__init__", "__call__"}


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
    if not mutant.is_python:
        return nearest_script_or_engine_tests(mutant)
    path = mutant.path
    around = words_around(mutant)
    files, needed = needs()
    target = next(name for name, p in files.items() if p == SOURCE / path)
    distance = {target: 0}
    ring = {target}
    while ring:
        ring = {name for name, own in needed.items() if own & ring and name not in distance}
        distance |= dict.fromkeys(ring, max(distance.values()) + 1)
    package = path.partition("/")[0]
    ranked = []
    for test in sorted(TESTS.rglob("test_*.py")):
        reached = [distance[name] for name in imports(test) if name in distance]
        mirrored = package in test.relative_to(TESTS).parts
        if reached or mirrored:
            named = Path(path).stem in test.stem
            nearness = mirrored + 2 * named + 2 * len(words(test) & around)
            ranked.append((min(reached, default=3) - nearness, str(test.relative_to(ROOT))))
    return [name for _, name in sorted(ranked)]


# Folders of studio/app/ whose tests are those of another package.
SCRIPTS_TESTED_IN = {"standalone": "interop", "api_docs": "serving"}


def nearest_script_or_engine_tests(mutant: Mutant) -> list[str]:
    """The test files that run scripts, for a fault in JavaScript; those of the engines for one in C++.

    First come those of its package, and those that name its file, its folder or what is around it; last those of which
    all tests are slow.
    """
    path = Path(mutant.path)
    around = words_around(mutant) | {path.parent.name}
    ranked = list[tuple[int, str]]()
    for test in sorted(TESTS.rglob("test_*.py")):
        own = words(test)
        if mutant.path.endswith(CPP):
            reached = test.parent.name == "engines" or "CpuEngine" in own
        else:
            reached = bool({"browsers", "playwright"} & own) or {"node", "js"} <= own
        if reached and test.parent.name != "release":  # where the faults themselves are tested
            package = SCRIPTS_TESTED_IN.get(path.parent.name, path.parts[0])
            mirrored = package in test.relative_to(TESTS).parts
            is_studio = package == "studio"
            served = is_studio and "studio" in test.stem
            is_slow = "pytestmark = pytest.mark.slow" in test.read_text("utf-8")
            nearness = 3 * mirrored + 2 * served + len(own & around) - 10 * is_slow
            ranked.append((-nearness, str(test.relative_to(ROOT))))
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
    if not mutant.is_python:
        return []
    noted = executed()[1]
    around = definitions_around(mutant)
    name = ""
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
    near = nearest_files(mutant)
    taken = executed()[0]
    by_file = dict[str, list[str]]()
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
    has_doctests = mutant.is_python and ">>> " in mutant.text()[0]
    doctests = [f"src/regard/{mutant.path}"] if has_doctests else []
    return chosen, doctests + near[: files - len(doctests)]
