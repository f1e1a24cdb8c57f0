"""Mutation testing: plants small faults at random places of src/regard, one at a time; counts those that tests catch.

    python tools/mutants.py --count 100 --seed 1 [--only decoding]

Each fault is planted in a copy of the tree. The test files whose imports reach the changed module run, nearest first,
up to the first failure; a failing test counts if it passes without the fault. Results are kept in .mutants/, so that a
run that was stopped goes on, and written to docs/mutants.md.
"""

import argparse
import ast
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TESTS, PAGE = ROOT / "src" / "regard", ROOT / "tests", ROOT / "docs" / "mutants.md"
SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
CALLS = {"all": "any", "any": "all", "min": "max", "max": "min"}


HEAD = """# Mutants

Small faults (a comparison, a constant, a condition, an operator, the order of two arguments, a returned value) planted
at random places of `src/regard`, one at a time. The test files whose imports reach the changed module run, the nearest
{options.tests} of them, without those marked slow. What survived follows, the right line first.

`python tools/mutants.py --count {count} --seed {options.seed}{only}`

{share}: {failed} by a failing test, {late} by the limit of {options.seconds} s; {survived} survived.
"""


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
        case ast.BinOp(left, op, right) if type(op) in SWAPPED and not isinstance(left, ast.Constant | ast.JoinedStr):
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
        case ast.Call(function, [ast.Name() as first, ast.Name() as second, *rest], keywords) if first.id != second.id:
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
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if not name.startswith(only) or name.endswith("_triton.py"):
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
                    for row, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
                )
                new = ast.unparse(ast.fix_missing_locations(changed))
                new = new if isinstance(changed, ast.Return | ast.Constant | ast.Call) else f"({new})"
                found.append(Mutant(name, node.lineno, first, last, new))
    return found


def imports(path: Path, modules: set[str]) -> set[str]:
    """The modules of regard that a file names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value}  # the public names of `regard` are imported by strings
    return found & modules


def nearest_tests(path: str, most: int) -> list[str]:
    """The test files whose imports reach a module: those of its package first, then by the imports between."""
    files = {f"regard.{str(p.relative_to(SOURCE))[:-3].replace('/', '.')}": p for p in SOURCE.rglob("*.py")}
    files |= {name.removesuffix(".__init__"): p for name, p in files.items()}
    files |= {f"support.{p.stem}": p for p in (TESTS / "support").glob("*.py")}
    needs = {name: imports(p, {*files}) - {name} for name, p in files.items()}
    target = next(name for name, p in files.items() if p == SOURCE / path)
    distance, ring = {target: 0}, {target}
    while ring:
        ring = {name for name, needed in needs.items() if needed & ring and name not in distance}
        distance |= dict.fromkeys(ring, max(distance.values()) + 1)
    package, ranked = path.partition("/")[0], []
    for test in sorted(TESTS.rglob("test_*.py")):
        reached = [distance[name] for name in imports(test, {*files}) if name in distance]
        mirrored = test.parent.name == package
        if reached or mirrored:
            named = Path(path).stem in test.stem
            ranked.append((min(reached, default=3) - mirrored - 2 * named, str(test.relative_to(ROOT))))
    return [name for _, name in sorted(ranked)[:most]]


class Tree:
    """A copy of the repository, in which faults are planted."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options, self.passing = folder, options, set[str]()
        listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
        for name in listed.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def result(self, mutant: Mutant) -> dict[str, object]:
        """Whether tests catch a fault: caught (and by which test), survived, or timed out."""
        tests = nearest_tests(mutant.path, self.options.tests)
        place, (old, new) = self.folder / "src" / "regard" / mutant.path, mutant.text()
        flaky: list[str] = []
        while True:
            place.write_text(new, "utf-8")
            try:
                failed = self._failed([*tests, *(f"--deselect={each}" for each in flaky)])
            except subprocess.TimeoutExpired:
                return {"result": "timed out"}
            finally:
                place.write_text(old, "utf-8")
            if failed is None:
                return {"result": "survived"}
            if failed in self.passing or "::" not in failed or self._failed([failed]) is None:
                self.passing.add(failed)
                return {"result": "caught", "by": failed}
            flaky.append(failed)

    def _failed(self, tests: list[str]) -> str | None:
        """The first test that fails, or the file that cannot be collected."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            "--no-header",
        ]
        workers = ["-n", str(self.options.jobs)] if self.options.jobs > 1 and len(tests) > 1 else []
        environment = os.environ | {"PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [*command, *workers, *tests], cwd=self.folder, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=self.options.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            raise
        if process.returncode in (0, 5):
            return None
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        return found[1] if found else f"pytest ended with {process.returncode}"


def page(done: list[dict], options: argparse.Namespace) -> str:
    """docs/mutants.md."""
    counts = Counter(each["result"] for each in done)
    caught = counts["caught"] + counts["timed out"]
    only = f" --only {options.only}" if options.only else ""
    share = f"{caught} of {len(done)} caught ({100 * caught / max(1, len(done)):.0f} %)"
    survivors = [each for each in done if each["result"] == "survived"]
    told = {"failed": counts["caught"], "late": counts["timed out"], "survived": len(survivors)}
    return HEAD.format(options=options, count=len(done), only=only, share=share, **told) + "".join(
        f"\n## `{each['path']}:{each['line']}`\n\n```diff\n{each['diff']}```\n" for each in survivors
    )


def diff(mutant: Mutant) -> str:
    old, new = (text.splitlines(keepends=True) for text in mutant.text())
    return "".join(line for line in difflib.unified_diff(old, new, n=0) if not line.startswith(("---", "+++", "@@")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="faults to plant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a package or the beginning of a path under src/regard")
    parser.add_argument("--tests", type=int, default=16, help="test files that run at most, the nearest ones")
    parser.add_argument("--seconds", type=int, default=600, help="limit for the tests of one fault")
    parser.add_argument("--jobs", type=int, default=2, help="processes of pytest")
    options = parser.parse_args()
    kept = ROOT / ".mutants" / f"{options.seed}{options.only.replace('/', '-')}.jsonl"
    kept.parent.mkdir(exist_ok=True)
    before = [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.exists() else []
    known, done = {each["id"]: each for each in before}, []
    found = mutants(options.only)
    chosen = random.Random(options.seed).sample(found, min(options.count, len(found)))
    for mutant in chosen:
        ast.parse(mutant.text()[1])
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), options)
        for number, mutant in enumerate(chosen, 1):
            if mutant.id not in known:
                told = {"id": mutant.id, "path": mutant.path, "line": mutant.line, "diff": diff(mutant)}
                known[mutant.id] = told | tree.result(mutant)
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(known[mutant.id]) + "\n")
            done.append(known[mutant.id])
            each = done[-1]
            print(
                f"{number}/{len(chosen)} {each['result']}: {each['path']}:{each['line']} {each.get('by', '')}",
                flush=True,
            )
    PAGE.write_text(page(done, options), "utf-8")
    print(page(done, options).partition("\n## ")[0].strip().splitlines()[-1])


if __name__ == "__main__":
    main()
