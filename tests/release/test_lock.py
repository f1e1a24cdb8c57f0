"""The locks: every pinned package with hashes of the same version, which pip checks before it installs anything."""

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lock

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "locks"


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Version and hashes of each package in a lock."""
    text = (LOCKS / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    entries = {}
    for line in lines:
        requirement = Requirement(line.partition("--hash")[0])
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)", line)
        assert len(hashes) == line.count("--hash"), line
        entries[canonicalize_name(requirement.name)] = (
            str(requirement.specifier).removeprefix("=="),
            hashes,
        )
    assert len(entries) == len(lines)
    return entries


def test_every_pinned_package_is_locked_with_its_hashes():
    development, extras = locked("dev.txt"), locked("extras.txt")
    assert not {*development} & {*extras}
    together = development | extras
    pins = lock.pinned((ROOT / "constraints.txt").read_text())
    assert {name: version for name, (version, _) in together.items()} == {
        name: pin for name, pin in pins.items() if name not in lock.UNLOCKED
    }
    assert [
        name
        for name, (_, hashes) in together.items()
        if not hashes or len({*hashes}) != len(hashes)
    ] == []


def test_development_is_locked_with_the_build_backend():
    names = {*locked("dev.txt")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    roots = {canonicalize_name(each.name) for each in lock.roots(project)}
    assert {"hatchling", "editables", "numpy", "pytest", "ray"} <= roots
    assert roots - names == lock.UNLOCKED


def test_make_installs_all_but_torch_by_hash(tmp_path):
    """The commands that `make` would run in a fresh clone."""
    command = ["make", "-n", f"VENV={tmp_path}/venv", "check"]
    lines = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    installs = [
        line.partition(" install ")[2] for line in lines if " pip " in line and " install " in line
    ]
    hashed, torch, project = installs
    assert "--require-hashes" in hashed
    assert hashed.endswith("--requirement locks/dev.txt")
    assert torch.endswith(" torch")
    assert "--constraint constraints.txt" in torch
    assert project == "--no-deps --no-build-isolation --editable ."


def wheel(folder: Path) -> Path:
    """A wheel of a package without code."""
    path = folder / "sample-1.0-py3-none-any.whl"
    files = {
        "METADATA": "Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "".join(
            f"sample-1.0.dist-info/{name},,\n" for name in ("METADATA", "WHEEL", "RECORD")
        ),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"sample-1.0.dist-info/{name}", content)
    return path


@pytest.mark.parametrize("tampered", [False, True])
def test_pip_refuses_another_file_than_the_locked_one(tmp_path, tampered):
    digest = hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest()
    if tampered:
        digest = ("0" if digest[0] != "0" else "1") + digest[1:]
    (tmp_path / "lock.txt").write_text(lock.lock_text({"sample": "1.0"}, {}, {"sample": [digest]}))
    command = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "install",
        "--no-index",
        "--find-links",
        tmp_path,
        "--no-deps",
    ]
    command += [
        "--target",
        tmp_path / "out",
        "--require-hashes",
        "--requirement",
        tmp_path / "lock.txt",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode == 0, (tmp_path / "out").exists()) == (not tampered, not tampered), (
        done.stderr
    )
    assert ("DO NOT MATCH" in done.stderr) is tampered


def index(folder: Path, files: dict[str, str]) -> str:
    """A package index in a folder (PEP 503), with these files of `sample` and their hashes."""
    page = folder / "sample" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(
        "".join(f'<a href="../{name}#sha256={digest}">{name}</a>' for name, digest in files.items())
    )
    return folder.as_uri()


def test_hashes_are_of_all_files_of_the_version_in_all_indexes(tmp_path):
    first = index(
        tmp_path / "first",
        {
            "sample-1.0-py3-none-any.whl": "aa",
            "sample-1.0-cp312-cp312-win_amd64.whl": "bb",
            "sample-1.0.1-py3-none-any.whl": "cc",
        },
    )
    second = index(
        tmp_path / "second", {"sample-1.0.tar.gz": "dd", "sample-1.0-py3-none-any.whl": "aa"}
    )
    assert lock.release_hashes("sample", "1.0", [first, second]) == ["aa", "bb", "dd"]
    with pytest.raises(lock.LockError, match=r"sample 2\.0: no index"):
        lock.release_hashes("sample", "2.0", [first, second])
    third = index(tmp_path / "third", {"sample-1.0-py3-none-any.whl": "ee"})
    with pytest.raises(lock.LockError, match="different content"):
        lock.release_hashes("sample", "1.0", [first, third])


def test_the_configured_indexes_are_asked(monkeypatch, tmp_path):
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = file:///first\n[install]\nextra-index-url = file:///second file:///third\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    assert {"file:///first", "file:///second", "file:///third"} <= {*lock.indexes()}
    monkeypatch.setenv("PIP_INDEX_URL", "file:///other")
    assert lock.indexes()[0] == "file:///other"
