"""Run a guide from an empty folder, and paste what its commands print.

    python docs/tools/run_guide.py docs/guides/translate.md          # every guide: docs/guides/*.md

A block of ```python or ```toml that begins with a comment `# name` is written to that file. A block of ```sh is run by
bash; what it prints on stdout becomes the block of ```text after it. Other blocks are left alone.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(
    r"^```(sh|python|toml)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE
)
NAME = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")
SHELL = r"""set -o pipefail
# As `set -e`, and for every part of a pipeline; 141 is a part whose reader, such as head, had enough.
trap 'codes=("${PIPESTATUS[@]}"); for each in "${codes[@]}"; do [[ $each = 0 || $each = 141 ]] || exit $each; done' ERR
python() { "$GUIDE_PYTHON" "$@"; }
regard() { "$GUIDE_PYTHON" -m regard "$@"; }
"""


class GuideFailed(Exception):
    """A command of a guide ended with an error."""


def take_compiled_engine(cache: Path) -> None:
    """Copy the CPU engine that this user's cache has, so that a guide need not compile it once more."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"
    compiled = Path(os.environ.get("REGARD_CACHE") or default) / "native"
    if compiled.is_dir() and not (cache / "native").exists():
        cache.mkdir(parents=True, exist_ok=True)
        shutil.copytree(compiled, cache / "native")


def run(text: str, folder: Path) -> str:
    """The guide with what its commands printed in this folder."""
    take_compiled_engine(folder / ".cache")
    environment = os.environ | {
        "GUIDE_PYTHON": sys.executable, "REGARD_CACHE": str(folder / ".cache"), "COLUMNS": "100", "NO_COLOR": "1",
        "GUIDE_FOLDER": str(folder),
    }  # fmt: skip

    def done(match: re.Match[str]) -> str:
        language, code = match[1], match[2]
        if language != "sh":
            if name := NAME.match(code):
                (folder / name[1]).write_text(code, "utf-8")
            return match[0]
        ended = subprocess.run(
            ["bash", "-c", f"{SHELL}{code}:\n"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise GuideFailed(f"{code}ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        printed = ended.stdout.replace(f"{folder}/", "").rstrip()
        return f"```sh\n{code}```\n" + (f"\n```text\n{printed}\n```\n" if printed else "")

    return BLOCK.sub(done, text)


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(run(path.read_text("utf-8"), Path(folder)), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
