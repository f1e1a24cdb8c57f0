"""A plugin of pytest: notes which functions of src/regard each test executes, for the choice of tests in mutants.py.

    PYTHONPATH=tools python -m pytest -n 0 -m "not slow" -p executed_functions [tests/generation …]

Runs add to .mutants/executed.json: the processor time of each test, all of its parameters together, and the tests of
each function. Several runs may be at work at once, each with files of its own. Functions that only another process
executes are not noted.
"""

import fcntl
import json
import re
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
SOURCE, KEPT = f"{ROOT / 'src' / 'regard'}/", ROOT / ".mutants" / "executed.json"
INSIDE = re.compile(
    r"(\.<locals>)?\.<(?!locals>).*"
)  # of a lambda or comprehension: what its function's name goes on by

noted = defaultdict[str, set[str]](set)
seconds = defaultdict[str, float](float)
known = dict[
    int, tuple[str, object]
]()  # by the address of code, which is kept: its hash takes long
current, began = set[str](), 0.0


def name_of(file: str, qualified: str) -> str:
    """The name of a function: its file under src/regard, and its name there; nothing of code that is not there."""
    return (
        f"{file.removeprefix(SOURCE)}:{INSIDE.sub('', qualified)}"
        if file.startswith(SOURCE)
        else ""
    )


def trace(frame: FrameType, _event: str, _argument: object) -> None:
    code = frame.f_code
    found = known.get(id(code))
    if found is None:
        found = known[id(code)] = name_of(code.co_filename, code.co_qualname), code
    current.add(found[0])


def pytest_runtest_logstart() -> None:
    global began
    current.clear()
    began = time.process_time()
    threading.settrace(trace)
    sys.settrace(trace)


def pytest_runtest_logfinish(nodeid: str) -> None:
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    test = nodeid.partition("[")[0]
    noted[test] |= current - {""}
    seconds[test] += time.process_time() - began


def pytest_sessionfinish() -> None:
    KEPT.parent.mkdir(exist_ok=True)
    with (KEPT.parent / "executed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        add_notes()


def add_notes() -> None:
    """Add what this run noted to the file. Only one process at a time may do so."""
    before = (
        json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {"seconds": {}, "functions": {}}
    )
    tests = {test: taken for test, taken in before["seconds"].items() if test not in seconds}
    functions = defaultdict[str, list[int]](list)
    old, new = (
        [*before["seconds"]],
        {test: round(taken, 3) for test, taken in (tests | seconds).items()},
    )
    numbers = {test: number for number, test in enumerate(new)}
    for function, own in before["functions"].items():
        functions[function] += [numbers[old[each]] for each in own if old[each] in tests]
    for test, own in noted.items():
        for function in own:
            functions[function].append(numbers[test])
    KEPT.write_text(json.dumps({"seconds": new, "functions": functions}), "utf-8")
