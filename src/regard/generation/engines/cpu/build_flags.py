"""Sources and compiler flags of the C++ engine, and the variants of it that wheels contain.

Shared by compile.py and by the build of wheels, where neither PyTorch nor this package can be imported.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
PREFIX = "engine"  # of the libraries in wheels
# No flag that changes the floating-point mode of the process (as -ffast-math does), and none that lets the compiler
# choose the order of a sum (-fassociative-math): it chose another one for a single row than for several. Nor one that
# turns divisions into products (-freciprocal-math): scores are divided as PyTorch divides them.
FLAGS = (
    "-O3", "-std=c++17", "-shared", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """The engine compiled for a family of processors.

    name    as in the name of its file
    flags   of the compiler
    needs   features, as Linux names them in /proc/cpuinfo, that a processor must have
    """

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str] = frozenset()


_AVX2 = frozenset(
    {
        "avx",
        "avx2",
        "bmi1",
        "bmi2",
        "f16c",
        "fma",
        "abm",
        "movbe",
        "sse4_1",
        "sse4_2",
        "ssse3",
        "popcnt",
    }
)
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
VARIANTS = {  # of each machine, the fastest first; the last one runs everywhere
    "x86_64": (
        Variant("avx512vnni", ("-march=x86-64-v4", "-mavx512vnni"), _AVX512 | {"avx512_vnni"}),
        Variant("avx512", ("-march=x86-64-v4",), _AVX512),
        Variant("avx2", ("-march=x86-64-v3",), _AVX2),
        Variant("x86_64", ("-march=x86-64",)),
    ),
    "aarch64": (
        Variant("aarch64dotprod", ("-march=armv8.2-a+dotprod",), frozenset({"asimddp"})),
        Variant("aarch64", ("-march=armv8-a",)),
    ),
}


def sources() -> list[Path]:
    """The files to compile."""
    return sorted(FOLDER.glob("*.cpp"))


def source_key() -> str:
    """A hash of the sources, their headers and the flags: other code has another."""
    parts = [
        path.read_bytes()
        for path in sorted(FOLDER.glob("*.[ch]*"))
        if path.suffix in (".cpp", ".h", ".hpp")
    ]
    return hashlib.sha256(b"\0".join([*parts, " ".join(FLAGS).encode()])).hexdigest()[:16]


def file_prefix(variant: Variant) -> str:
    """The name of a variant's library without the hash of its content."""
    return f"{PREFIX}-{variant.name}-{source_key()}"
