"""docs/dependencies.md names all packages that an installation of Regard without extras brings, and no others."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lock

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/dependencies.md").read_text("utf-8")


def table(heading: str) -> list[list[str]]:
    """The rows of the table with this heading."""
    rows = PAGE.partition(f"{heading}\n")[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def brought(requirements: list[str]) -> set[str]:
    return {*lock.closure(map(Requirement, requirements))}


def test_the_page_names_what_an_installation_brings():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = [each for each in project["dependencies"] if Requirement(each).name != "torch"]
    listed = [name for name, _, _ in table("| package | MiB | for |")]
    assert sorted(listed) == sorted(canonicalize_name(Requirement(each).name) for each in direct)
    with_them = brought(direct) - brought(["torch"])
    more = {
        package: set(re.findall(r"[a-z0-9-]+", text.replace("and with it", "")))
        for package, text, _ in table("| package | packages that come with it | MiB |")
    }
    assert {*listed}.union(*more.values()) == with_them
    for package, found in more.items():
        assert found <= brought([package]), package
    assert f"and {len(with_them)} more packages" in PAGE
    assert len(with_them) <= 27
    fewest = brought(["numpy", "safetensors", "snowballstemmer", "tokenizers"]) - brought(["torch"])
    assert f"So {len(fewest)} packages" in PAGE


def test_the_page_lists_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [
        name
        for row in table("| extra | brings | for |")
        for name in re.findall(r"`([a-z0-9]+)`", row[0])
    ]
    assert sorted(listed) == sorted(project["optional-dependencies"])
