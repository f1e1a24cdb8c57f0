"""The engine in wheels: the variant for a processor, and what is refused before it is loaded."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import build_engine
import regard
from regard.generation.engines.cpu import build_flags, compile, prebuilt
from regard.generation.engines.cpu.build_flags import FLAGS, FOLDER, VARIANTS
from regard.generation.engines.cpu.weight_layout import LinearWeights, WeightLayout, apply_linear

AVX2 = {
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
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in VARIANTS or not shutil.which("g++"),
    reason="wheels with the engine are built on Linux with g++",
)


@pytest.mark.parametrize(
    ("machine", "features", "name"),
    [
        ("x86_64", set(), "x86_64"),
        ("x86_64", {"avx", "sse4_2"}, "x86_64"),
        ("x86_64", AVX2, "avx2"),
        ("x86_64", AVX2 | {"avx512f"}, "avx2"),  # Xeon Phi has no avx512bw
        ("x86_64", AVX512, "avx512"),
        ("x86_64", AVX512 | {"avx512_vnni", "amx_tile"}, "avx512vnni"),
        ("x86_64", AVX2 | {"avx512_vnni"}, "avx2"),
        ("aarch64", {"asimd"}, "aarch64"),
        ("aarch64", {"asimd", "asimddp"}, "aarch64dotprod"),
    ],
)
def test_the_fastest_variant_that_the_processor_supports_is_chosen(machine, features, name):
    assert prebuilt.best_variant(machine, frozenset(features)).name == name


def test_other_machines_have_no_variant():
    assert prebuilt.best_variant("riscv64", frozenset()) is None


def test_variants_are_ordered_and_the_last_one_runs_everywhere():
    for variants in VARIANTS.values():
        assert not variants[-1].needs
        assert all(before.needs > after.needs for before, after in pairwise(variants))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The baseline of this machine, compiled in a hurry."""
    variant = VARIANTS[platform.machine()][-1]
    hurried = replace(variant, flags=(*variant.flags, "-O0"))
    return build_engine.build_variant(
        build_engine.build_flags(), hurried, tmp_path_factory.mktemp("built"), "g++"
    )


@pytest.fixture
def package(built, tmp_path, monkeypatch) -> Path:
    """A package's folder with that library, on a processor that has nothing more; the library's path."""
    folder = tmp_path / "libraries"
    folder.mkdir(mode=0o755)
    monkeypatch.setattr(prebuilt, "FOLDER", folder)
    monkeypatch.setattr(prebuilt, "processor_features", frozenset)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    copied = Path(shutil.copy(built, folder))
    copied.chmod(0o755)
    return copied


@needs_compiler
def test_it_is_loaded_from_the_package_with_the_openmp_of_torch(package):
    library = prebuilt.prebuilt_library()
    assert library._name == str(package)
    assert library.regard_panel_columns() == 16
    needed = package.read_bytes()
    assert b"libgomp" not in needed
    assert b"GOMP_parallel" in needed
    assert not (package.parents[1] / "cache").exists()


@needs_compiler
def test_its_linear_layer_equals_that_of_torch(package):
    """With several threads, so that the OpenMP of PyTorch works with it."""
    library = prebuilt.prebuilt_library()
    weight, x, bias = torch.randn(40, 24), torch.randn(7, 24), torch.randn(48)
    packed, y = torch.zeros(48 * 24), torch.zeros(7, 40)
    sizes = ctypes.c_int64(40), ctypes.c_int64(24), ctypes.c_int64(0), ctypes.c_float(1.0)
    library.regard_pack(pointer(weight), *sizes, pointer(packed))
    layer = (ctypes.c_int64 * 7)(packed.data_ptr(), bias.data_ptr(), 0, 0, 0, 24, 40)
    arguments = (ctypes.c_int64 * 3)(x.data_ptr(), y.data_ptr(), 7)
    library.regard_linear(layer, arguments, ctypes.c_int(2))
    torch.testing.assert_close(y, x @ weight.T + bias[:40], rtol=1e-5, atol=1e-5)


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


OPENMP_OF_ONE = """
import ctypes
from regard.generation.engines.cpu.prebuilt import share_openmp
ctypes.CDLL("libgomp.so.1")  # its symbols are for itself, as those of PyTorch's for aarch64 are
print(hasattr(ctypes.CDLL(None), "omp_get_thread_num"))
share_openmp()
print(hasattr(ctypes.CDLL(None), "omp_get_thread_num"))
"""


@needs_compiler
def test_the_openmp_that_is_loaded_is_found_by_libraries_after_it():
    done = subprocess.run(
        [sys.executable, "-c", OPENMP_OF_ONE], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]


@needs_compiler
@pytest.mark.parametrize("damage", ["truncated", "changed", "link"])
def test_a_damaged_library_is_not_loaded(package, damage, caplog):
    content = package.read_bytes()
    if damage == "link":
        target = package.with_suffix(".elsewhere")
        package.rename(target)
        package.symlink_to(target)
    else:
        package.write_bytes(
            content[: len(content) // 2] if damage == "truncated" else content[:-1] + b"\x01"
        )
    assert prebuilt.prebuilt_library() is None
    assert "is damaged: it is not used" in caplog.text


@needs_compiler
def test_a_library_of_other_sources_is_not_loaded(package, monkeypatch):
    monkeypatch.setattr(build_flags, "FLAGS", (*build_flags.FLAGS, "-g"))
    assert prebuilt.prebuilt_library() is None


@needs_compiler
@pytest.mark.parametrize("writable", ["file", "folder"])
def test_where_others_may_write_a_verified_copy_in_the_private_folder_is_loaded(package, writable):
    (package if writable == "file" else package.parent).chmod(0o777)
    library = prebuilt.prebuilt_library()
    copy = package.parents[1] / "cache/native" / package.name
    assert library._name == str(copy)
    assert copy.parent.stat().st_mode & 0o777 == 0o700
    copy.write_bytes(b"planted")
    assert prebuilt._private(package) == copy
    assert copy.read_bytes() == package.read_bytes()


@needs_compiler
def test_without_a_private_folder_nothing_is_loaded(package, caplog):
    package.chmod(0o777)
    cache = package.parents[1] / "cache"
    cache.mkdir()
    os.chmod(cache, 0o777)
    assert prebuilt.prebuilt_library() is None
    assert "others cannot write to" in caplog.text


@needs_compiler
@pytest.mark.slow
def test_every_variant_that_runs_here_predicts_as_torch_does(tmp_path, monkeypatch):
    """Outputs and scores of the model in the package, greedy and with beams; and int8 products, which are all equal."""
    features = prebuilt.processor_features()
    build_engine.build(platform.machine(), tmp_path)
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    model = Path(prebuilt.__file__).parents[3] / "studio/example_model/dates"
    sources = [
        f"{day} {month} {1900 + 3 * day}"
        for day in range(1, 29)
        for month in ("May", "March", "October")
    ]

    def outputs(native: str, supported: frozenset[str]) -> tuple[list[str], torch.Tensor, int]:
        monkeypatch.setenv("REGARD_NATIVE", native)
        monkeypatch.setattr(prebuilt, "processor_features", lambda: supported)
        compile.library.cache_clear()
        library, found = compile.library(), []
        predictor = regard.load(model, device="cpu")
        for beam in (1, 4):
            found += predictor.outputs(sources, beam_size=beam, scores=True)
        columns = 0 if library is None else library.regard_panel_columns()
        return (
            [each[0].text for each in found],
            torch.tensor([each[0].log_probability for each in found]),
            columns,
        )

    def int8_product() -> tuple[bool, torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        weight, x = (torch.randn(rows, 268, generator=generator) for rows in (150, 7))
        layout = WeightLayout(compile.library(), int8=True)
        layer = layout.linear(LinearWeights(weight))
        product = apply_linear(layout.library, layer, x)
        assert (product - x @ weight.mT).norm() / product.norm() < 0.02
        return layer.int8_weight is not None, product

    products = []
    texts, scores, _ = outputs("0", frozenset())
    widths = {
        "x86_64": 16,
        "avx2": 16,
        "avx512": 64,
        "avx512vnni": 64,
        "aarch64": 16,
        "aarch64dotprod": 16,
    }
    try:
        for variant in VARIANTS[platform.machine()]:
            if variant.needs <= features:
                by_engine = outputs("1", variant.needs)
                assert (by_engine[0], by_engine[2]) == (texts, widths[variant.name]), variant
                torch.testing.assert_close(by_engine[1], scores, rtol=1e-4, atol=1e-4)
                quantized, product = int8_product()
                assert quantized == (variant.name != "x86_64")
                products += [product] if quantized else []
        assert all(torch.equal(product, products[0]) for product in products)
    finally:
        compile.library.cache_clear()


CROSS = "aarch64-linux-gnu-g++"


@needs_compiler
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which(CROSS), reason="needs the cross compiler for aarch64")
def test_it_compiles_for_aarch64(tmp_path):
    libraries = build_engine.build("aarch64", tmp_path, CROSS)
    assert len(libraries) == len(VARIANTS["aarch64"])
    assert all(library.read_bytes()[18:20] == b"\xb7\x00" for library in libraries)  # EM_AARCH64


def driven(
    folder: Path, compiler: str, flags: tuple[str, ...], emulator: tuple[str, ...] = ()
) -> dict[str, list]:
    """The outputs of engine_driver.cpp by the name of their search: tokens, and their log-probabilities."""
    program, engine = folder / "driver", f'-DENGINE="{FOLDER / "step.cpp"}"'
    shared = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC", "-fopenmp", "-O3")]
    source = str(Path(__file__).with_name("engine_driver.cpp"))
    subprocess.run(
        [compiler, *shared, "-O2", "-static", *flags, engine, source, "-o", str(program)],
        check=True,
    )
    done = subprocess.run([*emulator, str(program)], check=True, capture_output=True, text=True)
    found = {}
    for line in done.stdout.splitlines():
        name, _, output = line.partition(":")
        values = output.split()
        found[name] = [list(map(int, values[::2])), list(map(float, values[1::2]))]
    return found


@needs_compiler
@pytest.mark.slow
@pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which(CROSS) or not shutil.which("qemu-aarch64"),
    reason="needs an emulator of aarch64",
)
def test_the_code_for_aarch64_searches_as_that_for_x86(tmp_path):
    """With NEON, in float32 and int8, under an emulator; the tests above hold the code for x86 to PyTorch."""
    wanted = driven(tmp_path, "g++", ("-march=x86-64-v3",))
    assert len(wanted) == 2 * (
        3 + 4 * 3
    )  # float32 and int8; greedy, and four of a beam for each sequence
    for variant in VARIANTS["aarch64"]:
        found = driven(tmp_path, CROSS, variant.flags, ("qemu-aarch64",))
        assert found.keys() == wanted.keys()
        for name, (tokens, log_p) in found.items():
            assert tokens == wanted[name][0], (variant.name, name)
            assert log_p == pytest.approx(wanted[name][1], abs=1e-5), (variant.name, name)


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which(CROSS) and shutil.which("qemu-aarch64")),
    reason="needs the cross compiler for aarch64 and qemu-aarch64",
)
@pytest.mark.parametrize("rows", [1, 7])
def test_the_engine_for_aarch64_computes_what_torch_does(aarch64, tmp_path, rows):
    """Its linear layer, called by a small program, both compiled for aarch64 and executed by an emulator."""
    assert aarch64.read_bytes()[18:20] == b"\xb7\x00"  # EM_AARCH64
    driver = tmp_path / "driver"
    source = Path(__file__).parents[1] / "support" / "linear_driver.cpp"
    subprocess.run(
        [CROSS, "-std=c++17", "-fopenmp", "-Wl,--no-as-needed", source, "-o", driver], check=True
    )
    weight, x, bias = torch.randn(40, 24), torch.randn(rows, 24), torch.randn(40)
    given = b"".join(each.numpy().tobytes() for each in (weight, x, bias))
    command = [
        "qemu-aarch64",
        "-L",
        "/usr/aarch64-linux-gnu",
        driver,
        aarch64,
        str(rows),
        "24",
        "40",
    ]
    done = subprocess.run(command, input=given, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    y = torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).view(rows, 40)
    torch.testing.assert_close(y, x @ weight.T + bias, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def aarch64(tmp_path_factory) -> Path:
    library, *_ = build_engine.build("aarch64", tmp_path_factory.mktemp("aarch64"), CROSS)
    return library
