"""Speed on a CPU, in one run: the benchmarks of decoding, start-up and text to text, one after the other.

    REGARD_DATA=/path/to/data .venv/bin/python benchmarks/cpu.py --out benchmarks/RESULTS.md
    .venv/bin/python benchmarks/cpu.py --only startup --quick

Each part is a benchmark of this folder in a process of its own, whose output is kept as it is; what it measures and
against whom stands at its beginning. They need a machine that does nothing else, and about ten minutes. The peers are
installed into .peers/ once.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import torch

import regard
from measure import write_section

HERE = Path(__file__).parent
AGAINST_PEERS = ("--random", "--only", "marian", "ctranslate2", "regard")
PARTS = {  # a command, and what makes it as small as it can be
    "startup": (("startup.py", "--rounds", "5"), ("--rounds", "1")),
    "decoding": (
        ("decoding.py", *AGAINST_PEERS, "--sentences", "64", "--rounds", "3"),
        ("--rounds", "1", "--beams", "1"),
    ),
    "text to text": (
        ("text_to_text.py", "--sentences", "1000", "--rounds", "3"),
        ("--sentences", "40", "--rounds", "1", "--beams", "1"),
    ),
    "workers": (
        ("workers.py", "--workers", "2", "--sentences", "300"),
        ("--sentences", "40", "--rounds", "1"),
    ),
    "decoders": (
        ("recurrent_decoding.py", "--rounds", "3"),
        ("--rounds", "1", "--only", "convolution"),
    ),
    "decoders, AVX2": (
        ("recurrent_decoding.py", "--rounds", "3", "--only", "Transformer"),
        ("--rounds", "1"),
    ),
}
VARIANTS = {"decoders, AVX2": {"REGARD_NATIVE": "avx2"}}


def processor() -> str:
    try:
        found = re.search(
            r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE
        )
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--out", type=Path, help="a file to keep the tables in")
    parser.add_argument(
        "--quick", action="store_true", help="as small as possible: does it work at all?"
    )
    options = parser.parse_args()
    lines = [
        f"`python benchmarks/cpu.py`, {date.today()}: {processor()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, torch {torch.__version__}, Regard {regard.__version__}.\n"
    ]
    print(lines[0], flush=True)
    for name in options.only:
        command, small = PARTS[name]
        command = (*command, *(small if options.quick else ()))
        variant = VARIANTS.get(name, {})
        command_line = " ".join(
            [
                *(f"{key}={value}" for key, value in variant.items()),
                "benchmarks/" + " ".join(command),
            ]
        )
        done = subprocess.run(
            [sys.executable, str(HERE / command[0]), *command[1:]],
            env=os.environ | variant, stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{command_line} failed.")
        lines.append(
            f"## {name[0].upper()}{name[1:]}\n\n`{command_line}`\n\n{done.stdout.strip()}\n"
        )
        print(lines[-1], flush=True)
        if options.out:
            write_section(options.out, "Speed on a CPU", "\n".join(lines))


if __name__ == "__main__":
    main()
