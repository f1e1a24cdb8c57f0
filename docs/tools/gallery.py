"""Draw the pictures of docs/gallery.md again: run its blocks in build/gallery, and copy what they drew to docs/gallery.

    python docs/tools/gallery.py                    # all; models and pictures that are up to date are kept
    python docs/tools/gallery.py --all              # all, from nothing: about five minutes of one core
    python docs/tools/gallery.py --only beam-tree   # the pictures whose names contain this, with the models they need

Blocks of ```sh and ```python run in their order, as in a folder of one's own; `regard` commands run in this process, so
that PyTorch is imported once. A block that trains runs again when its text has changed; one that draws, also when its
model, the modules that interpret and draw, or docs/gallery/drawing.py have changed.
"""

import argparse
import contextlib
import hashlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE, PICTURES, WORK = (
    ROOT / "docs" / "gallery.md",
    ROOT / "docs" / "gallery",
    ROOT / "build" / "gallery",
)
BLOCK = re.compile(
    r"^```(sh|python)\n(.*?)^```$((?:\n*!\[[^\]]*\]\(gallery/[\w.-]+\))*)", re.DOTALL | re.MULTILINE
)
CONTINUED = re.compile(r"\s*\\\n\s*")  # a command that goes on in the next line
DRAWN = re.compile(r"!\[([^\]]*)\]\(gallery/([\w.-]+)\)")
NAME = re.compile(r"\bruns/[\w-]+|[\w-]+\.(?:toml|tsv|txt|vectors)\b")


class GalleryFailed(Exception):
    """A block of the gallery ended with an error, or did not draw its picture."""


@dataclass(frozen=True)
class Block:
    """A block of the page: its language, its text, and the pictures that stand after it."""

    language: str
    text: str
    drawn: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Files and folders of runs that it names."""
        return tuple(dict.fromkeys(NAME.findall(self.text)))

    @property
    def title(self) -> str:
        """What it makes: its pictures, the runs that it trains, or the files that it writes."""
        runs = [name for name in self.names if name.startswith("runs/")]
        return ", ".join(self.drawn or runs or self.names)


def blocks(page: str) -> list[Block]:
    """All blocks of the page that run, each command in one line."""
    return [
        Block(
            match[1],
            CONTINUED.sub(" ", match[2]),
            tuple(name for _, name in DRAWN.findall(match[3])),
        )
        for match in BLOCK.finditer(page)
    ]


def needed(page: Sequence[Block], block: Block) -> list[Block]:
    """The blocks before this one that write its files or train its models, and those that they need."""
    earlier = page[: page.index(block)]
    found = [
        each for each in earlier if not each.drawn and not set(each.names).isdisjoint(block.names)
    ]
    return [
        each for each in earlier if each in found or any(each in needed(page, one) for one in found)
    ]


def selected(page: list[Block], only: Sequence[str] = ()) -> list[Block]:
    """The blocks that draw pictures whose names contain one of these, with what they need."""
    wanted = [block for block in page if any(part in name for part in only for name in block.drawn)]
    chosen = [each for block in wanted for each in (*needed(page, block), block)]
    return [block for block in page if block in chosen] if only else page


def drawing_digest() -> str:
    """Of the modules that make a picture of a model."""
    digest = hashlib.sha256()
    packages = [ROOT / "src" / "regard" / name for name in ("views", "interpret")]
    for path in (
        PICTURES / "drawing.py",
        *sorted(path for each in packages for path in each.rglob("*.py")),
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def draw(
    page: list[Block], work: Path = WORK, pictures: Path = PICTURES, drawing: str | None = None
) -> list[str]:
    """Run the blocks that are not up to date; the pictures that were drawn."""
    work.mkdir(parents=True, exist_ok=True)
    if str(PICTURES) not in sys.path:
        sys.path.insert(0, str(PICTURES))  # what the Python blocks import
    drawing = drawing or drawing_digest()
    found = []
    for block in page:
        state = (
            "".join(each.text for each in needed(page, block))
            + block.text
            + (drawing if block.drawn else "")
        )
        stamp = work / ".done" / hashlib.sha256(state.encode()).hexdigest()
        if stamp.exists() and all((pictures / name).exists() for name in block.drawn):
            continue
        if not block.drawn:
            for name in block.names:
                if name.startswith("runs/"):
                    shutil.rmtree(work / name, ignore_errors=True)
        started = time.perf_counter()
        _run(block, work)
        print(f"{block.title}: {time.perf_counter() - started:.1f} s", flush=True)
        for name in block.drawn:
            if not (work / name).is_file():
                raise GalleryFailed(f"no {name} after\n{block.text}")
            shutil.copyfile(work / name, pictures / name)
            found.append(name)
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()
    return found


def _run(block: Block, work: Path) -> None:
    settings = {"REGARD_CACHE": str(work / ".cache"), "NO_COLOR": "1", "COLUMNS": "100"}
    folder = Path.cwd()
    os.environ.update(settings)
    printed = io.StringIO()
    try:
        os.chdir(work)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            if block.language == "python":
                exec(compile(block.text, "gallery.md", "exec"), {"__name__": "__main__"})
            else:
                for line in block.text.splitlines():
                    _command(line)
    except Exception as error:
        raise GalleryFailed(f"{block.text}ended with {error}:\n{printed.getvalue()}") from error
    finally:
        os.chdir(folder)


def _command(line: str) -> None:
    """One line of a shell block."""
    words = shlex.split(line)
    if words[:1] == ["regard"]:
        from regard.cli import app

        app(words[1:], standalone_mode=False)
    else:
        subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], check=True, capture_output=True, text=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", help="pictures whose names contain this; may be repeated"
    )
    parser.add_argument("--all", action="store_true", help="train and draw everything anew")
    options = parser.parse_args()
    if options.all:
        shutil.rmtree(WORK, ignore_errors=True)
    draw(selected(blocks(PAGE.read_text("utf-8")), options.only or ()))


if __name__ == "__main__":
    main()
