"""The faults and bad inputs that are survived, and the tests that hold each promise.

PYTHONPATH=tests python -m reliability.promises              write docs/reliability.md
PYTHONPATH=tests python -m reliability.promises --check      run all these tests, also the slow ones: "98 of 98 hold"

With --check, further arguments are ids ("F2 N11") or options of pytest ("-n 2").
"""

import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

from reliability.input_promises import INPUTS
from reliability.operation_promises import OPERATION
from reliability.process_promises import PROCESSES
from reliability.promise import Promise
from reliability.server_promises import SERVER
from reliability.supply_chain_promises import SUPPLY_CHAIN
from reliability.training_promises import TRAINING

TESTS = Path(__file__).resolve().parents[1]
PROMISES = (*TRAINING, *INPUTS, *SERVER, *SUPPLY_CHAIN, *PROCESSES, *OPERATION)
PAGE = TESTS.parent / "docs" / "reliability.md"
HEAD = """# Reliability

Regard survives {count} kinds of faults and bad inputs. Each is listed with the tests (under `tests/`) that prove it.
An input that cannot be used is refused with a `RegardError`: one line that names the file, what was expected, what
was found and the remedy, and an exit code (1 failure, 2 usage or bad input, 3 diverged, 4 checkpoint refused, 128 +
its number after a signal). There is never a traceback, and no partial output that could be taken for a complete one.

`make reliability` runs these tests, also the slow ones, and prints how many promises hold and which do not. Tests
that were skipped, such as those that need a GPU on a machine without one, are named; a promise all of whose tests
were skipped is not counted.

This page is written from `tests/reliability/promises.py` by `make docs`.
"""
TITLES = {
    "F": "Training",
    "B": "Bad inputs",
    "S": "Server",
    "C": "Supply chain",
    "N": "Processes, files and machines",
    "P": "Attacks on a server, and processes at once",
}


def page() -> str:
    """docs/reliability.md."""
    parts = [HEAD.format(count=len(PROMISES))]
    for letter, title in TITLES.items():
        parts.append(f"\n## {title}\n\n| id | promise | tests |\n|---|---|---|\n")
        for id, promise, tests in PROMISES:
            if id[0] == letter:
                parts.append(
                    f"| {id} | {promise} | {'<br>'.join(f'`{test}`' for test in tests)} |\n"
                )
    return "".join(parts)


def results(report: Path) -> dict[str, set[str]]:
    """The results (passed, skipped, failed) of each test function of a JUnit report, as `path::function`."""
    found = defaultdict[str, set[str]](set)
    for case in ElementTree.parse(report).iter("testcase"):
        path = case.get("classname", "").removeprefix("tests.").replace(".", "/") + ".py"
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"
        found[f"{path}::{case.get('name', '').partition('[')[0]}"].add(result)
    return dict(found)


def verdict(promise: Promise, found: dict[str, set[str]]) -> str:
    """Whether a promise holds, failed, or was skipped, with the names of the tests that say so."""
    wrong = [test for test in promise.tests if found.get(test, {"failed"}) & {"failed"}]
    skipped = [test for test in promise.tests if found.get(test) == {"skipped"}]
    if wrong:
        return f"failed: {', '.join(wrong)}"
    if len(skipped) == len(promise.tests):
        return f"skipped: {', '.join(skipped)}"
    return "holds" + (f", but for skipped {', '.join(skipped)}" if skipped else "")


def check(ids: list[str], options: list[str]) -> int:
    """Run the tests of these promises, of all by default. The exit code is that of a test run: 0 where none failed."""
    chosen = [promise for promise in PROMISES if not ids or promise.id in ids]
    tests = sorted({f"tests/{test}" for promise in chosen for test in promise.tests})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *options, *tests]
        subprocess.run(command, cwd=TESTS.parent, check=False)
        found = results(report) if report.exists() else {}
    verdicts = {promise.id: verdict(promise, found) for promise in chosen}
    for id, each in verdicts.items():
        if each != "holds":
            print(f"{id} {each}")
    held = sum(each.startswith("holds") for each in verdicts.values())
    print(f"{held} of {len(chosen)} hold")
    return int(any(each.startswith("failed") for each in verdicts.values()))


if __name__ == "__main__":
    given = [each for each in sys.argv[1:] if each != "--check"]
    names = {promise.id for promise in PROMISES}
    if "--check" in sys.argv:
        sys.exit(
            check(
                [each for each in given if each in names],
                [each for each in given if each not in names],
            )
        )
    PAGE.write_text(page(), "utf-8")
