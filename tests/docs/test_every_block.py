"""Every block of the pages is executed by a test, or has a reason why none can; so has every command in it."""

import ast
import re
from pathlib import Path

from support.page_blocks import (
    NOT_RUN,
    ROOT,
    RUNNERS,
    SHELL,
    Block,
    blocks,
    blocks_of,
    run_by,
    runner,
)
from support.page_commands import (
    NOT_RUN as COMMANDS_NOT_RUN,
    reason_not_to_run,
    runner as command_runner,
    simple_commands,
)

BLOCKS = blocks()


def commands(block: Block) -> list[list[str]]:
    code = block.code.replace("$ regard", "regard")
    return (
        [words for words in simple_commands(code) if words] if "\nfor " not in code else []
    )  # bash runs those


def test_something_executes_every_block():
    found = [
        f"{block.page}:{block.line}: {block.language or 'no language'}"
        for block in BLOCKS
        if not runner(block) and block.exception not in NOT_RUN
    ]
    assert found == [], (
        "name a language that a test runs, or write the reason into NOT_RUN of support/page_blocks.py"
    )
    assert len([block for block in BLOCKS if runner(block) != "shown"]) > 200


def test_something_runs_every_command():
    found = [
        f"{block.page}:{block.line}: {' '.join(words)}"
        for block in run_by("commands")
        for words in commands(block)
        if not command_runner(words)
    ]
    assert found == [], "write the reason into NOT_RUN of support/page_commands.py, or make it run"


def test_every_file_of_a_guide_is_used_by_its_commands():
    """Run, imported by one that is, or named as a recipe."""
    of_guides = run_by("guide")
    unused = []
    for block in (block for block in of_guides if block.file):
        others = "\n".join(
            each.code for each in of_guides if each.page == block.page and each is not block
        )
        stem = Path(block.file).stem
        if not re.search(
            rf"\b{re.escape(block.file)}\b|^(?:import|from) {stem}\b", others, re.MULTILINE
        ):
            unused.append(f"{block.page}: {block.file}")
    assert unused == []


def test_what_executes_blocks_exists_and_has_some():
    for name, place in RUNNERS.items():
        file, _, function = place.partition("::")
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        assert function in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, (
            place
        )
        assert run_by(name), name
    assert {runner(block) for block in BLOCKS} - {"", "shown"} == {*RUNNERS}


def test_every_exception_is_of_a_block_or_command_that_there_is():
    assert {*NOT_RUN} - {block.exception for block in BLOCKS} == set()
    there = [words for block in BLOCKS if block.language in SHELL for words in commands(block)]
    used = {
        part for part in COMMANDS_NOT_RUN if any(part in f"{' '.join(words)} " for words in there)
    }
    assert {*COMMANDS_NOT_RUN} - used == set()
    named = {
        word.strip("`.,;")
        for why in [*NOT_RUN.values(), *COMMANDS_NOT_RUN.values()]
        for word in why.split()
    }
    files = {
        word.partition("::")[0]
        for word in named
        if word.startswith(("tests/", "docs/", "deploy/", "tools/"))
    }
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


def test_a_block_that_nothing_executes_is_found():
    page = Path("docs/new.md")
    found = blocks_of(
        "x\n\n```ruby\nputs 1\n```\n\n```\nplain\n```\n\n```python\n# a.py\n```\n", str(page)
    )
    assert [(block.line, block.language, runner(block)) for block in found] == [
        (3, "ruby", ""), (7, "", ""), (11, "python", ""),
    ]  # fmt: skip
    assert [command_runner(words) for words in (["rm", "x"], ["pip", "install", "."], ["regard", "serve", "x"])] == [
        "", "none", "server",
    ]  # fmt: skip
    assert reason_not_to_run(["regard", "predict", "x", "--engine", "ray"])
    assert not reason_not_to_run(["regard", "predict", "x"])
