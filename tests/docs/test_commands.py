"""Commands of the pages: verbs, options and `make` targets that exist; those of the README run, small."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from regard.cli import app
from support.page_commands import COMMENT, ELSEWHERE, SHELL, SMALL, of_regard, simple_commands, write_parallel_text

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
INLINE = re.compile(r"`(regard [^`]+)`")


def unknown(arguments: list[str]) -> str:
    """What a call of `regard` names that does not exist, or nothing. The last option may be without its value."""
    command = typer.main.get_command(app)
    context = command.context_class(command)
    while hasattr(command, "get_command") and arguments and not arguments[0].startswith("-"):
        found = command.get_command(context, arguments[0])
        if found is None:
            return f"no verb {arguments[0]}"
        command, arguments = found, arguments[1:]
        context = command.context_class(command, parent=context)
    try:
        command.make_parser(context).parse_args([word for word in arguments if word not in ("…", "...", ">", "<")])
    except Exception as error:  # a usage error of the click that typer carries
        return "" if str(error) == f"Option '{arguments[-1]}' requires an argument." else str(error)
    return ""


def documented() -> Iterator[tuple[str, list[str]]]:
    """Each call of `regard` in the blocks and in the text of the pages, with its page."""
    for page in PAGES:
        text = page.read_text("utf-8")
        code = [*SHELL.findall(text), *(each.replace("\n", " ") for each in INLINE.findall(SHELL.sub("", text)))]
        for command in (command for each in code for command in simple_commands(each)):
            if (arguments := of_regard(command)) is not None and arguments[:1] != ["VERB"]:
                yield str(page.relative_to(ROOT)), arguments


def test_every_verb_and_option_of_the_pages_exists():
    found = list(documented())
    assert len(found) > 150
    assert len({page for page, _ in found}) > 20
    assert [(page, *arguments, problem) for page, arguments in found if (problem := unknown(arguments))] == []


def test_every_target_of_make_in_the_pages_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    named = {
        (str(page.relative_to(ROOT)), target)
        for page in PAGES
        for target in re.findall(r"(?:^|`|&& )make ([a-z-]+)", page.read_text("utf-8"), re.M)
    }
    assert {target for _, target in named} >= {"docs", "test", "demo"}
    assert [pair for pair in sorted(named) if pair[1] not in targets] == []


def test_a_command_that_does_not_exist_is_found():
    script = "A=1 regard predict run --beam 4 < x | head; (cd y && regard nonsense) # regard --wrong\n"
    script += "python -m regard look m t --maps a"
    found = [arguments for command in simple_commands(script) if (arguments := of_regard(command)) is not None]
    assert [each[0] for each in found] == ["predict", "nonsense", "look"]
    assert [unknown(each) for each in found] == ["", "no verb nonsense", "No such option: --maps"]


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path):
    write_parallel_text(tmp_path / "multi30k")
    shutil.copyfile(ROOT / "tests/interop/configurations/opennmt_transformer.yaml", tmp_path / "train.yaml")
    (tmp_path / "sentences.txt").write_text("a dog runs\ntwo men talk\n")
    settings = os.environ | {"REGARD_CACHE": str(tmp_path / ".cache"), "TESTED_PYTHON": sys.executable}
    done = []
    for code in SHELL.findall((ROOT / "README.md").read_text("utf-8")):
        for line in (line for line in COMMENT.sub("", code).splitlines() if line.startswith("regard ")):
            verb, first = line.split()[1:3]
            if verb in ELSEWHERE:
                continue
            line = line.replace("> my.toml", "> converted.toml") if verb == "convert" else line
            small = [f"--set {change}" for change in SMALL[first].split()] if verb == "train" else []
            script = 'regard() { "$TESTED_PYTHON" -m regard "$@"; }\n' + " ".join([line.strip(), *small])
            ended = subprocess.run(
                ["bash", "-ec", script], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False
            )
            assert ended.returncode == 0, f"{script}\n{ended.stdout}{ended.stderr}"
            done.append(verb)
    assert done == [
        "train", "look", "recipes", "convert", "train", "evaluate", "predict", "look", "export",
    ]  # fmt: skip
    assert (tmp_path / "look.html").stat().st_size > 10_000
    assert (tmp_path / "mine" / "config.json").exists()
