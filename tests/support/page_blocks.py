"""The fenced blocks of all pages, and which test executes each: the tests select their blocks here, by `run_by`."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
]  # fmt: skip
FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w./-]+\.(?:py|toml))\b")
# What executes the blocks: a test or a tool, by the name that `runner` gives it.
RUNNERS = {
    "commands": "tests/docs/test_topic_commands.py::test_the_commands_of_a_page_run",
    "requests": "tests/docs/test_topic_commands.py::test_the_requests_to_a_server_run",
    "python": "tests/test_package.py::test_python_in_the_docs_runs",
    "recipe": "tests/test_package.py::test_recipes_in_the_docs_are_valid",
    "guide": "tests/docs/test_guides.py::test_a_guide_runs_and_its_commands_print_what_is_pasted",
    "lesson": "tests/docs/test_course.py::test_a_lesson_runs_and_draws",
    "grading": "tests/docs/test_course.py::test_a_cell_that_grades_takes_a_solution",
    "course": "tests/docs/test_course.py::test_the_commands_of_the_course_run",
    "gallery": "docs/tools/gallery.py::main",  # as `make docs` does
    "part": "tests/model/test_extend.py::test_a_part_of_the_users_own_is_trained_saved_loaded_and_shown",
    "onnx": "tests/interop/test_onnx.py::test_the_example_of_the_guide_needs_neither_regard_nor_torch",
    "view": "tests/studio/test_studio_views.py::test_a_view_of_the_docs_is_shown",
}
SHOWN = ("text", "{toctree}", "{eval-rst}")  # results, drawings of text, and what Sphinx reads
SHELL = ("sh", "bash", "console")
FILES = {
    "docs/interop.md": "onnx",
    "docs/serve.md": "requests",
}  # pages with Python files that are not guides
NOT_RUN = {  # blocks that no test executes, by their page and first line, and why
    (
        "docs/serve.md",
        "# cluster.py",
    ): "needs a cluster of Ray; tests/serving/test_ray.py deploys on this machine",
    (
        "docs/guides/own-module.md",
        '[project.entry-points."regard.plugins"]',
    ): "a part of a package's pyproject.toml; "
    "tests/model/test_extend.py::test_a_plugin_is_imported_when_its_name_is_met has such a package",
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line of its fence, its language and its text."""

    page: str
    line: int
    language: str
    code: str

    @property
    def file(self) -> str | None:
        """The name of the file that a first comment gives to the block."""
        found = FILE.match(self.code)
        return found and found[1]

    @property
    def exception(self) -> tuple[str, str]:
        return self.page, self.code.partition("\n")[0]


def blocks_of(text: str, page: str) -> list[Block]:
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[2].strip(), match[3])
        for match in FENCE.finditer(text)
    ]


def blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of((ROOT / page).read_text("utf-8"), page)]


def runner(block: Block) -> str:
    """What executes a block, a name of `RUNNERS`; "shown" of what is no code, and nothing if nothing does."""
    page, language = block.page, block.language
    if language in SHOWN:
        return "shown"
    if page == "docs/gallery.md":
        return "gallery" if language in ("sh", "python") else ""
    if page.startswith("docs/guides/"):
        of_guide = language == "sh" or (language in ("python", "toml") and block.file)
        return "guide" if of_guide else "commands" if language in SHELL else ""
    if re.match(r"docs/course/\d", page):
        return {"python": "lesson", "python .noeval": "grading"}.get(language, "")
    if page == "docs/course/index.md":
        return "course" if language in ("sh", "python .noeval") else ""
    if page == "docs/extend.md":
        return "part" if language in ("python", "toml") else ""
    if language == "python" and block.file:
        return FILES.get(page, "")
    by_language = {"python": "python", "toml": "recipe", "js": "view"}
    return "commands" if language in SHELL else by_language.get(language, "")


def run_by(name: str) -> list[Block]:
    """The blocks that the test or tool of this name executes."""
    return [block for block in blocks() if runner(block) == name and block.exception not in NOT_RUN]
