"""The guides: each runs from an empty folder, and their options are those of a recipe."""

import re
import shutil
from pathlib import Path

import pytest

import run_guide

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
WITH_COMMANDS = [path for path in GUIDES if "```sh" in path.read_text("utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_COMMANDS, ids=lambda path: path.stem)
def test_a_guide_runs_and_its_commands_print_what_is_pasted(path, tmp_path):
    """Numbers depend on the machine: the same blocks must have printed something, and as many lines of it."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    text = path.read_text("utf-8")
    again = run_guide.run(text, tmp_path)
    pasted, printed = (
        [match[3] for match in run_guide.BLOCK.finditer(each)] for each in (text, again)
    )
    assert [None if each is None else len(each.splitlines()) for each in printed] == [
        None if each is None else len(each.splitlines()) for each in pasted
    ], "run `python docs/tools/run_guide.py docs/guides/*.md`"


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_a_guide_says_what_it_needs(path):
    text = path.read_text("utf-8")
    needs = text.partition("*Needs [Regard](../index.md#install)")[2].partition("*\n")[0]
    assert needs
    signs = {"import PIL|from PIL": "`images`", "transformers import": "transformers`"}
    for code, words in {**signs, "^regard serve": "`serve`", "^regard convert": "`yaml`"}.items():
        assert (words in needs) or not re.search(code, text, re.M), words
    for name in run_guide.NAME.findall(
        "".join(block[2] for block in run_guide.BLOCK.finditer(text))
    )[:1]:
        assert "is a\nfile: save it under that name" in needs, name


def test_what_a_command_prints_is_pasted_after_it(tmp_path):
    text = "```python\n# a.py\nprint(1 + 1)\n```\n\n```sh\npython a.py\n```\n\n```text\nold\n```\n\n```sh\ntrue\n```\n"
    done = run_guide.run(text, tmp_path)
    assert done == text.replace("old", "2")
    assert run_guide.run(done, tmp_path) == done


@pytest.mark.parametrize(
    "code",
    ["exit 3", "(exit 3) | cat", "cat /dev/null | (exit 3)\necho done", "regard nonsense | cat"],
)
def test_a_command_that_fails_anywhere_in_a_pipeline_ends_the_guide(code, tmp_path):
    with pytest.raises(run_guide.GuideFailed, match=r"ended with [32]"):
        run_guide.run(f"```sh\n{code}\n```\n", tmp_path)


def test_a_pipeline_may_end_before_its_input_and_a_failure_may_be_expected(tmp_path):
    for order in ("seq 100000 | head -1\nfalse || echo 1", "false || echo 1\nseq 100000 | head -1"):
        text = f"```sh\n{order}\n```\n\n```text\n1\n1\n```\n"
        assert run_guide.run(text, tmp_path) == text


def test_the_options_of_other_libraries_are_given_as_recipe_keys_that_exist():
    table, reference = (
        (ROOT / "docs" / name).read_text("utf-8") for name in ("guides/move.md", "recipe.md")
    )
    named = {
        name.rpartition(".")[2]
        for name in re.findall(r"`((?:train|decode|data|model)\.[a-z_.]+)`", table)
    }
    own = {row.split("|")[5] for row in table.splitlines() if row.startswith("| ")}
    keys = {key for cell in own for key in re.findall(r"\.([a-z_]+)(?: =|`)", cell)}
    assert len(keys) > 25
    assert keys - set(re.findall(r"^\| `(\w+)` \|", reference, re.M)) == set()
    assert named
