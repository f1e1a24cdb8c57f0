"""Mutation testing: plants small faults at random places of src/regard, one at a time; counts those that tests catch.

    python tools/mutants.py --count 100 --seed 1 [--per-package 20] [--only generation] [--minutes 7] [--again]

A sample is drawn evenly from the packages, of which JavaScript and C++ are counted apart: one fault of each in turn, up
to --count, or --per-package of each. A longer sample of the same seed begins with the shorter one.

Each fault is planted in a copy of the tree. Tests that execute the changed function run first, where they have been
noted (executed_functions.py), then the test files whose imports reach the changed module, nearest first, up to the
first failure or until --seconds have passed; a test that fails, or ends the process, counts if it passes without the
fault. Results are kept in .mutants/SEED.jsonl as they come, so that a run that was stopped, or ended by
--minutes, goes on, also on another machine. --again tries once more what survived, which is how new tests are seen to
catch it. For a fault in JavaScript, the tests that run scripts run, and for one in C++ those of the engine, which
is compiled with the fault; tests marked slow run too, as most of these are.

The report is .mutants/SEED.md, and docs/mutants.md is about the samples so far; tools/equivalent_mutants.toml
holds the faults that change nothing that can be observed, each with its reason.
"""

import argparse
import ast
import difflib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from fnmatch import fnmatch
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import pytest

from build_engine import build_flags
from small_faults import (
    ROOT,
    SOURCE,
    Mutant,
    drawn,
    executed,
    fault_id,
    mutants,
    nearest_tests,
    needs,
)
from token_faults import CPP, compiles

EQUIVALENT = ROOT / "tools" / "equivalent_mutants.toml"
FIRST = 4  # test files that run before others are imported
TOGETHER = 4  # tests that are tried without a fault
WAITING = 3  # a test that waits for this many times the processor time that it may take has failed
PRELOADED = (
    "torch",
    "numpy",
    "tokenizers",
    "safetensors.torch",
    "beartype",
)  # saves seconds a fault
ENGINE = SOURCE / "generation" / "engines" / "cpu"  # of which one library is compiled
HEAD = """# Mutants

Small faults (a comparison, a constant, a condition, an operator, the order of two arguments, a returned value, a
dropped statement) planted at random places of `src/regard`, evenly from its packages, one at a time. Tests that
execute the changed function run, of {options.tests} files at most, then the {options.tests} test files whose imports
are nearest to the changed module, all without tests marked slow; for JavaScript those that run scripts, and for C++
those of the engine. They run for {options.seconds} s of processor time at most. A fault that no test noticed by then
counts as survived. It is caught by a test that fails, takes longer than {options.limit} s or ends the process, with the
fault only.

`python tools/mutants.py {size} --seed {options.seed}{only}`

{share}

{table}
"""


class Limits:
    """A plugin of pytest: ends tests that take too long, and the run after some time; keeps the names of failures.

    Of the tests that pytest finds, those run whose names, without parameters, are `chosen`.

    Times are those of the processor, as other processes may be at work, and of processes that tests have started.
    """

    def __init__(
        self, seconds: float, limit: int, running: Path, chosen: Callable[[str], bool]
    ) -> None:
        self.deadline, self.limit, self.failed = sum(os.times()[:4]) + seconds, limit, list[str]()
        self.chosen = chosen
        self.running = running  # the file with the name of the test that is running
        signal.signal(signal.SIGPROF, self._fail)

    def _fail(self, *_: object) -> None:
        pytest.fail(f"took longer than {self.limit} s", pytrace=False)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [each for each in items if self.chosen(each.nodeid.partition("[")[0])]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_PROF, self.limit)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    pytest_runtest_call = pytest_runtest_setup

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running.write_text(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        self.failed += [report.nodeid] * report.failed

    pytest_collectreport = pytest_runtest_logreport

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.running.write_text(nodeid)
        if sum(os.times()[:4]) > self.deadline:
            pytest.exit("time is up", 0)


def repository_files() -> Iterator[Path]:
    """The files that git does not ignore, under ROOT. A copy of the tree may be no repository: .gitignore says it."""
    if (ROOT / ".git").exists():
        listed = subprocess.check_output(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True
        )
        yield from (Path(name) for name in listed.splitlines() if (ROOT / name).is_file())
        return
    patterns = [line.strip("/") for line in (ROOT / ".gitignore").read_text("utf-8").split()]
    for folder, folders, files in os.walk(ROOT):
        kept = [
            name
            for name in (*folders, *files)
            if not any(fnmatch(name, pattern) for pattern in patterns)
        ]
        folders[:] = [name for name in folders if name in kept]
        yield from ((Path(folder) / name).relative_to(ROOT) for name in files if name in kept)


class Tree:
    """A copy of the repository, in which faults are planted."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        for name in repository_files():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)

    def result(self, mutant: Mutant, flaky: frozenset[str]) -> dict[str, object]:
        """Whether a test fails with a fault: caught (and by which test), or survived.

        Flaky ones, tests and files that pytest cannot import, do not count.
        """
        seconds, count = float(self.options.seconds), self.options.tests
        executing, near = nearest_tests(mutant, count + len(flaky), seconds / 2)
        chosen, files = (
            [each for each in found if each not in flaky][:count] for found in (executing, near)
        )
        known = {test for file in chosen for test in executing[file]}
        place, (old, new) = self.folder / "src" / "regard" / mutant.path, mutant.text()
        for some, is_known in ((chosen, True), (files[:FIRST], False), (files[FIRST:], False)):
            if not some or seconds < 0:
                continue
            before = sum(os.times()[2:4])
            place.write_text(new, "utf-8")
            try:
                options = ["-x", *some, *(f"--deselect={each}" for each in flaky)]
                failed = self.failed(
                    options,
                    seconds,
                    lambda test, wanted=is_known: (test in known) == wanted,
                    compiled=mutant.path.endswith(CPP),
                    slow=not mutant.is_python,
                )
            finally:
                place.write_text(old, "utf-8")
            if failed:
                return {"result": "caught", "by": failed[0]}
            seconds -= sum(os.times()[2:4]) - before
        return {"result": "survived"}

    def failed(
        self,
        tests: list[str],
        seconds: float,
        chosen: Callable[[str], bool] = bool,
        *,
        compiled: bool = False,
        slow: bool = True,
    ) -> list[str]:
        """The tests that fail of those that are chosen, or the files that cannot be collected. In a forked process.

        compiled   compile the engine from the sources of this tree, and keep nothing of it
        slow       run the tests marked slow too
        """
        told, running = self.folder / ".failed", self.folder / ".running"
        for each in (told, running):
            each.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            if compiled:
                # Libraries with faults must not fill the user's cache.
                os.environ["XDG_CACHE_HOME"] = str(self.folder / ".cache")
                os.environ["REGARD_NATIVE"] = "compile"
            limits = Limits(seconds, self.options.limit, running, chosen)
            self._run(tests, limits, told, slow=slow)
        end = time.monotonic() + 4 * (self.options.seconds + self.options.limit)
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            waited = time.time() - running.stat().st_mtime if running.exists() else 0.0
            if (
                waited > WAITING * self.options.limit or time.monotonic() > end
            ):  # or is in a loop that no signal ends
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return [running.read_text()] if waited > WAITING * self.options.limit else []
            time.sleep(0.05)
        if not told.exists() and running.exists():  # the process crashed
            return [running.read_text()]
        if not told.exists():
            raise RuntimeError(f"pytest did not run:\n{(self.folder / '.output').read_text()}")
        return told.read_text().splitlines()

    def _run(self, tests: list[str], limits: "Limits", told: Path, *, slow: bool) -> None:
        try:
            os.setsid()
            os.chdir(self.folder)
            os.environ["PYTHONPATH"] = str(self.folder / "src")
            sys.dont_write_bytecode = False  # checks of shapes take seconds to compile
            sys.path.insert(0, str(self.folder / "src"))
            output = os.open(self.folder / ".output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            arguments = [
                "-q",
                *(() if slow else ("-m", "not slow")),
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "--no-header",
            ]
            code = 0
            with suppress(ExceptionGroup, Warning):  # of what a run that ended early has left open
                code = pytest.main([*arguments, *tests], plugins=[limits])
            told.write_text(
                "\n".join(
                    limits.failed or ([] if code in (0, 5) else [f"pytest ended with {code}"])
                )
            )
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


def equivalents() -> dict[str, str]:
    """The faults that change nothing that can be observed, by name, each with its reason."""
    entries = tomllib.loads(EQUIVALENT.read_text("utf-8"))["equivalent"]
    return {
        fault_id(
            each["path"],
            each.get("within", ""),
            each["before"],
            each["after"],
            each.get("number", 1),
        ): each["reason"]
        for each in entries
    }


def table(done: list[dict], reasons: Mapping[str, str]) -> str:
    """How many faults were caught in each package, and which share that is of those that change something."""
    rows = [
        "| package | planted | equivalent | caught | survived | share |",
        "|---|---|---|---|---|---|",
    ]
    for stratum in sorted({each["stratum"] for each in done}):
        own = [each for each in done if each["stratum"] == stratum]
        caught = sum(each["result"] == "caught" for each in own)
        equal = sum(each["result"] == "survived" and each["id"] in reasons for each in own)
        different = len(own) - equal
        share = f"{100 * caught / different:.0f} %" if different else ""
        survived = different - caught
        rows.append(f"| {stratum} | {len(own)} | {equal} | {caught} | {survived} | {share} |")
    return "\n".join(rows)


def page(done: list[dict], options: argparse.Namespace, wanted: int) -> str:
    """The report; `wanted` is the size of the whole sample."""
    reasons = equivalents()
    counts = Counter(each["result"] for each in done)
    equivalent = [each for each in done if each["result"] == "survived" and each["id"] in reasons]
    survivors = [
        each for each in done if each["result"] == "survived" and each["id"] not in reasons
    ]
    different = max(1, len(done) - len(equivalent))
    only = f" --only {options.only}" if options.only else ""
    share = (
        f"{counts['caught']} of {len(done)} caught, {len(equivalent)} equivalent, {len(survivors)} survived: "
        f"{100 * counts['caught'] / different:.0f} % of those that change something."
    )
    late = counts["caught"] - sum(each.get("first", each["result"]) == "caught" for each in done)
    if late:
        share += f" {late} of them survived at first, and tests were written that catch them: before these it was "
        share += f"{100 * (counts['caught'] - late) / different:.0f} %, which says more about other faults."
    if len(done) < wanted:
        share += f" The other {wanted - len(done)} of this sample have not been planted."
    text = HEAD.format(
        options=options,
        size=size_option(options),
        only=only,
        share=share,
        table=table(done, reasons),
    )
    for title, chosen in {"Survived": survivors, "Equivalent": equivalent}.items():
        text += f"\n## {title}\n" * bool(chosen)
        for each in chosen:
            reason = f"\n{reasons[each['id']].strip()}\n" if each["id"] in reasons else ""
            text += f"\n### `{each['path']}:{each['line']}`\n{reason}\n```diff\n{each['diff']}```\n"
    return text


def size_option(options: argparse.Namespace) -> str:
    if options.per_package:
        return f"--per-package {options.per_package}"
    return f"--count {options.count}"


def sample(options: argparse.Namespace) -> list[Mutant]:
    """The faults to plant: one of each package in turn. Those in C++ that do not compile here are left out."""
    waiting = {
        stratum: iter(order)
        for stratum, order in drawn(mutants(options.only), options.seed)
        if not (options.leave_out and options.leave_out in stratum)
    }
    chosen = list[Mutant]()
    rounds = options.per_package or options.count
    most = options.count if not options.per_package else len(waiting) * options.per_package
    for _ in range(rounds):
        for order in waiting.values():
            found = next((each for each in order if can_be_planted(each)), None)
            if found is not None and len(chosen) < most:
                chosen.append(found)
    return chosen


def can_be_planted(mutant: Mutant) -> bool:
    """Whether the program is still one; the faults of Python and JavaScript leave the syntax as it was."""
    text = mutant.text()[1]
    if mutant.is_python:
        ast.parse(text)
    if not mutant.path.endswith(CPP):
        return True
    build = build_flags()
    names = [path.name for path in build.sources()]
    return compiles(ENGINE, names, build.FLAGS, {Path(mutant.path).name: text})


def diff(mutant: Mutant) -> str:
    old, new = (text.splitlines(keepends=True) for text in mutant.text())
    return "".join(
        line
        for line in difflib.unified_diff(old, new, n=0)
        if not line.startswith(("---", "+++", "@@"))
    )


def start_worker(folder: str, options: argparse.Namespace) -> None:
    global tree
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        __import__(name)
    tree = Tree(Path(tempfile.mkdtemp(dir=folder)), options)


def result(mutant: Mutant, flaky: frozenset[str]) -> dict[str, object]:
    described = {
        "id": mutant.id,
        "stratum": mutant.stratum,
        "path": mutant.path,
        "line": mutant.line,
        "diff": diff(mutant),
    }
    return described | tree.result(mutant, flaky)


def failing(tests: list[str]) -> list[str]:
    """Those that fail without a fault, and what else fails in their files. Some are no tests: pytest did not begin."""
    known = [each for each in tests if (ROOT / each.partition("::")[0]).exists()]
    found = tree.failed(["--continue-on-collection-errors", *known], 1e9) if known else []
    files = sorted({each.partition("::")[0] for each in found} - {*found})
    return found + (tree.failed(files, tree.options.seconds) if files else [])


def new_results(waiting: list[Mutant], options: argparse.Namespace) -> Iterator[dict]:
    """The results of faults as they come, until the minutes are over: one worker for each job.

    A failing test counts if it passes without the fault: some of them at a time are tried, as imports take longest.
    """
    end = time.monotonic() + 60 * options.minutes
    needs(), executed()  # before the workers are forked
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(
            options.jobs, get_context("fork"), start_worker, (folder, options)
        ) as pool,
    ):
        running, checks = set[Future](), dict[Future, set[str]]()
        flaky, passing, pending = frozenset[str](), set[str](), list[dict]()
        by_id = {mutant.id: mutant for mutant in waiting}
        while running or checks or pending or (waiting and time.monotonic() < end):
            while waiting and len(running) + len(checks) < options.jobs and time.monotonic() < end:
                running.add(pool.submit(result, waiting.pop(0), flaky))
            for each in wait({*running, *checks}, return_when=FIRST_COMPLETED).done:
                if each in checks:
                    flaky |= {*each.result()}
                    passing |= checks.pop(each) - flaky
                else:
                    running.remove(each)
                    pending.append(each.result())
            new = (
                {each["by"] for each in pending if "by" in each}
                - passing
                - flaky
                - {*chain(*checks.values())}
            )
            if len(new) >= TOGETHER or (new and not running):
                checks[pool.submit(failing, sorted(new))] = new
            ready = [each for each in pending if each.get("by") in {None, *passing}]
            waiting[:0] = [by_id[each["id"]] for each in pending if each.get("by") in flaky]
            pending = [each for each in pending if each.get("by") not in {None, *passing, *flaky}]
            yield from ready


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="faults to plant, of all packages")
    parser.add_argument(
        "--per-package",
        type=int,
        default=0,
        help="faults to plant in each package, in place of --count",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", default="", help="packages or beginnings of paths under src/regard, with commas"
    )
    parser.add_argument(
        "--leave-out",
        default="",
        metavar="TEXT",
        help="no faults of what has this in its name: JavaScript, on a machine without a browser",
    )
    parser.add_argument("--tests", type=int, default=16, help="test files at most, of each kind")
    parser.add_argument(
        "--seconds", type=int, default=600, help="processor time for the tests of one fault"
    )
    parser.add_argument(
        "--limit", type=int, default=60, help="seconds of processor time that one test may take"
    )
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="start no more tests after these"
    )
    parser.add_argument("--again", action="store_true", help="try again what survived")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults at a time")
    return parser.parse_args(given)


def main() -> None:
    options = arguments()
    kept = ROOT / ".mutants" / f"{options.seed}{options.only.replace('/', '-')}.jsonl"
    kept.parent.mkdir(exist_ok=True)
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    known = {each["id"]: each for each in map(json.loads, lines)}
    reasons = equivalents()
    present = {mutant.id for mutant in mutants()}
    for name in reasons.keys() - present:
        print(f"equivalent_mutants.toml names a fault that is not there any more: {name}")
    chosen = sample(options)
    tried_again = {
        key for key, each in known.items() if options.again and each["result"] == "survived"
    }
    finished = known.keys() - (tried_again - reasons.keys())
    for each in new_results([mutant for mutant in chosen if mutant.id not in finished], options):
        if each["id"] in known:
            each["first"] = known[each["id"]].get("first", "survived")
        known[each["id"]] = each
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(each) + "\n")
        print(f"{each['result']}: {each['path']}:{each['line']} {each.get('by', '')}", flush=True)
    done = [known[mutant.id] for mutant in chosen if mutant.id in known]
    written = page(done, options, len(chosen))
    kept.with_suffix(".md").write_text(written, "utf-8")
    print(written.partition("\n## ")[0].strip().partition("`\n\n")[2])


if __name__ == "__main__":
    main()
