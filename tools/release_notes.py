"""Prints the section of CHANGELOG.md about a version: python tools/release_notes.py 0.1.0"""

import re
import sys
from pathlib import Path


def notes(changelog: str, version: str) -> str | None:
    """The section whose heading begins with the version, without the heading; None without one."""
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    for section in sections:
        heading, _, body = section.partition("\n")
        if re.match(rf"\[?v?{re.escape(version)}\]?(?![\d.])", heading):
            return body.strip() + "\n"
    return None


if __name__ == "__main__":
    found = notes(
        Path(__file__).parents[1].joinpath("CHANGELOG.md").read_text("utf-8"), sys.argv[1]
    )
    sys.exit(f"CHANGELOG.md has no section about {sys.argv[1]}") if found is None else print(
        found, end=""
    )
