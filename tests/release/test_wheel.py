"""Wheels: metadata, description, bill of materials, the engine inside, and equal bytes of two builds."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

import package_description

pytest.importorskip("hatchling", reason="needs the build backend, which `make` installs")

ROOT = Path(__file__).parents[2]
URL = "https://forge.example/people/regard"


def build(folder: Path, *, source: Path = ROOT, **environment: str) -> Path:
    """A wheel, built as pip and `make wheels` do."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REGARD_")}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=source, env=clean | environment, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def read(wheel: Path, ending: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(ending)]
        return archive.read(name).decode()


def metadata(wheel: Path) -> Message:
    return message_from_string(read(wheel, ".dist-info/METADATA"))


def links(text: str) -> list[str]:
    return re.findall(
        r"\]\(([^)]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    )


@pytest.fixture(scope="module")
def pure(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("pure"))


def test_a_wheel_without_an_address_has_no_urls_and_no_relative_links(pure):
    found = metadata(pure)
    assert pure.name.endswith("-py3-none-any.whl")
    assert found.get_all("Project-URL") is None
    assert found["Description-Content-Type"] == "text/markdown"
    body = found.get_payload()
    assert [link for link in links(body) if not link.startswith("https://")] == []
    assert "Data, training, decoding, evaluation," in body  # the text of a link stays
    assert "![" not in body
    assert "# Regard" in body


def test_a_wheel_with_an_address_links_to_files_that_there_are(tmp_path):
    found = metadata(build(tmp_path, REGARD_REPOSITORY_URL=URL))
    urls = dict(each.split(", ") for each in found.get_all("Project-URL"))
    assert {*urls} == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert urls["Source"] == URL
    assert urls["Issues"] == f"{URL}/issues"
    version = found["Version"]
    targets = [*links(found.get_payload()), urls["Changelog"], urls["Documentation"]]
    assert len(targets) > 15
    for target in targets:
        view, file = re.fullmatch(
            rf"{URL}/(blob|raw)/v{re.escape(version)}/([^#]+)(?:#.*)?", target
        ).groups()
        assert (ROOT / file).is_file(), target
        assert (view == "raw") is file.endswith(".webp")


def test_links_in_code_and_absolute_ones_stay():
    text = "[a](https://x.example/a) [b](#b) [c](docs/c.md) ![d](d.png)\n\n```\n[e](e.md)\n```\n"
    assert package_description.description(text, None, "1") == (
        "[a](https://x.example/a) [b](#b) c \n\n```\n[e](e.md)\n```\n"
    )
    assert package_description.description(text, URL + ".git", "1") == (
        f"[a](https://x.example/a) [b](#b) [c]({URL}/blob/v1/docs/c.md) ![d]({URL}/raw/v1/d.png)\n\n"
        "```\n[e](e.md)\n```\n"
    )
    with pytest.raises(ValueError, match="REGARD_REPOSITORY_URL: wanted the https address"):
        package_description.urls("http://x.example/a", "1")


def test_the_bill_of_materials_names_every_requirement(pure):
    bill = json.loads(read(pure, ".dist-info/sboms/regard.cdx.json"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == metadata(pure)["Version"]
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    lines = metadata(pure).get_all("Requires-Dist")
    names = {
        re.match(r"[A-Za-z0-9._-]+", line)[0].lower().replace("_", "-"): "extra ==" in line
        for line in lines
    }
    names.pop("regard", None)
    assert {*scopes} == {*names}
    assert scopes["torch"] == "required"
    assert scopes["onnx"] == "optional"
    assert "pkg:pypi/torch" in bill["dependencies"][0]["dependsOn"]


def test_the_wheel_holds_the_files_of_the_package_and_nothing_else(pure):
    package = ROOT / "src" / "regard"
    wanted = {
        str(path.relative_to(ROOT / "src"))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    information = f"regard-{metadata(pure)['Version']}.dist-info"
    described = (
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "sboms/regard.cdx.json",
    )
    with zipfile.ZipFile(pure) as archive:
        found = archive.namelist()
        assert len(found) == len({*found})
        assert {*found} == wanted | {f"{information}/{name}" for name in described}
        assert [
            each.filename for each in archive.infolist() if each.external_attr >> 28 not in (0, 8)
        ] == []  # no links


def test_two_builds_are_equal(pure, tmp_path):
    """From another folder too: nothing of the machine is in the wheel."""
    copy = tmp_path / "copy"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "__pycache__", ".*_cache", "dist", "build", "results"
    )
    shutil.copytree(ROOT, copy, ignore=ignored)
    again = build(tmp_path / "out", source=copy)
    assert (
        hashlib.sha256(again.read_bytes()).hexdigest()
        == hashlib.sha256(pure.read_bytes()).hexdigest()
    )


needs_engine = pytest.mark.skipif(
    sys.platform != "linux"
    or platform.machine() not in ("x86_64", "aarch64")
    or not shutil.which("g++"),
    reason="wheels with the engine are built on Linux with g++",
)


@pytest.mark.slow
@needs_engine
def test_a_wheel_with_the_engine_predicts_without_a_compiler(tmp_path):
    """In an environment of its own, with the dependencies of this one. Two builds of it are equal."""
    wheel = build(tmp_path / "first", REGARD_ENGINE="native")
    again = build(tmp_path / "second", REGARD_ENGINE="native")
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    assert wheel.read_bytes() == again.read_bytes()
    bill = json.loads(read(wheel, "sboms/regard.cdx.json"))
    with zipfile.ZipFile(wheel) as archive:
        for component in bill["metadata"]["component"]["components"]:
            digest = hashlib.sha256(archive.read(component["name"])).hexdigest()
            assert component["hashes"] == [{"alg": "SHA-256", "content": digest}]
            assert component["name"].endswith(f"-{digest}.so")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    site = Path(pytest.__file__).parents[1]
    command = [sys.executable, ROOT / "tools/install_test.py", wheel, "--dependencies", site]
    done = subprocess.run(
        [*map(str, command)], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("from the wheel")
