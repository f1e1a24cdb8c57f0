"""Modules of studio/app/ in Node.js."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import regard

APP = Path(regard.__file__).parent / "studio/app"
SHARED = APP / "page"
STANDALONE = APP / "standalone"


def node(program: str, given: object = None, folder: Path = STANDALONE) -> object:
    """What a module prints, as JSON; `given` is in `given`."""
    executable = shutil.which("node")
    if executable is None:
        pytest.skip("needs Node.js: apt-get install nodejs")
    text = (
        "import fs from 'node:fs'; const given = JSON.parse(fs.readFileSync(0, 'utf8'));\n"
        + program
    )
    text = re.sub(r"'\./(\w+\.js)'", lambda found: f"'{(folder / found[1]).as_uri()}'", text)
    command = [executable, "--input-type=module", "-e", text]
    done = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
