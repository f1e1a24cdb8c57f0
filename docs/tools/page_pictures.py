"""Draw again the pictures of the pages whose sources have changed.

    python docs/tools/page_pictures.py                # those whose sources have changed
    python docs/tools/page_pictures.py positions      # these, changed or not: a name of `GROUPS`
    python docs/tools/page_pictures.py --all          # all of them: about a quarter of an hour of one core

docs/pictures.json has, for each group, a digest of the files that it was last drawn from: the script of an experiment,
the pages of the studio. The package beneath is not among them, so that an experiment of minutes does not run for every
change of a kernel; tests/test_experiments.py checks the direction of each effect instead. A picture that cannot be
drawn here, for want of a browser or of data, is kept, with a message. gallery.py draws those of docs/gallery.md.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "pictures.json"
RESULTS = ROOT / "build" / "experiments"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHARTS = ("experiments/report.py", "benchmarks/measure.py")
STUDIO = (
    "src/regard/studio/app",
    "src/regard/studio/example_model",
)


@dataclass(frozen=True)
class Group:
    """Pictures of docs/ that one command draws, and the files and folders that it draws them from."""

    pictures: tuple[str, ...]
    sources: tuple[str, ...]
    command: tuple[str, ...]
    needs: str = ""  # a browser or data
    experiment: str = ""

    def digest(self, root: Path = ROOT) -> str:
        digest = hashlib.sha256()
        for source in self.sources:
            path = root / source
            for file in (
                sorted(each for each in path.rglob("*") if each.is_file())
                if path.is_dir()
                else [path]
            ):
                if "__pycache__" not in file.parts:
                    digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def _experiment(name: str, *more: str, needs: str = "", options: Sequence[str] = ()) -> Group:
    command = (f"experiments/{name}.py", "--out", str(RESULTS), *options)
    return Group(
        (f"claims-{name}.svg",), (f"experiments/{name}.py", *more, *CHARTS), command, needs, name
    )


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
        ("src/regard/studio/app/page", "docs/tools/look_pictures.py", "docs/gallery.md"),
        ("docs/tools/look_pictures.py",), "a browser",
    ),
    "scaling": _experiment("scaling"),
    "sequential": _experiment("sequential"),
    "memory": _experiment("memory"),
    "distance": _experiment("distance"),
    "bottleneck": _experiment("bottleneck", "experiments/letters.py"),
    "positions": _experiment("positions", "experiments/letters.py"),
    "heads": _experiment("heads", "experiments/letters.py"),
    "translation": _experiment("translation", needs="Multi30k", options=("--minutes", "1.5")),
}  # fmt: skip


def obstacle(group: Group) -> str:
    """Why a group cannot be drawn here; nothing if it can."""
    if group.needs == "a browser":
        found = importlib.util.find_spec("playwright") and any(map(shutil.which, BROWSERS))
        return "" if found else "needs Playwright and chromium"
    if group.needs == "Multi30k" and not os.environ.get("REGARD_DATA"):
        return "needs Multi30k in the folder that REGARD_DATA names"
    return ""


def draw(group: Group) -> None:
    paths = [str(ROOT / each) for each in ("src", "tests", "experiments")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    }
    script, *arguments = group.command
    subprocess.run(
        [sys.executable, ROOT / script, *arguments],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
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
        if why := obstacle(group):
            print(f"{', '.join(group.pictures[:2])}: drawn from an older {group.sources[0]}; kept, as drawing it {why}",
                  file=sys.stderr)  # fmt: skip
            continue
        started = time.perf_counter()
        draw(group)
        print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
        record[name] = group.digest()
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(GROUPS))
    parser.add_argument("--all", action="store_true", help="all groups, changed or not")
    given = parser.parse_args()
    if unknown := sorted({*given.names} - {*GROUPS}):
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    main([*GROUPS] if given.all else given.names)
