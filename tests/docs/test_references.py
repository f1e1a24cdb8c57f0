"""The generated reference pages are current, and the written ones name what the source has."""

import inspect
import re
import runpy
from pathlib import Path

import pytest

import api_reference
import cli_reference
import docstrings
import package_map
import regard
from regard.core import errors
from support.write_python_interface import FILE, interface, public_callables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Read in order to be passed on or set for processes of our own: nothing that a user sets.
INTERNAL = {"PYTHONPATH", "OMP_NUM_THREADS"}


@pytest.mark.parametrize("page", ["cli", "api"])
def test_a_generated_page_is_current(page):
    module = {"cli": cli_reference, "api": api_reference}[page]
    assert (DOCS / f"{page}.md").read_text("utf-8") == module.reference(), "run `make docs`"


def test_the_page_of_the_http_api_is_current():
    pytest.importorskip("uvicorn", reason="needs the extra `serve`")
    import http_reference

    assert (DOCS / "http.md").read_text("utf-8") == http_reference.reference(), "run `make docs`"


def test_the_map_of_packages_is_current():
    assert (DOCS / "packages.svg").read_text("utf-8") == package_map.drawing(), "run `make docs`"
    assert len(package_map.layers()) >= 18


def test_every_public_name_is_on_the_api_page_once():
    listed = [name for names in api_reference.GROUPS.values() for name in names]
    assert sorted([*listed, "register"]) == sorted(regard.__all__)
    defined = inspect.getmembers(regard.register, inspect.isfunction)
    own = {
        name
        for name, function in defined
        if function.__module__ == "regard.register" and name[0] != "_"
    }
    assert set(api_reference.REGISTER) == own


def test_the_python_interface_is_frozen():
    """Arguments, their order and their defaults. A change here is a change for users: make it on purpose."""
    how = "python tests/support/write_python_interface.py"
    assert FILE.read_text("utf-8").splitlines() == interface().splitlines(), how


def unexplained(function, text: str) -> list[str]:
    """The arguments that a docstring does not name."""
    of_base = {"self", "cls", "args", "kwargs", "message"}  # those of nn.Module and Exception
    names = [name for name in inspect.signature(function).parameters if name not in of_base]
    return [name for name in names if not re.search(rf"\b{name}\b", text)]


def test_every_public_function_and_class_explains_each_argument():
    found = list(public_callables())
    assert len(found) > 150
    assert [name for name, _, text in found if not text.strip()] == []
    assert [
        (name, missing) for name, value, text in found if (missing := unexplained(value, text))
    ] == []
    assert unexplained(lambda rows, heads: None, "heads   which ones") == ["rows"]


def test_the_page_of_exit_codes_names_every_error_with_its_code():
    rows = re.findall(
        r"^\| (\S.*?) \|.*\| (.*?) \|$", (DOCS / "exit-codes.md").read_text("utf-8"), re.M
    )
    named = {name: code for code, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert len(named) >= 9
    for name, code in named.items():
        found = getattr(errors, name)
        if name == "InterruptedTraining":
            assert found(15, Path("there")).exit_code == 143
            assert "143 SIGTERM" in (DOCS / "exit-codes.md").read_text("utf-8")
        else:
            assert found.exit_code == int(code), name


def test_every_environment_variable_that_the_source_reads_is_listed():
    source = "\n".join(
        path.read_text() for path in (ROOT / "hatch_build.py", *(ROOT / "src").rglob("*.py"))
    )
    read = set(re.findall(r"environ(?:\.get\(|\[)[\"']([A-Z_]+)[\"']", source)) | {
        "REGARD_API_KEYS"
    }
    listed = set(re.findall(r"`([A-Z_]{3,})`", (DOCS / "environment.md").read_text("utf-8")))
    assert {"REGARD_CACHE", "REGARD_NATIVE", "REGARD_ENGINE"} <= read
    assert read - INTERNAL - listed == set()
    assert [name for name in listed if name != "REGARD_DATA" and name not in source] == []


@pytest.mark.parametrize(
    ("page", "text", "shown"),
    [
        ("benchmarks", "[results](../benchmarks/RESULTS.md) [x](data.md)", "results [x](data.md)"),
        ("guides/serve", "[x](../serve.md#images) [y](../../LICENSE)", "[x](../serve.md#images) y"),
    ],
)
def test_only_links_that_leave_the_pages_are_removed_from_the_site(page, text, shown):
    namespace = runpy.run_path(str(DOCS / "conf.py"))
    source = [text]
    namespace["_without_links_to_the_repository"](None, page, source)
    assert source == [shown]


def test_a_docstring_becomes_a_list_of_arguments_and_plain_text():
    lines = [
        "Weights *before* dropout_ of |x|.",
        "",
        "rows      which rows,",
        "          or all",
        "heads     the heads",
    ]
    assert docstrings.reworked(lines) == [
        r"Weights \*before\* dropout\_ of \|x\|.", "",
        "", "``rows``", "    which rows,", "    or all", "", "``heads``", "    the heads", "",
    ]  # fmt: skip
    assert docstrings.reworked(["    tree"]) == ["::", "", "        tree", ""]
    assert docstrings.reworked([">>> f(*x)", "1"]) == [">>> f(*x)", "1", ""]
