"""Draw the pictures of docs/gallery.md again: run its blocks in build/gallery, and copy what they drew to docs/gallery.

    python docs/tools/gallery.py                    # all; models and pictures that are up to date are kept
    python docs/tools/gallery.py --only beam-tree   # the pictures whose names contain this, with the models they need

Blocks of ```sh and ```python run in their order, as in a folder of one's own. A block that trains runs again when its
text has changed; one that draws, also when the package, docs/gallery/pictures.py or a model has changed.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE, PICTURES, WORK = ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery", ROOT / "build" / "gallery"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$((?:\n*!\[[^\]]*\]\(gallery/[\w.-]+\))*)", re.DOTALL | re.MULTILINE)
DRAWN = re.compile(r"!\[([^\]]*)\]\(gallery/([\w.-]+)\)")
RUN = re.compile(r"\bruns/[\w-]+")
SHELL = 'set -e\npython() { "$GALLERY_PYTHON" "$@"; }\nregard() { "$GALLERY_PYTHON" -m regard "$@"; }\n'


class GalleryFailed(Exception):
    """A block of the gallery ended with an error, or did not draw its picture."""


@dataclass(frozen=True)
class Block:
    """A block of the page: its language, its text, and the pictures that stand after it."""

    language: str
    text: str
    drawn: tuple[str, ...]

    @property
    def runs(self) -> tuple[str, ...]:
        """Folders of runs that it names."""
        return tuple(dict.fromkeys(RUN.findall(self.text)))


def blocks(page: str) -> list[Block]:
    """All blocks of the page that run."""
    return [
        Block(match[1], match[2], tuple(name for _, name in DRAWN.findall(match[3]))) for match in BLOCK.finditer(page)
    ]


def selected(page: list[Block], only: str | None) -> list[Block]:
    """The blocks that draw a picture of such a name, and those that write files or train the models they name."""
    if only is None:
        return page
    wanted = [block for block in page if any(only in name for name in block.drawn)]
    runs = {run for block in wanted for run in block.runs}
    return [block for block in page if block in wanted or (not block.drawn and runs.issuperset(block.runs))]


def package_digest() -> str:
    digest = hashlib.sha256()
    for path in (PICTURES / "pictures.py", *sorted((ROOT / "src" / "regard").rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def draw(page: list[Block], work: Path = WORK, pictures: Path = PICTURES, package: str | None = None) -> list[str]:
    """Run the blocks that are not up to date; the pictures that were drawn."""
    work.mkdir(parents=True, exist_ok=True)
    package = package or package_digest()
    found = []
    for block in page:
        state = block.text + (package + _trained(page, block) if block.drawn else "")
        stamp = work / ".done" / hashlib.sha256(state.encode()).hexdigest()
        if stamp.exists() and all((pictures / name).exists() for name in block.drawn):
            continue
        if not block.drawn:
            for run in block.runs:
                shutil.rmtree(work / run, ignore_errors=True)
        _run(block, work)
        for name in block.drawn:
            if not (work / name).is_file():
                raise GalleryFailed(f"no {name} after\n{block.text}")
            shutil.copyfile(work / name, pictures / name)
            found.append(name)
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()
    return found


def _trained(page: list[Block], block: Block) -> str:
    """The texts that trained the models of a block."""
    return "".join(each.text for each in page if not each.drawn and not set(each.runs).isdisjoint(block.runs))


def _run(block: Block, work: Path) -> None:
    environment = os.environ | {
        "GALLERY_PYTHON": sys.executable, "REGARD_CACHE": str(work / ".cache"), "NO_COLOR": "1", "COLUMNS": "100",
        "PYTHONPATH": os.pathsep.join([str(PICTURES), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = ["bash", "-c", SHELL + block.text] if block.language == "sh" else [sys.executable, "-c", block.text]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GalleryFailed(f"{block.text}ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="pictures whose names contain this")
    page = selected(blocks(PAGE.read_text("utf-8")), parser.parse_args().only)
    for name in draw(page):
        print(name)


if __name__ == "__main__":
    main()
