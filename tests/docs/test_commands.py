"""Commands of the pages, also in their text: verbs, options and `make` targets exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import typer

from regard.cli import app
from support.page_commands import SHELL, of_regard, simple_commands

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
        command.make_parser(context).parse_args(
            [word for word in arguments if word not in ("…", "...", ">", "<")]
        )
    except Exception as error:  # a usage error of the click that typer carries
        return "" if str(error) == f"Option '{arguments[-1]}' requires an argument." else str(error)
    return ""


def documented() -> Iterator[tuple[str, list[str]]]:
    """Each call of `regard` in the blocks and in the text of the pages, with its page."""
    for page in PAGES:
        text = page.read_text("utf-8")
        code = [
            *SHELL.findall(text),
            *(each.replace("\n", " ") for each in INLINE.findall(SHELL.sub("", text))),
        ]
        for command in (command for each in code for command in simple_commands(each)):
            if (arguments := of_regard(command)) is not None and arguments[:1] != ["VERB"]:
                yield str(page.relative_to(ROOT)), arguments


def test_every_verb_and_option_of_the_pages_exists():
    found = list(documented())
    assert len(found) > 150
    assert len({page for page, _ in found}) > 20
    assert [
        (page, *arguments, problem) for page, arguments in found if (problem := unknown(arguments))
    ] == []


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
    script = (
        "A=1 regard predict run --beam 4 < x | head; (cd y && regard nonsense) # regard --wrong\n"
    )
    script += "python -m regard look m t --maps a"
    found = [
        arguments
        for command in simple_commands(script)
        if (arguments := of_regard(command)) is not None
    ]
    assert [each[0] for each in found] == ["predict", "nonsense", "look"]
    assert [unknown(each) for each in found] == ["", "no verb nonsense", "No such option: --maps"]
