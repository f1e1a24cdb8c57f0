"""Writes locks/: every package of constraints.txt with the SHA-256 of each of its files, as pip's index lists them.

    python tools/lock.py            # in the environment of development, whose installed packages tell what needs what

locks/dev.txt is what `make` installs, locks/extras.txt the remaining extras. Files for all platforms and versions of
Python are listed, and source distributions. PyTorch is in neither: its builds for CPUs and for CUDA share a version and
have different files, so that the machine decides; constraints.txt pins its version.
"""

import argparse
import json
import subprocess
import sys
import tomllib
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

ROOT = Path(__file__).parents[1]
UNLOCKED = {"torch"}
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
HEADER = "# Written by `make lock` from constraints.txt and the index that pip is configured with. Do not edit.\n"


class LockError(Exception):
    pass


def pinned(constraints: str) -> dict[str, str]:
    """The version of each package, by its canonical name."""
    lines = [
        line.split("==")
        for line in constraints.splitlines()
        if "==" in line and not line.startswith("#")
    ]
    return {canonicalize_name(name): version.strip() for name, version in lines}


def indexes() -> list[str]:
    """The package indexes that pip is configured with, by its files or its environment, or its default."""
    from pip._internal.models.index import PyPI  # pip's default is nowhere else

    listed = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True)
    settings = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
    found: dict[str, list[str]] = {}
    for name, value in settings.items():  # those of the environment come first and take precedence
        found.setdefault(name.rpartition(".")[2], value.strip("'\"").split())
    return [*found.get("index-url", [PyPI.simple_url]), *found.get("extra-index-url", [])]


class _Links(HTMLParser):
    """The files of an index page in HTML (PEP 503): name and SHA-256."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        url = urllib.parse.urlsplit(dict(attrs).get("href") or "")
        if tag == "a" and url.fragment.startswith("sha256="):
            name = urllib.parse.unquote(url.path.rpartition("/")[2])
            self.files.append((name, url.fragment.removeprefix("sha256=")))


def listed_files(index: str, package: str) -> list[tuple[str, str]]:
    """Name and SHA-256 of every file that an index has of a package; none where it does not know the package."""
    url = f"{index.rstrip('/')}/{package}/"
    if url.startswith("file:"):
        url += "index.html"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers={"Accept": ACCEPT}), timeout=60
        ) as answer:
            content, kind = answer.read().decode(), answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return []
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, FileNotFoundError) or "No such file" in str(error.reason):
            return []
        raise
    if kind.endswith("+json"):
        return [
            (file["filename"], file["hashes"]["sha256"]) for file in json.loads(content)["files"]
        ]
    links = _Links()
    links.feed(content)
    return links.files


def version_of(file: str) -> Version | None:
    """The version of a wheel or a source distribution; None for other files."""
    try:
        return (
            parse_wheel_filename(file)[1]
            if file.endswith(".whl")
            else parse_sdist_filename(file)[1]
        )
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def release_hashes(package: str, version: str, sources: Iterable[str]) -> list[str]:
    """The SHA-256 of each file of a release; refused where two indexes have different files of one name."""
    hashes: dict[str, str] = {}
    for index in sources:
        for file, digest in listed_files(index, package):
            if version_of(file) != Version(version):
                continue
            if hashes.setdefault(file, digest) != digest:
                raise LockError(
                    f"{file}: two indexes have files of this name with different content"
                )
    if not hashes:
        raise LockError(
            f"{package} {version}: no index that pip is configured with has a file of it"
        )
    return sorted({*hashes.values()})


def roots(project: dict) -> Iterator[Requirement]:
    """What development needs: dependencies, the extra `dev`, and the build backend with editable installations."""
    yield from map(Requirement, project["build-system"]["requires"])
    yield Requirement("editables")
    yield from map(Requirement, project["project"]["dependencies"])
    extras = project["project"]["optional-dependencies"]
    waiting = deque(extras["dev"])
    while waiting:
        requirement = Requirement(waiting.popleft())
        if canonicalize_name(requirement.name) == "regard":
            waiting += [each for extra in sorted(requirement.extras) for each in extras[extra]]
        else:
            yield requirement


def development(project: dict) -> dict[str, str]:
    """The packages that development needs, from those installed here; each with its marker, "" for none."""
    return closure(roots(project))


def closure(requirements: Iterable[Requirement]) -> dict[str, str]:
    """All packages that these requirements need, directly or not, of those installed here; each with its marker."""
    markers: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = deque((requirement, frozenset[str](), True) for requirement in requirements)
    while waiting:
        requirement, extras_of_parent, is_root = waiting.popleft()
        marker = requirement.marker
        if (
            marker
            and not is_root
            and not any(marker.evaluate({"extra": extra}) for extra in extras_of_parent)
        ):
            continue
        name = canonicalize_name(requirement.name)
        markers[name] = str(marker or "") if is_root and markers.get(name) != "" else ""
        key = name, frozenset(requirement.extras)
        if key in seen:
            continue
        seen.add(key)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            if marker and not marker.evaluate():
                continue
            raise LockError(
                f"{name} is not installed here: run this in the environment of `make`"
            ) from None
        waiting += [
            (Requirement(each), frozenset({"", *requirement.extras}), False) for each in needed
        ]
    return markers


def lock_text(
    packages: dict[str, str], markers: dict[str, str], hashes: dict[str, list[str]]
) -> str:
    lines = [HEADER]
    for name, version in sorted(packages.items()):
        marker = f" ; {markers[name]}" if markers.get(name) else ""
        lines.append(
            f"{name}=={version}{marker}"
            + "".join(f" \\\n    --hash=sha256:{each}" for each in hashes[name])
        )
    return "\n".join(lines) + "\n"


def write(folder: Path, constraints: Path, project: Path) -> None:
    packages = {
        name: each for name, each in pinned(constraints.read_text()).items() if name not in UNLOCKED
    }
    markers = development(tomllib.loads(project.read_text()))
    sources = indexes()
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda item: release_hashes(*item, sources), packages.items())
        hashes = dict(zip(packages, found, strict=True))
    if unpinned := sorted({*markers} - {*packages} - UNLOCKED):
        raise LockError(f"{constraints.name} lacks {', '.join(unpinned)}")
    folder.mkdir(exist_ok=True)
    for file, wanted in (("dev.txt", True), ("extras.txt", False)):
        chosen = {
            name: version for name, version in packages.items() if (name in markers) is wanted
        }
        (folder / file).write_text(lock_text(chosen, markers, hashes))
        print(
            f"{folder / file}: {len(chosen)} packages, {sum(len(hashes[name]) for name in chosen)} files"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "locks")
    arguments = parser.parse_args()
    try:
        write(arguments.out, ROOT / "constraints.txt", ROOT / "pyproject.toml")
    except LockError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
