"""Shell commands in the pages: found, split into words, and made small enough for a test."""

import gzip
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

SHELL = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"(?:^|\s)#.*$", re.MULTILINE)
ELSEWHERE = {"studio", "serve", "import"}  # verbs that run until they are stopped, or need a network
# What makes `regard train` of a recipe small enough for a test.
SMALL = {
    "dates": "train.max_steps=4 train.warmup_steps=2 train.validate_every=4 train.device=cpu",
    "my.toml": "train.max_steps=4 train.warmup_steps=2 train.validate_every=4 train.device=cpu model.encoder.dim=32 "
    "model.encoder.layers=1 model.encoder.heads=2 model.encoder.ffn_dim=64 model.decoder.dim=32 model.decoder.layers=1 "
    "model.decoder.heads=2 model.decoder.ffn_dim=64 data.source.vocab_size=300 data.target.vocab_size=300",
}


def simple_commands(code: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, as words; what stands in quotes is one word."""
    text = COMMENT.sub("", code).replace("\\\n", " ")
    words = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    words.whitespace, words.whitespace_split, words.commenters = " \t", True, ""
    command: list[str] = []
    for word in [*words, "\n"]:
        if word and set(word) <= set("();|&\n"):
            yield command
            command = []
        else:
            command.append(word)


def of_regard(command: list[str]) -> list[str] | None:
    """The arguments of a call of `regard`; None where the command is another."""
    while command and "=" in command[0]:
        command = command[1:]  # settings of the environment
    if command[:1] == ["regard"]:
        return command[1:]
    at = next((i for i, pair in enumerate(pairwise(command)) if pair == ("-m", "regard")), None)
    return None if at is None else command[at + 2 :]


def write_parallel_text(folder: Path) -> None:
    """The files that the recipe `translation` names, small."""
    folder.mkdir()
    pairs = {"en": "a dog runs\ntwo men talk\n" * 20, "de": "ein Hund rennt\nzwei Männer reden\n" * 20}
    for split in ("train", "val", "test_2016_flickr"):
        for side, text in pairs.items():
            (folder / f"{split}.{side}.gz").write_bytes(gzip.compress(text.encode()))
