"""The package from outside: light imports, the public names, the command line, and docs that run and are current."""

import re
import socket
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

import regard
from regard.recipe.recipe import Recipe
from regard.views.terminal import heat_map
from support.page_blocks import PAGES, run_by

ROOT = Path(__file__).parent.parent


def pages(name: str) -> dict[str, list[str]]:
    """The blocks that a test runs, by their page."""
    found: dict[str, list[str]] = {}
    for block in run_by(name):
        found.setdefault(block.page, []).append(block.code)
    return found


def python(program: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "regard", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "program",
    ["import regard", "import regard; dir(regard); regard.__version__", "import regard.cli"],
)
def test_importing_loads_nothing_heavy(program):
    heavy = "torch", "numpy", "rich", "jaxtyping", "tokenizers"
    result = python(f"{program}; import sys; print([m for m in {heavy} if m in sys.modules])")
    assert result.stdout == "[]\n", result.stderr


def test_packages_of_the_tests_are_not_needed():
    """Shapes in signatures and BLEU, without jaxtyping and sacreBLEU."""
    result = python(
        "import sys; sys.modules |= dict.fromkeys(['jaxtyping', 'beartype', 'sacrebleu'])\n"  # None: cannot be imported
        "import regard, torch; from regard.evaluation.metrics import score\n"
        "print(*regard.attend(*[torch.zeros(1, 2, 3, 4)] * 3).shape)\n"
        "print(*[score(name, ['a b c d'], [['a b c d']]) for name in ('bleu', 'chrf')])"
    )
    assert result.stdout == "1 2 3 4\n100.0 100.0\n", result.stderr


def test_help_loads_no_torch():
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "regard", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "demo" in result.stdout
    loaded = {line.split("|")[-1].strip() for line in result.stderr.splitlines()}
    assert "regard.cli" in loaded
    assert not loaded & {"torch", "numpy", "rich"}


def test_every_public_name_is_there_and_listed_once():
    assert sorted(regard.__all__) == sorted([*regard._HOME, "register"])  # the last is a module
    for name in regard.__all__:
        assert getattr(regard, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'atend'"):
        regard.atend  # noqa: B018


@pytest.mark.parametrize(
    "program",
    [
        "import regard.studio.run",
        "from regard.studio import jobs",
        "from importlib.resources import files; files('regard.studio')",
        "regard.studio",
    ],
)
def test_studio_is_a_function_whatever_of_its_package_was_imported(program):
    result = python(f"import regard; {program}; print(regard.studio.__qualname__)")
    assert result.stdout == "studio\n", result.stderr


def test_version():
    assert command("--version").stdout == f"regard {regard.__version__}\n"


def test_heat_map():
    weights = torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.4, 0.6]])
    assert heat_map(weights, ["x", "yy"], ["a", "b", "c"]).splitlines() == [
        "   a b c ",
        " x █      → a 90%",
        "yy   ░ ▒  → c 60%",
    ]
    narrow = heat_map(weights, ["x", "yy"], ["a", "b", "c"], width=17).splitlines()
    assert narrow == ["   a b ", " x █  ", "yy   ░", "", "   c ", " x    → a 90%", "yy ▒  → c 60%"]
    with pytest.raises(ValueError, match=r"shape \(1, 3\); got \(2, 3\)"):
        heat_map(weights, ["x"], ["a", "b", "c"])


@pytest.mark.parametrize("page", pages("python"))
def test_python_in_the_docs_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    exec(compile("\n".join(pages("python")[page]), page, "exec"), {})


def test_the_pages_with_code_are_found():
    assert {"README.md", "docs/training.md", "docs/decoding.md", "docs/interpret.md"} <= {
        *pages("python")
    }


@pytest.mark.parametrize("page", pages("recipe"))
def test_recipes_in_the_docs_are_valid(page):
    """A block may be a part of a recipe: the tables it lacks are those of a small one."""
    field, part = {"tokenizer": "bytes"}, {"kind": "rnn"}
    for block in pages("recipe")[page]:
        table = tomllib.loads(block)
        missing = {
            "data": {"synthetic": "copy", "source": field, "target": field},
            "model": {"encoder": part, "decoder": part},
        }
        Recipe.of(missing | table)


def test_the_architecture_page_names_every_module():
    sections = re.split(
        r"^### ", (ROOT / "docs" / "architecture.md").read_text(), flags=re.MULTILINE
    )
    listed = {
        f"{section.split()[0]}/{name}"
        for section in sections[1:]
        for name in re.findall(r"^\| `(.*?)`", section, re.M)
    }
    source = ROOT / "src" / "regard"
    modules = {
        str(path.relative_to(source).with_suffix(""))
        for path in source.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py") and path.parent != source
    }
    assert listed == modules, "run `make docs`"


def test_the_glossary_names_modules_that_exist():
    named = re.findall(r"`(\w+(?:/\w+)+\.py)`", (ROOT / "docs" / "glossary.md").read_text())
    assert len(named) > 40
    assert [name for name in named if not (ROOT / "src" / "regard" / name).is_file()] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_in_the_docs_exist(page):
    text = re.sub(
        r"^```.*?^```$", "", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) < 900


def test_packages_import_lower_packages_only():
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout


def test_no_source_unpickles_or_evaluates():
    forbidden = re.compile(
        r"\bpickle\b|torch\.load\((?!.*weights_only=True)|(?<![\w.])eval\(|(?<![\w.])exec\(|yaml\.load"
    )
    for path in (ROOT / "src").rglob("*.py"):
        assert not forbidden.search(path.read_text()), path


@pytest.mark.parametrize("host", ["192.0.2.1", "example.org"])
def test_no_test_reaches_another_machine(host):
    """conftest.py refuses it before a packet is sent (192.0.2.0/24 is reserved for documentation)."""
    with pytest.raises(AssertionError, match=f"wanted to reach {host}"):
        socket.create_connection((host, 9), timeout=1)


KINDS = {
    ".py",
    ".c",
    ".cpp",
    ".css",
    ".h",
    ".html",
    ".js",
    ".json",
    ".md",
    ".safetensors",
    ".toml",
    ".wasm",
    "py.typed",
}


def test_the_files_of_the_package_are_of_listed_kinds():
    """The wheel holds the package alone: source, pages, recipes, and the checkpoint of the studio."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/regard"]
    files = [
        path
        for path in (ROOT / "src" / "regard").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert {path.name if path.name == "py.typed" else path.suffix for path in files} == KINDS
    assert [path for path in files if path.stat().st_size > 1_000_000] == []
    assert [path for path in files if path.is_symlink()] == []


def test_every_needed_package_is_pinned():
    """With the version that is installed here; those of all extras within their bounds, installed or not."""
    lines = [
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    ]
    pinned = {normalized(name): pin for name, pin in lines}
    assert len(pinned) == len(lines)
    assert {
        name: found for name, found in needed("regard").items() if pinned.get(name) != found
    } == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    wanted = [each for each in map(Requirement, listed) if each.name != "regard"]
    assert {each.name for each in wanted} >= {"torch", "datasets", "tensorboard", "wandb", "optuna"}
    assert [
        str(each) for each in wanted if pinned.get(normalized(each.name), "") not in each.specifier
    ] == []


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(name: str) -> dict[str, str]:
    """The versions of the installed packages that this one needs with all its extras, and that those need."""
    versions, queue = {}, list(requires(name) or [])
    while queue:
        package = normalized(re.match(r"[A-Za-z0-9._-]+", queue.pop())[0])
        if package == name or package in versions:
            continue
        try:
            versions[package] = version(package).partition("+")[0]
        except PackageNotFoundError:  # of an extra, or of another system
            continue
        queue += [line for line in requires(package) or [] if "extra ==" not in line]
    return versions


def test_the_licence_of_every_extra_is_named():
    table = (
        (ROOT / "pyproject.toml")
        .read_text()
        .partition("[project.optional-dependencies]")[2]
        .partition("\ndev = ")[0]
    )
    extras = [line for line in table.splitlines() if " = [" in line]
    assert len(extras) >= 7
    assert [line for line in extras if not re.search(r"\]  # [A-Z]", line)] == []


def test_test_modules_have_different_names():
    """Pytest imports them by name alone: two of one name in different folders cannot be collected together."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
