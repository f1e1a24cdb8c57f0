"""The package as a user meets it: light to import, listed names, a command line that answers, docs that run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.views.terminal import heat_map

ROOT = Path(__file__).parent.parent


def python(program: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "regard", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "program", ["import regard", "import regard; dir(regard); regard.__version__", "import regard.cli"]
)
def test_importing_loads_nothing_heavy(program):
    heavy = "torch", "numpy", "rich", "jaxtyping", "tokenizers"
    result = python(f"{program}; import sys; print([m for m in {heavy} if m in sys.modules])")
    assert result.stdout == "[]\n", result.stderr


def test_help_loads_no_torch():
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "regard", "--help"], capture_output=True, text=True, check=True
    )
    assert "demo" in result.stdout
    loaded = {line.split("|")[-1].strip() for line in result.stderr.splitlines()}
    assert "regard.cli" in loaded
    assert not loaded & {"torch", "numpy", "rich"}


def test_every_public_name_is_there_and_listed_once():
    assert sorted(regard.__all__) == sorted(regard._HOME)
    for name in regard.__all__:
        assert getattr(regard, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'atend'"):
        regard.atend  # noqa: B018


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
    assert narrow[1:] == [" x █    → a 90%", "yy   ░  → c 60%", "(1 more columns do not fit in 17 characters)"]
    with pytest.raises(ValueError, match=r"shape \(1, 3\); got \(2, 3\)"):
        heat_map(weights, ["x"], ["a", "b", "c"])


@pytest.mark.parametrize("page", ["README.md", "docs/walk.md"])
def test_python_in_the_docs_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks, f"{page} shows no Python"
    exec(compile("\n".join(blocks), page, "exec"), {})


def test_higher_rooms_import_lower_ones_only():
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_no_source_unpickles_or_evaluates():
    forbidden = re.compile(
        r"\bpickle\b|torch\.load\((?!.*weights_only=True)|(?<![\w.])eval\(|(?<![\w.])exec\(|yaml\.load"
    )
    for path in (ROOT / "src").rglob("*.py"):
        assert not forbidden.search(path.read_text()), path
