"""Asks PyPI for known vulnerabilities of every version in constraints.txt: python tools/vulnerabilities.py

Exit code 0: all versions were looked up, and none has a vulnerability. 1: some have; each is named with the versions
that mend it. 2: some could not be looked up, so that nothing is known about them; they are named. PyTorch is looked up
too, though its files are not locked. Advisories that were withdrawn do not count.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lock

SERVICE = "https://pypi.org/pypi"


def answer(url: str) -> dict | None:
    """The JSON document of a URL; None where the service does not have it."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def advisories(service: str, name: str, version: str) -> list[str]:
    """What is known against one version of a package, a line each. OSError, LookupError: it could not be looked up.

    Some mirrors have the document of the newest version alone; it is used where that is the version asked for.
    """
    found = answer(f"{service}/{name}/{version}/json") or answer(f"{service}/{name}/json")
    if found is None or found["info"]["version"] != version:
        raise LookupError("the service does not have this version")
    lines, seen = list[str](), set[str]()
    for each in found["vulnerabilities"]:
        names = [each["id"], *each.get("aliases", ())]
        if not each.get("withdrawn") and seen.isdisjoint(names):  # two databases may list one fault
            mended = ", ".join(each.get("fixed_in") or ()) or "no version"
            lines.append(f"{name} {version}: {' '.join(names)}, mended in {mended}")
            seen.update(names)
    return lines


def scan(service: str, packages: Iterable[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """The vulnerabilities of these versions, and the versions that could not be looked up, each with the reason."""
    known, unknown = list[str](), list[str]()

    def look_up(package: tuple[str, str]) -> None:
        try:
            known.extend(advisories(service, *package))
        except (OSError, LookupError, ValueError) as error:  # ValueError: no JSON
            unknown.append(f"{' '.join(package)}: {type(error).__name__}: {error}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(look_up, packages))
    return sorted(known), sorted(unknown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--service", default=SERVICE, help="address of an API like that of PyPI")
    parser.add_argument("--constraints", type=Path, default=lock.ROOT / "constraints.txt")
    arguments = parser.parse_args()
    packages = lock.pinned(arguments.constraints.read_text())
    known, unknown = scan(arguments.service.rstrip("/"), packages.items())
    print(
        f"{len(packages)} versions, {len(unknown)} of them not looked up, {len(known)} vulnerabilities"
    )
    print(
        *(f"vulnerable: {each}" for each in known),
        *(f"not looked up: {each}" for each in unknown),
        sep="\n",
    )
    sys.exit(1 if known else 2 if unknown or not packages else 0)


if __name__ == "__main__":
    main()
