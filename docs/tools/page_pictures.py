"""Draw again the pictures of the pages whose sources have changed.

    python docs/tools/page_pictures.py                # those that are stale and take seconds, or a browser
    python docs/tools/page_pictures.py positions      # these, stale or not: a name of `GROUPS`

docs/pictures.json has, for each group, a digest of the files that it was last drawn from: the script of an experiment,
the pages of the studio. The package beneath is not among them, so that an experiment of minutes does not run for every
change of a kernel; tests/test_experiments.py checks the direction of each effect instead. A stale picture that is not
drawn again stays, with a message. The pictures of docs/gallery.md have a tool of their own, gallery.py.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "pictures.json"
RESULTS = ROOT / "build" / "experiments"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHARTS = ("experiments/report.py", "benchmarks/measure.py")
STUDIO = ("src/regard/views/page", "src/regard/server/studio_page", "src/regard/server/studio_model")


@dataclass(frozen=True)
class Group:
    """Pictures of docs/ that one command draws, and the files and folders that it draws them from."""

    pictures: tuple[str, ...]
    sources: tuple[str, ...]
    command: tuple[str, ...]
    needs: str = ""  # a browser, data or time
    experiment: str = ""

    def digest(self, root: Path = ROOT) -> str:
        digest = hashlib.sha256()
        for source in self.sources:
            path = root / source
            for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
                if "__pycache__" not in file.parts:
                    digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def _experiment(name: str, *more: str, needs: str = "") -> Group:
    command = (f"experiments/{name}.py", "--out", str(RESULTS))
    return Group((f"claims-{name}.svg",), (f"experiments/{name}.py", *more, *CHARTS), command, needs, name)


STATES = (
    "type",
    "edit",
    "alternatives",
    "phone",
    "picture",
    "beam",
    "compare",
    "heads",
    "data",
    "runs",
    "long",
    "beam-phone",
)
GROUPS = {
    "studio": Group(
        ("studio.webp", *(f"studio-{state}.webp" for state in STATES)),
        (*STUDIO, "tests/support/studio_pictures.py", "tests/support/captioners.py"),
        ("tests/support/studio_pictures.py",), "a browser",
    ),
    "look": Group(
        ("look-text.webp", "look-picture.webp"),
        ("src/regard/views/page", "docs/tools/look_pictures.py", "docs/gallery.md"),
        ("docs/tools/look_pictures.py",), "a browser",
    ),
    "scaling": _experiment("scaling"),
    "sequential": _experiment("sequential"),
    "memory": _experiment("memory"),
    "distance": _experiment("distance"),
    "bottleneck": _experiment("bottleneck", "experiments/letters.py", needs="minutes"),
    "positions": _experiment("positions", "experiments/letters.py", needs="minutes"),
    "heads": _experiment("heads", "experiments/letters.py", needs="minutes"),
    "translation": _experiment("translation", needs="Multi30k"),
}  # fmt: skip


def obstacle(group: Group, named: bool) -> str:
    """Why a group cannot be drawn here and now; nothing if it can."""
    if group.needs == "a browser":
        found = importlib.util.find_spec("playwright") and any(map(shutil.which, BROWSERS))
        return "" if found else "needs Playwright and chromium"
    if group.needs == "Multi30k" and not os.environ.get("REGARD_DATA"):
        return "needs Multi30k in the folder that REGARD_DATA names"
    return "takes minutes" if group.needs in ("minutes", "Multi30k") and not named else ""


def draw(group: Group) -> None:
    paths = [str(ROOT / each) for each in ("src", "tests", "experiments")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    script, *arguments = group.command
    subprocess.run([sys.executable, ROOT / script, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    if group.experiment:
        shutil.copyfile(RESULTS / f"{group.experiment}.svg", ROOT / "docs" / group.pictures[0])
        print(
            f"Compare docs/claims.md with {RESULTS / group.experiment}.md: its table and verdict are written by hand."
        )


def stale(record: dict[str, str]) -> list[str]:
    """The groups that were drawn from other files, or of which a picture is missing."""
    return [
        name for name, group in GROUPS.items()
        if record.get(name) != group.digest() or not all((ROOT / "docs" / each).exists() for each in group.pictures)
    ]  # fmt: skip


def main(names: Sequence[str]) -> None:
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    for name in names or stale(record):
        group = GROUPS[name]
        if why := obstacle(group, bool(names)):
            print(f"{', '.join(group.pictures[:2])}: drawn from an older {group.sources[0]}; kept, as this {why}. "
                  f"To draw anew: python docs/tools/page_pictures.py {name}", file=sys.stderr)  # fmt: skip
            continue
        print(f"drawing {name}")
        draw(group)
        record[name] = group.digest()
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(GROUPS))
    given = parser.parse_args().names
    if unknown := sorted({*given} - {*GROUPS}):
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    main(given)
