"""Mutation testing: plants small faults at random places of src/regard, one at a time; counts those that tests catch.

    python tools/mutants.py --count 100 --seed 1 [--only decoding] [--minutes 7] [--again]

Each fault is planted in a copy of the tree. The test files whose imports reach the changed module run, nearest first,
up to the first failure or until --seconds have passed; a failing test counts if it passes without the fault. Results
are kept in .mutants/, so that a run that was stopped, or ended by --minutes, goes on. --again tries once more what
survived, which is how new tests are seen to catch it. The report is docs/mutants.md; tools/equivalent_mutants.toml
holds the faults that change nothing that can be observed, each with its reason.
"""

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TESTS, PAGE = ROOT / "src" / "regard", ROOT / "tests", ROOT / "docs" / "mutants.md"
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.toml"
PROGRAMS = ("benchmarks", "experiments", "tools", "docs/tools", "docs/course")  # which tests import by their bare names
PRELOADED = ("torch", "numpy", "tokenizers", "safetensors.torch", "beartype")  # saves seconds a fault
SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
CALLS = {"all": "any", "any": "all", "min": "max", "max": "min"}


HEAD = """# Mutants

Small faults (a comparison, a constant, a condition, an operator, the order of two arguments, a returned value) planted
at random places of `src/regard`, one at a time. The test files whose imports reach the changed module run, the nearest
{options.tests} of them and for {options.seconds} s of processor time at most, without tests marked slow. A fault that
no test noticed by then counts as survived. It is caught by a test that fails, or takes longer than {options.limit} s,
with the fault only.

`python tools/mutants.py --count {count} --seed {options.seed}{only}`

{share}
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
    files = {f"regard.{str(p.relative_to(SOURCE))[:-3].replace('/', '.')}": p for p in SOURCE.rglob("*.py")}
    files |= {name.removesuffix(".__init__"): p for name, p in files.items()}
    files |= {f"support.{p.stem}": p for p in (TESTS / "support").glob("*.py")}
    files |= {p.stem: p for folder in PROGRAMS for p in (ROOT / folder).glob("*.py")}
    return files, {name: imports(p) & (files.keys() - {name}) for name, p in files.items()}


def nearest_tests(path: str, most: int) -> list[str]:
    """The test files whose imports reach a module: those of its package first, then by the imports between."""
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
            ranked.append((min(reached, default=3) - mirrored - 2 * named, str(test.relative_to(ROOT))))
    return [name for _, name in sorted(ranked)[:most]]


class Limits:
    """A plugin of pytest: ends tests that take too long, and the run after some time; keeps the first failure.

    Times are those of the processor, as other processes may be at work.
    """

    def __init__(self, seconds: float, limit: int) -> None:
        self.deadline, self.limit, self.failed = time.process_time() + seconds, limit, ""
        signal.signal(signal.SIGPROF, self._fail)

    def _fail(self, *_: object) -> None:
        pytest.fail(f"took longer than {self.limit} s", pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_PROF, self.limit)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    pytest_runtest_call = pytest_runtest_setup

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if time.process_time() > self.deadline:
            pytest.exit("time is up", 0)


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
        """Whether tests catch a fault: caught (and by which test), or survived."""
        tests = nearest_tests(mutant.path, self.options.tests)
        place, (old, new) = self.folder / "src" / "regard" / mutant.path, mutant.text()
        flaky: list[str] = []
        while True:
            place.write_text(new, "utf-8")
            try:
                failed = self._failed([*tests, *(f"--deselect={each}" for each in flaky)])
            finally:
                place.write_text(old, "utf-8")
            if not failed:
                return {"result": "survived"}
            if failed in self.passing or not self._failed([failed]):
                self.passing.add(failed)
                return {"result": "caught", "by": failed}
            if "::" not in failed:
                return {"result": "survived"}
            flaky.append(failed)

    def _failed(self, tests: list[str]) -> str:
        """The first test that fails, or the file that cannot be collected; "" for none. Runs in a forked process."""
        told = self.folder / ".failed"
        told.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            self._run(tests, told)
        end = time.monotonic() + 4 * (self.options.seconds + self.options.limit)
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:  # it waits for something, or is in a loop that no signal ends
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return ""
            time.sleep(0.05)
        if not told.exists():
            raise RuntimeError(f"pytest did not run:\n{(self.folder / '.output').read_text()}")
        return told.read_text()

    def _run(self, tests: list[str], told: Path) -> None:
        try:
            os.setsid()
            os.chdir(self.folder)
            os.environ["PYTHONPATH"] = str(self.folder / "src")
            sys.dont_write_bytecode = False  # checks of shapes take seconds to compile
            sys.path.insert(0, str(self.folder / "src"))
            output = os.open(self.folder / ".output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            limits = Limits(self.options.seconds, self.options.limit)
            arguments = ["-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
            code = pytest.main([*arguments, *tests], plugins=[limits])
            told.write_text("" if code in (0, 5) else limits.failed or f"pytest ended with {code}")
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


def page(done: list[dict], options: argparse.Namespace) -> str:
    """docs/mutants.md."""
    reasons = tomllib.loads(EQUIVALENT.read_text("utf-8"))
    counts = Counter(each["result"] for each in done)
    equivalent = [each for each in done if each["result"] == "survived" and each["id"] in reasons]
    survivors = [each for each in done if each["result"] == "survived" and each["id"] not in reasons]
    different = max(1, len(done) - len(equivalent))
    only = f" --only {options.only}" if options.only else ""
    share = (
        f"{counts['caught']} of {len(done)} caught, {len(equivalent)} equivalent, {len(survivors)} survived: "
        f"{100 * counts['caught'] / different:.0f} % of those that change something."
    )
    if len(done) < options.count:
        share += f" The other {options.count - len(done)} of this sample have not been planted."
    text = HEAD.format(options=options, count=options.count, only=only, share=share)
    for title, chosen in {"Survived": survivors, "Equivalent": equivalent}.items():
        text += f"\n## {title}\n" * bool(chosen)
        for each in chosen:
            reason = f"\n{reasons[each['id']].strip()}\n" if each["id"] in reasons else ""
            text += f"\n### `{each['path']}:{each['line']}`\n{reason}\n```diff\n{each['diff']}```\n"
    return text


def diff(mutant: Mutant) -> str:
    old, new = (text.splitlines(keepends=True) for text in mutant.text())
    return "".join(line for line in difflib.unified_diff(old, new, n=0) if not line.startswith(("---", "+++", "@@")))


def start_worker(folder: str, options: argparse.Namespace) -> None:
    global tree
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        __import__(name)
    tree = Tree(Path(tempfile.mkdtemp(dir=folder)), options)


def result(mutant: Mutant) -> dict[str, object]:
    described = {"id": mutant.id, "path": mutant.path, "line": mutant.line, "diff": diff(mutant)}
    return described | tree.result(mutant)


def new_results(waiting: list[Mutant], options: argparse.Namespace) -> Iterator[dict]:
    """The results of faults as they come, until the minutes are over: one worker for each job."""
    end = time.monotonic() + 60 * options.minutes
    needs()  # before the workers are forked
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(options.jobs, get_context("fork"), start_worker, (folder, options)) as pool,
    ):
        running: set[Future] = set()
        while running or (waiting and time.monotonic() < end):
            while waiting and len(running) < options.jobs and time.monotonic() < end:
                running.add(pool.submit(result, waiting.pop(0)))
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for each in finished:
                yield each.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="faults to plant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a package or the beginning of a path under src/regard")
    parser.add_argument("--tests", type=int, default=16, help="test files that run at most, the nearest ones")
    parser.add_argument("--seconds", type=int, default=600, help="processor time for the tests of one fault")
    parser.add_argument("--limit", type=int, default=60, help="seconds of processor time that one test may take")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no more tests after these")
    parser.add_argument("--again", action="store_true", help="try again what survived")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults at a time")
    options = parser.parse_args()
    kept = ROOT / ".mutants" / f"{options.seed}{options.only.replace('/', '-')}.jsonl"
    kept.parent.mkdir(exist_ok=True)
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    known = {each["id"]: each for each in map(json.loads, lines)}
    found = mutants(options.only)
    chosen = random.Random(options.seed).sample(found, min(options.count, len(found)))
    for mutant in chosen:
        ast.parse(mutant.text()[1])
    tried_again = {key for key, each in known.items() if options.again and each["result"] == "survived"}
    finished = known.keys() - (tried_again - tomllib.loads(EQUIVALENT.read_text("utf-8")).keys())
    for each in new_results([mutant for mutant in chosen if mutant.id not in finished], options):
        known[each["id"]] = each
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(each) + "\n")
        print(f"{each['result']}: {each['path']}:{each['line']} {each.get('by', '')}", flush=True)
    done = [known[mutant.id] for mutant in chosen if mutant.id in known]
    PAGE.write_text(page(done, options), "utf-8")
    print(f"{len(done)} of {len(chosen)} planted.", page(done, options).partition("\n## ")[0].strip().splitlines()[-1])


if __name__ == "__main__":
    main()
